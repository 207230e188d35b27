"""Batch normalization on a manifold: one implementation for every geometry.

With m the Frechet mean of a batch and v = mean |center(x, m)|^2 its variance, the output is

    uncenter(s / sqrt(v + eps) * center(x, m), b),

whose mean is the bias point b and whose variance is s^2 v / (v + eps). On a Lie group `center` and `uncenter` are
translations (LieBN: Chen, Song, Liu, Kobler and Sebe, ICLR 2024), in flat geometries a subtraction in the chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from manifoldnorm.linalg.functions import may_look_at
from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.manifolds import LieGroup, Manifold
from manifoldnorm.manifolds.base import require_manifold
from manifoldnorm.manifolds.checks import shape_tuple
from manifoldnorm.manifolds.mean import Reduce, identity_reduce, reduce_front
from manifoldnorm.nn.batchnorm_input import check_batch, check_points, raise_for_bad_points, restore_front
from manifoldnorm.nn.real_tensors import KeepsRealTensors
from manifoldnorm.nn.synchronize import ProcessSum


class RunningState(NamedTuple):
    """Views of the buffers that hold one set of running statistics."""

    mean: Tensor
    var: Tensor
    batches: Tensor


class RiemannianBatchNorm(KeepsRealTensors):
    """Batch normalization of points on a manifold.

    Parameters
    ----------
    manifold : Manifold
        The geometry, any of `manifoldnorm.manifolds` or one of your own.
    shape : int or sequence of int
        The event shape, or channels followed by the event shape; each channel has its own statistics.
    momentum : float or None
        Weight of the new batch in the running statistics; None averages all batches since the last reset.
    eps : float
        Added to the variance, in squared units of the metric.
    affine : bool
        Learn a bias point and a scalar weight per channel. Without it the output has the origin as its mean.
    track_running_stats : bool
        Keep running statistics and use them in eval mode; without them eval mode uses the batch's.
    mean_steps : int, optional
        Iterations for a mean without closed form, from the geometry's first guess. By default it is iterated to
        convergence, which the theorem on the output's mean and variance needs; a fixed number never synchronises with
        the host, which `torch.compile(fullgraph=True)` and CUDA graphs need.
    detach_stats : bool
        Treat mean and variance as constants in the backward pass. By default gradients go through both.
    process_group : ProcessGroup, optional
        Take statistics over all processes of a `torch.distributed` group; see also `convert_sync_batchnorm`.
    reduce_dims : sequence of int, optional
        The batch dimensions that are averaged, when they are not the leading ones: for input (B, C, T, n, n) and shape
        (C, n, n) they are (0, 2).
    normalize_dim : bool
        Divide the variance by the real dimension of the manifold, so that the output has about unit variance in every
        direction instead of in total: its variance is then dim s^2 v / (v + dim eps). By default it is not divided.
    device, dtype
        Of the parameters and buffers.

    Attributes
    ----------
    weight : Parameter
        The scalar s of each channel, 1 at first. A negative one inverts the points before the bias is applied.
    bias : Parameter
        Tangent coordinates at the origin of the manifold's chart, of shape `shape`, 0 at first: unconstrained, so any
        optimizer is right for it. `bias_point` is the point, and `set_bias_point` sets it.
    running_mean, running_var, num_batches_tracked : Tensor
        A point (the origin at first), its variance (1 at first), and the number of batches.

    Raises
    ------
    ValueError
        For a wrong shape or device, a single point in training mode, and, on the CPU, a point that is not on the
        manifold; the message names the batch index. On other devices a bad point is not looked for (that would
        synchronise) and gives NaN.
    TypeError
        For a dtype other than the layer's (half precisions are computed in float32 and returned in their own dtype).

    Notes
    -----
    Running statistics move at each forward pass in training mode, also under gradient accumulation. The running
    variance is the biased one that normalises, unlike that of `torch.nn.BatchNorm1d`.

    Examples
    --------
    >>> from manifoldnorm import SPDLogEuclidean
    >>> layer = RiemannianBatchNorm(SPDLogEuclidean(), (3, 3))
    >>> x = SPDLogEuclidean().random(16, 3, 3)
    >>> layer(x).shape
    torch.Size([16, 3, 3])
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        manifold: Manifold,
        shape: int | Sequence[int],
        *,
        momentum: float | None = 0.1,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        mean_steps: int | None = None,
        detach_stats: bool = False,
        process_group: Any = None,
        reduce_dims: Sequence[int] | None = None,
        normalize_dim: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_manifold(manifold)
        self.manifold, self.shape = manifold, shape_tuple(shape)
        manifold.check_event_shape(self.shape, "shape")
        if momentum is not None and not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie in [0, 1], or be None for a cumulative average; got {momentum}")
        if not eps >= 0:
            raise ValueError(f"eps must not be negative, got {eps}")
        if mean_steps is not None and mean_steps < 1:
            raise ValueError(f"mean_steps must be at least 1, or None to iterate to convergence; got {mean_steps}")
        self.momentum, self.eps, self.mean_steps, self.detach_stats = momentum, eps, mean_steps, detach_stats
        self.affine, self.track_running_stats = affine, track_running_stats
        self.synchronized, self.process_group = process_group is not None, process_group
        self.reduce_dims = None if reduce_dims is None else tuple(reduce_dims)
        self.normalize_dim = normalize_dim
        self._variance_unit = float(manifold.dimension(*self._event_shape)) if normalize_dim else 1.0
        self._make_parameters(device, dtype)
        self._make_buffers((), device, dtype)

    @property
    def channels(self) -> tuple[int, ...]:
        """The leading part of `shape`, before the event shape."""
        return self.shape[: len(self.shape) - self.manifold.ndim]

    def _make_parameters(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        origin = self.manifold.origin(*self.shape, dtype=dtype, device=device)
        if self.affine:
            real = origin.real.dtype if origin.is_complex() else origin.dtype
            self.weight = nn.Parameter(torch.ones(self.channels, dtype=real, device=device))
            self.bias = nn.Parameter(torch.zeros_like(origin))
        else:
            self.register_parameter("weight", None)
            self.register_parameter("bias", None)

    def _make_buffers(
        self, states: tuple[int, ...], device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        if not self.track_running_stats:
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                self.register_buffer(name, None)
            return
        origin = self.manifold.origin(*states, *self.shape, dtype=dtype, device=device)
        real = origin.real.dtype if origin.is_complex() else origin.dtype
        self.register_buffer("running_mean", origin)
        self.register_buffer("running_var", torch.ones(states + self.channels, dtype=real, device=device))
        self.register_buffer("num_batches_tracked", torch.zeros(states, dtype=torch.long, device=device))

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"{self.manifold!r}, shape={self.shape}, momentum={self.momentum}, eps={self.eps}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}, mean_steps={self.mean_steps}, "
            f"detach_stats={self.detach_stats}, normalize_dim={self.normalize_dim}"
        )

    # State.

    @property
    def bias_point(self) -> Tensor:
        """The point that is the mean of the output, of shape `shape`."""
        if self.bias is None:
            raise RuntimeError("bias_point needs affine=True; without it the output's mean is the origin")
        return self.manifold.undeform(self._bias_in_chart(self.bias))

    @torch.no_grad()
    def set_bias_point(self, point: Tensor) -> None:
        """Set the bias so that the output's mean is `point`, of shape `shape` or the event shape."""
        if self.bias is None:
            raise RuntimeError("set_bias_point needs affine=True")
        self.manifold.assert_check_point_on_manifold(point, "point")
        z = self.manifold.deform(point.to(self.bias))
        self.bias.copy_(self.manifold.codomain.logmap(self._chart_origin(z), z))

    def reset_running_stats(self) -> None:
        """Set the running statistics back to the origin, 1, and no batches."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            mean = self.running_mean
            mean.copy_(self.manifold.origin(*self.shape, dtype=mean.dtype, device=mean.device))
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    @torch.no_grad()
    def refit(self, x: Tensor) -> None:
        """Replace the running statistics by those of `x`, for example all unlabelled data of a new recording."""
        self._refit(x, self._state())

    def _refit(self, x: Tensor, state: RunningState | None) -> None:
        if state is None:
            raise RuntimeError("refit needs track_running_stats=True")
        points = reduce_front(x, self._check_input(x))
        if not points.shape[0] and not self.synchronized:
            raise ValueError(f"refit needs at least one point, got input of shape {tuple(x.shape)}")
        # Apart from the old statistics, which must neither be lost to bad data nor matter when they are bad themselves.
        origin = self.manifold.origin(*self.shape, dtype=state.mean.dtype, device=state.mean.device)
        fresh = RunningState(origin, torch.ones_like(state.var), torch.zeros_like(state.batches))
        try:
            self._normalize_by_batch(points, fresh, 1.0)
        except ValueError:
            raise_for_bad_points(self.manifold, x)
            raise
        for old, new in zip(state, fresh, strict=True):
            old.copy_(new)

    def _state(self) -> RunningState | None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return None
        return RunningState(self.running_mean, self.running_var, self.num_batches_tracked)

    def _chart_origin(self, like: Tensor) -> Tensor:
        event = like.shape[like.ndim - self.manifold.ndim :]
        return self.manifold.codomain.origin(*event, dtype=like.dtype, device=like.device)

    def _bias_in_chart(self, bias: Tensor) -> Tensor:
        return self.manifold.codomain.expmap0(bias)

    def _check_input(self, x: Tensor) -> tuple[int, ...]:
        """Return the dimensions to reduce, or raise for a wrong shape, dtype or device."""
        reference = self.bias if self.bias is not None else self.running_mean
        return check_batch(x, self.manifold.ndim, self.shape, self.reduce_dims, reference)

    @property
    def _event_shape(self) -> tuple[int, ...]:
        return self.shape[len(self.shape) - self.manifold.ndim :]

    # Forward.

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch of points.

        Parameters
        ----------
        x : Tensor
            Shape (*batch, *shape), or with the batch dimensions at `reduce_dims`.

        Returns
        -------
        Tensor
            Points of the shape and dtype of `x`.
        """
        dims = self._check_input(x)
        state = self._state()
        points = reduce_front(x, dims)
        try:
            if self.training or state is None:
                y = self._normalize_by_batch(points, state if self.training else None, self.momentum)
            else:
                y = self._normalize_by(points, state.mean.clone(), state.var.clone())
        except ValueError:
            raise_for_bad_points(self.manifold, x)
            raise
        return restore_front(y, x, dims)

    @property
    def _reduce(self) -> Reduce:
        return ProcessSum(self.process_group) if self.synchronized else identity_reduce

    def _normalize_by_batch(self, x: Tensor, state: RunningState | None, momentum: float | None) -> Tensor:
        """Normalise points (N, *shape) by their own statistics and move the running ones."""
        count = x.shape[0]
        if not self.synchronized:
            if count == 0:
                return x.clone()
            if count == 1 and self.training:
                raise ValueError(
                    f"training mode needs more than one point per channel, got one of shape {tuple(x.shape[1:])}; "
                    "use a larger batch or eval()"
                )
        chart, reduce = self.manifold.codomain, self._reduce
        variance: list[Tensor] = []

        def factor(squared: Tensor) -> Tensor:
            batch_variance = reduce(squared.sum(0)) / self._total(count, squared)
            batch_variance = batch_variance.detach() if self.detach_stats else batch_variance
            variance.append(batch_variance)
            return self._factor(batch_variance)

        with without_autocast(x):
            z, running = self._deform(x.to(statistics_dtype(x)), None if state is None else state.mean)
            z, mean = chart.standardize(
                z, self._bias(z), factor, steps=self.mean_steps, reduce=reduce, detach=self.detach_stats
            )
            share = self._share(state, momentum)
            moved = None if running is None else self._between(running, mean.detach(), share)
            y, moved = self._undeform(z, moved)
            y = y.to(x.dtype)
            check_points(self.manifold, x, y)
            if state is not None and moved is not None:
                self._store(state, moved, variance[0], share)
        return y

    def _total(self, count: int, like: Tensor) -> Tensor | int:
        """Count the points of all processes; a single one is an error where reading the number costs nothing."""
        if not self.synchronized:
            return count
        total = self._reduce(torch.full((), count, dtype=like.dtype, device=like.device))
        if self.training and may_look_at(total) and total.item() == 1:
            raise ValueError("training mode needs more than one point per channel, got one in all processes together")
        return total

    def _normalize_by(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Normalise points (N, *shape) by given statistics that broadcast with them."""
        dtype = statistics_dtype(x)
        with without_autocast(x):
            base = self.manifold.deform(mean.to(dtype))
            z = self.manifold.deform(x.to(dtype))
            factor = self._factor(var.to(z.real.dtype if z.is_complex() else dtype))
            z = self.manifold.codomain.rescale(z, base, self._bias(z), lambda _: factor)
            y = self.manifold.undeform(z).to(x.dtype)
            check_points(self.manifold, x, y)
        return y

    # A batch and the running mean go through the chart's maps together: alone, the mean would cost as many operations.
    # Not so when processes share it, which must get the same to the last bit from different batches.

    def _deform(self, points: Tensor, mean: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if mean is None:
            return self.manifold.deform(points), None
        mean = mean.to(points.dtype, copy=True)
        if self.synchronized or self.manifold.is_chart:
            return self.manifold.deform(points), self.manifold.deform(mean)
        z = self.manifold.deform(torch.cat((points, mean.unsqueeze(0))))
        return z[:-1], z[-1].detach()

    def _undeform(self, z: Tensor, mean: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if mean is None:
            return self.manifold.undeform(z), None
        if self.synchronized or self.manifold.is_chart:
            return self.manifold.undeform(z), self.manifold.undeform(mean)
        y = self.manifold.undeform(torch.cat((z, mean.unsqueeze(0))))
        return y[:-1], y[-1].detach()

    def _bias(self, z: Tensor) -> Tensor:
        return self._chart_origin(z) if self.bias is None else self._bias_in_chart(self.bias.to(z.dtype))

    def _factor(self, variance: Tensor) -> Tensor:
        factor = torch.rsqrt((variance / self._variance_unit if self.normalize_dim else variance) + self.eps)
        return factor if self.weight is None else self.weight.to(factor.dtype) * factor

    def _share(self, state: RunningState | None, momentum: float | None) -> Tensor | float:
        """Weight of the present batch in the running statistics."""
        if momentum is not None or state is None:
            return momentum or 0.0
        return 1 / (state.batches + 1).to(state.var.dtype)

    def _between(self, running: Tensor, mean: Tensor, share: Tensor | float) -> Tensor:
        """Move the running mean towards the batch's; all the way without the rounding of a geodesic."""
        return (
            mean if isinstance(share, float) and share == 1 else self.manifold.codomain.geodesic(running, mean, share)
        )

    @torch.no_grad()
    def _store(self, state: RunningState, mean: Tensor, variance: Tensor, share: Tensor | float) -> None:
        """Store a moved mean, and move the variance."""
        state.mean.copy_(mean)
        state.var.lerp_(variance.to(state.var.dtype), share)
        state.batches.add_(1)


class LieBatchNorm(RiemannianBatchNorm):
    """LieBN: `RiemannianBatchNorm` on a Lie group, where centering and biasing are group translations.

    Takes the arguments of `RiemannianBatchNorm`; `manifold` must be a `LieGroup`.

    Notes
    -----
    Chen, Song, Liu, Kobler and Sebe, "A Lie Group Approach to Riemannian Batch Normalization", ICLR 2024.
    """

    def __init__(self, manifold: Manifold, shape: int | Sequence[int], **options: Any) -> None:
        if not isinstance(manifold, LieGroup):
            raise TypeError(f"LieBatchNorm needs a LieGroup, got {manifold!r}; use RiemannianBatchNorm for it")
        super().__init__(manifold, shape, **options)
