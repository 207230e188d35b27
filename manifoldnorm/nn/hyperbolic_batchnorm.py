"""Batch normalization of hyperbolic features: `RiemannianBatchNorm` in log coordinates, with two means, two forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.manifolds import Manifold, poincare_batch, poincare_fixed
from manifoldnorm.manifolds import poincare_maps as maps
from manifoldnorm.manifolds.mean import Reduce, identity_reduce
from manifoldnorm.manifolds.poincare import PoincareLogChart
from manifoldnorm.nn.batchnorm import RiemannianBatchNorm, RunningState
from manifoldnorm.nn.batchnorm_input import check_points
from manifoldnorm.nn.curvature import Curvature, check_features


class BatchNormChart(PoincareLogChart):
    """The log chart with the statistic that a batch norm calls mean, and the way in which it moves points to the bias.

    Parameters
    ----------
    c : float or Tensor
        The curvature is -c.
    average : str
        "midpoint" or "frechet".
    form : str
        "gyro": b (+) f ((-m) (+) x); "parallel_transport": exp_b(f PT_{m->b} log_m x). They differ by a fixed rotation.
    """

    name = "hyperbolic space in log coordinates"

    def __init__(self, c: float | Tensor = 1.0, average: str = "midpoint", form: str = "gyro") -> None:
        super().__init__(c)
        if average not in ("midpoint", "frechet"):
            raise ValueError(f'average must be "midpoint" or "frechet", got {average!r}')
        if form not in ("gyro", "parallel_transport"):
            raise ValueError(f'form must be "gyro" or "parallel_transport", got {form!r}')
        self.average, self.form = average, form

    def mean(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        dim: int | tuple[int, ...] = 0,
        *,
        steps: int | None = None,
        reduce: Reduce = identity_reduce,
    ) -> Tensor:
        """Compute the midpoint or the Frechet mean."""
        if self.average == "frechet":
            return super().mean(x, weights, dim, steps=steps, reduce=reduce)
        return self.midpoint(x, weights, dim, reduce=reduce)

    def rescale(self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Move `mean` to the origin, scale, and move the origin to `bias`."""
        if self.form == "parallel_transport":
            return self._rescale_by_transport(x, mean, bias, factor)
        if self.is_fused(x) and mean.ndim == bias.ndim == 1:
            scale = factor(poincare_batch.squared_distances(x, mean, self.c))
            return poincare_batch.rescale(x, mean, bias, scale, self.c)
        return super().rescale(x, mean, self.projx(bias), factor)

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """Compute x (+) t ((-x) (+) y)."""
        if x.ndim == y.ndim == 1 and not torch.is_grad_enabled() and self.is_fused(x):
            return poincare_fixed.point_between(x, y, self.c, t)
        return super().geodesic(x, y, t)

    def is_fused(self, x: Tensor) -> bool:
        """Tell whether the float32 functions apply, which need float64 inside."""
        return x.dtype == torch.float32 and x.device.type != "mps" and self.form == "gyro"

    def _rescale_by_transport(
        self, x: Tensor, mean: Tensor, bias: Tensor, factor: Callable[[Tensor], Tensor]
    ) -> Tensor:
        t, bias = self.center(x, mean), self.projx(bias)
        scaled = factor(4 * maps.squared_norm(t, -1).squeeze(-1)).unsqueeze(-1) * t
        ball_bias, ball_mean = (maps.exp0(p, self.c, -1) for p in (bias, mean))
        return self.uncenter(maps.gyration(ball_bias, -ball_mean, scaled, self.c, -1), bias)


class PoincareBatchNorm(RiemannianBatchNorm):
    """Batch normalization of hyperbolic features (N, C, ...), log coordinates with the vector on axis 1.

    The output is b (+) f (x) ((-m) (+) x) with f = s / sqrt(v + eps), v the mean squared distance to the mean m, and b,
    s learned. Statistics run over all points: samples, orientations and pixels.

    Parameters
    ----------
    channels : int
        Dimension of the points.
    c : float or Curvature
        The curvature is -c.
    average : str
        "midpoint" (default), a closed form, or "frechet", with which the output's Frechet mean is exactly b.
    form : str
        "gyro" (default), or "parallel_transport": exp_b(f PT_{m->b} log_m x). Equal where b is the origin, otherwise
        they differ by one fixed rotation.
    momentum, eps, affine, track_running_stats, mean_steps, detach_stats, process_group
        As for `RiemannianBatchNorm`; `mean_steps` counts Newton steps of the Frechet mean.

    Attributes
    ----------
    weight : Parameter
        s, a scalar. It starts at min(sqrt(channels), 1.5/sqrt(c)): v is a sum over coordinates, so sqrt(channels) keeps
        the spread of each, and the second bound keeps points where curvature does not blow them up.
    bias : Parameter
        b in log coordinates.

    Raises
    ------
    ValueError, TypeError
        For another number of channels or dtype, a single point in training mode, features that are not finite.

    Notes
    -----
    The variance about b is s^2 v / (v + eps) exactly. With the midpoint the output's midpoint is b only where s equals
    sqrt(v + eps); otherwise it is off by 1e-3 to 4e-2 (in the ball) for b and s away from their defaults. The gyro form
    is that of Chen et al., "Gyrogroup batch normalization" (ICLR 2025), the other that of Lou et al. (ICML 2020).

    Running statistics lag while the mean drifts by much more than the spread, at a high constant learning rate for
    example: decay the learning rate to zero (cosine) or call `recalibrate`.

    Examples
    --------
    >>> layer = PoincareBatchNorm(8, c=0.5)
    >>> layer(torch.randn(4, 8, 5, 5)).shape
    torch.Size([4, 8, 5, 5])
    """

    def __init__(
        self,
        channels: int,
        *,
        c: float | Curvature = 1.0,
        average: str = "midpoint",
        form: str = "gyro",
        momentum: float | None = 0.1,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        mean_steps: int | None = None,
        detach_stats: bool = False,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if channels < 1:
            raise ValueError(f"channels must be positive, got {channels}")
        start = float(c().detach()) if isinstance(c, Curvature) else c
        super().__init__(
            BatchNormChart(start, average, form),
            (channels,),
            momentum=momentum,
            eps=eps,
            affine=affine,
            track_running_stats=track_running_stats,
            mean_steps=mean_steps,
            detach_stats=detach_stats,
            process_group=process_group,
            device=device,
            dtype=dtype,
        )
        self.shared_curvature = c if isinstance(c, Curvature) else None
        if self.weight is not None:
            nn.init.constant_(self.weight, min(math.sqrt(channels), 1.5 / math.sqrt(start)))

    # A learned curvature makes a new manifold of every forward pass; the base class stores and asks for one.

    @property
    def manifold(self) -> Manifold:
        """The log chart at the present curvature."""
        return self._log_chart()

    @manifold.setter
    def manifold(self, value: Manifold) -> None:
        self.__dict__["_chart"] = value

    def _log_chart(self) -> BatchNormChart:
        chart: BatchNormChart = self.__dict__["_chart"]
        curvature = self._modules.get("shared_curvature")
        return chart if curvature is None else BatchNormChart(curvature(), chart.average, chart.form)

    def _bias_in_chart(self, bias: Tensor) -> Tensor:
        # The exponential map at the origin of the log chart does nothing but cut, which the chart does with a bias.
        return bias

    def forward(self, u: Tensor) -> Tensor:
        """Normalise log coordinates of shape (N, channels, ...)."""
        check_features(u, self.shape[0], tuple(range(2, 9)), "(N, channels, ...)", self.bias)
        points, state = u.movedim(1, -1), self._state()
        self._check_input(points)
        if self.training or state is None:
            y = self._normalize_by_batch(points, state if self.training else None, self.momentum)
        else:
            y = self._normalize_by(points, state.mean.clone(), state.var.clone())
        return y.movedim(-1, 1)

    def _normalize_by_batch(self, x: Tensor, state: RunningState | None, momentum: float | None) -> Tensor:
        """Do what the base class does without flattening (N, ..., channels) first, which would copy an image twice."""
        count: Tensor | int = x.numel() // max(1, x.shape[-1])
        if not self.synchronized:
            if count == 0:
                return x.clone()
            if count == 1 and self.training:
                raise ValueError(
                    "training mode needs more than one point, got a single one of "
                    f"{self.shape[0]} channels; use a larger batch or eval()"
                )
        with without_autocast(x):
            z = x.to(statistics_dtype(x))
            if self.synchronized:
                count = self._reduce(torch.full((), float(count), dtype=torch.float64, device=x.device))
            y, mean, variance = self._standardized(z, count)
            y = y.to(x.dtype)
            check_points(self.manifold, x, y)
            if state is not None:
                share = self._share(state, momentum)
                with torch.no_grad():
                    mean = mean.detach().to(z.dtype)
                    moved = self.manifold.geodesic(state.mean.to(z.dtype), mean, share)
                self._store(state, moved, variance.detach(), share)
        return y

    def _standardized(self, z: Tensor, count: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalised points, the mean and the variance."""
        chart, reduce, bias = self._log_chart(), self._reduce, self._bias(z)
        if chart.average == "midpoint" and chart.is_fused(z) and not self.detach_stats:
            weight = torch.ones((), device=z.device) if self.weight is None else self.weight
            return poincare_batch.normalize(z, bias, weight, chart.c, eps=self.eps, count=count, reduce=reduce)
        dims, variance = tuple(range(z.ndim - 1)), z.new_zeros(())

        def factor(squared: Tensor) -> Tensor:
            nonlocal variance
            variance = reduce(squared.sum()) / count
            variance = variance.detach() if self.detach_stats else variance
            return self._factor(variance)

        mean = chart.mean(z.detach() if self.detach_stats else z, dim=dims, steps=self.mean_steps, reduce=reduce)
        return chart.rescale(z, mean, bias, factor), mean, variance

    def _normalize_by(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        z, chart = x.to(statistics_dtype(x)), self._log_chart()
        if not chart.is_fused(z):
            return super()._normalize_by(x, mean, var)
        with without_autocast(x):
            y = poincare_batch.rescale(z, mean, self._bias(z), self._factor(var.double()), chart.c).to(x.dtype)
            check_points(self.manifold, x, y)
        return y


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> None:
    """Replace the running statistics of all batch norms in `model` by averages over `batches`.

    Every batch is passed through the model once, without gradients and with batch statistics in the batch norms (other
    layers in eval mode). Modes and momenta are restored.

    Parameters
    ----------
    model : nn.Module
        With any `RiemannianBatchNorm` or batch norms of torch.
    batches : iterable
        Inputs, or tuples whose first entry is the input, as a data loader gives them.

    Raises
    ------
    ValueError
        If `batches` is empty.

    Examples
    --------
    >>> layer = PoincareBatchNorm(3)
    >>> recalibrate(layer, [torch.randn(10, 3), torch.randn(10, 3)])
    >>> int(layer.num_batches_tracked)
    2
    """
    kinds = (RiemannianBatchNorm, nn.modules.batchnorm._BatchNorm)
    layers = [m for m in model.modules() if isinstance(m, kinds) and m.track_running_stats]
    modes = [(m, m.training) for m in model.modules()]
    momenta = [m.momentum for m in layers]
    model.eval()
    for layer in layers:
        layer.train()
        layer.reset_running_stats()
        layer.momentum = None
    seen = 0
    try:
        with torch.no_grad():
            for batch in batches:
                model(batch[0] if isinstance(batch, (tuple, list)) else batch)
                seen += 1
    finally:
        for layer, momentum in zip(layers, momenta):
            layer.momentum = momentum
        for module, training in modes:
            module.training = training
    if not seen:
        raise ValueError("batches must hold at least one batch; the running statistics were reset")
