"""PostDeg: LayerNorm, then a positive scale per node that the next LayerNorm cannot divide out."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manifoldnorm.gnn.scale import Source, Topology, TopologyScale


class PostDegNorm(nn.Module):
    r"""LayerNorm over the channels of each node, then the node's topology scale: :math:`y_i = s_i\,LN(x_i)`.

    A positive scale put *before* LayerNorm is divided out (see `erasure_factor`); after it, it reaches the score head
    as the length of the representation. The scale has no parameters: the layer has those of `torch.nn.LayerNorm`
    under the same names (``weight``, ``bias``), so that a LayerNorm's ``state_dict`` loads into it.

    Parameters
    ----------
    dim : int
        Number of channels C.
    source : "degree", "core_number", "pagerank", a callable or a `TopologyScale`, default "degree"
        Where the scale comes from; a `TopologyScale` also sets the power, the offset and the normalization.
    power : float, default 1.0
        Exponent of the scale, :math:`(1 + t)^{-\text{power}}`.
    normalize : "graph" or None, default None
        Divide the scales by their mean over each graph.
    eps : float, default 1e-5
        LayerNorm's stabilizer.
    affine : bool, default True
        Whether LayerNorm has its weight and bias; without them the layer has no parameters at all.

    Raises
    ------
    ValueError
        For ``dim < 1``, ``eps <= 0``, or a ``TopologyScale`` combined with ``power`` or ``normalize``.

    Notes
    -----
    Use it where degree cannot reach the score head otherwise; where degree can be a feature, that is the stronger
    choice (the guide's page on node selection has the measurements).

    References
    ----------
    Y. V. Tomar, A. Das, "PostDeg: Placement Beats Parameterization in LayerNorm GNNs", arXiv 2606.14022, 2026.

    Examples
    --------
    >>> import torch
    >>> from manifoldnorm.gnn import PostDegNorm
    >>> star = torch.tensor([[0, 1, 0, 2, 0, 3], [1, 0, 2, 0, 3, 0]])
    >>> x = torch.randn(4, 16)
    >>> y = PostDegNorm(16)(x, star)
    >>> torch.allclose(y[0], torch.nn.functional.layer_norm(x, (16,))[0] / 4)
    True
    """

    def __init__(
        self,
        dim: int,
        *,
        source: Source | Topology | TopologyScale = "degree",
        power: float = 1.0,
        normalize: Literal["graph"] | None = None,
        eps: float = 1e-5,
        affine: bool = True,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1; got {dim}")
        if not eps > 0:
            raise ValueError(f"eps must be positive; got {eps}")
        if isinstance(source, TopologyScale):
            if power != 1.0 or normalize is not None:
                raise ValueError("power and normalize belong in the TopologyScale that is given as source")
            self.scale = source
        else:
            self.scale = TopologyScale(source, power=power, normalize=normalize)
        self.dim = dim
        self.eps = float(eps)
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim)) if affine else None

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.dim}, eps={self.eps}, affine={self.weight is not None}"

    def reset_parameters(self) -> None:
        """Set the weight to one and the bias to zero."""
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        scale: Tensor | None = None,
    ) -> Tensor:
        """Normalise and scale.

        Parameters
        ----------
        x : Tensor, shape (N, C)
        edge_index : Tensor of int64, shape (2, E), optional
            Needed unless ``scale`` is given.
        batch : Tensor of int64, shape (N,), optional
            Graph of each node (used by PageRank and ``normalize="graph"``).
        scale : Tensor, shape (N,) or (N, 1), optional
            Scales computed before with `TopologyScale`, to be shared by the layers of a network.

        Returns
        -------
        Tensor, shape (N, C)

        Raises
        ------
        ValueError
            If the shapes do not fit, or neither ``edge_index`` nor ``scale`` is given.
        """
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"x must have shape (N, {self.dim}); got {tuple(x.shape)}")
        if scale is None:
            if edge_index is None:
                raise ValueError("give edge_index, or the scales of the nodes as scale=")
            # float32 scales at least: 1/(1 + degree) of a hub loses its digits in half precision.
            dtype = torch.promote_types(x.dtype, torch.float32)
            scale = self.scale(edge_index, x.shape[0], batch, dtype=dtype)
        normalised = F.layer_norm(x, (self.dim,), self.weight, self.bias, self.eps)
        return scale_rows(normalised, scale)


def scale_rows(x: Tensor, scale: Tensor) -> Tensor:
    """Multiply row i of ``x``, shape (N, C), by ``scale[i]``, shape (N,) or (N, 1); the result has x's dtype."""
    if scale.shape not in ((x.shape[0],), (x.shape[0], 1)):
        raise ValueError(f"scale must have one value per node, shape ({x.shape[0]}, 1); got {tuple(scale.shape)}")
    return (x * scale.reshape(-1, 1)).to(x.dtype)
