"""Equivariance of every layer and of networks, and controls that must fail."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from manifoldnorm.equivariant import (
    Curvature,
    CyclicGroup4,
    DihedralGroup4,
    EquivariantPoincareResNet,
    FromEuclidean,
    GlobalPool,
    GroupPool,
    JointOrientationBatchNorm2d,
    MidpointPool2d,
    MobiusResidual,
    PlanarGroup,
    PoincareBasicBlock,
    PoincareGroupConv2d,
    PoincareLiftingConv2d,
    PoincareReLU,
    TrivialGroup,
    check_equivariance,
    group_filters,
    recalibrate,
    window_overhang,
)
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.nn.hyperbolic_batchnorm import PoincareBatchNorm

GROUPS = [CyclicGroup4(), DihedralGroup4()]
DTYPES = [torch.float64, torch.float32]


def randomize(module: nn.Module) -> nn.Module:
    """Give biases and weights of all layers values away from their starts, so that nothing hides behind zeros."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
    return module


def layers(group: PlanarGroup) -> dict[str, tuple[Callable[[], nn.Module], bool, tuple[int, int]]]:
    """Name -> (module, whether its input is an image, height and width)."""
    options = {"group": group, "c": 0.7}
    return {
        "lifting": (lambda: PoincareLiftingConv2d(3, 4, 3, padding=1, **options), True, (6, 5)),
        "lifting even kernel": (lambda: PoincareLiftingConv2d(3, 4, 4, stride=2, padding=1, **options), True, (6, 8)),
        "lifting odd size, stride 2": (
            lambda: PoincareLiftingConv2d(3, 4, 3, stride=2, padding=1, **options),
            True,
            (7, 5),
        ),
        "group": (lambda: PoincareGroupConv2d(3, 4, 3, padding=1, **options), False, (6, 5)),
        "group 1x1": (lambda: PoincareGroupConv2d(3, 4, 1, **options), False, (5, 4)),
        "group even kernel": (lambda: PoincareGroupConv2d(3, 4, 2, stride=2, **options), False, (6, 4)),
        "group dilated": (lambda: PoincareGroupConv2d(3, 4, 3, padding=2, dilation=2, **options), False, (6, 7)),
        "group without bias": (lambda: PoincareGroupConv2d(3, 4, 3, bias=False, **options), False, (6, 5)),
        "batch norm": (lambda: JointOrientationBatchNorm2d(3, **options), False, (6, 5)),
        "batch norm, Frechet": (lambda: JointOrientationBatchNorm2d(3, average="frechet", **options), False, (4, 5)),
        "batch norm, transport": (
            lambda: JointOrientationBatchNorm2d(3, form="parallel_transport", **options),
            False,
            (4, 5),
        ),
        "relu": (PoincareReLU, False, (6, 5)),
        "midpoint pool": (lambda: MidpointPool2d(2, c=0.7), False, (6, 4)),
        "padded midpoint pool": (lambda: MidpointPool2d(3, stride=2, padding=1, c=0.7), False, (7, 5)),
        "group pool": (lambda: GroupPool(0.7), False, (6, 5)),
        "global pool": (lambda: GlobalPool(0.7), False, (6, 5)),
        "residual": (lambda: Doubling(0.7), False, (6, 5)),
        "block": (lambda: PoincareBasicBlock(3, 4, **options), False, (6, 5)),
    }


class Doubling(nn.Module):
    """A residual whose branch is a power of the stream."""

    def __init__(self, c: float) -> None:
        super().__init__()
        self.add = MobiusResidual(c)

    def forward(self, u: Tensor) -> Tensor:
        return self.add(u, u.relu() - 0.3 * u.square())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", list(layers(CyclicGroup4())))
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_layers(group: PlanarGroup, name: str, dtype: torch.dtype) -> None:
    """All elements, one element per sample, train and eval, H != W, odd and even: 1e-10 in float64, 1e-4 in float32."""
    make, image, size = layers(group)[name]
    module = randomize(make()).to(dtype)
    shape = (3, 3, *size) if image else (3, 3, group.order, *size)
    x = 0.5 * torch.randn(shape, dtype=dtype)
    for training in (True, False):
        report = check_equivariance(module.train(training), group, x)
        assert report.passed, report
        # Even elements keep the shape, so "one element per sample" was really tried.
        assert report.mixed_error == report.mixed_error
        module(x)
    square = check_equivariance(module.eval(), group, 0.5 * torch.randn((*shape[:-2], *(max(size),) * 2), dtype=dtype))
    assert square.passed, square


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
@pytest.mark.parametrize("c", [0.1, 1.0])
def test_trained_network(group: PlanarGroup, c: float, dtype: torch.dtype) -> None:
    """After optimizer steps on a learned curvature: features and scores, train and eval."""
    model = EquivariantPoincareResNet(1, 3, group=group, widths=(3, 4), depths=(1, 1), c=Curvature(c)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    labels = torch.arange(12) % 3
    images = torch.randn(12, 1, 8, 6, dtype=dtype) + labels[:, None, None, None]
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    for training in (True, False):
        model.train(training)
        for part in (model, model.features):
            report = check_equivariance(part, group, images[:4])
            assert report.passed, report


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_untrained_network_at_the_cut(group: PlanarGroup) -> None:
    """With an untrained model's running statistics features reach the largest radius of float64, and stay exact."""
    model = EquivariantPoincareResNet(1, 3, group=group, widths=(3, 4), depths=(1, 1), c=1.0).double().eval()
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    assert 2 * float(model.features(x).detach().norm(dim=1).max()) > 15
    report = check_equivariance(model.features, group, x)
    assert report.passed, report


def test_imagenet_stem_and_depth() -> None:
    model = EquivariantPoincareResNet(3, 5, group=CyclicGroup4(), widths=(2, 3), depths=(1, 2), stem="imagenet")
    assert model.size_multiple == 8
    recalibrate(model, [torch.randn(4, 3, 32, 24)])
    report = check_equivariance(model.eval(), CyclicGroup4(), torch.randn(2, 3, 32, 24))
    assert report.passed, report
    assert len(model.stages[1]) == 3


def test_trivial_group_is_the_ordinary_layer() -> None:
    """C1 gives an ordinary Poincaré convolution and network, which is not equivariant under C4."""
    from manifoldnorm.nn.hyperbolic import PoincareConv2d

    lifted = PoincareLiftingConv2d(3, 4, 3, stride=2, group=TrivialGroup(), c=0.5)
    plain = PoincareConv2d(3, 4, 3, stride=2, c=0.5)
    plain.load_state_dict(lifted.state_dict())
    x = torch.randn(2, 3, 8, 6)
    torch.testing.assert_close(lifted(x).squeeze(2), plain(x))
    model = EquivariantPoincareResNet(1, 3, group=TrivialGroup(), widths=(3,), depths=(1,)).train()
    assert not check_equivariance(model, CyclicGroup4(), torch.randn(2, 1, 6, 6)).passed


# Controls: what breaks equivariance, and which part of the check finds it.


class Permuted(PoincareGroupConv2d):
    """A group convolution with another permutation of the filters' orientations."""

    def __init__(self, *args: int, permutation: Callable[[PlanarGroup, int], list[int]], group: PlanarGroup) -> None:
        super().__init__(*args, group=group, c=0.7, dtype=torch.float64)
        self.permutation = permutation

    def _filters(self, normals: Tensor) -> Tensor:
        turned = [self.group.act(g, normals[:, :, self.permutation(self.group, g)]) for g in self.group.elements]
        return torch.stack(turned, dim=1).flatten(2, 3)


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_permutations_of_the_orientations(group: PlanarGroup) -> None:
    """Left-regular passes, none fails; right-regular passes on C4, which is abelian, and fails on D4."""
    x = torch.randn(2, 3, group.order, 5, 4, dtype=torch.float64)

    def error(permutation: Callable[[PlanarGroup, int], list[int]]) -> float:
        return check_equivariance(Permuted(3, 4, 3, permutation=permutation, group=group), group, x).max_error

    assert error(lambda k, g: k.left_permutation(g)) < 1e-12
    assert error(lambda k, g: list(k.elements)) > 1e-2
    right = error(lambda k, g: [k.mul(h, k.inv(g)) for h in k.elements])
    assert right > 1e-2 if group == DihedralGroup4() else right < 1e-12


class PerOrientation(nn.Module):
    """Statistics of their own for each orientation: wrong."""

    def __init__(self, channels: int, group: PlanarGroup) -> None:
        super().__init__()
        self.norms = nn.ModuleList(PoincareBatchNorm(channels, c=0.7, dtype=torch.float64) for _ in group.elements)

    def forward(self, u: Tensor) -> Tensor:
        return torch.stack([norm(u[:, :, g]) for g, norm in enumerate(self.norms)], dim=2)


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_statistics_per_orientation_fail_where_they_hide(group: PlanarGroup) -> None:
    """In train mode the whole batch turned alike passes; one element per sample, and eval mode, do not."""
    offsets = torch.randn(1, 3, group.order, 1, 1, dtype=torch.float64)
    x = torch.randn(4, 3, group.order, 5, 5, dtype=torch.float64) + offsets
    module = PerOrientation(3, group)
    report = check_equivariance(module.train(), group, x)
    assert max(report.errors) < 1e-10
    assert report.mixed_error > 1e-3
    for _ in range(20):
        module(x)
    assert max(check_equivariance(module.eval(), group, x).errors) > 1e-3


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_other_controls_fail(group: PlanarGroup) -> None:
    """A bias per orientation, Moebius addition over image rows, a plain convolution, a broken size."""
    x = torch.randn(2, 3, group.order, 6, 6, dtype=torch.float64)
    bias = torch.randn(1, 3, group.order, 1, 1, dtype=torch.float64)
    image = x[:, :, 0]
    wide = PoincareLiftingConv2d(3, 2, 3, stride=2, padding=1, group=group, strict=False, dtype=torch.float64)
    controls: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (lambda u: maps.boost(bias.expand_as(u), u, 0.7, 1), x),
        (lambda u: maps.boost(u, u.relu(), 0.7, -1), x),
        (nn.Conv2d(3, 2, 3, dtype=torch.float64), image),
        (wide, image),
    ]
    for module, data in controls:
        assert check_equivariance(module, group, data).max_error > 1e-3


def test_merging_orientations_into_one_vector_leaves_the_ball() -> None:
    """Why the layout is (C, |G|) points and not one vector: joined ball coordinates are longer than the radius."""
    group = DihedralGroup4()
    u = PoincareLiftingConv2d(3, 4, 3, padding=1, group=group, c=1.0)(2 * torch.randn(2, 3, 6, 6))
    ball = maps.exp0(u.detach(), 1.0, 1)
    assert float(ball.norm(dim=1).max()) < 1
    assert float(ball.flatten(1, 2).norm(dim=1).max()) > 1


def test_check_says_when_it_says_nothing() -> None:
    """A constant output gives no verdict; buffers are put back; a NaN is a failure."""
    x = torch.randn(2, 3, 4, 5, 5)
    report = check_equivariance(lambda u: torch.ones(2, 4), CyclicGroup4(), x)
    assert not report.passed
    assert "no verdict" in str(report)
    norm = JointOrientationBatchNorm2d(3, group=CyclicGroup4())
    check_equivariance(norm, CyclicGroup4(), x)
    assert int(norm.num_batches_tracked) == 0
    assert torch.equal(norm.running_mean, torch.zeros(3))
    assert not check_equivariance(lambda u: u * torch.nan, CyclicGroup4(), x).passed
    with pytest.raises(ValueError, match="images"):
        check_equivariance(torch.relu, CyclicGroup4(), torch.randn(3, 5))


# Sizes.


@pytest.mark.parametrize(
    "window", [(4, 2, 1, 1), (2, 2, 0, 1), (1, 2, 0, 1), (5, 2, 2, 1), (3, 1, 0, 1), (3, 3, 1, 1), (3, 2, 2, 2)]
)
def test_size_condition_is_exact(window: tuple[int, int, int, int]) -> None:
    """A size passes the condition exactly when the layer commutes with the group there."""
    kernel, stride, padding, dilation = window
    group = CyclicGroup4()
    layer = PoincareLiftingConv2d(
        2,
        2,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        group=group,
        strict=False,
        dtype=torch.float64,
    )
    for size in range(8, 14):
        x = torch.randn(2, 2, size, size, dtype=torch.float64)
        fits = window_overhang(size, kernel, stride, padding, dilation) == 0
        assert check_equivariance(layer, group, x).passed == fits


def test_size_errors_name_sizes_that_work() -> None:
    group = CyclicGroup4()
    layer = PoincareLiftingConv2d(1, 2, 3, stride=2, padding=1, group=group)
    with pytest.raises(ValueError, match=r"height 16 breaks equivariance.*Sizes that work are 15 and 17, every 2-th"):
        layer(torch.randn(1, 1, 16, 15))
    with pytest.raises(ValueError, match=r"for size 16 use kernel_size=2 without padding, or kernel_size=4 with"):
        layer(torch.randn(1, 1, 16, 15))
    layer(torch.randn(1, 1, 15, 17))
    with pytest.raises(ValueError, match="width 7 breaks equivariance"):
        MidpointPool2d(2)(torch.randn(1, 2, 4, 6, 7))
    with pytest.raises(ValueError, match="smaller than the window"):
        PoincareLiftingConv2d(1, 2, 5, group=group)(torch.randn(1, 1, 4, 8))
    model = EquivariantPoincareResNet(1, 3, group=group, widths=(2, 2, 2), depths=(1, 1, 1))
    with pytest.raises(ValueError, match=r"multiples of 4 .*got \(10, 8\); crop or pad \(side 10: 8 or 12\)"):
        model(torch.randn(1, 1, 10, 8))


def test_bad_input_is_explained() -> None:
    group = CyclicGroup4()
    with pytest.raises(ValueError, match=r"\(B, C, 4, H, W\) with the orientations on axis 2, got \(2, 4, 3, 5, 5\)"):
        PoincareGroupConv2d(3, 2, 3, group=group)(torch.randn(2, 4, 3, 5, 5))
    with pytest.raises(ValueError, match="a lifting convolution makes them"):
        JointOrientationBatchNorm2d(3, group=group)(torch.randn(2, 3, 5, 5))
    with pytest.raises(ValueError, match="3 channels on axis 1"):
        PoincareGroupConv2d(3, 2, 3, group=group)(torch.randn(2, 2, 4, 5, 5))
    with pytest.raises(ValueError, match="3 channels on axis 1"):
        PoincareLiftingConv2d(3, 2, 3, group=group)(torch.randn(2, 1, 5, 5))
    with pytest.raises(TypeError, match="group must be CyclicGroup4"):
        PoincareLiftingConv2d(3, 2, 3, group="C4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same in both directions"):
        MidpointPool2d((2, 1))
    with pytest.raises(ValueError, match="c must be positive"):
        PoincareLiftingConv2d(3, 2, 3, group=group, c=-0.5)
    with pytest.raises(ValueError, match="equally long lists"):
        EquivariantPoincareResNet(1, 3, group=group, widths=(2,), depths=(1, 1))
    with pytest.raises(ValueError, match=r"images of shape \(B, channels, H, W\)"):
        EquivariantPoincareResNet(1, 3, group=group)(torch.randn(1, 8, 8))


def test_filters_have_equal_norms_for_all_orientations() -> None:
    """Which is why norm, offset and their hyperbolic functions are shared."""
    filters = group_filters(DihedralGroup4(), torch.randn(3, 2, 8, 3, 3))
    norms = filters.flatten(2).norm(dim=2)
    torch.testing.assert_close(norms, norms[:, :1].expand_as(norms))


def test_euclidean_stem_of_any_kind_mixes() -> None:
    """An invariant-per-pixel Euclidean stem in front of the hyperbolic layers keeps the whole equivariant."""
    group = DihedralGroup4()
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.ReLU(),
        FromEuclidean(0.5),
        PoincareLiftingConv2d(4, 4, 3, group=group, c=0.5),
        GroupPool(0.5),
    )
    report = check_equivariance(model, group, torch.randn(2, 3, 6, 5))
    assert report.passed, report
