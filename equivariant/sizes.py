"""Which image sizes keep a strided window equivariant, and an error that names them."""

from __future__ import annotations

Pair = tuple[int, int]


def window_overhang(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return how many pixels the last window leaves over: (size + 2 padding - dilation (kernel - 1) - 1) mod stride.

    A quarter turn maps the grid of windows onto itself exactly when it is zero in both directions.

    Examples
    --------
    >>> window_overhang(16, kernel=3, stride=2, padding=1, dilation=1), window_overhang(15, 3, 2, 1, 1)
    (1, 0)
    """
    return (size + 2 * padding - dilation * (kernel - 1) - 1) % stride


def check_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, layer: str) -> None:
    """Raise ValueError, with the sizes that work, for an image whose windows do not tile it symmetrically."""
    for axis, n, k, s, p, d in zip(("height", "width"), size, kernel, stride, padding, dilation):
        reach = d * (k - 1) + 1
        if n + 2 * p < reach:
            raise ValueError(f"{layer}: {axis} {n} with padding {p} is smaller than the window, which reaches {reach}")
        over = window_overhang(n, k, s, p, d)
        if over:
            below, above = n - over, n - over + s
            raise ValueError(
                f"{layer}: {axis} {n} breaks equivariance with kernel_size={k}, stride={s}, padding={p}, dilation={d}: "
                f"(size + 2 padding - dilation (kernel - 1) - 1) mod stride is {over}, not 0. Sizes that work are "
                f"{below} and {above}, every {s}-th; for size {n} use {_remedy(n, s)}. strict=False lets it pass"
            )


def _remedy(size: int, stride: int) -> str:
    if size % stride == 0:
        return f"kernel_size={stride} without padding" + (", or kernel_size=4 with padding=1" if stride == 2 else "")
    odd = "kernel_size=3 with padding=1" if stride == 2 and size % 2 else f"a size that {stride} divides"
    return odd


def check_square(name: str, value: Pair) -> None:
    """Raise ValueError unless both entries are equal, since a quarter turn swaps the axes."""
    if value[0] != value[1]:
        raise ValueError(f"{name} must be the same in both directions, since a quarter turn swaps them; got {value}")
