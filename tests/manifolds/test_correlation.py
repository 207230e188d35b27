"""The four correlation geometries: the laws of the suite, their solvers, and what is theirs alone."""

import math

import pytest
import torch
from torch import Tensor

from manifoldnorm.manifolds import ConvergenceWarning, Flat
from manifoldnorm.manifolds.correlation_cholesky import (
    CorrelationEuclideanCholesky,
    CorrelationLogEuclideanCholesky,
)
from manifoldnorm.manifolds.correlation_logarithm import (
    CorrelationLogScaled,
    CorrelationOffLog,
)
from manifoldnorm.manifolds.correlation_points import correlation_from_covariance
from manifoldnorm.manifolds.correlation_solvers import unit_diagonal_logarithm, unit_row_sum_scaling
from manifoldnorm.nn import LieBatchNorm
from manifoldnorm.testing import ManifoldSuite


class TestEuclideanCholesky(ManifoldSuite):
    manifold = CorrelationEuclideanCholesky()
    event_shape = (4, 4)


class TestLogEuclideanCholesky(ManifoldSuite):
    manifold = CorrelationLogEuclideanCholesky()
    event_shape = (4, 4)


class TestOffLogParameters(ManifoldSuite):
    second_order_maps = False
    manifold = CorrelationOffLog(alpha=0.7, beta=-0.2, gamma=0.4)
    event_shape = (4, 4)


class TestLogScaled(ManifoldSuite):
    second_order_maps = False
    manifold = CorrelationLogScaled()
    event_shape = (3, 3)


class TestLogScaledParameters(ManifoldSuite):
    second_order_maps = False
    manifold = CorrelationLogScaled(alpha=0.7, delta=-0.3, zeta=0.4)
    event_shape = (4, 4)


class TestOffLogThree(ManifoldSuite):
    manifold = CorrelationOffLog(alpha=-0.2, beta=1.0, gamma=0.1)
    event_shape = (3, 3)
    second_order_maps = False


class TestLogScaledTwo(ManifoldSuite):
    manifold = CorrelationLogScaled(alpha=-0.1, delta=0.5, zeta=0.2)
    event_shape = (2, 2)
    second_order_maps = False


ALL = (
    CorrelationEuclideanCholesky(),
    CorrelationLogEuclideanCholesky(),
    CorrelationOffLog(),
    CorrelationLogScaled(),
)
DOUBLE = torch.float64


def of_condition(batch: int, n: int, condition: float, seed: int = 0) -> Tensor:
    """Draw correlation matrices of covariances with the given condition number."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(batch, n, n, generator=generator, dtype=DOUBLE))[0]
    logs = math.log(condition) * torch.rand(batch, n, generator=generator, dtype=DOUBLE)
    logs[:, 0], logs[:, -1] = 0, math.log(condition)
    return correlation_from_covariance((basis * torch.exp(logs).unsqueeze(-2)) @ basis.mT)


# Facts of single geometries.


@pytest.mark.parametrize("metric", ALL, ids=lambda m: type(m).__name__)
def test_group_inverse_for_two_variables_flips_the_sign(metric: Flat) -> None:
    c = torch.tensor([[1.0, 0.6], [0.6, 1.0]], dtype=DOUBLE)
    torch.testing.assert_close(metric.inv(c), 2 * torch.eye(2, dtype=DOUBLE) - c, rtol=0, atol=1e-14)


def test_log_scaled_inverse_is_the_correlation_of_the_inverse() -> None:
    c = of_condition(5, 6, 100.0)
    expected = correlation_from_covariance(torch.linalg.inv(c))
    torch.testing.assert_close(CorrelationLogScaled().inv(c), expected, rtol=0, atol=1e-12)
    assert float((CorrelationOffLog().inv(c) - expected).abs().max()) > 1e-3


@pytest.mark.parametrize("metric", ALL, ids=lambda m: type(m).__name__)
def test_permutation_invariance_of_the_last_two_only(metric: Flat) -> None:
    x, y = of_condition(6, 5, 50.0), of_condition(6, 5, 50.0, seed=1)
    order = torch.tensor([3, 0, 4, 1, 2])
    change = metric.dist(x, y) - metric.dist(x[:, order][..., order], y[:, order][..., order])
    invariant = isinstance(metric, (CorrelationOffLog, CorrelationLogScaled))
    assert (float(change.abs().max()) < 1e-10) == invariant


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_a_metric_is_accepted_exactly_when_it_is_positive_definite(n: int) -> None:
    """The quadratic form on a basis of the chart, for random parameters, against the inequalities."""
    generator = torch.Generator().manual_seed(n)
    rows, columns = torch.tril_indices(n, n, -1)
    basis = torch.zeros(len(rows), n, n, dtype=DOUBLE)
    basis[torch.arange(len(rows)), rows, columns] = 1
    basis = basis + basis.mT
    laplacians = basis - torch.diag_embed(basis.sum(-1))
    seen = set()
    for parameters in torch.randn(40, 3, generator=generator, dtype=DOUBLE).tolist():
        for metric, chart in ((CorrelationOffLog(*parameters), basis), (CorrelationLogScaled(*parameters), laplacians)):
            a, b, c = parameters
            form = a * torch.einsum("iab,jab->ij", chart, chart)
            if isinstance(metric, CorrelationOffLog):
                sums = chart.sum(-1)
                form = form + b * sums @ sums.mT + c * torch.outer(sums.sum(-1), sums.sum(-1))
            else:
                diagonal = torch.diagonal(chart, dim1=-2, dim2=-1)
                form = form + b * diagonal @ diagonal.mT + c * torch.outer(diagonal.sum(-1), diagonal.sum(-1))
            positive = bool(torch.linalg.eigvalsh(form)[0] > 0)
            seen.add(positive)
            if positive:
                metric.check_event_shape((n, n))
                gram = metric.chart_inner(chart[:, None], chart[None])
                torch.testing.assert_close(gram, form, rtol=1e-12, atol=1e-12)
            else:
                with pytest.raises(ValueError, match="must be positive for a Riemannian metric"):
                    metric.check_event_shape((n, n))
    assert seen == {True, False}


def test_the_failing_inequality_is_named() -> None:
    with pytest.raises(ValueError, match=r"2 alpha \+ \(n - 2\) beta must be positive .* at n = 5, got -1"):
        LieBatchNorm(CorrelationOffLog(1.0, -1.0), (5, 5))
    with pytest.raises(ValueError, match=r"n alpha \+ \(n - 1\) \(delta \+ n zeta\) must be positive"):
        LieBatchNorm(CorrelationLogScaled(1.0, 0.0, -1.0), (5, 5))


# Solvers.


@pytest.mark.parametrize("condition", [10.0, 1e3, 1e6])
@pytest.mark.parametrize("n", [4, 12])
def test_off_log_solver_reaches_rounding_in_few_decompositions(
    n: int, condition: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With coordinates scaled by two, as a batch norm does: 1e-12 in at most 15 eigendecompositions."""
    h = 2 * CorrelationOffLog().deform(of_condition(20, n, condition))
    calls = 0
    decompose = torch.linalg.eigh

    def counted(x: Tensor) -> object:
        nonlocal calls
        calls += 1
        return decompose(x)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    y, eigen = unit_diagonal_logarithm(h)
    assert calls <= 15
    diagonal = (eigen.vectors.square() @ torch.exp(eigen.values).unsqueeze(-1)).squeeze(-1)
    assert float((diagonal - 1).abs().max()) < 1e-12
    torch.testing.assert_close(y - torch.diag_embed(torch.diagonal(y, dim1=-2, dim2=-1)), h)


@pytest.mark.parametrize("condition", [10.0, 1e3, 1e6, 1e9, 1e11])
def test_log_scaled_solver_gives_unit_row_sums(condition: float) -> None:
    c = of_condition(20, 8, condition)
    x = unit_row_sum_scaling(c)
    assert (x > 0).all()
    sums = x * (c @ x.unsqueeze(-1)).squeeze(-1)
    terms = (x.unsqueeze(-1) * c * x.unsqueeze(-2)).abs().sum(-1)
    assert float(((sums - 1).abs() / terms).max()) < 1e-13


def test_an_element_that_cannot_converge_is_named_and_the_others_are_right() -> None:
    h = CorrelationOffLog().deform(of_condition(4, 5, 10.0))
    expected = CorrelationOffLog().undeform(h)
    h[2] *= 1e5
    with pytest.warns(ConvergenceWarning, match=r"off-log diagonal of element \[2\] stopped after"):
        result = CorrelationOffLog().undeform(h)
    torch.testing.assert_close(result[[0, 1, 3]], expected[[0, 1, 3]])


@pytest.mark.parametrize("metric", ALL, ids=lambda m: type(m).__name__)
def test_what_is_not_finite_is_nan_alone(metric: Flat) -> None:
    c = of_condition(3, 4, 10.0)
    z = metric.deform(c)
    c[1, 0, 1] = c[1, 1, 0] = torch.nan
    torch.testing.assert_close(metric.deform(c)[[0, 2]], z[[0, 2]])
    assert torch.isnan(metric.deform(c)[1]).any()
    bad = z.clone()
    bad[1, 1, 0] = torch.nan
    torch.testing.assert_close(metric.undeform(bad)[[0, 2]], metric.undeform(z)[[0, 2]])
    assert torch.isnan(metric.undeform(bad)[1]).any()


@pytest.mark.parametrize("metric", ALL, ids=lambda m: type(m).__name__)
def test_second_derivatives_of_the_charts(metric: Flat) -> None:
    z = metric.deform(of_condition(2, 3, 20.0)).requires_grad_()

    def there(w: Tensor) -> Tensor:
        return metric.undeform(metric.project_chart(w))

    assert torch.autograd.gradcheck(there, z)
    assert torch.autograd.gradgradcheck(there, z)
    c = there(z).detach()
    u = torch.zeros_like(c).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda v: metric.deform(c + metric.proju(c, v)), u)


def test_gradient_at_condition_one_million_is_implicit_and_exact() -> None:
    """Against differences of the solver itself, where unrolled iterations stopped early were off by 1e-6."""
    h = 2 * CorrelationOffLog().deform(of_condition(1, 5, 1e6))
    weight = torch.randn(1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)

    def loss(a: Tensor) -> Tensor:
        return (weight * CorrelationOffLog().undeform(a)).sum()

    a = h.clone().requires_grad_()
    loss(a).backward()
    direction = CorrelationOffLog().project_chart(weight)
    step = 1e-4
    numeric = (loss(h + step * direction) - loss(h - step * direction)) / (2 * step)
    torch.testing.assert_close((a.grad * direction).sum(), numeric, rtol=1e-7, atol=1e-7)


# Bad input.


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="n >= 2"):
        LieBatchNorm(CorrelationOffLog(), (1, 1))
    x = CorrelationOffLog().random(4, 3, 3, dtype=DOUBLE)
    layer = LieBatchNorm(CorrelationOffLog(), (3, 3), dtype=DOUBLE)
    covariance = x.clone()
    covariance[1] *= 3
    with pytest.raises(ValueError, match=r"input\[1\].*unit diagonal \(correlation_from_covariance"):
        layer(covariance)
    indefinite = x.clone()
    indefinite[3] = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]], dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"input\[3\].*positive definite"):
        layer(indefinite)
    assert torch.isnan(correlation_from_covariance(torch.diag(torch.tensor([1.0, -1.0])))).any()
