"""escnn and ours: the same filters, the same Euclidean limit, tensors converted by a view."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from manifoldnorm.equivariant import (
    CyclicGroup4,
    DihedralGroup4,
    GlobalPool,
    PlanarGroup,
    PoincareGroupConv2d,
    PoincareLiftingConv2d,
    PoincareMLR,
    check_equivariance,
    group_filters,
    lift_filters,
)
from manifoldnorm.equivariant import escnn as bridge
from manifoldnorm.nn.hyperbolic_init import beta_factor

try:
    escnn = bridge.load_escnn()
except ModuleNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

GROUPS = [CyclicGroup4(), DihedralGroup4()]
# escnn computes its filter bases in float32 whatever the dtype.
ESCNN_PRECISION = 1e-6


@pytest.fixture(scope="module", params=GROUPS, ids=lambda g: g.name)
def group(request: pytest.FixtureRequest) -> PlanarGroup:
    return request.param


def convolutions(group: PlanarGroup) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    image = escnn.nn.FieldType(bridge.group_space(group), 2 * [bridge.group_space(group).trivial_repr])
    fields = bridge.regular_fields(group, 3)
    return (
        escnn.nn.R2Conv(image, fields, 3, padding=1, bias=False),
        escnn.nn.R2Conv(fields, bridge.regular_fields(group, 2), 3, padding=1, bias=False),
    )


def test_filters_generate_escnn_filters(group: PlanarGroup) -> None:
    """The identity's filters, turned and permuted by us, are all of escnn's."""
    lifting, convolution = convolutions(group)
    ours = lift_filters(group, bridge.base_filters(lifting, group)).flatten(0, 1)
    torch.testing.assert_close(ours, lifting.expand_parameters()[0], rtol=0, atol=ESCNN_PRECISION)
    ours = group_filters(group, bridge.base_filters(convolution, group)).flatten(2, 3).flatten(0, 1)
    torch.testing.assert_close(ours, convolution.expand_parameters()[0], rtol=0, atol=ESCNN_PRECISION)


def test_flat_limit_is_escnn(group: PlanarGroup) -> None:
    """c -> 0 with the same filters divided by 2 beta: both convolutions to 1e-6 of the largest output."""
    lifting, convolution = convolutions(group)
    x = torch.randn(2, 2, 6, 5)
    fields = lifting(escnn.nn.GeometricTensor(x, lifting.in_type))
    expected = convolution(fields)
    ours = PoincareLiftingConv2d(2, 3, 3, padding=1, group=group, c=1e-12, bias=False)
    then = PoincareGroupConv2d(3, 2, 3, padding=1, group=group, c=1e-12, bias=False)
    with torch.no_grad():
        ours.weight.copy_(bridge.base_filters(lifting, group) / (2 * beta_factor(2, 18)))
        then.weight.copy_(bridge.base_filters(convolution, group) / (2 * beta_factor(3, 27 * group.order)))
    u = ours(x)
    for actual, tensor in ((u, fields), (then(u), expected)):
        reference = bridge.from_geometric(tensor, group)
        error = (actual - reference).abs().max() / reference.abs().max()
        assert float(error.detach()) < ESCNN_PRECISION


def test_conversion_is_a_view_and_round_trips(group: PlanarGroup) -> None:
    features = torch.randn(2, 3, group.order, 4, 4)
    tensor = bridge.to_geometric(features, group)
    back = bridge.from_geometric(tensor, group)
    assert torch.equal(back, features)
    assert back.data_ptr() == features.data_ptr()


def test_actions_agree(group: PlanarGroup) -> None:
    """escnn's own transform of a geometric tensor is act_features, element by element."""
    features = torch.randn(1, 2, group.order, 5, 5)
    tensor = bridge.to_geometric(features, group)
    elements = list(tensor.type.gspace.testing_elements)
    assert len(elements) == group.order
    moved = [bridge.from_geometric(tensor.transform(element), group) for element in elements]
    ours = [group.act_features(g, features) for g in group.elements]
    matches = [[torch.allclose(a, b, atol=1e-5) for b in ours] for a in moved]
    assert all(sum(row) == 1 for row in matches)
    assert all(sum(column) == 1 for column in zip(*matches))


def test_euclidean_stem(group: PlanarGroup) -> None:
    """An escnn stem in front of hyperbolic layers: equivariant features, gradients through both."""
    lifting, _ = convolutions(group)
    stem = escnn.nn.SequentialModule(lifting, escnn.nn.ReLU(lifting.out_type))
    model = nn.Sequential(
        bridge.EuclideanStem(stem, group, c=0.5),
        PoincareGroupConv2d(3, 4, 3, padding=1, group=group, c=0.5),
    )
    x = torch.randn(2, 2, 6, 5)
    report = check_equivariance(model, group, x)
    assert report.passed, report
    head = nn.Sequential(GlobalPool(0.5), PoincareMLR(4, 3, c=0.5))
    head(model(x)).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_wrong_fields_are_explained() -> None:
    image = convolutions(CyclicGroup4())[0].in_type
    tensor = escnn.nn.GeometricTensor(torch.randn(1, 2, 4, 4), image)
    with pytest.raises(ValueError, match="must hold regular fields of C4"):
        bridge.from_geometric(tensor, CyclicGroup4())
    with pytest.raises(ValueError, match="group must be"):
        bridge.group_space("C4")  # type: ignore[arg-type]


def test_the_package_does_not_import_escnn() -> None:
    code = (
        "import sys, manifoldnorm.equivariant, manifoldnorm.equivariant.escnn\n"
        "assert not any(n == 'escnn' or n.startswith(('escnn.', 'lie_learn')) for n in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
