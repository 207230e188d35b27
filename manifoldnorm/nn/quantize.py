"""Emulated 4-bit floating point: NVFP4 and MXFP4 values in ordinary tensors, with straight-through gradients.

The numbers are those that the hardware formats can hold; the arithmetic on them stays float32. It answers what a model
loses when the inputs of its matrix products are rounded to 4 bits, not how fast the hardware is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

E2M1_LARGEST = 6.0
E4M3_LARGEST = 448.0
_FLOAT32_LARGEST = torch.finfo(torch.float32).max
_FLOAT32_EXPONENT = 0x7F800000

Quantizer = Callable[[Tensor], Tensor]


def _power_of_two_below(x: Tensor) -> Tensor:
    """Largest power of two <= x for normal float32 x > 0, exact where a logarithm would round; 0 for x = 0."""
    return (x.view(torch.int32) & _FLOAT32_EXPONENT).view(torch.float32)


def round_to_e2m1(x: Tensor) -> Tensor:
    """Round float32 to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with its sign, ties to even; larger values give 6.

    Examples
    --------
    >>> round_to_e2m1(torch.tensor([0.25, 0.3, 2.5, 3.5, 5.0, -5.1, 100.0]))
    tensor([ 0.0000,  0.5000,  2.0000,  4.0000,  4.0000, -6.0000,  6.0000])
    """
    magnitude = x.abs().clamp(max=E2M1_LARGEST)
    step = _power_of_two_below(magnitude.clamp(min=1.0)) / 2
    return torch.copysign(torch.round(magnitude / step) * step, x)


def _blocks(x: Tensor, block: tuple[int, int]) -> Tensor:
    """View the last two dimensions, padded with zeros, as (row blocks, block rows, column blocks, block columns)."""
    rows, columns = block
    padded = F.pad(x, (0, -x.shape[-1] % columns, 0, -x.shape[-2] % rows))
    return padded.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows))


def _unblock(blocked: Tensor, rows: int, columns: int) -> Tensor:
    return blocked.flatten(-4, -3).flatten(-2, -1)[..., :rows, :columns]


def _nvfp4_values(x: Tensor, block: tuple[int, int], amax: Tensor | None) -> Tensor:
    finite = torch.isfinite(x)
    clean = torch.where(finite, x, torch.zeros_like(x))
    blocked = _blocks(clean, block)
    tensor_amax = clean.abs().amax() if amax is None else amax
    encode = torch.where(tensor_amax > 0, E4M3_LARGEST * E2M1_LARGEST / tensor_amax, torch.ones_like(tensor_amax))
    encode = encode.clamp(max=_FLOAT32_LARGEST)
    block_amax = blocked.abs().amax(dim=(-3, -1), keepdim=True)
    # Beyond 448 the cast gives NaN, hence the clamp: a block above a given amax saturates.
    scale = (block_amax / E2M1_LARGEST * encode).clamp(max=E4M3_LARGEST).to(torch.float8_e4m3fn).to(torch.float32)
    decode = scale / encode
    usable = decode > 0
    inverse = (1 / torch.where(usable, decode, torch.ones_like(decode))).clamp(max=_FLOAT32_LARGEST)
    values = torch.where(usable, round_to_e2m1(blocked * inverse) * decode, torch.zeros_like(blocked))
    return _restore(values, finite, block)


def _mxfp4_values(x: Tensor, block: tuple[int, int]) -> Tensor:
    finite = torch.isfinite(x)
    blocked = _blocks(torch.where(finite, x, torch.zeros_like(x)), block)
    block_amax = blocked.abs().amax(dim=(-3, -1), keepdim=True)
    # The largest magnitude of E2M1 is 1.5 * 2^2; amax below 2^-124 has no normal scale and flushes to zero.
    scale = _power_of_two_below(block_amax) / 4
    usable = scale >= torch.finfo(torch.float32).tiny
    divisor = torch.where(usable, scale, torch.ones_like(scale))
    values = torch.where(usable, round_to_e2m1(blocked / divisor) * divisor, torch.zeros_like(blocked))
    return _restore(values, finite, block)


def _restore(values: Tensor, finite: Tensor, block: tuple[int, int]) -> Tensor:
    """Cut the padding off, and make every block that held an infinity or a NaN NaN."""
    bad = _blocks((~finite).to(torch.float32), block).amax(dim=(-3, -1), keepdim=True) > 0
    values = torch.where(bad, torch.full_like(values, torch.nan), values)
    return _unblock(values, *finite.shape[-2:])


class _StraightThrough(torch.autograd.Function):
    """Quantised value forward, the unchanged gradient backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, block: tuple[int, int], amax: Tensor | None, microscaling: bool) -> Tensor:
        if x.numel() == 0:
            return x.clone()
        matrix = x.to(torch.float32).reshape(-1, x.shape[-1]) if x.ndim != 1 else x.to(torch.float32)[None]
        values = _mxfp4_values(matrix, block) if microscaling else _nvfp4_values(matrix, block, amax)
        return values.reshape(x.shape).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient, None, None, None


def _check(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{name}: expected a real floating-point tensor, got {kind}; convert it first")
    if x.ndim == 0:
        raise ValueError(f"{name}: expected at least one dimension (blocks run along the last), got a scalar")


def nvfp4_fake_quantize(x: Tensor, *, block: tuple[int, int] = (1, 16), amax: float | Tensor | None = None) -> Tensor:
    """Round to NVFP4 and back: E2M1 values in blocks of 16, E4M3 block scales, one float32 scale a tensor.

    With A the largest magnitude of the tensor and a that of a block, encode = 448 * 6 / A; the block's scale is
    s = e4m3(a / 6 * encode) and the result e2m1(x * encode / s) * s / encode. The gradient passes straight through.

    Parameters
    ----------
    x : Tensor
        Floating point, at least one dimension. Computed in float32, returned in the dtype of `x`;
        what float32 cannot hold counts as an infinity.
    block : (int, int)
        Rows and columns that share a scale: (1, 16) along the last (contraction) axis, or (16, 16) tiles, so that a
        weight and its transpose round alike. Rows are all leading dimensions flattened. Incomplete blocks are allowed.
    amax : float or Tensor, optional
        A, instead of the tensor's own largest magnitude: 1 for tensors of unit vectors, which then need no
        reduction over the tensor. Values beyond it saturate.

    Returns
    -------
    Tensor
        Shape and dtype of `x`. A zero block, also in a tensor of zeros (encode = 1 then), gives zeros. A block with an
        infinity or NaN is NaN throughout; the other blocks are rounded as if that block's bad entries were zero.
        Applied twice it changes nothing more, unless a block's scale falls below E4M3's normal range (a block 2^14
        times smaller than A).

    Raises
    ------
    TypeError, ValueError
        `x` is not floating point or is a scalar; a block size is below 1; `amax` is not positive and finite.

    References
    ----------
    NVIDIA, Transformer Engine, NVFP4 recipe. Gaussian data keep a signal-to-noise ratio of 20.4 dB.

    Examples
    --------
    >>> nvfp4_fake_quantize(torch.tensor([6.0, 5.2, 2.4, -0.3, 0.2]))
    tensor([ 6.0000,  6.0000,  2.0000, -0.5000,  0.0000])
    """
    _check(x, "x")
    if len(block) != 2 or min(block) < 1:
        raise ValueError(f"block: expected (rows, columns) of at least 1 each, got {block}")
    if amax is None:
        return _StraightThrough.apply(x, block, None, False)
    if not isinstance(amax, Tensor):
        if not 0 < amax < float("inf"):
            raise ValueError(f"amax: expected a positive finite number, got {amax}")
        amax = torch.tensor(float(amax), device=x.device)
    return _StraightThrough.apply(x, block, amax.to(torch.float32), False)


def mxfp4_fake_quantize(x: Tensor) -> Tensor:
    """Round to MXFP4 and back: E2M1 values in blocks of 32 along the last axis, scales that are powers of two.

    The scale of a block with largest magnitude a is 2^(floor(log2 a) - 2), so magnitudes above 6 scales saturate. The
    gradient passes straight through. Zero and bad blocks, dtypes and errors are as in `nvfp4_fake_quantize`.

    References
    ----------
    Open Compute Project, Microscaling Formats (MX) v1.0. Gaussian data keep a signal-to-noise ratio of 18.8 dB.

    Examples
    --------
    >>> mxfp4_fake_quantize(torch.tensor([7.0, 5.2, 2.4, -0.3, 0.2]))
    tensor([ 6.0000,  6.0000,  2.0000, -0.5000,  0.0000])
    """
    _check(x, "x")
    return _StraightThrough.apply(x, (1, 32), None, True)


class FakeQuantizedLinear(nn.Linear):
    """A linear layer that rounds its input and its weight before multiplying; made by `fake_quantize_linears_`.

    It shares the parameters of the layer that it replaces, and its state_dict is that of `torch.nn.Linear`.

    Parameters
    ----------
    linear : Linear
        The layer whose parameters are used.
    weight, activation : callable or None
        Tensor to tensor; None leaves that side alone.
    """

    def __init__(self, linear: nn.Linear, *, weight: Quantizer | None, activation: Quantizer | None) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight
        self.bias = linear.bias
        self.train(linear.training)
        self.quantize_weight = weight
        self.quantize_activation = activation
        # normalize_weights_ finds the axis of a NormalizedLinear by this attribute.
        self.unit_norm_dim = getattr(linear, "unit_norm_dim", None)

    def forward(self, input: Tensor) -> Tensor:
        """Return the product of the rounded input and the rounded weight, plus the bias as it is."""
        weight = self.weight if self.quantize_weight is None else self.quantize_weight(self.weight)
        input = input if self.quantize_activation is None else self.quantize_activation(input)
        return F.linear(input, weight, self.bias)


def fake_quantize_linears_(
    model: nn.Module,
    *,
    weight: Quantizer | None = nvfp4_fake_quantize,
    activation: Quantizer | None = nvfp4_fake_quantize,
    skip: Iterable[str] = (),
) -> list[str]:
    """Replace every linear layer inside `model` by one that rounds its inputs and weights, in place.

    Parameters are shared, so an optimizer made before still trains them, and the keys of the state_dict stay.

    Parameters
    ----------
    model : Module
        Searched through; it must not itself be the linear layer.
    weight, activation : callable or None
        `nvfp4_fake_quantize`, `mxfp4_fake_quantize`, a `functools.partial` of one, or None to leave that side alone.
    skip : iterable of str
        Full names of linear layers to leave alone, such as the readout.

    Returns
    -------
    list of str
        Names of the replaced layers.

    Raises
    ------
    ValueError
        A name in `skip` is no linear layer of the model, or the model has none to replace.
    TypeError
        The model is itself a linear layer, or holds one that would silently not be rounded: inside
        `torch.nn.MultiheadAttention`, with its own forward, with hooks, or parametrised.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> fake_quantize_linears_(model, skip=["2"])
    ['0']
    """
    if isinstance(model, nn.Linear):
        raise TypeError("model: expected a module that contains linear layers, got a linear layer; wrap it first")
    skipped = set(skip)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    unknown = skipped - linears.keys()
    if unknown:
        raise ValueError(f"skip: expected names of linear layers, got {sorted(unknown)}; have {sorted(linears)}")
    chosen = {name: linear for name, linear in linears.items() if name not in skipped}
    if not chosen:
        raise ValueError(f"model: expected at least one linear layer to replace in {type(model).__name__}, got none")
    for name, linear in chosen.items():
        _require_plain(model, name, linear)
    replacement = {
        linear: FakeQuantizedLinear(linear, weight=weight, activation=activation) for linear in chosen.values()
    }
    for parent in list(model.modules()):  # by parent, so that a layer used in two places is replaced in both
        for child_name, child in list(parent._modules.items()):  # named_children() lists a shared child once
            if isinstance(child, nn.Linear) and child in replacement:
                setattr(parent, child_name, replacement[child])
    return list(chosen)


def _require_plain(model: nn.Module, name: str, linear: nn.Linear) -> None:
    parent = model.get_submodule(name.rpartition(".")[0])
    problem = None
    if isinstance(parent, nn.MultiheadAttention):
        problem = "belongs to torch.nn.MultiheadAttention, which uses its weight without calling it"
    elif type(linear).forward is not nn.Linear.forward and not parametrize.is_parametrized(linear):
        problem = f"is a {type(linear).__name__} with its own forward"
    elif parametrize.is_parametrized(linear):
        problem = "is parametrised"
    elif linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks:
        problem = "has hooks, which would be lost"
    if problem:
        raise TypeError(f"model: the linear layer {name!r} {problem}; put it in skip or replace it beforehand")
