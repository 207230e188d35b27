"""Laws of derivatives and of precision, and that compilers and optimizers take a geometry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from manifoldnorm.nn import RiemannianBatchNorm
from manifoldnorm.testing.suite_samples import ManifoldSamples


class CalculusLaws(ManifoldSamples):
    """The part of `ManifoldSuite` that is about derivatives, dtypes and transformations."""

    # Derivatives.

    def _gradcheck(self, function: Callable[..., Tensor], *inputs: Tensor, second: bool) -> None:
        leaves = tuple(a.detach().clone().requires_grad_() for a in inputs)
        assert torch.autograd.gradcheck(function, leaves, atol=1e-6)
        if second:
            assert torch.autograd.gradgradcheck(function, leaves, atol=1e-5, fast_mode=True)

    def test_derivatives(self) -> None:
        """First and second derivatives at random, coincident and origin points, and at zero vectors."""
        self._supports("logmap", "expmap")
        m = self.manifold
        x = torch.stack([self.points(), self.origin(), self.points()])
        y = torch.stack([self.points(seed=1), self.origin(), self.points()])
        zero = torch.zeros_like(x)
        near_x, near_y = self._moved(x), self._moved(y)
        self._gradcheck(lambda a, b: m.dist2(near_x(a), near_y(b)), zero, zero, second=self.second_order)
        self._gradcheck(lambda a, b: m.logmap(near_x(a), near_y(b)), zero, zero, second=self.second_order_maps)
        u = torch.stack([self.tangents(self.points()), torch.zeros_like(x[0]), torch.zeros_like(x[0])])
        self._gradcheck(lambda a, b: m.expmap(near_x(a), m.proju(x, b)), zero, u, second=self.second_order_maps)

    def test_derivatives_of_the_batch_norm(self) -> None:
        """Through mean and variance, in all parameters; also with repeated points."""
        self._supports("mean", "center")
        m = self.manifold
        for x in (self.points(4), torch.stack([self.points(seed=2)] * 3 + [self.points(seed=3)])):
            layer = RiemannianBatchNorm(m, self.event_shape, track_running_stats=False, dtype=self.dtype)
            near = self._moved(x)

            def run(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (near(a),))  # noqa: B023

            bias = 0.3 * self.tangents(self.origin())
            weight = torch.tensor(0.8, dtype=torch.float64)
            self._gradcheck(run, torch.zeros_like(x), weight, bias, second=self.second_order_mean)

    def test_gradient_of_distance_at_coincident_points(self) -> None:
        """It is zero there, and one such row does not poison the others."""
        self._supports("dist")
        m, x = self.manifold, self.points(2)
        y = torch.stack([x[0], self.points(seed=1)])
        p = x.clone().requires_grad_()
        m.dist(p, y).sum().backward()
        assert p.grad is not None
        assert float(p.grad[0].abs().max()) == 0
        rgrad = m.egrad2rgrad(x, p.grad)
        self._close(m.norm(x[1], rgrad[1]), torch.ones((), dtype=torch.float64), 1e3 * self.tolerance)

    # Precision and transformations.

    def test_float32(self) -> None:
        """float32 results agree with float64 ones on the same inputs and keep their dtype."""
        single = torch.complex64 if self.dtype.is_complex else torch.float32
        x, y = self.points(8).to(single), self.points(8, seed=1).to(single)
        x, y = self.manifold.projx(x), self.manifold.projx(y)
        for function in self._unary_of_pairs().values():
            result = function(x, y)
            assert result.dtype in (single, torch.float32)
            self._close(
                result.to(function(x[:0], y[:0]).dtype),
                function(x.to(self.dtype), y.to(self.dtype)).to(result.dtype),
                self.float32_tolerance,
            )
        if "mean" not in self.unsupported:
            self._close(self.manifold.mean(x), self.manifold.mean(x.to(self.dtype)).to(single), self.float32_tolerance)

    @pytest.mark.slow
    def test_compile_fullgraph(self) -> None:
        """`torch.compile(fullgraph=True)` gives the same values and gradients."""
        x, y = self.points(3), self.points(3, seed=1)
        torch._dynamo.reset()
        for function in self._unary_of_pairs().values():
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            results = []
            for run in (function, compiled):
                a = x.clone().requires_grad_()
                value = run(a, y)
                results.append((value.detach(), torch.autograd.grad(value.abs().sum(), a)[0]))
            self._close(results[1][0], results[0][0])
            self._close(results[1][1], results[0][1], 100 * self.tolerance)

    def test_geoopt_optimizers_train(self) -> None:
        """Riemannian Adam and SGD of geoopt bring a point to the mean of others and keep it on the manifold."""
        self._supports("transp", "mean")
        geoopt = pytest.importorskip("geoopt")
        m, x = self.manifold, self.points(6)
        target = m.mean(x)
        for make in (
            lambda p: geoopt.optim.RiemannianAdam([p], lr=5e-2),
            lambda p: geoopt.optim.RiemannianSGD([p], lr=5e-2, momentum=0.5),
        ):
            parameter = geoopt.ManifoldParameter(self.points(seed=9), manifold=m)
            optimizer = make(parameter)
            start = float(m.dist(parameter.detach(), target))
            for _ in range(60):
                optimizer.zero_grad()
                m.dist2(parameter, x).mean().backward()
                optimizer.step()
            assert m.check_point_on_manifold(parameter.detach(), atol=1e-8)
            assert float(m.dist(parameter.detach(), target)) < 0.2 * start
