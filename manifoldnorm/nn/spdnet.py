"""Networks on symmetric positive definite matrices.

The layers are those of Huang and Van Gool, "A Riemannian Network for SPD Matrix Learning", AAAI 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from manifoldnorm.linalg import clamp_eigenvalues, logm, symmetrize
from manifoldnorm.linalg.functions import may_look_at
from manifoldnorm.linalg.precision import statistics_dtype, without_autocast
from manifoldnorm.manifolds.checks import (
    Violation,
    default_tolerance,
    first_failure,
    require_layer_dtype,
    require_real_tensor,
)
from manifoldnorm.manifolds.spd_points import SPDPoints
from manifoldnorm.nn.domain_layers import refit_layers, run_layers
from manifoldnorm.nn.parametrize import orthonormal_rows


def covariance(signals: Tensor, *, shrinkage: float = 0.0) -> Tensor:
    """Compute covariance matrices of multichannel signals.

    Parameters
    ----------
    signals : Tensor
        Shape (..., time, channels), real.
    shrinkage : float
        Weight in [0, 1] of the multiple of the identity that has the same trace; a small one makes the result positive
        definite when channels are linearly dependent or the window is short.

    Returns
    -------
    Tensor
        SPD matrices of shape (..., channels, channels), normalised by time - 1.

    Raises
    ------
    ValueError
        When a result is not numerically positive definite (its condition number is above 0.1 / eps), with the index of
        the window; looked for on the CPU only.
    TypeError
        For anything but a real floating point tensor.

    Examples
    --------
    >>> covariance(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]]))
    tensor([[0.6667, 0.0000],
            [0.0000, 2.6667]])
    """
    require_real_tensor(signals, "signals")
    if signals.ndim < 2 or signals.shape[-2] < 2:
        raise ValueError(f"signals must have shape (..., time, channels) with time >= 2, got {tuple(signals.shape)}")
    if not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must lie in [0, 1], got {shrinkage}")
    with without_autocast(signals):
        centered = signals.to(statistics_dtype(signals))
        centered = centered - centered.mean(-2, keepdim=True)
        result = symmetrize(centered.mT @ centered) / (signals.shape[-2] - 1)
        if shrinkage:
            n = result.shape[-1]
            level = torch.diagonal(result, dim1=-2, dim2=-1).mean(-1)[..., None, None]
            identity = torch.eye(n, dtype=result.dtype, device=result.device)
            result = (1 - shrinkage) * result + shrinkage * level * identity
        _check_rank(result)
        return result.to(signals.dtype)


def _check_rank(matrices: Tensor) -> None:
    if matrices.numel() == 0 or not may_look_at(matrices):
        return
    with torch.no_grad():
        values = torch.linalg.eigvalsh(torch.nan_to_num(matrices.double()))
        floor = 10 * torch.finfo(matrices.dtype).eps * values[..., -1]
        failed = ~(values[..., 0] > floor) | ~torch.isfinite(matrices).flatten(-2).all(-1)
        if bool(failed.any()):
            index = failed.nonzero()[0].tolist()
            rank = int((values[failed][0] > floor[failed][0]).sum())
            raise ValueError(
                f"the covariance of signals{index or ''} is not positive definite (numerical rank {rank} of "
                f"{matrices.shape[-1]}, or not finite); use shrinkage > 0, a longer window, or fewer channels; time is "
                "the last dimension but one"
            )


def _check_symmetric(x: Tensor, size: int | None = None) -> None:
    """Raise unless `x` holds real square matrices, of the given size; on the CPU also finite and symmetric ones."""
    require_real_tensor(x, "input")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or size not in (None, x.shape[-1]):
        n = "n" if size is None else size
        raise ValueError(f"input must have shape (..., {n}, {n}), got {tuple(x.shape)}")
    if x.numel() == 0 or not may_look_at(x):
        return
    with torch.no_grad():
        asymmetry, scale = ((a).abs().amax((-2, -1)) for a in (x - x.mT, x))
        if bool((asymmetry <= default_tolerance(x.dtype) * scale).all()):
            return
        violation = Violation("symmetric, but max |x - x^T|", asymmetry, scale)
        reason = first_failure(x, [violation], 2, "input", "the symmetric matrices", 0.0, None)
        if reason is not None:
            remedy = "; 0.5 * (x + x.mT) is its symmetric part" if bool(torch.isfinite(asymmetry).all()) else ""
            raise ValueError(reason + remedy)


class Covariance(nn.Module):
    """Layer form of `covariance`: signals (..., time, channels) to SPD matrices (..., channels, channels).

    Parameters
    ----------
    shrinkage : float
        See `covariance`; 1e-3 by default, unlike there, so that one short window does not stop a network.

    Examples
    --------
    >>> Covariance(shrinkage=0.1)(torch.randn(5, 50, 3)).shape
    torch.Size([5, 3, 3])
    """

    def __init__(self, *, shrinkage: float = 1e-3) -> None:
        super().__init__()
        self.shrinkage = shrinkage

    def forward(self, signals: Tensor) -> Tensor:
        """Compute the covariances."""
        return covariance(signals, shrinkage=self.shrinkage)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"shrinkage={self.shrinkage}"


class BiMap(nn.Module):
    """Bilinear map X -> W X W^T of SPD matrices, with orthonormal rows of W.

    The parameter is unconstrained and W its polar factor, so that plain Adam with weight decay keeps W on the Stiefel
    manifold, and the output positive definite with eigenvalues between those of the input.

    Parameters
    ----------
    in_size, out_size : int
        Sizes n and m <= n of the matrices.
    generator : torch.Generator, optional
        For the initial weight.
    device, dtype
        Of the parameter.

    Attributes
    ----------
    weight : Parameter
        Shape (m, n); `frame` is the W that is used.

    Examples
    --------
    >>> layer = BiMap(4, 2)
    >>> layer(torch.eye(4)).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 0 < out_size <= in_size:
            raise ValueError(f"out_size must lie in 1..in_size = {in_size} for full-rank output, got {out_size}")
        self.in_size, self.out_size = in_size, out_size
        noise = torch.randn(out_size, in_size, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(orthonormal_rows(noise).to(device=device, dtype=dtype or torch.get_default_dtype()))

    @property
    def frame(self) -> Tensor:
        """The matrix with orthonormal rows, shape (out_size, in_size)."""
        return orthonormal_rows(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map SPD matrices (..., n, n) to (..., m, m)."""
        _check_symmetric(x, self.in_size)
        require_layer_dtype(x, self.weight.dtype)
        with without_autocast(x):
            frame = self.frame.to(x.dtype)
            return symmetrize(frame @ x @ frame.mT)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"in_size={self.in_size}, out_size={self.out_size}"


class ReEig(nn.Module):
    """Rectification: eigenvalues below `minimum` are raised to it.

    Parameters
    ----------
    minimum : float
        The floor, in the units of the eigenvalues.

    Examples
    --------
    >>> ReEig(minimum=0.5)(torch.diag(torch.tensor([0.1, 2.0])))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """

    def __init__(self, *, minimum: float = 1e-4) -> None:
        super().__init__()
        if not minimum > 0:
            raise ValueError(f"minimum must be positive, got {minimum}")
        self.minimum = minimum

    def forward(self, x: Tensor) -> Tensor:
        """Rectify symmetric matrices (..., n, n)."""
        _check_symmetric(x)
        return clamp_eigenvalues(x, self.minimum)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"minimum={self.minimum}"


class LogEig(nn.Module):
    """The matrix logarithm, which takes SPD matrices to symmetric ones.

    On the CPU a matrix that is not positive definite is an error that names it; elsewhere its logarithm is NaN.

    Examples
    --------
    >>> LogEig()(torch.eye(2))
    tensor([[0., 0.],
            [0., 0.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Take the logarithm of SPD matrices (..., n, n)."""
        _check_symmetric(x)
        result = logm(x)
        if may_look_at(result) and not bool(torch.isfinite(result.detach()).all()):
            SPDPoints().assert_check_point_on_manifold(x.detach(), "input")
        return result


def vectorize_symmetric(x: Tensor) -> Tensor:
    """List the upper triangle of symmetric matrices (..., n, n).

    Off-diagonal entries are multiplied by sqrt(2), so that norms agree.

    Examples
    --------
    >>> vectorize_symmetric(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1.0000, 2.8284, 3.0000])
    """
    n = x.shape[-1]
    rows, columns = torch.triu_indices(n, n, device=x.device)
    scale = torch.where(rows == columns, 1.0, 2.0**0.5).to(x.dtype)
    return x[..., rows, columns] * scale


class SPDNet(nn.Module):
    """Classifier of SPD matrices: BiMap, batch norm and ReEig blocks, then LogEig and a linear layer.

    Parameters
    ----------
    sizes : sequence of int
        Sizes of the matrices from the input on, not increasing, such as (8, 6, 4).
    classes : int
        Number of classes.
    norm : callable, optional
        Makes a batch norm for matrices of a given size, such as
        `lambda n: LieBatchNorm(SPDLogEuclidean(), (n, n))`; none by default.
    minimum : float
        The floor of `ReEig`.
    generator : torch.Generator, optional
        For the initial BiMap weights.
    device, dtype
        Of the parameters; give the norm the same.

    Examples
    --------
    >>> from manifoldnorm import SPDLogEuclidean
    >>> from manifoldnorm.nn import LieBatchNorm
    >>> net = SPDNet((8, 4), 5, norm=lambda n: LieBatchNorm(SPDLogEuclidean(), (n, n)))
    >>> net(SPDLogEuclidean().random(10, 8, 8)).shape
    torch.Size([10, 5])
    """

    def __init__(
        self,
        sizes: Sequence[int],
        classes: int,
        *,
        norm: Callable[[int], nn.Module] | None = None,
        minimum: float = 1e-4,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"sizes must name the input and at least one more size, got {tuple(sizes)}")
        if isinstance(norm, nn.Module):
            raise TypeError(f"norm must be a function from the size of the matrices to a batch norm, got {norm}")
        layers: list[nn.Module] = []
        for n, m in pairwise(sizes):
            layers.append(BiMap(n, m, generator=generator, device=device, dtype=dtype))
            if norm is not None:
                layers.append(norm(m))
            layers.append(ReEig(minimum=minimum))
        self.layers = nn.ModuleList(layers)
        self.logarithm = LogEig()
        last = sizes[-1]
        self.head = nn.Linear(last * (last + 1) // 2, classes, device=device, dtype=dtype)

    def features(self, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None = None) -> Tensor:
        """Return the vectors that the linear layer sees, shape (batch, m (m + 1) / 2)."""
        return vectorize_symmetric(self.logarithm(run_layers(self.layers, x, domain)))

    def forward(self, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor | None = None) -> Tensor:
        """Compute class scores of SPD matrices (batch, n, n); `domain` is for a `DomainBatchNorm` only."""
        return self.head(self.features(x, domain).to(self.head.weight.dtype))

    def refit(self, x: Tensor, domain: Hashable | None = None) -> None:
        """Replace the running statistics of all batch norms, layer by layer, by those of unlabelled data `x`.

        Parameters
        ----------
        x : Tensor
            All data of the domain at once, shape (batch, n, n).
        domain : name, optional
            The domain that they come from, for a `DomainBatchNorm`.
        """
        refit_layers(self, self.layers, x, domain)
