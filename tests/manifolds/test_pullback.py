"""A flat geometry defined here, with a pair of functions only, gets all laws and a batch norm."""

import pytest
import torch
from torch import Tensor

from manifoldnorm import Euclidean, Flat, Manifold, Product, Pullback, SPDAffineInvariant
from manifoldnorm.nn import LieBatchNorm
from manifoldnorm.nn.parametrize import LearnablePoint
from manifoldnorm.testing import ManifoldSuite


class Cone(Flat):
    """Pairs (position, scale > 0): the position over the scale, and the logarithm of the scale, are the chart."""

    name = "the cone of positions and scales"
    ndim = 1

    def deform(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :-1] / x[..., -1:], x[..., -1:].log()], -1)

    def undeform(self, z: Tensor) -> Tensor:
        scale = z[..., -1:].exp()
        return torch.cat([z[..., :-1] * scale, scale], -1)


class TestCone(ManifoldSuite):
    manifold = Cone()
    event_shape = (3,)


class ShearedVectors(Pullback):
    """Vectors of three coordinates with the metric of a product, seen through a shear."""

    name = "sheared vectors"
    ndim = 1

    @property
    def codomain(self) -> Manifold:
        return Product((Euclidean(), (1,)), (Euclidean(), (2,)), weights=(1.0, 4.0))

    def deform(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :1].sinh(), x[..., 1:] + x[..., :1] ** 2], -1)

    def undeform(self, z: Tensor) -> Tensor:
        first = z[..., :1].asinh()
        return torch.cat([first, z[..., 1:] - first**2], -1)

    def projx(self, x: Tensor) -> Tensor:
        return x

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        return u.expand(torch.broadcast_shapes(x.shape, u.shape))

    def random(self, *size: int, generator=None, dtype=None, device=None) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=dtype, device=device)

    def _point_violations(self, x: Tensor) -> list:
        return []


class TestPullbackOfAProduct(ManifoldSuite):
    manifold = ShearedVectors()
    event_shape = (3,)


def test_a_flat_geometry_trains_in_a_batch_norm() -> None:
    """A linear classifier on normalised cone points separates two shifted clouds."""
    generator = torch.Generator().manual_seed(0)
    space = Cone()
    x = space.random(200, 3, generator=generator, dtype=torch.float64)
    labels = (space.deform(x)[:, 0] > 0.3).long()
    layer = LieBatchNorm(space, (3,), dtype=torch.float64)
    head = torch.nn.Linear(3, 2, dtype=torch.float64)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.05)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(head(space.deform(layer(x))), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


def test_a_point_off_the_chart_is_named() -> None:
    with pytest.raises(ValueError, match=r"x\[1\]"):
        Cone().assert_check_point_on_manifold(torch.tensor([[1.0, 2.0, 0.5], [1.0, 2.0, -0.5]]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Product(), "factors must not be empty"),
        (lambda: Product((SPDAffineInvariant(), (3,))), "event shape of 2 dimensions"),
        (lambda: Product((SPDAffineInvariant(), (3, 2))), "square"),
        (lambda: Product((Euclidean(), (3,)), weights=(1.0, 2.0)), "1 positive numbers"),
        (lambda: Product((Euclidean(), (3,)), weights=(-1.0,)), "positive"),
        (lambda: Product((Euclidean(), (3,))).origin(4), "3 entries"),
        (lambda: Euclidean(ndim=0), "ndim"),
        (lambda: Euclidean().mean(torch.ones(3, 2), dim=2), "dim must name"),
    ],
)
def test_bad_arguments_are_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_product_of_wrong_parts_is_named() -> None:
    """Parts that are too few or of another shape would make a vector that is no point."""
    space = Product((Euclidean(), 3), (SPDAffineInvariant(), (2, 2)))
    assert space == Product((Euclidean(), (3,)), (SPDAffineInvariant(), (2, 2)))
    with pytest.raises(ValueError, match="one for each of the 2 factors, got 1"):
        space.pack(torch.ones(3))
    with pytest.raises(ValueError, match=r"parts\[0\] must have shape \(\.\.\., 3\).*got \(4,\)"):
        space.pack(torch.ones(4), torch.eye(2))
    with pytest.raises(ValueError, match="must have 7 entries"):
        space.unpack(torch.ones(5, 6))
    for factors, words in (((Euclidean(), 3), "pairs"), (((Euclidean, 3),), "must be an instance of a manifoldnorm")):
        with pytest.raises(TypeError, match=words):
            Product(*factors)


def test_learnable_points_take_instances_and_lengths() -> None:
    assert LearnablePoint(Euclidean(), 4)().shape == (4,)
    with pytest.raises(TypeError, match="must be an instance of a manifoldnorm"):
        LearnablePoint(SPDAffineInvariant, (3, 3))
