"""What a norm does to a positive scale put before it: the exact factor, and a measurement of any norm."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Statistic = Literal["variance", "mean_square"]


def erasure_factor(scale: Tensor, statistic: Tensor, eps: float) -> Tensor:
    r"""Compute the factor rho that is left of a scale s after a norm, :math:`N(s x) = \rho\,N(x)`.

    .. math:: \rho = \sqrt{\frac{v + \epsilon}{v + \epsilon / s^2}}

    where v is the biased variance of the node's channels for LayerNorm and their mean square for RMSNorm, and N has no
    affine part. The identity is exact: the direction is kept, and only the length shows what is left of s.
    If s < 1 then s <= rho <= 1; how much is erased depends on :math:`\epsilon / (s^2 v)`, not on epsilon alone. rho
    increases with s at equal v, so whatever is left keeps the order of the scales.

    Parameters
    ----------
    scale : Tensor
        Positive scales s.
    statistic : Tensor
        v of the unscaled rows; broadcasts with ``scale``.
    eps : float
        The norm's stabilizer.

    Returns
    -------
    Tensor
        rho, in the broadcast shape.

    Raises
    ------
    ValueError
        If ``eps`` is negative.

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn import erasure_factor
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    >>> s = torch.tensor(0.01, dtype=torch.float64)
    >>> round(erasure_factor(s, x.var(correction=0), 1e-5).item(), 12)
    0.962254297643
    """
    if eps < 0:
        raise ValueError(f"eps must not be negative; got {eps}")
    return torch.sqrt((statistic + eps) / (statistic + eps / scale.square()))


@dataclass(frozen=True)
class ErasureReport:
    """What a norm left of the scales that were put before it.

    Attributes
    ----------
    measured : Tensor, shape (N,)
        Per node, the factor rho that fits ``norm(s x) - bias = rho (norm(x) - bias)`` best.
    predicted : Tensor of shape (N,) or None
        The exact factor, for a norm whose per-node statistic is known.
    direction_error : float
        Largest relative distance of ``norm(s x) - bias`` from that multiple of ``norm(x) - bias``.
    deviation : float or None
        Largest ``abs(measured - predicted)``.
    relative_change : float
        ``|norm(s x) - norm(x)| / |norm(x)|`` over all nodes.
    kept : float
        Slope of log rho over log s: 0, the norm erases the scale; 1, it keeps the scale.
    """

    measured: Tensor
    predicted: Tensor | None
    direction_error: float
    deviation: float | None
    relative_change: float
    kept: float

    @property
    def erased(self) -> bool:
        """Whether the norm acts on each node alone (direction kept) and leaves less than half of the log scale."""
        return self.direction_error < 1e-2 and self.kept < 0.5

    def __str__(self) -> str:
        verdict = "erases" if self.erased else "does not erase"
        low, middle, high = torch.quantile(self.measured.double(), self.measured.new_tensor([0.0, 0.5, 1.0]).double())
        text = (
            f"the norm {verdict} a positive scale: factor min {low:.4g}, median {middle:.4g}, max {high:.4g}; "
            f"{100 * self.kept:.3g} % of the log scale kept; output changed by {self.relative_change:.3g}"
        )
        if self.deviation is not None:
            text += f"; exact factor met within {self.deviation:.1e}"
        return text


@torch.no_grad()
def check_erasure(
    norm: Callable[[Tensor], Tensor],
    x: Tensor,
    scale: Tensor,
    *,
    statistic: Statistic | None = None,
    eps: float | None = None,
) -> ErasureReport:
    """Measure what ``norm`` leaves of positive scales that multiply its input.

    Never compare ``norm(s * x)`` with ``norm(x)`` by a fixed tolerance: what is left depends on eps / (s^2 v). This
    compares with the exact factor instead.

    Parameters
    ----------
    norm : callable, (N, C) -> (N, C)
        A norm layer, e.g. ``torch.nn.LayerNorm(C)``. A ``bias`` attribute is taken off before comparing.
    x : Tensor, shape (N, C)
        Rows with some spread over the channels.
    scale : Tensor, shape (N,) or (N, 1)
        Positive scales.
    statistic : "variance", "mean_square" or None
        The per-node statistic that the norm divides by; by default known for `torch.nn.LayerNorm`,
        `torch.nn.RMSNorm` and torch-geometric's ``LayerNorm(mode="node")``.
    eps : float, optional
        The stabilizer; by default ``norm.eps``.

    Returns
    -------
    ErasureReport

    Raises
    ------
    ValueError
        If shapes do not fit, a scale is not positive, or all scales are equal.

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn import check_erasure
    >>> x, s = torch.randn(50, 32), torch.linspace(0.05, 1.0, 50)
    >>> check_erasure(torch.nn.LayerNorm(32), x, s).erased
    True
    >>> check_erasure(torch.nn.BatchNorm1d(32), x, s).erased
    False
    """
    scale = scale.reshape(-1, 1)
    if x.ndim != 2 or scale.shape[0] != x.shape[0]:
        raise ValueError(f"x must have shape (N, C) and scale N values; got {tuple(x.shape)} and {scale.shape[0]}")
    if not bool((scale > 0).all()):
        raise ValueError("scale must be positive at every node")
    if bool((scale == scale[:1]).all()):
        raise ValueError("scale must differ between nodes, or nothing can be seen of it")
    known, known_eps = _per_node_statistic(norm, x.dtype)
    statistic = statistic or known
    eps = known_eps if eps is None else eps

    bias = getattr(norm, "bias", None)
    offset = bias if isinstance(bias, Tensor) else 0.0
    plain = norm(x) - offset
    scaled = norm(scale.to(x.dtype) * x) - offset
    length2 = plain.square().sum(1)
    measured = (plain * scaled).sum(1) / length2
    residual = (scaled - measured.unsqueeze(1) * plain).norm(dim=1) / scaled.norm(dim=1)

    predicted = None
    if statistic is not None and eps is not None:
        value = x.var(1, correction=0) if statistic == "variance" else x.square().mean(1)
        predicted = erasure_factor(scale.squeeze(1).to(x.dtype), value, eps)
    log_scale = scale.squeeze(1).double().log()
    log_scale = log_scale - log_scale.mean()
    log_factor = measured.abs().double().log()
    return ErasureReport(
        measured=measured,
        predicted=predicted,
        direction_error=float(residual.max()),
        deviation=None if predicted is None else float((measured - predicted).abs().max()),
        relative_change=float((scaled - plain).norm() / plain.norm()),
        kept=float((log_scale * log_factor).sum() / log_scale.square().sum()),
    )


def _per_node_statistic(norm: object, dtype: torch.dtype) -> tuple[Statistic | None, float | None]:
    if isinstance(norm, nn.LayerNorm):
        return "variance", norm.eps
    if isinstance(norm, nn.RMSNorm):
        # torch's convention for RMSNorm(eps=None)
        return "mean_square", torch.finfo(dtype).eps if norm.eps is None else norm.eps
    eps = getattr(norm, "eps", None)
    if type(norm).__module__.startswith("torch_geometric") and getattr(norm, "mode", None) == "node":
        return "variance", eps
    return None, eps
