"""The two small networks on which optimizers are compared, and every optimizer set up on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from manifoldnorm.manifolds.matrix_spheres import FrobeniusSphere
from manifoldnorm.nn.gain import add_gain
from manifoldnorm.optim import MACRO, macro_param_groups, mup_radius


class ResidualMLP(nn.Module):
    """h <- h + down(relu(up(h))) / depth, without any norm layer; a classifier of Gaussian vectors."""

    def __init__(self, width: int = 32, depth: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the residual stream at its end, shape (batch, width)."""
        h = self.enter(x)
        for up, down in zip(self.up, self.down):
            h = h + down(functional.relu(up(h))) / len(self.up)
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.features(x))

    def gain_bound(self, norm: Callable[[Tensor], float]) -> float:
        """Return the product that bounds |features(x)| / |x|, from upper bounds on the spectral norms."""
        factors = (1 + norm(u.weight) * norm(d.weight) / len(self.up) for u, d in zip(self.up, self.down))
        return norm(self.enter.weight) * math.prod(factors)


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int, normalize: bool) -> None:
        super().__init__()
        self.heads, self.normalize = heads, normalize
        self.query, self.key, self.value, self.mix = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def _normalized(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:]) if self.normalize else x

    def forward(self, x: Tensor) -> Tensor:
        """Add attention and a ReLU network to the stream."""
        h = self._normalized(x)
        q, k, v = (
            layer(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(-2))
        return x + self.down(functional.relu(self.up(self._normalized(x))))


class CharacterTransformer(nn.Module):
    """A decoder over characters with two blocks; `normalize=False` leaves out every norm layer."""

    def __init__(
        self,
        vocabulary: int,
        *,
        dim: int = 64,
        heads: int = 4,
        blocks: int = 2,
        context: int = 64,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(_Block(dim, heads, normalize) for _ in range(blocks)))
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.normalize = normalize
        nn.init.normal_(self.position.weight, std=0.1)

    def features(self, tokens: Tensor) -> Tensor:
        """Return the residual stream at its end, shape (batch, time, dim)."""
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        stream: Tensor = self.blocks(x)
        return stream

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        x = self.features(tokens)
        return self.head(functional.rms_norm(x, x.shape[-1:]) if self.normalize else x)


@dataclass(frozen=True)
class Method:
    """An optimizer of the hidden matrices; everything else is AdamW with its own lr.

    Attributes
    ----------
    label : str
    kind : {"adamw", "muon", "macro", "geoopt"}
    lrs : tuple of float
        The grid.
    manifold, direction : str
        For "macro".
    weight_decay : float
        For "adamw" and "muon".
    gain : bool
        Put a learnable gain on every hidden matrix.
    """

    label: str
    kind: str
    lrs: tuple[float, ...]
    manifold: str = "euclidean"
    direction: str = "tangent"
    weight_decay: float = 0.0
    gain: bool = False


def prepare(model: nn.Module, method: Method) -> list[nn.Parameter]:
    """Put gains on the hidden matrices if the method wants them; return the matrices."""
    hidden = [g for g in macro_param_groups(model) if g["algorithm"] == "macro"]
    if method.gain:
        names = {name for group in hidden for name in group["param_names"]}
        for prefix, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and f"{prefix}.weight" in names:
                add_gain(module)
        hidden = [g for g in macro_param_groups(model) if g["algorithm"] == "macro"]
    return [p for group in hidden for p in group["params"]]


def optimizers(model: nn.Module, method: Method, lr: float, *, other_lr: float) -> list[torch.optim.Optimizer]:
    """Set up the method on a model; the constrained ones move the weights to maximal-update radii."""
    hidden = prepare(model, method)
    chosen = set(hidden)
    rest = [p for p in model.parameters() if p not in chosen]
    betas = (0.9, 0.95)
    if method.kind == "adamw":
        decayed = {"params": hidden, "weight_decay": method.weight_decay}
        return [torch.optim.AdamW([decayed, {"params": rest, "lr": other_lr}], lr=lr, betas=betas, weight_decay=0.0)]
    others = torch.optim.AdamW(rest, lr=other_lr, betas=betas, weight_decay=0.0)
    if method.kind == "muon":
        return [torch.optim.Muon(hidden, lr=lr, weight_decay=method.weight_decay), others]
    if method.kind == "geoopt":
        return [_geoopt(model, hidden, lr), others]
    macro = MACRO(hidden, lr=lr, manifold=method.manifold, direction=method.direction, radius="mup")
    return [macro, others]


def _geoopt(model: nn.Module, hidden: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Riemannian Adam of geoopt on the Frobenius spheres of maximal-update radius."""
    import geoopt

    chosen, points = set(hidden), []
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight in chosen:
                sphere = FrobeniusSphere(mup_radius("frobenius", *weight.shape))
                point = geoopt.ManifoldParameter(sphere.projx(weight.detach()), manifold=sphere)
                setattr(module, name, point)
                points.append(point)
    return geoopt.optim.RiemannianAdam(points, lr=lr, betas=(0.9, 0.95))
