"""The groups: their laws, and their actions on images and features."""

import pickle

import pytest
import torch

from manifoldnorm.equivariant import CyclicGroup4, DihedralGroup4, PlanarGroup, TrivialGroup

GROUPS = [TrivialGroup(), CyclicGroup4(), DihedralGroup4()]


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_laws(group: PlanarGroup) -> None:
    """Identity, inverses and associativity; each row of the multiplication table is a permutation."""
    for g in group.elements:
        assert group.mul(g, 0) == group.mul(0, g) == g
        assert group.mul(g, group.inv(g)) == group.mul(group.inv(g), g) == 0
        assert sorted(group.left_permutation(g)) == list(group.elements)
        for h in group.elements:
            for k in group.elements:
                assert group.mul(group.mul(g, h), k) == group.mul(g, group.mul(h, k))


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_actions_are_homomorphisms_and_faithful(group: PlanarGroup) -> None:
    image, features = torch.randn(2, 3, 5, 4), torch.randn(2, 3, group.order, 5, 4)
    for g in group.elements:
        for h in group.elements:
            product = group.mul(g, h)
            assert torch.equal(group.act(g, group.act(h, image)), group.act(product, image))
            twice = group.act_features(g, group.act_features(h, features))
            assert torch.equal(twice, group.act_features(product, features))
    square = torch.randn(3, 3)
    assert len({tuple(group.act(g, square).flatten().tolist()) for g in group.elements}) == group.order


def test_d4_is_not_abelian() -> None:
    """So that tests on it tell left from right-regular permutations, which C4 cannot."""
    group = DihedralGroup4()
    assert group.mul(1, 4) != group.mul(4, 1)


def test_values() -> None:
    assert CyclicGroup4() == CyclicGroup4() != DihedralGroup4()
    assert len({CyclicGroup4(), CyclicGroup4(), DihedralGroup4()}) == 2
    assert pickle.loads(pickle.dumps(DihedralGroup4())) == DihedralGroup4()


def test_bad_input_is_explained() -> None:
    with pytest.raises(ValueError, match="C4 has elements 0 to 3, got 4"):
        CyclicGroup4().mul(4, 0)
    with pytest.raises(
        ValueError, match=r"shape \(B, C, 8, H, W\) with the orientations on axis 2, got \(2, 3, 4, 5, 5\)"
    ):
        DihedralGroup4().act_features(1, torch.randn(2, 3, 4, 5, 5))
