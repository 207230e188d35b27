"""Batch normalization with one set of running statistics per domain."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence, Set
from typing import Any, cast

import torch
from torch import Tensor

from manifoldnorm.manifolds import Manifold
from manifoldnorm.manifolds.mean import reduce_front
from manifoldnorm.nn.batchnorm import RiemannianBatchNorm, RunningState
from manifoldnorm.nn.batchnorm_input import raise_for_bad_points, restore_front


class DomainBatchNorm(RiemannianBatchNorm):
    """Batch normalization with one set of running statistics per domain and a shared bias and weight.

    Points of each domain (a recording, a site, a person) are normalised by that domain's statistics, which removes what
    is particular to it. For a new domain, `refit` on its unlabelled data before predicting.

    Parameters
    ----------
    manifold, shape, **options
        As for `RiemannianBatchNorm`.
    domains : sequence
        The names of the domains, any hashable values. Checkpoints carry them: loading one whose domains differ, or come
        in another order, is an error.

    Notes
    -----
    With a process group, or after `convert_sync_batchnorm`, the statistics of a domain are those of its points in all
    processes, whichever of them have some.

    Kobler, Hirayama, Zhao and Kawanabe, "SPD domain-specific batch normalization", NeurIPS 2022 (affine-invariant
    metric).

    Examples
    --------
    >>> from manifoldnorm import SPDLogEuclidean
    >>> layer = DomainBatchNorm(SPDLogEuclidean(), (3, 3), domains=["monday", "tuesday"])
    >>> x = SPDLogEuclidean().random(4, 3, 3)
    >>> layer(x, ["monday", "tuesday", "monday", "tuesday"]).shape
    torch.Size([4, 3, 3])
    """

    def __init__(
        self, manifold: Manifold, shape: int | Sequence[int], *, domains: Sequence[Hashable], **options: Any
    ) -> None:
        if isinstance(domains, str | Set):
            raise TypeError(
                f"domains must be a sequence of names in a fixed order, got {type(domains).__name__} {domains!r}; "
                "use sorted(...) of a set, and a list for a single name"
            )
        self._index = {name: i for i, name in enumerate(domains)}
        if not self._index or len(self._index) != len(domains):
            raise ValueError(f"domains must be distinct names, at least one; got {list(domains)}")
        super().__init__(manifold, shape, **options)

    @property
    def domains(self) -> tuple[Hashable, ...]:
        """The names of the domains, in the order of the running statistics' first dimension."""
        return tuple(self._index)

    def _make_buffers(
        self, states: tuple[int, ...], device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        super()._make_buffers((len(self._index), *states), device, dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{super().extra_repr()}, domains={list(self.domains)}"

    def get_extra_state(self) -> Tensor:
        """Return the names of the domains as a tensor of bytes, so that a checkpoint holds nothing but tensors."""
        return torch.tensor(list(json.dumps(self._labels()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse a checkpoint whose statistics belong to other domains, or to the same in another order."""
        saved = json.loads(bytes(state.tolist()).decode())
        if saved != self._labels():
            raise ValueError(
                f"the checkpoint has the statistics of domains {', '.join(saved)}, but the layer's are "
                f"{', '.join(self._labels())}; make the layer with the domains of the checkpoint, in their order"
            )

    def _labels(self) -> list[str]:
        # NumPy's scalars are equal to Python's and hash alike, but their texts differ.
        return [repr(name.item() if hasattr(name, "item") else name) for name in self.domains]

    def reset_running_stats(self, domain: Hashable | None = None) -> None:
        """Reset the statistics of one domain, or of all."""
        for name in self.domains if domain is None else (domain,):
            state = self._domain_state(self._lookup(name))
            if state is not None:
                state.mean.copy_(self.manifold.origin(*self.shape, dtype=state.mean.dtype, device=state.mean.device))
                state.var.fill_(1)
                state.batches.zero_()

    @torch.no_grad()
    def refit(self, x: Tensor, domain: Hashable | None = None) -> None:
        """Replace one domain's running statistics by those of `x`."""
        if domain is None:
            raise ValueError(f"domain must name one of {list(self.domains)}")
        self._refit(x, self._domain_state(self._lookup(domain)))

    def _lookup(self, name: Hashable) -> int:
        if isinstance(name, Tensor):
            name = name.item()
        if name not in self._index:
            raise ValueError(f"unknown domain {name!r}; the layer's domains are {list(self.domains)}")
        return self._index[name]

    def _domain_state(self, index: int) -> RunningState | None:
        state = self._state()
        return None if state is None else RunningState(state.mean[index], state.var[index], state.batches[index])

    def _indices(self, domain: Hashable | Iterable[Hashable] | Tensor, batch: int) -> list[int]:
        names: list[Hashable]
        if isinstance(domain, Tensor):
            names = cast("list[Hashable]", domain.tolist() if domain.ndim else [domain.item()] * batch)
        elif isinstance(domain, str) or not isinstance(domain, Iterable):
            names = [cast("Hashable", domain)] * batch
        else:
            names = list(domain)
        if len(names) != batch:
            raise ValueError(
                f"domain must be one name or one per point of the first dimension ({batch}), got {len(names)}"
            )
        return [self._lookup(name) for name in names]

    def forward(self, x: Tensor, domain: Hashable | Iterable[Hashable] | Tensor) -> Tensor:  # type: ignore[override]
        """Normalise a batch, each point by its domain's statistics.

        Parameters
        ----------
        x : Tensor
            Shape (batch, ..., *shape).
        domain : name, sequence of names, or Tensor
            The domain of the whole batch, or of each point along the first dimension.
        """
        dims = self._check_input(x)
        if 0 not in dims:
            raise ValueError("the first dimension of the input must be reduced, since domains run along it")
        names = self._indices(domain, x.shape[0])
        # On the host, where the names are: picking points by a mask on the device would wait for it.
        index = torch.tensor(names, dtype=torch.long).reshape(-1, *(1,) * (len(dims) - 1))
        index = index.expand([x.shape[d] for d in dims]).flatten()
        points, state = reduce_front(x, dims), self._state()
        try:
            if not self.training and state is not None:
                index = index.to(x.device)
                y = self._normalize_by(points, state.mean[index], state.var[index])
            else:
                y = self._normalize_by_domain(points, index)
        except ValueError:
            raise_for_bad_points(self.manifold, x)
            raise
        return restore_front(y, x, dims)

    def _normalize_by_domain(self, points: Tensor, index: Tensor) -> Tensor:
        """Normalise the points of each domain by their own statistics, and put them back in order."""
        counts = self._counts(index, points.device)
        rows, parts = [], []
        for i, count in enumerate(counts):
            if count == 0:
                continue
            if count == 1 and self.training:
                raise ValueError(
                    f"domain {self.domains[i]!r} has a single point in this batch; give it more, or use eval()"
                )
            members = torch.nonzero(index == i).flatten()
            part = points if len(members) == len(points) else points[members.to(points.device)]
            parts.append(
                self._normalize_by_batch(part, self._domain_state(i) if self.training else None, self.momentum)
            )
            rows.append(members)
        if len(parts) <= 1:
            return parts[0] if parts else points.clone()
        return torch.cat(parts)[torch.argsort(torch.cat(rows)).to(points.device)]

    def _counts(self, index: Tensor, device: torch.device) -> list[int]:
        """Count the points of each domain, over all processes: each must take part in the sums of every domain."""
        counts = torch.bincount(index, minlength=len(self.domains))
        if self.synchronized:
            counts = self._reduce(counts.to(device))
        return cast("list[int]", counts.tolist())
