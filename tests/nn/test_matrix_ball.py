"""Layers on balls: they stay inside, keep symmetry, differentiate at degenerate points, save, copy and train."""

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

from manifoldnorm.manifolds.complex_ball import ComplexBall
from manifoldnorm.manifolds.hpd import HPD
from manifoldnorm.manifolds.siegel import MatrixBall, SiegelDisk
from manifoldnorm.nn import DomainBatchNorm, RiemannianBatchNorm
from manifoldnorm.nn.complex_ball import ComplexBallGraphLayer, ComplexBallGraphNetwork
from manifoldnorm.nn.matrix_ball import (
    MatrixBallLinear,
    OriginExp,
    OriginLog,
    PrototypeClassifier,
    SiegelNetwork,
)

DOUBLE = torch.complex128


@pytest.mark.parametrize(("manifold", "shape"), [(MatrixBall(), (2, 3)), (SiegelDisk(), (3, 3))])
def test_mixing_stays_inside_and_keeps_symmetry(manifold: MatrixBall, shape: tuple[int, int]) -> None:
    layer = MatrixBallLinear(manifold, 4, 5, shape, dtype=DOUBLE)
    x = manifold.expmap(torch.zeros(shape, dtype=DOUBLE), 8 * manifold.random(20, 4, *shape, dtype=DOUBLE))
    for scale in (0.1, 1.0, 30.0):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(scale * torch.randn_like(parameter))
        assert manifold.check_point_on_manifold(layer(x).detach())


def test_one_channel_identity_weights_change_nothing() -> None:
    layer = MatrixBallLinear(MatrixBall(), 1, 1, (2, 3), dtype=DOUBLE)
    with torch.no_grad():
        layer.left.copy_(torch.eye(2)[None])
        layer.right.copy_(torch.eye(3)[None])
    x = MatrixBall().random(4, 1, 2, 3, dtype=DOUBLE)
    torch.testing.assert_close(layer(x), x, rtol=1e-14, atol=1e-14)


def test_exp_and_log_are_inverse_and_differentiable_at_the_origin() -> None:
    for manifold, shape in ((SiegelDisk(), (2, 2)), (ComplexBall(), (3,))):
        u = manifold.random(5, *shape, dtype=DOUBLE)
        features = OriginLog(manifold)(OriginExp(manifold)(u))
        torch.testing.assert_close(features, torch.view_as_real(u).flatten(1), rtol=1e-12, atol=1e-12)
        zero = torch.zeros(2, *shape, dtype=DOUBLE, requires_grad=True)
        OriginLog(manifold)(OriginExp(manifold)(zero)).sum().backward()
        torch.testing.assert_close(zero.grad, torch.full_like(zero, 1 + 1j), rtol=1e-12, atol=1e-12)


def test_prototype_logits() -> None:
    head = PrototypeClassifier(MatrixBall(), (2, 1, 2), 3, dtype=DOUBLE)
    x = MatrixBall().random(4, 2, 1, 2, dtype=DOUBLE)
    with torch.no_grad():
        head.log_scale.fill_(0.5)
        head.bias.copy_(torch.arange(3.0))
    points = OriginExp(MatrixBall())(head.prototypes)
    expected = torch.stack(
        [head.bias[k] - torch.exp(torch.tensor(0.5)) * MatrixBall().dist2(x, points[k]).sum(-1) for k in range(3)], -1
    )
    torch.testing.assert_close(head(x), expected)


def networks() -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0], [1, 0, 3, 2, 5, 4, 0, 6]])
    return [
        (SiegelNetwork(MatrixBall(), (3, 2), (2, 2), 4), (MatrixBall().random(8, 3, 2, 2),)),
        (SiegelNetwork(SiegelDisk(), (3, 2), (2, 2), 4, normalization="none"), (SiegelDisk().random(8, 3, 2, 2),)),
        (
            SiegelNetwork(SiegelDisk(), (3, 2), (2, 2), 4, normalization="domain", domains=["a", "b"]),
            (SiegelDisk().random(8, 3, 2, 2), ["a", "b"] * 4),
        ),
        (ComplexBallGraphNetwork(5, (4, 3), 2), (torch.randn(8, 5), edges)),
        (PrototypeClassifier(ComplexBall(), (2, 3), 4), (ComplexBall().random(8, 2, 3),)),
    ]


@pytest.mark.parametrize("index", range(5))
def test_networks_save_copy_and_train(index: int) -> None:
    model, inputs = networks()[index]
    out = model(*inputs)
    assert out.dtype == torch.float32
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    labels = torch.arange(8) % out.shape[-1]
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    model.eval()
    expected = model(*inputs)
    other = copy.deepcopy(networks()[index][0]).eval()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    for twin in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(*inputs), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(model(*inputs)).all()


def test_domain_statistics_remove_an_isometry_exactly() -> None:
    """After refit a site moved by a transvection has the same spectra as the original site."""
    ball = MatrixBall()
    x = ball.random(30, 2, 2, 2, dtype=DOUBLE)
    moved = ball.translate(x, ball.random(2, 2, 2, dtype=DOUBLE))
    layer = DomainBatchNorm(ball, (2, 2, 2), domains=["here", "there"], dtype=DOUBLE)
    layer.refit(x, "here")
    layer.refit(moved, "there")
    layer.eval()
    a, b = (torch.linalg.svdvals(layer(points, site)) for points, site in ((x, "here"), (moved, "there")))
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    network = SiegelNetwork(ball, (2, 3), (2, 2), 4, normalization="domain", domains=["here", "there"], dtype=DOUBLE)
    network.refit(x, "here")
    network.refit(x, "there")
    network.eval()
    torch.testing.assert_close(network(x, "here"), network(x, "there"))


@pytest.mark.parametrize(
    ("manifold", "shape", "dimension"),
    [(MatrixBall(), (2, 3), 12), (SiegelDisk(), (3, 3), 12), (ComplexBall(), (3,), 6), (HPD(), (3, 3), 9)],
)
def test_normalizing_by_the_dimension(manifold: MatrixBall, shape: tuple[int, ...], dimension: int) -> None:
    """The output variance is dim s^2 v / (v + dim eps)."""
    layer = RiemannianBatchNorm(manifold, shape, normalize_dim=True, eps=1e-2, dtype=DOUBLE)
    with torch.no_grad():
        layer.weight.fill_(0.4)
    x = manifold.random(12, *shape, dtype=DOUBLE)
    v = manifold.variance(x)
    expected = dimension * 0.16 * v / (v + dimension * 1e-2)
    torch.testing.assert_close(manifold.variance(layer(x)), expected, rtol=1e-12, atol=1e-12)
    assert "normalize_dim=True" in repr(layer)


def test_adam_treats_real_and_imaginary_parts_as_separate_parameters() -> None:
    """A complex tangent parameter and its real view take the same steps."""
    manifold = SiegelDisk()
    target = manifold.random(3, 2, 2, dtype=DOUBLE)
    start = 0.1 * torch.randn(2, 2, dtype=DOUBLE)
    whole = nn.Parameter(start.clone())
    parts = nn.Parameter(torch.view_as_real(start).clone())
    optimizers = [torch.optim.Adam([p], lr=1e-2) for p in (whole, parts)]
    for _ in range(20):
        for optimizer, parameter in zip(optimizers, (whole, parts)):
            tangent = parameter if parameter.is_complex() else torch.view_as_complex(parameter)
            tangent = 0.5 * (tangent + tangent.mT)
            optimizer.zero_grad()
            manifold.dist2(OriginExp(manifold)(tangent), target).mean().backward()
            optimizer.step()
    torch.testing.assert_close(torch.view_as_real(whole.detach()), parts.detach(), rtol=1e-12, atol=1e-12)


def test_batch_norm_of_bias_and_mean_at_the_origin_has_right_gradients() -> None:
    """Where layers start: the bias and the input are exactly zero, a repeated and rank-deficient spectrum."""
    layer = RiemannianBatchNorm(SiegelDisk(), (2, 2), track_running_stats=False, dtype=DOUBLE)
    x = torch.zeros(3, 2, 2, dtype=DOUBLE)
    x[0, 0, 0], x[1, 0, 0] = 0.3, -0.3

    def run(bias: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"bias": bias, "weight": weight}, (x,))

    bias = torch.zeros(2, 2, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(run, (bias, torch.tensor(0.7, dtype=torch.float64, requires_grad=True)))


def test_graph_layer_averages_neighbours_in_the_tangent_space() -> None:
    layer = ComplexBallGraphLayer(2, 2, dtype=DOUBLE)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.eye(2))
    u = 0.3 * torch.randn(3, 2, dtype=DOUBLE)
    x = OriginExp(ComplexBall())(u)
    y = layer(x, torch.tensor([[0, 1], [2, 2]]))
    expected = OriginExp(ComplexBall())(torch.stack([u[0], u[1], u.mean(0)]))
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    nodes = torch.tensor([2, 0, 1])
    permuted = layer(x[nodes], torch.tensor([[1, 2], [0, 0]]))
    torch.testing.assert_close(permuted, y[nodes], rtol=1e-12, atol=1e-12)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="square"):
        MatrixBallLinear(SiegelDisk(), 1, 1, (2, 3))
    with pytest.raises(ValueError, match="in_channels and out_channels"):
        MatrixBallLinear(MatrixBall(), 0, 1, (2, 3))
    layer = MatrixBallLinear(MatrixBall(), 2, 1, (2, 3))
    with pytest.raises(ValueError, match=r"input must have shape \(\.\.\., 2, 2, 3\)"):
        layer(torch.zeros(4, 3, 2, 3, dtype=torch.complex64))
    with pytest.raises(TypeError, match="dtype"):
        layer(torch.zeros(4, 2, 2, 3, dtype=DOUBLE))
    with pytest.raises(ValueError, match="normalization must be"):
        SiegelNetwork(MatrixBall(), (2, 2), (2, 2), 3, normalization="layer")
    with pytest.raises(ValueError, match="domains goes with"):
        SiegelNetwork(MatrixBall(), (2, 2), (2, 2), 3, normalization="domain")
    with pytest.raises(ValueError, match="edge_index must have shape"):
        ComplexBallGraphLayer(2, 2)(torch.zeros(3, 2, dtype=torch.complex64), torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="classes must be positive"):
        PrototypeClassifier(MatrixBall(), (1, 2, 2), 0)
    domain = SiegelNetwork(MatrixBall(), (2, 2), (2, 2), 3, normalization="domain", domains=["a"])
    with pytest.raises(ValueError, match="domain must be given"):
        domain(torch.zeros(4, 2, 2, 2, dtype=torch.complex64))


def test_refit_without_domains_gives_the_statistics_of_a_training_pass() -> None:
    ball = MatrixBall()
    network = SiegelNetwork(ball, (3, 4), (2, 2), 5, dtype=torch.complex128)
    x = ball.random(12, 3, 2, 2, dtype=torch.complex128)
    network.refit(x)
    torch.testing.assert_close(network.eval()(x), network.train()(x), rtol=1e-8, atol=1e-8)
    with pytest.raises(TypeError, match="no statistics"):
        SiegelNetwork(ball, (3, 4), (2, 2), 5, normalization="none").refit(x)


def test_conversion_to_a_complex_dtype_keeps_real_tensors_real() -> None:
    """torch makes a complex weight of a real one."""
    ball, edges = MatrixBall(), torch.tensor([[0, 1, 2], [1, 2, 0]])
    points = ball.random(6, 3, 2, 2, dtype=DOUBLE)
    nodes = torch.randn(3, 4, dtype=DOUBLE)
    for module, arguments in (
        (RiemannianBatchNorm(HPD(), (2, 2)), (HPD().random(6, 2, 2, dtype=DOUBLE),)),
        (SiegelNetwork(ball, (3, 4), (2, 2), 5), (points,)),
        (ComplexBallGraphNetwork(4, (3,), 2), (nodes, edges)),
    ):
        before = {name: tensor.is_complex() for name, tensor in module.state_dict().items()}
        with pytest.warns(UserWarning, match="Complex modules are a new feature"):
            converted = module.to(DOUBLE)
        for name, tensor in converted.state_dict().items():
            assert tensor.is_complex() == before[name], name
            assert tensor.dtype in (DOUBLE, torch.float64, torch.long), name
        assert all(isinstance(parameter, nn.Parameter) for parameter in converted.parameters())
        y = converted(*arguments)
        assert y.dtype in (DOUBLE, torch.float64)
