"""Laws of batches: means, batch norm, broadcasting, channels."""

from __future__ import annotations

import pytest
import torch

from manifoldnorm.nn import RiemannianBatchNorm
from manifoldnorm.testing.suite_samples import ManifoldSamples


class BatchLaws(ManifoldSamples):
    """The part of `ManifoldSuite` that is about many points at once."""

    # Statistics.

    def test_mean_is_stationary(self) -> None:
        """The sum of weighted logarithms at the mean vanishes, for any dims and weights."""
        self._supports("mean", "logmap")
        m = self.manifold
        x = self.points(3, 4)
        w = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        over = (...,) + (None,) * m.ndim
        for weights in (None, w):
            mean = m.mean(x, weights, dim=(0, 1))
            assert mean.shape == self.event_shape
            assert m.check_point_on_manifold(mean)
            share = torch.full((3, 4), 1 / 12.0, dtype=torch.float64) if weights is None else w / w.sum()
            gradient = (share[over] * m.logmap(mean, x)).sum((0, 1))
            assert float(m.norm(mean, gradient)) <= self.mean_tolerance * 10
        by_rows = m.mean(x, w, dim=1)
        self._close(by_rows[1], m.mean(x[1], w[1]), 10 * self.mean_tolerance)
        self._close(m.mean(x, dim=0)[2], m.mean(x[:, 2]), 10 * self.mean_tolerance)
        self._close(m.variance(x[0]), m.dist2(m.mean(x[0]), x[0]).mean(), 10 * self.mean_tolerance)
        same = x[0, :1].expand(5, *self.event_shape)
        self._close(m.mean(same), x[0, 0], 10 * self.mean_tolerance)

    def test_mean_refuses_bad_weights(self) -> None:
        """Weights that are negative, vanish or do not fit, and no points at all, are errors that say so."""
        self._supports("mean")
        m, x = self.manifold, self.points(3)
        for weights, words in (
            (torch.tensor([1.0, -0.5, 1.0]), r"nonnegative and finite, got -0.5 at \[1\]"),
            (torch.tensor([1.0, 1.0, torch.nan]), r"nonnegative and finite, got nan at \[2\]"),
            (torch.zeros(3), "positive sum"),
            (torch.ones(2), r"broadcast to the batch shape of x, \(3,\), got shape \(2,\)"),
        ):
            with pytest.raises(ValueError, match=words):
                m.mean(x, weights)
        with pytest.raises(ValueError, match="must have points to average"):
            m.mean(x[:0])
        self._close(m.mean(x, torch.tensor([0.0, 2.0, 0.0])), x[1], 10 * self.mean_tolerance)

    def test_batch_norm_theorem(self) -> None:
        """Output mean is the bias and output variance s^2 v / (v + eps); running statistics move along geodesics."""
        self._supports("mean", "center")
        m, x, b = self.manifold, self.points(7), self.points(seed=1)
        layer = RiemannianBatchNorm(m, self.event_shape, dtype=self.dtype)
        layer.set_bias_point(b)
        self._close(layer.bias_point, b, 10 * self.tolerance)
        with torch.no_grad():
            layer.weight.fill_(0.7)
        mean, v = m.mean(x), m.variance(x)
        y = layer(x)
        self._close(m.mean(y), b, 100 * self.mean_tolerance)
        self._close(m.variance(y), 0.49 * v / (v + layer.eps), 100 * self.mean_tolerance)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self._close(layer.running_mean, m.geodesic(self.origin(), mean, 0.1), 100 * self.tolerance)
        self._close(layer.running_var, 0.9 + 0.1 * v, 100 * self.tolerance)
        layer.refit(x)
        layer.eval()
        self._close(layer(x), y, 1e3 * self.tolerance)

    def test_batch_norm_survives_identical_points(self) -> None:
        """A batch of one repeated point, and of the origin, has finite output and gradients."""
        self._supports("mean", "center")
        for point in (self.origin(), self.points(seed=1)):
            x = point.expand(4, *self.event_shape).clone().requires_grad_()
            layer = RiemannianBatchNorm(self.manifold, self.event_shape, dtype=self.dtype)
            y = layer(x)
            self._close(y, self.origin(4), 1e-6)
            y.abs().square().sum().backward()
            for grad in (x.grad, layer.weight.grad, layer.bias.grad):
                assert grad is not None
                assert torch.isfinite(torch.view_as_real(grad) if grad.is_complex() else grad).all()

    # Shapes.

    def test_broadcasting_equals_a_loop(self) -> None:
        """(5, 1) against (1, 4) equals twenty single calls; empty, expanded and non-contiguous batches work."""
        x, y = self.points(5, 1), self.points(1, 4, seed=1)
        for function in self._unary_of_pairs().values():
            result = function(x, y)
            loop = torch.stack([torch.stack([function(x[i, 0], y[0, j]) for j in range(4)]) for i in range(5)])
            self._close(result, loop)
            assert function(x[:0], y).shape == (0, 4, *result.shape[2:])
            self._close(
                function(x[:1].expand(3, 1, *self.event_shape), y[:, :1]),
                result[:1, :1].expand(3, 1, *result.shape[2:]),
            )
            strided = self.points(4, 3).transpose(0, 1)
            self._close(function(strided, y[0, 0]), function(strided.contiguous(), y[0, 0]))

    def test_vmap(self) -> None:
        """`torch.func.vmap` over single points equals the batch."""
        x, y = self.points(3), self.points(3, seed=1)
        for function in self._unary_of_pairs().values():
            self._close(torch.func.vmap(function)(x, y), function(x, y))

    def test_batch_norm_channels(self) -> None:
        """Channels are normalised separately, leading dimensions together; other positions go through reduce_dims."""
        self._supports("mean", "center")
        x = self.points(4, 2, 3)
        layer = RiemannianBatchNorm(self.manifold, (3, *self.event_shape), dtype=self.dtype)
        y = layer(x)
        for c in range(3):
            single = RiemannianBatchNorm(self.manifold, self.event_shape, dtype=self.dtype)
            self._close(y[:, :, c], single(x[:, :, c]), 100 * self.tolerance)
        moved = RiemannianBatchNorm(self.manifold, (3, *self.event_shape), reduce_dims=(0, 2), dtype=self.dtype)
        self._close(moved(x.transpose(1, 2)).transpose(1, 2), y, 100 * self.tolerance)
