"""Networks on rotation sequences and on correlation matrices."""

import copy

import pytest
import torch

from manifoldnorm.linalg.rotation3 import rotation_from_vector, vector_from_rotation
from manifoldnorm.manifolds import CorrelationLogScaled, CorrelationOffLog, SPDLogEuclidean
from manifoldnorm.manifolds.rotations import Rotations
from manifoldnorm.nn import DomainBatchNorm, LieBatchNorm
from manifoldnorm.nn.correlation_net import CorBiMap, CorNet
from manifoldnorm.nn.lienet import LieNet, LogRot, RotMap, RotPool
from manifoldnorm.nn.spdnet import SPDNet

DOUBLE = torch.float64


def sequences(*batch: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return rotation_from_vector(0.4 * torch.randn(*batch, 3, generator=generator, dtype=DOUBLE))


def test_rot_map_rotates_each_joint() -> None:
    layer = RotMap(3, dtype=DOUBLE)
    x = sequences(2, 4, 3)
    y = layer(x)
    assert Rotations().check_point_on_manifold(y)
    torch.testing.assert_close(y[1, 2, 0], rotation_from_vector(layer.weight[0]) @ x[1, 2, 0])
    with pytest.raises(ValueError, match=r"\(\.\.\., 3, 3, 3\)"):
        layer(x[:, :, :2])


def test_rot_pool_keeps_the_largest_angle() -> None:
    x = sequences(2, 7, 3)
    y = RotPool(3)(x)
    assert y.shape == (2, 2, 3, 3, 3)
    angles = torch.linalg.vector_norm(vector_from_rotation(x), dim=-1)
    torch.testing.assert_close(
        torch.linalg.vector_norm(vector_from_rotation(y), dim=-1), angles[:, :6].unflatten(1, (2, 3)).amax(2)
    )
    with pytest.raises(ValueError, match="at least 3 frames"):
        RotPool(3)(x[:, :2])


def test_lienet_differentiates_and_goes_through_a_state_dict() -> None:
    def make() -> LieNet:
        return LieNet(3, 8, 4, norm=lambda j: LieBatchNorm(Rotations(), (j, 3, 3), dtype=DOUBLE), dtype=DOUBLE)

    net, x = make(), sequences(5, 8, 3)
    net(x).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    other = make()
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(other.eval()(x), copy.deepcopy(net).eval()(x))


def test_lienet_with_domains_is_blind_to_how_a_domain_is_mounted() -> None:
    """Right-invariant centring removes a fixed rotation on the right of every joint, once refitted."""
    x = rotation_from_vector(0.5 * vector_from_rotation(sequences(6, 4, 2, seed=1)))
    net = LieNet(
        2,
        4,
        3,
        pools=(2,),
        norm=lambda j: DomainBatchNorm(Rotations("right"), (j, 3, 3), domains=["a", "b"], dtype=DOUBLE),
        dtype=DOUBLE,
    )
    mounting = sequences(2, seed=2)
    net.refit(x, "a")
    net.refit(x @ mounting, "b")
    net.eval()
    torch.testing.assert_close(net(x, "a"), net(x @ mounting, "b"), rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="domain must be given"):
        net(x)


def test_too_many_pools() -> None:
    with pytest.raises(ValueError, match="more frames than there are"):
        LieNet(2, 3, 2, pools=(2, 2))


def test_log_rot_gives_vectors() -> None:
    v = torch.tensor([0.1, -0.2, 0.3], dtype=DOUBLE)
    torch.testing.assert_close(LogRot()(rotation_from_vector(v)), v)


def test_correlation_bimap_makes_correlations() -> None:
    x = CorrelationOffLog().random(7, 6, 6, dtype=DOUBLE)
    y = CorBiMap(6, 3, dtype=DOUBLE)(x)
    assert CorrelationOffLog().check_point_on_manifold(y)
    with pytest.raises(ValueError, match="at least 2"):
        CorBiMap(6, 1)


@pytest.mark.parametrize("geometry", [CorrelationOffLog(), CorrelationLogScaled()], ids=["off-log", "log-scaled"])
def test_correlation_net_learns(geometry: CorrelationOffLog | CorrelationLogScaled) -> None:
    """Two classes whose means differ are told apart, which the same network cannot do with shuffled labels' noise."""
    generator = torch.Generator().manual_seed(0)
    z = 0.3 * torch.randn(60, 4, 4, generator=generator, dtype=DOUBLE)
    labels = torch.arange(60) % 2
    z[labels == 1, 1, 0] += 0.8
    z[labels == 1, 0, 1] += 0.8
    x = geometry.undeform(geometry.project_chart(z))
    net = CorNet(geometry, 4, 2, norm=LieBatchNorm(geometry, (4, 4), dtype=DOUBLE), dtype=DOUBLE)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    assert float((net.eval()(x).argmax(1) == labels).double().mean()) > 0.85


def test_correlation_net_with_domains() -> None:
    geometry = CorrelationOffLog()
    x = geometry.random(6, 5, 5, dtype=DOUBLE)
    norm = DomainBatchNorm(geometry, (3, 3), domains=["a", "b"], dtype=DOUBLE)
    net = CorNet(geometry, 5, 2, hidden=3, norm=norm, dtype=DOUBLE)
    net.refit(x, "b")
    assert int(norm.num_batches_tracked[1]) == 1
    assert int(norm.num_batches_tracked[0]) == 0
    assert net.eval()(x, "b").shape == (6, 2)


def test_a_matrix_that_is_no_rotation_is_named() -> None:
    """The logarithm would take a reflection, or anything else, for the nearest rotation."""
    x = sequences(2, 8, 3)
    for spoil, words in (
        (lambda r: -r, "determinant"),
        (lambda r: r + 0.1, "orthogonal"),
        (lambda r: r * torch.nan, "not finite"),
    ):
        bad = x.clone()
        bad[1, 4, 2] = spoil(bad[1, 4, 2])
        for layer in (LieNet(3, 8, 4, dtype=DOUBLE), LogRot()):
            with pytest.raises(ValueError, match=rf"input\[1, 4, 2\].*{words}"):
                layer(bad)


def test_a_covariance_is_no_correlation() -> None:
    x = CorrelationOffLog().random(5, 4, 4, dtype=DOUBLE)
    bad = x.clone()
    bad[3] *= 2
    geometry = CorrelationOffLog()
    for layer in (
        CorNet(geometry, 4, 2, dtype=DOUBLE),
        CorNet(geometry, 4, 2, hidden=3, dtype=DOUBLE),
        CorBiMap(4, 3, dtype=DOUBLE),
    ):
        with pytest.raises(ValueError, match=r"input\[3\].*unit diagonal \(correlation_from_covariance"):
            layer(bad)
        with pytest.raises(ValueError, match=r"\(\.\.\., 4, 4\), got \(5, 3, 3\)"):
            layer(x[:, :3, :3])


def test_dtypes_of_networks() -> None:
    rotations, matrices = sequences(2, 8, 3).float(), CorrelationOffLog().random(5, 4, 4)
    for net, x in ((LieNet(3, 8, 4), rotations), (CorNet(CorrelationOffLog(), 4, 2, hidden=3), matrices)):
        assert net(x.bfloat16()).dtype == torch.float32
        with pytest.raises(TypeError, match=r"float64 but the layer has torch\.float32"):
            net(x.double())
        with pytest.raises(TypeError, match=r"must be a torch\.Tensor"):
            net(x.numpy())


def test_norms_are_made_by_functions() -> None:
    geometry = CorrelationOffLog()
    net = CorNet(geometry, 6, 2, hidden=4, norm=lambda n: LieBatchNorm(geometry, (n, n)))
    assert net(geometry.random(5, 6, 6)).shape == (5, 2)
    with pytest.raises(TypeError, match="norm must be a function from the number of joints"):
        LieNet(3, 8, 4, norm=LieBatchNorm(Rotations(), (3, 3, 3)))
    with pytest.raises(TypeError, match="norm must be a function from the size"):
        SPDNet((4, 3), 2, norm=LieBatchNorm(SPDLogEuclidean(), (3, 3)))
