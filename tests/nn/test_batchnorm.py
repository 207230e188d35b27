"""The batch norm: golden values, theorems, state, bad input; every geometry goes through the suite as well."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from manifoldnorm import (
    Euclidean,
    LieGroup,
    Manifold,
    SPDAffineInvariant,
    SPDCholeskyRightInvariant,
    SPDLogCholesky,
    SPDLogEuclidean,
)
from manifoldnorm.manifolds import FrobeniusSphere
from manifoldnorm.nn import DomainBatchNorm, LieBatchNorm, RiemannianBatchNorm
from tests.golden_files import arrays, faults, relative_error

GOLDEN: dict[str, LieGroup] = {
    "lem": SPDLogEuclidean(),
    "lem_ab": SPDLogEuclidean(alpha=0.5, beta=0.25),
    "lcm": SPDLogCholesky(),
    "lcm_t05": SPDLogCholesky(power=0.5),
    "aim": SPDAffineInvariant(),
    "aim_t05": SPDAffineInvariant(power=0.5),
    "crim": SPDCholeskyRightInvariant(),
}
GEOMETRIES = [SPDLogEuclidean(), SPDLogCholesky(), SPDAffineInvariant(), SPDCholeskyRightInvariant()]


def points(*batch: int, n: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return SPDAffineInvariant().random(*batch, n, n, generator=generator, dtype=torch.float64).to(dtype)


def golden_layer(name: str, **options: bool) -> LieBatchNorm:
    data = arrays(f"liebn_{name}")
    layer = LieBatchNorm(GOLDEN[name], data["bias"].shape, dtype=torch.float64, **options)
    layer.set_bias_point(data["bias"])
    with torch.no_grad():
        layer.weight.copy_(data["s"])
    return layer


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_geometry(name: str) -> None:
    """Exponential, logarithm, distance, mean, group operations and geodesics."""
    data, m = arrays(f"liebn_{name}"), GOLDEN[name]
    x = data["X1"]
    identity = m.identity(*x.shape[-2:], dtype=x.dtype)
    mean = m.mean(x)
    t = torch.tensor([0.1, 0.5], dtype=x.dtype)
    results = {
        "geo_exp0": m.expmap(identity, data["geo_V"]),
        "geo_log0": m.logmap(identity, x),
        "geo_dist": m.dist(x[:, None], x[None]),
        "geo_dist0": m.dist(x, identity),
        "geo_mean": mean,
        "geo_var": m.variance(x, mean),
        "geo_prod01": m.mul(x[0], x[1]),
        "geo_inv0": m.inv(x[0]),
        "geo_geod01": m.geodesic(x[0], x[1], t),
        "geo_center": m.expmap(identity, m.center(x, mean)),
        "geo_scale": m.expmap(identity, 0.6 * m.logmap(identity, x)),
    }
    for key, value in results.items():
        assert relative_error(value, data[key]) <= 1e-10, key


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_training_and_evaluation(name: str) -> None:
    data, layer = arrays(f"liebn_{name}"), golden_layer(name)
    out1 = layer(data["X1"])
    first = {"gold_out1": out1, "gold_rm1": layer.running_mean.clone(), "gold_rv1": layer.running_var.clone()}
    layer(data["X2"])
    out3 = layer(data["X3"])
    third = {"gold_out3": out3, "gold_rm3": layer.running_mean, "gold_rv3": layer.running_var}
    layer.eval()
    for key, value in {**first, **third, "gold_eval": layer(data["X1"])}.items():
        assert relative_error(value, data[key]) <= 1e-10, key


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("kind", ["full", "detached"])
def test_golden_gradients(name: str, kind: str) -> None:
    data, layer = arrays(f"liebn_{name}"), golden_layer(name, detach_stats=kind == "detached")
    x = data["X1"].clone().requires_grad_()
    (layer(x) * data["grad_W"]).sum().backward()
    assert relative_error(x.grad, data[f"grad_{kind}_X"]) <= 1e-6
    assert relative_error(layer.weight.grad, data[f"grad_{kind}_s"]) <= 1e-6


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_in_float32(name: str) -> None:
    data, layer = arrays(f"liebn_{name}"), golden_layer(name).float()
    y = layer(data["X1"].float())
    assert y.dtype == torch.float32
    assert relative_error(y.double(), data["gold_out1"]) <= 2e-5


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_training_output_ignores_a_translation_of_the_batch(manifold: LieGroup) -> None:
    x, q = points(8), points(seed=5)
    layer = LieBatchNorm(manifold, (3, 3), dtype=torch.float64)
    torch.testing.assert_close(layer(manifold.translate(x, q)), layer(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_negative_weight_inverts(manifold: LieGroup) -> None:
    x = points(6)
    layer = LieBatchNorm(manifold, (3, 3), dtype=torch.float64)
    y = layer(x)
    with torch.no_grad():
        layer.weight.neg_()
    identity = manifold.identity(3, 3, dtype=torch.float64)
    inverse = manifold.expmap(identity, -manifold.logmap(identity, y))
    torch.testing.assert_close(layer(x), inverse, rtol=1e-11, atol=1e-11)


def test_right_invariant_is_affine_invariant_through_group_inversion() -> None:
    aim, crim = SPDAffineInvariant(), SPDCholeskyRightInvariant()
    x, b = points(7), points(seed=3)
    one, other = (LieBatchNorm(m, (3, 3), dtype=torch.float64) for m in (crim, aim))
    one.set_bias_point(b)
    other.set_bias_point(aim.inv(b))
    torch.testing.assert_close(one(x), aim.inv(other(aim.inv(x))), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(one.running_mean, aim.inv(other.running_mean), rtol=1e-11, atol=1e-11)


def test_euclidean_case_is_batch_norm_with_one_scale_for_the_vector() -> None:
    x = torch.randn(32, 5, dtype=torch.float64)
    y = RiemannianBatchNorm(Euclidean(), (5,), dtype=torch.float64)(x)
    centered = x - x.mean(0)
    torch.testing.assert_close(y, centered / (centered.square().sum(-1).mean() + 1e-5).sqrt())
    scalar = RiemannianBatchNorm(Euclidean(), (4, 1), dtype=torch.float64)
    reference = nn.BatchNorm1d(4, dtype=torch.float64)
    torch.testing.assert_close(scalar(x[:, :4, None]).squeeze(-1), reference(x[:, :4]))


def test_fixed_number_of_mean_steps() -> None:
    """One step is near the converged mean, more steps nearer, and gradients are as near."""
    x = points(10, n=4)
    results = []
    for steps in (1, 3, None):
        layer = RiemannianBatchNorm(SPDAffineInvariant(), (4, 4), mean_steps=steps, dtype=torch.float64)
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        y[:3].sum().backward()
        results.append((y.detach(), leaf.grad))
    for part in (0, 1):
        far, near = (relative_error(r[part], results[2][part]) for r in results[:2])
        assert near < 1e-3
        assert near < far < 0.1


def test_mean_of_widely_spread_matrices_converges() -> None:
    """Three ill-conditioned matrices on which unit steps oscillate for ever."""
    case = faults("spd")["S24"]
    x = torch.tensor(case["inputs"]["X"], dtype=torch.float64)
    mean = SPDAffineInvariant().mean(x)
    assert torch.equal(mean, mean.mT)
    assert relative_error(mean, torch.tensor(case["expected"], dtype=torch.float64)) <= case["tolerance"]["rel"]


def test_mean_with_a_matrix_that_is_not_positive_definite_is_nan() -> None:
    """Alone in its batch of means, with or without a fixed number of steps."""
    x = points(4, 2)
    x[1, 0] = torch.diag(torch.tensor([1.0, -0.1, 1.0]))
    for steps in (None, 2):
        mean = SPDAffineInvariant().mean(x, steps=steps)
        assert torch.isnan(mean[0]).all()
        torch.testing.assert_close(mean[1], SPDAffineInvariant().mean(x[:, 1], steps=steps))


def test_dimension_divides_the_variance() -> None:
    x = points(9)
    layer = RiemannianBatchNorm(SPDLogEuclidean(), (3, 3), normalize_dim=True, eps=0.0, dtype=torch.float64)
    torch.testing.assert_close(SPDLogEuclidean().variance(layer(x)), torch.tensor(6.0, dtype=torch.float64))


def test_distance_and_gradient_at_repeated_eigenvalues() -> None:
    case = faults("spd")["S20"]
    x, y = (torch.tensor(case["inputs"][k], dtype=torch.float64) for k in "XY")
    x.requires_grad_()
    d = SPDAffineInvariant().dist(x, y)
    d.backward()
    assert float(d.detach()) == pytest.approx(case["expected"]["value"], abs=1e-10)
    torch.testing.assert_close(x.grad, torch.tensor(case["expected"]["grad_X"], dtype=torch.float64), rtol=0, atol=1e-8)


def test_distance_is_symmetric() -> None:
    case = faults("spd")["S25"]
    x, y = (torch.tensor(case["inputs"][k], dtype=torch.float64) for k in "XY")
    for d in (SPDAffineInvariant().dist(x, y), SPDAffineInvariant().dist(y, x)):
        assert float(d) == pytest.approx(case["expected"], abs=1e-10)


def test_gradient_accumulation_moves_statistics_at_every_forward() -> None:
    case = faults("spd")["S37"]
    layer = RiemannianBatchNorm(Euclidean(), (1,), momentum=case["inputs"]["momentum"], dtype=torch.float64)
    for batch in case["inputs"]["micro_batches"]:
        layer(torch.tensor(batch, dtype=torch.float64)[:, None])
    assert float(layer.running_mean) == pytest.approx(case["expected"]["per_forward_update"], abs=1e-12)


# State.


def test_cumulative_momentum_and_reset() -> None:
    m, x = SPDLogEuclidean(), points(2, 6)
    layer = RiemannianBatchNorm(m, (3, 3), momentum=None, dtype=torch.float64)
    layer(x[0])
    torch.testing.assert_close(layer.running_mean, m.mean(x[0]))
    layer(x[1])
    torch.testing.assert_close(layer.running_mean, m.mean(x, dim=(0, 1)))
    assert int(layer.num_batches_tracked) == 2
    layer.reset_running_stats()
    torch.testing.assert_close(layer.running_mean, torch.eye(3, dtype=torch.float64))
    assert int(layer.num_batches_tracked) == 0
    assert float(layer.running_var) == 1


def test_refit_takes_the_statistics_of_the_data_without_gradients() -> None:
    m, x = SPDAffineInvariant(), points(9)
    layer = RiemannianBatchNorm(m, (3, 3), dtype=torch.float64)
    layer(points(5, seed=2))
    layer.eval()
    layer.eval().refit(x)
    torch.testing.assert_close(layer.running_mean, m.mean(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.running_var, m.variance(x), rtol=1e-10, atol=1e-10)
    assert not layer.running_mean.requires_grad
    with pytest.raises(RuntimeError, match="track_running_stats"):
        RiemannianBatchNorm(m, (3, 3), track_running_stats=False).refit(x.float())


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_refit_neither_needs_nor_loses_the_old_statistics(manifold: LieGroup) -> None:
    """Statistics that are NaN are repaired; bad or no data leave them as they were."""
    layer = RiemannianBatchNorm(manifold, (3, 3), dtype=torch.float64)
    x = points(6)
    layer(x)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    for bad, words in ((not_a_number(points(4)), r"input\[2\] is not finite"), (points(0), "at least one point")):
        with pytest.raises(ValueError, match=words):
            layer.refit(bad)
        assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    layer.running_mean.fill_(torch.nan)
    layer.running_var.fill_(torch.nan)
    layer.eval().refit(x)
    torch.testing.assert_close(layer.running_mean, manifold.mean(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.running_var, manifold.variance(x), rtol=1e-10, atol=1e-10)
    assert int(layer.num_batches_tracked) == 1


def test_without_affine_and_without_running_statistics() -> None:
    m, x = SPDAffineInvariant(), points(9)
    layer = RiemannianBatchNorm(m, (3, 3), affine=False, track_running_stats=False)
    assert not list(layer.parameters())
    assert not layer.state_dict()
    y = layer(x)
    torch.testing.assert_close(m.mean(y), torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(layer.eval()(x), y)
    with pytest.raises(RuntimeError, match="affine"):
        _ = layer.bias_point


@pytest.mark.parametrize("make", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_and_checkpoints(make: Callable[[nn.Module], nn.Module], tmp_path: object) -> None:
    layer = RiemannianBatchNorm(SPDLogCholesky(), (2, 3, 3), dtype=torch.float64)
    layer(points(5, 2))
    layer.set_bias_point(points(2, seed=4))
    layer.eval()
    x = points(3, 2, seed=7)
    other = make(layer)
    torch.testing.assert_close(other(x), layer(x))
    assert other.manifold == layer.manifold
    file = f"{tmp_path}/state.pt"
    torch.save(layer.state_dict(), file)
    fresh = RiemannianBatchNorm(SPDLogCholesky(), (2, 3, 3), dtype=torch.float64).eval()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(fresh(x), layer(x))
    meta = RiemannianBatchNorm(SPDLogCholesky(), (2, 3, 3), dtype=torch.float64, device="meta").eval()
    meta.load_state_dict(layer.state_dict(), assign=True)
    torch.testing.assert_close(meta(x), layer(x))


def test_train_then_eval_before_backward() -> None:
    """A forward in eval mode must not be spoilt when a later training forward moves the buffers."""
    for m in GEOMETRIES:
        layer = RiemannianBatchNorm(m, (3, 3), dtype=torch.float64)
        x = points(4).requires_grad_()
        y = layer.eval()(x)
        layer.train()(points(4, seed=1))
        y.sum().backward()
        assert x.grad is not None


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_plain_adam_with_weight_decay_learns_a_bias(manifold: LieGroup) -> None:
    """The bias parameter is unconstrained; the output's mean moves to a target and stays on the manifold."""
    target = points(seed=11)
    layer = RiemannianBatchNorm(manifold, (3, 3), dtype=torch.float64, mean_steps=2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05, weight_decay=1e-4)
    x = points(12)
    for _ in range(60):
        optimizer.zero_grad()
        manifold.dist2(layer(x), target).mean().backward()
        optimizer.step()
    assert manifold.check_point_on_manifold(layer.bias_point.detach())
    assert float(manifold.dist(layer.bias_point.detach(), target)) < 0.2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_input_and_autocast(dtype: torch.dtype) -> None:
    layer = RiemannianBatchNorm(SPDAffineInvariant(), (3, 3))
    x = points(8, dtype=torch.float32)
    y = layer(x.to(dtype))
    assert y.dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = layer(x)
    assert z.dtype == torch.float32
    torch.testing.assert_close(y.float(), z, rtol=0.1, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_compile_fullgraph_with_fixed_steps(manifold: Manifold) -> None:
    layer = RiemannianBatchNorm(manifold, (3, 3), mean_steps=1, dtype=torch.float64)
    twin = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = points(6)
    results = []
    for run in (compiled, twin):
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        y.sum().backward()
        results.append((y.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.running_mean, twin.running_mean)


@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 2))
def test_leading_dimensions_are_reduced_together(batch: int, time: int, channels: int) -> None:
    x = points(batch, time, channels, n=2)
    layer = RiemannianBatchNorm(SPDLogCholesky(), (channels, 2, 2), dtype=torch.float64)
    flat = RiemannianBatchNorm(SPDLogCholesky(), (channels, 2, 2), dtype=torch.float64)
    torch.testing.assert_close(layer(x).flatten(0, 1), flat(x.flatten(0, 1)))


def test_empty_batch_leaves_the_statistics() -> None:
    layer = RiemannianBatchNorm(SPDAffineInvariant(), (3, 3), dtype=torch.float64)
    assert layer(points(0)).shape == (0, 3, 3)
    assert int(layer.num_batches_tracked) == 0
    assert layer.eval()(points(0)).shape == (0, 3, 3)


# Domains.


def test_each_domain_has_its_own_statistics_and_the_bias_is_shared() -> None:
    m = SPDAffineInvariant()
    layer = DomainBatchNorm(m, (3, 3), domains=["a", "b"], dtype=torch.float64)
    layer.set_bias_point(points(seed=8))
    x = points(10)
    names = ["a", "b"] * 5
    y = layer(x, names)
    for i, name in enumerate("ab"):
        torch.testing.assert_close(m.mean(y[i::2]), layer.bias_point, rtol=1e-9, atol=1e-9)
        single = RiemannianBatchNorm(m, (3, 3), dtype=torch.float64)
        single.load_state_dict({**single.state_dict(), "bias": layer.bias.detach(), "weight": layer.weight.detach()})
        torch.testing.assert_close(y[i::2], single(x[i::2]))
        torch.testing.assert_close(layer.running_mean[i], single.running_mean)
        torch.testing.assert_close(layer.eval()(x, names)[i::2], single.eval()(x[i::2]))
        layer.train()
        torch.testing.assert_close(layer.eval()(x, name)[i::2], single.eval()(x[i::2]))
        layer.train()


def test_domain_tensor_refit_and_channels() -> None:
    m = SPDLogEuclidean()
    layer = DomainBatchNorm(m, (2, 3, 3), domains=[10, 20], dtype=torch.float64)
    x = points(6, 4, 2)
    y = layer(x, torch.tensor([10, 20, 20, 10, 10, 20]))
    assert y.shape == x.shape
    layer.refit(x[:3], 20)
    torch.testing.assert_close(layer.running_mean[1], m.mean(x[:3], dim=(0, 1)))
    assert layer.num_batches_tracked.tolist() == [1, 1]
    layer.reset_running_stats(20)
    assert layer.num_batches_tracked.tolist() == [1, 0]
    layer.reset_running_stats()
    assert layer.num_batches_tracked.tolist() == [0, 0]
    evaluated = layer.eval()(x, torch.tensor([10, 20, 20, 10, 10, 20]))
    assert evaluated.shape == x.shape


def test_domains_of_an_empty_batch() -> None:
    layer = domain_layer()
    for training in (True, False):
        for names in ("a", []):
            assert layer.train(training)(points(0), names).shape == (0, 3, 3)
    assert layer.num_batches_tracked.tolist() == [0, 0]


def test_a_checkpoint_keeps_its_domains() -> None:
    """Statistics of the wrong domain would be a silent error; the names are part of the checkpoint, as a tensor."""
    saved = domain_layer().state_dict()
    assert all(isinstance(value, Tensor) for value in saved.values())
    domain_layer().load_state_dict(saved)
    for domains in (["b", "a"], ["a", "c"]):
        other = DomainBatchNorm(SPDLogCholesky(), (3, 3), domains=domains, dtype=torch.float64)
        with pytest.raises(ValueError, match=r"domains 'a', 'b', but the layer's are '[ab]', '[ac]'"):
            other.load_state_dict(saved)
    numbers = DomainBatchNorm(SPDLogCholesky(), (3, 3), domains=np.arange(2))
    numbers.load_state_dict(DomainBatchNorm(SPDLogCholesky(), (3, 3), domains=range(2)).state_dict())


# Bad input.


def asymmetric(x: Tensor) -> Tensor:
    x[2, 0, 1] += 0.1
    return x


def indefinite(x: Tensor) -> Tensor:
    x[2] = -x[2]
    return x


def not_a_number(x: Tensor) -> Tensor:
    x[2, 0, 0] = torch.nan
    return x


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("spoil", "words"), [(asymmetric, "symmetric"), (indefinite, "positive definite"), (not_a_number, "not finite")]
)
def test_a_bad_matrix_is_named(manifold: LieGroup, training: bool, spoil: object, words: str) -> None:
    layer = RiemannianBatchNorm(manifold, (3, 3), dtype=torch.float64).train(training)
    with pytest.raises(ValueError, match=rf"input\[2\].*{words}"):
        layer(spoil(points(4)))


@pytest.mark.parametrize("training", [True, False])
def test_a_bad_matrix_is_named_by_its_place_in_the_input(training: bool) -> None:
    """Not in the flattened batch, nor among the points of its domain."""
    for reduce_dims, place in (((0, 1), (3, 1, 0)), ((0, 2), (3, 0, 1))):
        layer = RiemannianBatchNorm(SPDLogCholesky(), (2, 3, 3), reduce_dims=reduce_dims, dtype=torch.float64)
        x = points(4, 2, 2)
        x[place] = -x[place]
        with pytest.raises(ValueError, match=rf"input\[{', '.join(map(str, place))}\].*positive definite"):
            layer.train(training)(x)
        assert int(layer.num_batches_tracked) == 0
    layer = domain_layer()
    x = points(6)
    x[5, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"input\[5\] is not finite"):
        layer.train(training)(x, ["a", "a", "b", "b", "b", "b"])


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_a_small_unsymmetric_matrix_among_large_ones_is_named(manifold: LieGroup) -> None:
    """It is looked at on its own scale."""
    x = points(4) * torch.tensor([1e6, 1e6, 1e-6, 1e6], dtype=torch.float64)[:, None, None]
    with pytest.raises(ValueError, match=r"input\[2\].*symmetric"):
        RiemannianBatchNorm(manifold, (3, 3), dtype=torch.float64)(skewed(x))


def skewed(x: Tensor) -> Tensor:
    x[2, 0, 1] *= 1.5
    return x


def test_vectors_may_be_given_by_their_length() -> None:
    assert RiemannianBatchNorm(Euclidean(), 5)(torch.randn(8, 5)).shape == (8, 5)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: RiemannianBatchNorm(SPDLogCholesky, (3, 3)), TypeError, "manifold must be an instance.*SPDLogChol"),
        (lambda: RiemannianBatchNorm((3, 3), SPDLogCholesky()), TypeError, "manifold must be an instance"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), 3), ValueError, r"at least 2 dimensions.*\(3,\)"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 3))(points(4).numpy()), TypeError, "Tensor, got ndarray"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 4)), ValueError, "square"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 3), momentum=2.0), ValueError, "momentum"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 3), eps=-1.0), ValueError, "eps"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 3), mean_steps=0), ValueError, "mean_steps"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 3))(points(4, n=4)), ValueError, r"\(4, 4, 4\)"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (2, 3, 3))(points(4, 5)), ValueError, "channels"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 3))(points(4)), TypeError, "float64"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 3), device="meta")(points(4)), ValueError, "meta"),
        (lambda: RiemannianBatchNorm(SPDLogCholesky(), (3, 3))(points(1).float()), ValueError, "more than one point"),
        (lambda: LieBatchNorm(NotAGroup(), (3,)), TypeError, "LieGroup"),
        (lambda: DomainBatchNorm(SPDLogCholesky(), (3, 3), domains=[]), ValueError, "distinct"),
        (lambda: DomainBatchNorm(SPDLogCholesky(), (3, 3), domains=["a", "a"]), ValueError, "distinct"),
        (lambda: DomainBatchNorm(SPDLogCholesky(), (3, 3), domains={"a", "b"}), TypeError, "fixed order.*sorted"),
        (lambda: DomainBatchNorm(SPDLogCholesky(), (3, 3), domains="ab"), TypeError, "a list for a single name"),
        (lambda: domain_layer()(points(4), "c"), ValueError, r"unknown domain 'c'.*\['a', 'b'\]"),
        (lambda: domain_layer()(points(4), ["a", "b"]), ValueError, r"one per point.*\(4\), got 2"),
        (lambda: domain_layer()(points(3), ["a", "a", "b"]), ValueError, "domain 'b' has a single point"),
        (lambda: domain_layer().refit(points(3)), ValueError, "domain must name"),
        (lambda: SPDLogEuclidean(alpha=0.0), ValueError, "alpha"),
        (lambda: RiemannianBatchNorm(SPDLogEuclidean(beta=-0.4), (3, 3)), ValueError, r"alpha \+ n beta"),
        (lambda: SPDLogCholesky(power=0.0), ValueError, "power"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


class NotAGroup(Manifold):
    ndim = 1


def domain_layer() -> DomainBatchNorm:
    return DomainBatchNorm(SPDLogCholesky(), (3, 3), domains=["a", "b"], dtype=torch.float64)


def test_statistics_are_reset_to_the_origin_in_the_precision_of_the_layer() -> None:
    """An origin with irrational entries was rounded to float32 on the way."""
    layer = RiemannianBatchNorm(FrobeniusSphere(), (3, 3), dtype=torch.float64)
    domains = DomainBatchNorm(FrobeniusSphere(), (3, 3), domains=["a", "b"], dtype=torch.float64)
    for module in (layer, domains):
        origin = module.running_mean.clone()
        module.running_mean.zero_()
        module.reset_running_stats()
        assert torch.equal(module.running_mean, origin)
    x = FrobeniusSphere().random(1, 3, 3, dtype=torch.float64)
    layer.eval().refit(x)
    torch.testing.assert_close(layer.running_mean, x[0], rtol=0, atol=1e-14)
