"""Rotations and correlation matrices against golden numbers, and the facts about their batch norms."""

import numpy as np
import pytest
import torch
from torch import Tensor

from manifoldnorm.linalg.orthogonal import skew_part
from manifoldnorm.manifolds import (
    CorrelationEuclideanCholesky,
    CorrelationLogEuclideanCholesky,
    CorrelationLogScaled,
    CorrelationOffLog,
    Manifold,
)
from manifoldnorm.manifolds.pullback import Flat
from manifoldnorm.manifolds.rotations import Rotations
from manifoldnorm.nn import DomainBatchNorm, LieBatchNorm
from tests.conftest import GOLDEN

CASES: dict[str, tuple[Manifold, float]] = {
    "ecm": (CorrelationEuclideanCholesky(), 1e-10),
    "lecm": (CorrelationLogEuclideanCholesky(), 1e-10),
    "olm": (CorrelationOffLog(), 1e-9),
    "olm_n3": (CorrelationOffLog(), 1e-9),
    "lsm": (CorrelationLogScaled(), 1e-9),
    "lsm_n3": (CorrelationLogScaled(), 1e-9),
    "so3_left": (Rotations("left"), 1e-10),
    "so3_right": (Rotations("right"), 1e-10),
    "so5_left": (Rotations("left"), 1e-10),
}
# The golden rotations are spread over more than a right angle, which the mean warns about.
pytestmark = pytest.mark.filterwarnings("ignore:a rotation lies at distance")


def golden(name: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"liebn_{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def layer(name: str, data: dict[str, Tensor], **options: bool) -> LieBatchNorm:
    manifold, n = CASES[name][0], data["X1"].shape[-1]
    norm = LieBatchNorm(manifold, (n, n), dtype=torch.float64, eps=float(data["eps"]), **options)
    norm.set_bias_point(data["bias"])
    with torch.no_grad():
        norm.weight.copy_(data["s"])
    return norm


@pytest.mark.parametrize("name", CASES)
def test_geometry(name: str) -> None:
    data, (m, tolerance) = golden(name), CASES[name]
    x, identity = data["X1"], torch.eye(data["X1"].shape[-1], dtype=torch.float64)
    results = {
        "geo_exp0": m.expmap(identity, data["geo_V"]),
        "geo_log0": m.logmap(identity, x),
        "geo_dist": m.dist(x[:, None], x[None]),
        "geo_dist0": m.dist(x, identity),
        "geo_mean": m.mean(x),
        "geo_var": m.variance(x),
        "geo_prod01": m.mul(x[0], x[1]),
        "geo_inv0": m.inv(x[0]),
        "geo_geod01": m.geodesic(x[0], x[1], torch.tensor([0.1, 0.5], dtype=torch.float64)),
        "geo_center": m.translate(x, m.inv(m.mean(x))),
        "geo_scale": m.expmap(identity, 0.6 * m.logmap(identity, x)),
    }
    if isinstance(m, Flat):
        results["geo_phi"] = m.deform(x)
    for key, value in results.items():
        torch.testing.assert_close(
            value, data[key], rtol=tolerance, atol=tolerance, msg=lambda s, key=key: f"{key}: {s}"
        )


@pytest.mark.parametrize("name", CASES)
def test_three_steps_and_evaluation(name: str) -> None:
    data, tolerance = golden(name), CASES[name][1]
    norm = layer(name, data)
    out = norm(data["X1"])
    torch.testing.assert_close(out, data["gold_out1"], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(norm.running_mean, data["gold_rm1"], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(norm.running_var, data["gold_rv1"], rtol=tolerance, atol=tolerance)
    norm(data["X2"])
    torch.testing.assert_close(norm(data["X3"]), data["gold_out3"], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(norm.running_mean, data["gold_rm3"], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(norm.running_var, data["gold_rv3"], rtol=tolerance, atol=tolerance)
    norm.eval()
    torch.testing.assert_close(norm(data["X1"]), data["gold_eval"], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["full", "detached"])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, kind: str) -> None:
    data = golden(name)
    norm = layer(name, data, detach_stats=kind == "detached")
    x = data["X1"].clone().requires_grad_()
    (data["grad_W"] * norm(x)).sum().backward()
    m = CASES[name][0]
    gradient = skew_part(x.mT @ x.grad) if isinstance(m, Rotations) else m.proju(x, x.grad)
    for value, key in ((gradient, f"grad_{kind}_X"), (norm.weight.grad, f"grad_{kind}_s")):
        scale = float(data[key].abs().max())
        torch.testing.assert_close(value.detach(), data[key], rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("name", CASES)
def test_mean_and_variance_theorem(name: str) -> None:
    """On the golden batches, within the ball where the means of rotations are unique."""
    data, m = golden(name), CASES[name][0]
    identity = torch.eye(data["X1"].shape[-1], dtype=torch.float64)
    x = m.geodesic(identity, data["X1"], 0.3)
    norm = layer(name, data)
    with torch.no_grad():
        norm.weight.fill_(0.4)
    y, v = norm(x), m.variance(x)
    torch.testing.assert_close(m.mean(y), data["bias"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(m.variance(y), 0.16 * v / (v + norm.eps), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_batch_norm_ignores_a_translation_of_the_batch(name: str) -> None:
    data, m = golden(name), CASES[name][0]
    x = m.geodesic(torch.eye(data["X1"].shape[-1], dtype=torch.float64), data["X1"], 0.3)
    y = layer(name, data)(m.translate(x, data["X2"][0]))
    torch.testing.assert_close(y, layer(name, data)(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["lecm", "olm", "so3_right"])
def test_domains_have_their_own_statistics(name: str) -> None:
    data, m = golden(name), CASES[name][0]
    n = data["X1"].shape[-1]
    norm = DomainBatchNorm(m, (n, n), domains=["a", "b"], dtype=torch.float64)
    y = norm(torch.cat((data["X1"], data["X2"])), ["a"] * 10 + ["b"] * 10)
    single = LieBatchNorm(m, (n, n), dtype=torch.float64)
    torch.testing.assert_close(y[:10], single(data["X1"]))
    torch.testing.assert_close(norm.running_mean[0], single.running_mean)
