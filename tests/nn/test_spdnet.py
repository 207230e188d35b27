"""SPD networks: layers on their own, and a network that learns real gestures across sessions."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

from manifoldnorm import SPDAffineInvariant, SPDLogEuclidean
from manifoldnorm.nn import DomainBatchNorm, LieBatchNorm
from manifoldnorm.nn.parametrize import LearnablePoint, orthonormal_rows
from manifoldnorm.nn.spdnet import BiMap, Covariance, LogEig, ReEig, SPDNet, covariance, vectorize_symmetric
from tests.nn.test_batchnorm import GEOMETRIES, points


def test_bimap_keeps_positive_definiteness_and_the_range_of_eigenvalues() -> None:
    layer = BiMap(5, 3, dtype=torch.float64)
    x = points(6, n=5)
    y = layer(x)
    assert torch.equal(y, y.mT)
    inside, outside = torch.linalg.eigvalsh(y), torch.linalg.eigvalsh(x)
    assert (inside[:, 0] >= outside[:, 0] - 1e-12).all()
    assert (inside[:, -1] <= outside[:, -1] + 1e-12).all()


def test_bimap_stays_orthonormal_under_adam_with_weight_decay() -> None:
    """Strong decay shrinks the parameter towards zero; the frame that is used does not notice."""
    layer = BiMap(6, 4)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05, weight_decay=1.0)
    x = points(5, n=6, dtype=torch.float32)
    for _ in range(200):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(layer.frame @ layer.frame.mT, torch.eye(4), rtol=0, atol=2e-6)


def test_bimap_finds_the_principal_subspace() -> None:
    """Maximising the trace of W X W^T over orthonormal rows gives the top eigenvectors."""
    x = points(1, n=6)[0]
    layer = BiMap(6, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05, weight_decay=1e-3)
    for _ in range(400):
        optimizer.zero_grad()
        (-layer(x).diagonal().sum()).backward()
        optimizer.step()
    best = torch.linalg.eigvalsh(x)[-2:].sum()
    assert float(layer(x).diagonal().sum().detach()) == pytest.approx(float(best), rel=1e-4)


def test_orthonormal_rows_gradient_scale_and_bad_shape() -> None:
    w = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(orthonormal_rows, w)
    torch.testing.assert_close(orthonormal_rows(1e-30 * w), orthonormal_rows(w))
    with pytest.raises(ValueError, match="more rows than columns"):
        orthonormal_rows(w.mT)


def test_rectification_and_logarithm() -> None:
    frame = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    x = frame @ torch.diag(torch.tensor([1e-6, 0.5, 2.0], dtype=torch.float64)) @ frame.mT
    y = ReEig(minimum=1e-2)(x)
    torch.testing.assert_close(torch.linalg.eigvalsh(y), torch.tensor([1e-2, 0.5, 2.0], dtype=torch.float64))
    log = LogEig()(y)
    torch.testing.assert_close(torch.linalg.matrix_exp(log), y)
    torch.testing.assert_close(vectorize_symmetric(log).norm(), torch.linalg.matrix_norm(log))


def test_covariance_agrees_with_torch_and_shrinks_towards_the_mean_variance() -> None:
    signals = torch.randn(3, 40, 5, dtype=torch.float64)
    plain = covariance(signals)
    torch.testing.assert_close(plain[1], torch.cov(signals[1].mT))
    shrunk = Covariance(shrinkage=0.3)(signals)
    level = plain.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(shrunk, 0.7 * plain + 0.3 * level)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rank_deficient_covariance_is_named(dtype: torch.dtype) -> None:
    signals = torch.randn(2, 3, 20, 4, dtype=dtype)
    signals[1, 2, :, 3] = signals[1, 2, :, 0] + signals[1, 2, :, 1]
    with pytest.raises(ValueError, match=r"signals\[1, 2\].*rank 3 of 4.*shrinkage"):
        covariance(signals)
    assert torch.isfinite(covariance(signals, shrinkage=1e-3)).all()
    with pytest.raises(ValueError, match="not positive definite"):
        covariance(torch.randn(3, 5, dtype=dtype))
    with pytest.raises(ValueError, match="not positive definite"):
        covariance(torch.full((9, 2), torch.nan, dtype=dtype))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="out_size"):
        BiMap(3, 4)
    with pytest.raises(ValueError, match=r"\(\.\.\., 4, 4\)"):
        BiMap(4, 2)(torch.eye(3))
    with pytest.raises(ValueError, match="minimum"):
        ReEig(minimum=0.0)
    with pytest.raises(ValueError, match="sizes"):
        SPDNet((4,), 2)
    with pytest.raises(ValueError, match="shrinkage"):
        covariance(torch.randn(9, 2), shrinkage=2.0)
    with pytest.raises(ValueError, match="time"):
        covariance(torch.randn(1, 2))
    net = SPDNet((4, 3), 2, norm=lambda n: DomainBatchNorm(SPDLogEuclidean(), (n, n), domains=["a"]))
    with pytest.raises(ValueError, match=r"domain must be given.*\['a'\]"):
        net(points(3, n=4, dtype=torch.float32))


@pytest.mark.parametrize("layer", [BiMap(3, 2), ReEig(), LogEig()], ids=repr)
def test_a_bad_matrix_is_named_by_every_layer(layer: torch.nn.Module) -> None:
    """An unsymmetric matrix would otherwise pass as its symmetric part, and integers as zeros."""
    x = points(4, 2, dtype=torch.float32)
    for value, words in ((1.0, r"input\[2, 1\].*symmetric"), (torch.nan, r"input\[2, 1\] is not finite")):
        bad = x.clone()
        bad[2, 1, 0, 1] += value
        with pytest.raises(ValueError, match=words):
            layer(bad)
    # A small matrix among large ones is looked at on its own scale.
    scaled = torch.stack([1e8 * torch.eye(3), torch.tensor([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]])])
    with pytest.raises(ValueError, match=r"input\[1\].*symmetric"):
        layer(scaled)
    with pytest.raises(TypeError, match=r"floating point dtype, got torch.int64"):
        layer(torch.eye(3, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"must be a torch.Tensor, got ndarray"):
        layer(x.numpy())
    with pytest.raises(ValueError, match="must have shape"):
        layer(torch.ones(5, 3))
    assert torch.func.vmap(layer)(x).shape == layer(x).shape


def test_logarithm_names_a_matrix_that_is_not_positive_definite() -> None:
    x = points(3)
    x[1] = -x[1]
    with pytest.raises(ValueError, match=r"input\[1\].*positive definite"):
        LogEig()(x)


def test_covariance_refuses_what_is_not_real_floating_point_and_works_under_vmap() -> None:
    with pytest.raises(TypeError, match=r"signals must have a real floating point dtype, got torch.int64"):
        covariance(torch.ones(9, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="complex"):
        covariance(torch.randn(9, 2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="ndarray"):
        covariance(torch.randn(9, 2).numpy())
    signals = torch.randn(4, 9, 2, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(covariance)(signals), covariance(signals))
    with pytest.raises(ValueError, match="time is the last dimension but one"):
        covariance(torch.randn(8, 200))


def test_network_dtypes() -> None:
    """Half precision input of a float32 network is welcome, as in the batch norm; other dtypes are named."""
    net = network()
    x = points(8, n=5, dtype=torch.float32)
    for dtype in (torch.float16, torch.bfloat16):
        y = net.eval()(x.to(dtype))
        assert y.dtype == torch.float32
        torch.testing.assert_close(y, net(x), rtol=0.1, atol=0.1)
    with pytest.raises(TypeError, match=r"float64 but the layer has torch.float32"):
        net(x.double())


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> SPDNet:
    generator = torch.Generator().manual_seed(seed)

    def norm(n: int) -> LieBatchNorm:
        return LieBatchNorm(SPDAffineInvariant(), (n, n), dtype=dtype)

    return SPDNet((5, 4, 3), 3, norm=norm, generator=generator, dtype=dtype)


def test_network_state_and_copies() -> None:
    net = network()
    x = points(8, n=5, dtype=torch.float32)
    net(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.eval()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other(x), net(x))
    fresh = network(seed=5).eval()
    fresh.load_state_dict(net.state_dict())
    torch.testing.assert_close(fresh(x), net(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(net(x).float(), net(x).float(), rtol=0.05, atol=0.05)


def test_refit_of_the_network_gives_the_statistics_of_a_training_pass() -> None:
    net = network(dtype=torch.float64)
    x = points(12, n=5)
    net.refit(x)
    assert net.training
    torch.testing.assert_close(net.eval()(x), net.train()(x), rtol=1e-8, atol=1e-8)


def test_refit_leaves_the_modes_as_they_were() -> None:
    """Also of layers that a user has frozen, and when the data are bad."""
    net = network(dtype=torch.float64)
    net.layers[1].eval()
    modes = [module.training for module in net.modules()]
    net.refit(points(12, n=5))
    assert [module.training for module in net.modules()] == modes
    with pytest.raises(ValueError, match="not finite"):
        net.refit(torch.full((4, 5, 5), torch.nan, dtype=torch.float64))
    assert [module.training for module in net.modules()] == modes


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_learnable_point_converges_to_the_mean_under_adam(manifold: SPDAffineInvariant) -> None:
    x = points(6)
    point = LearnablePoint(manifold, (3, 3), point=points(seed=4), dtype=torch.float64)
    torch.testing.assert_close(point(), points(seed=4))
    optimizer = torch.optim.Adam(point.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 250)
    for _ in range(250):
        optimizer.zero_grad()
        manifold.dist2(point(), x).mean().backward()
        optimizer.step()
        scheduler.step()
    assert float(manifold.dist(point().detach(), manifold.mean(x))) < 1e-3
    average = torch.optim.swa_utils.AveragedModel(point)
    average.update_parameters(point)
    assert manifold.check_point_on_manifold(average().detach())


def emg_subset() -> tuple[Tensor, object]:
    pytest.importorskip("geomstats", reason="carries the EMG recordings")
    from manifoldnorm.datasets.emg import emg

    data = emg(length=400)
    return data.covariances(), data


def test_statistics_per_recording_help_across_sessions() -> None:
    """Half the windows and few epochs; the benchmark and the demo run it in full."""
    from manifoldnorm.demos.emg import CrossSession, cross_session_accuracy

    matrices, data = emg_subset()
    session = CrossSession.of(data, matrices)
    scores = {
        norm: cross_session_accuracy(SPDLogEuclidean(), norm, session, seed=0, epochs=12)
        for norm in ("shared", "per recording")
    }
    assert scores["per recording"] > 0.78
    assert scores["per recording"] > scores["shared"] + 0.05
