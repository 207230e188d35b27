"""The sphere residual: exact identities, derivatives, precisions, transformations, the module."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manifoldnorm.manifolds.sphere import Sphere
from manifoldnorm.nn.functional import sphere_residual
from manifoldnorm.nn.residual import CaySpheretNorm, GeoNorm, ProjSpheretNorm, SphereResidual, SpheretNorm, decay_factor
from manifoldnorm.nn.sphere_compiled import CompiledTurn
from manifoldnorm.nn.sphere_rows import Turn
from manifoldnorm.nn.sphere_update import turn, turn_plain
from tests.conftest import GOLDEN

POWERS = [0.5, 1.0, 2.0, 3.0, 4.0, 8.0, math.inf]


def on_sphere(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Draw points with norm sqrt(d)."""
    return Sphere(math.sqrt(shape[-1])).random(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def updates(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def tangent_part(x: Tensor, u: Tensor) -> Tensor:
    return u - (u * x).sum(-1, keepdim=True) / x.shape[-1] * x


def length(v: Tensor) -> Tensor:
    return v.norm(dim=-1, keepdim=True)


# Identities.


def test_projection_and_cayley_forms() -> None:
    """p = 1 is R (x + v) / |x + v|; p = 2 is ((1 - t^2/4) x + v) / (1 + t^2/4)."""
    x, u = on_sphere(50, 12), 3 * updates(50, 12)
    v, radius = tangent_part(x, u), math.sqrt(12)
    projected = radius * (x + v) / length(x + v)
    torch.testing.assert_close(sphere_residual(x, u, p=1.0), projected, rtol=0, atol=1e-14)
    quarter = (length(v) / radius) ** 2 / 4
    cayley = ((1 - quarter) * x + v) / (1 + quarter)
    torch.testing.assert_close(sphere_residual(x, u, p=2.0), cayley, rtol=0, atol=1e-14)


def test_exponential_map_and_its_limit() -> None:
    """p = inf is the exponential map of the tangent part, and large p tends to it as 1 / p^2."""
    x, u = on_sphere(50, 12), updates(50, 12)
    exact = Sphere(math.sqrt(12)).expmap(x, tangent_part(x, u))
    torch.testing.assert_close(sphere_residual(x, u, p=math.inf), exact, rtol=0, atol=1e-14)
    errors = [float((sphere_residual(x, u, p=p) - exact).abs().max()) for p in (1e2, 1e3)]
    assert errors[1] == pytest.approx(errors[0] / 100, rel=1e-2)


def test_post_norm_is_a_projection_with_another_step() -> None:
    """R (x + u) / |x + u| is p = 1 with the step 1 / (1 + a), a = <u, x> / R^2 > -1."""
    x, u = on_sphere(80, 6), updates(80, 6)
    a = (u * x).sum(-1) / 6
    x, u, a = x[a > -0.9], u[a > -0.9], a[a > -0.9]
    post_norm = math.sqrt(6) * (x + u) / length(x + u)
    torch.testing.assert_close(sphere_residual(x, u, p=1.0, step=1 / (1 + a)), post_norm, rtol=0, atol=1e-14)


def test_ngpt_update_is_a_projection_with_another_step() -> None:
    """norm((1 - alpha) x + alpha y) of unit vectors is p = 1 with u = y and the step alpha / (1 - alpha + alpha a)."""
    x = on_sphere(60, 8) / math.sqrt(8)
    y = on_sphere(60, 8, seed=5) / math.sqrt(8)
    for alpha in (0.05, 0.25, 0.45):
        a = (x * y).sum(-1)
        step = alpha / (1 - alpha + alpha * a)
        expected = F.normalize((1 - alpha) * x + alpha * y, dim=-1)
        torch.testing.assert_close(sphere_residual(x, y, 1.0, 1.0, step), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("p", POWERS)
def test_norm_angle_and_equivariance(p: float) -> None:
    """The norm is R, the angle p atan(t / p), and an orthogonal map of both inputs maps the result."""
    x, u = on_sphere(40, 7), 2 * updates(40, 7)
    y = sphere_residual(x, u, p, step=0.8)
    torch.testing.assert_close(y.norm(dim=-1), torch.full((40,), math.sqrt(7), dtype=torch.float64), rtol=1e-14, atol=0)
    t = 0.8 * tangent_part(x, u).norm(dim=-1) / math.sqrt(7)
    theta = t if math.isinf(p) else p * torch.atan(t / p)
    torch.testing.assert_close((x * y).sum(-1) / 7, torch.cos(theta), rtol=0, atol=1e-14)
    q = torch.linalg.qr(updates(7, 7, seed=9)).Q
    torch.testing.assert_close(sphere_residual(x @ q, u @ q, p, step=0.8), y @ q, rtol=0, atol=1e-14)


def test_a_longer_update_can_move_less_beyond_two() -> None:
    """What wraps: with p = 4 the state comes back at t = 4, with the exponential map at t = 2 pi; p <= 2 never does."""
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    e = torch.tensor([0.0, 1.0], dtype=torch.float64)
    far = torch.tensor([3.0, 5.0, 9.0, 100.0], dtype=torch.float64)

    def cosines(p: float) -> Tensor:
        return torch.stack([sphere_residual(x, t * e, p, 1.0) @ x for t in far])

    for p in (1.0, 2.0):
        assert (cosines(p).diff() < 0).all()
    for p in (4.0, math.inf):
        assert (cosines(p).diff() > 0).any()
    torch.testing.assert_close(sphere_residual(x, 4.0 * e, 4.0, 1.0), -x, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("p", POWERS)
def test_zero_and_parallel_updates_change_no_bit(p: float, normalize: bool, dtype: torch.dtype) -> None:
    """Also in the plain and compiled forms, and with the right derivative by the update: the tangent projection."""
    x = on_sphere(500, 64, dtype=dtype)
    settings = Turn(p, 8.0, 8e-3 if normalize else None)
    for factor in (0.0, 1e-3, -0.3, 1.0, -1.0, 3.0, -40.0):
        u = (factor * x).requires_grad_()
        y = sphere_residual(x, u, p, normalize_update=normalize)
        for other in (y, turn_plain(x, u, 1.0, settings), CompiledTurn.apply(x, u, 1.0, settings)):
            assert torch.equal(other.detach(), x)
        g = updates(500, 64, dtype=dtype, seed=3)
        (grad,) = torch.autograd.grad(y, u, g)
        scale = 1.0 if not normalize else 1 / max(abs(factor), 1e-3)
        tolerance = 1e4 * torch.finfo(dtype).eps * scale
        torch.testing.assert_close(grad, scale * tangent_part(x, g), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3), (torch.float64, 1e-14)])
@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 4.0, math.inf])
def test_norm_drift_over_200_layers(p: float, dtype: torch.dtype, bound: float) -> None:
    """The rounding of 200 layers moves no norm by more than the bound."""
    generator = torch.Generator().manual_seed(0)
    x = on_sphere(64, 768).to(dtype)
    for _ in range(200):
        x = sphere_residual(x, torch.randn(64, 768, generator=generator).to(dtype), p, step=0.3)
    drift = (x.double().norm(dim=-1) / math.sqrt(768) - 1).abs().max()
    assert float(drift) <= bound


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_a_wrong_norm_is_forgotten(p: float) -> None:
    """Off the sphere by 20% the norm tends to R over the layers instead of growing."""
    x = 1.2 * on_sphere(16, 32)
    for i in range(60):
        x = sphere_residual(x, updates(16, 32, seed=i), p, step=0.5)
    assert float((x.norm(dim=-1) / math.sqrt(32) - 1).abs().max()) < 0.02


# Derivatives.


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("p", POWERS)
def test_first_and_second_derivatives(p: float, normalize: bool) -> None:
    """By x, u and the step; at rows on and off the sphere, and at u = 0."""
    x, u = on_sphere(5, 4), updates(5, 4)
    x[1] *= 1.2
    if not normalize:
        u[2] = 0
    u[3] = 1e-5 * u[3]
    step = torch.tensor([0.7, 1.0, 0.3, 1.1, 0.5], dtype=torch.float64)

    def function(x: Tensor, u: Tensor, step: Tensor) -> Tensor:
        # The floor of a normalised update is where its derivative jumps: keep the small row clearly below it.
        return sphere_residual(x, u, p, step=step, normalize_update=normalize, eps=1e-2)

    leaves = tuple(t.requires_grad_() for t in (x, u, step))
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("p", POWERS)
def test_zero_update_below_the_floor_of_the_normalisation(p: float) -> None:
    """At u = 0 a normalised update is linear with slope 1 / eps: finite, and differentiable twice."""
    x, u = on_sphere(2, 3), torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)

    def function(u: Tensor) -> Tensor:
        return sphere_residual(x, u, p, step=0.5, normalize_update=True, eps=0.1)

    assert torch.autograd.gradcheck(function, u)
    assert torch.autograd.gradgradcheck(function, u)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("p", POWERS)
def test_all_forms_agree(p: float, normalize: bool) -> None:
    """Row blocks, plain operations and the form for compilation: values and gradients to round-off."""
    settings = Turn(p, math.sqrt(6), 1e-3 * math.sqrt(6) if normalize else None)
    g = updates(3, 4, 6, seed=7)
    results = []
    for form in (turn_plain, turn, CompiledTurn.apply):
        x, u = on_sphere(3, 4, 6), updates(3, 4, 6)
        x[0] *= 0.7
        u[1, 1] = 0
        step = torch.tensor(0.6, dtype=torch.float64)
        leaves = tuple(t.requires_grad_() for t in (x, u, step))
        y = form(*leaves, settings)
        results.append((y.detach(), *torch.autograd.grad(y, leaves, g)))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            torch.testing.assert_close(b, a, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-3, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("p", POWERS)
def test_float32_is_accurate_for_every_size(p: float, size: float) -> None:
    """Value and gradients agree with float64 on the same inputs to a few 1e-7 (30 turns of p = inf: 1e-5)."""
    x, u, g = on_sphere(64, 96).float(), (size * updates(64, 96)).float(), updates(64, 96, seed=2).float()

    def run(dtype: torch.dtype) -> list[Tensor]:
        a, b = x.to(dtype).requires_grad_(), u.to(dtype).requires_grad_()
        y = sphere_residual(a, b, p)
        return [y.detach(), *torch.autograd.grad(y, (a, b), g.to(dtype))]

    for single, double in zip(run(torch.float32), run(torch.float64)):
        error = (single - double).norm(dim=-1).max() / double.norm(dim=-1).max()
        assert float(error) <= (2e-6 if size <= 1 else 1e-5)


def test_large_radial_part_costs_no_digits() -> None:
    """tau from v in a second pass: with |radial| = 1000 |tangent| a single pass would leave no digit."""
    x, v = on_sphere(32, 64), tangent_part(on_sphere(32, 64), updates(32, 64))
    v = v / length(v)
    x32, u32 = x.float(), (0.08 * v + 10 * x).float()
    exact = sphere_residual(x32.double(), u32.double(), 2.0)
    torch.testing.assert_close(sphere_residual(x32, u32, 2.0).double(), exact, rtol=0, atol=2e-5)


def test_row_blocks_join_seamlessly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of rows, also one that is no multiple of the block, gives the same as one block."""
    from manifoldnorm.nn import sphere_rows

    x, u, g = on_sphere(37, 16), updates(37, 16), updates(37, 16, seed=4)
    steps = torch.rand(37, dtype=torch.float64)

    def run() -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, u, steps)]
        y = sphere_residual(leaves[0], leaves[1], 3.0, step=leaves[2], normalize_update=True)
        return [y.detach(), *torch.autograd.grad(y, leaves, g)]

    whole = run()
    monkeypatch.setattr(sphere_rows, "_BLOCK_BYTES", 8 * 16 * 10)
    for a, b in zip(run(), whole):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)


def test_a_step_of_another_dtype_changes_no_dtype() -> None:
    """A float64 step leaves a float32 stream float32 in every form, and gets a gradient of its own dtype."""
    x, u = on_sphere(3, 6, dtype=torch.float32), updates(3, 6, dtype=torch.float32)
    settings = Turn(2.0, math.sqrt(6), None)
    for form in (turn_plain, turn, CompiledTurn.apply):
        step = torch.full((1,), 0.5, dtype=torch.float64, requires_grad=True)
        y = form(x.clone().requires_grad_(), u, step, settings)
        assert y.dtype == torch.float32
        (grad,) = torch.autograd.grad(y.sum(), step)
        assert grad.dtype == torch.float64


# Precisions and transformations.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once(dtype: torch.dtype) -> None:
    """Computed in float32: the result is the float32 result rounded, gradients in the input's dtype."""
    x, u, g = (t.to(dtype) for t in (on_sphere(40, 32), updates(40, 32), updates(40, 32, seed=2)))
    results = []
    for working in (dtype, torch.float32):
        a, b = x.to(working).requires_grad_(), u.to(working).requires_grad_()
        y = sphere_residual(a, b, step=0.4, normalize_update=True)
        results.append((y.detach(), *torch.autograd.grad(y, (a, b), g.to(working))))
    for half, single in zip(*results):
        assert half.dtype == dtype
        torch.testing.assert_close(half, single.to(dtype), rtol=0, atol=0)


def test_zero_row_in_half_precision() -> None:
    """The zero row leaves x as it is; all gradients are finite and that row's is bounded."""
    case = next(c for c in json.loads((GOLDEN / "faults_sphere.json").read_text()) if c["id"] == "S07")
    x = torch.tensor(case["inputs"]["x"], dtype=torch.float16, requires_grad=True)
    u = torch.tensor(case["inputs"]["branch"], dtype=torch.float16, requires_grad=True)
    for normalize in (False, True):
        y = sphere_residual(x, u, 2.0, 1.0, case["inputs"]["alpha"], normalize_update=normalize)
        assert torch.equal(y[0].detach(), x[0].detach())
        by_x, by_u = torch.autograd.grad(y.float().sum(), (x, u))
        assert torch.isfinite(by_x).all()
        assert torch.isfinite(by_u).all()
        assert float(by_u[0].abs().max()) <= 1e4


def test_autocast_takes_the_wider_dtype() -> None:
    """A float32 stream with a bfloat16 update from a linear layer stays float32; nothing inside is cast down."""
    linear = torch.nn.Linear(16, 16)
    residual = SphereResidual(16)
    x = on_sphere(8, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        u = linear(x)
        assert u.dtype == torch.bfloat16
        y = residual(x, u)
        y.sum().backward()
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, residual(x, u.float()), rtol=0, atol=0)
    assert linear.weight.grad is not None
    assert residual.raw_step is not None
    assert residual.raw_step.grad is not None


def test_function_transforms() -> None:
    """vmap (over all, over one input, over the step), grad, per-sample gradients, nested jacobians, vmap of vmap."""
    x, u, steps = on_sphere(4, 3, 5), updates(4, 3, 5), torch.rand(4, dtype=torch.float64)

    def f(x: Tensor, u: Tensor, step: Tensor) -> Tensor:
        return sphere_residual(x, u, 3.0, step=step, normalize_update=True)

    loop = torch.stack([f(x[i], u[i], steps[i]) for i in range(4)])
    torch.testing.assert_close(torch.vmap(f)(x, u, steps), loop, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(
        torch.vmap(f, in_dims=(None, 1, None))(x[0], u.movedim(0, 1), steps[0]),
        torch.stack([f(x[0], u[i], steps[0]) for i in range(4)]),
    )
    nested = torch.vmap(torch.vmap(f, in_dims=(0, 0, None)))(x, u, steps)
    torch.testing.assert_close(nested, loop, rtol=1e-14, atol=1e-15)
    grads = torch.vmap(torch.func.grad(lambda *a: f(*a)[0, 0], argnums=(0, 1, 2)))(x, u, steps)
    for i in range(4):
        single = torch.func.grad(lambda *a: f(*a)[0, 0], argnums=(0, 1, 2))(x[i], u[i], steps[i])
        for a, b in zip(grads, single):
            torch.testing.assert_close(a[i], b, rtol=1e-12, atol=1e-14)
    hessian = torch.func.jacrev(torch.func.jacrev(lambda v: f(x[0, 0], v, steps[0])[0]))(u[0, 0])
    reference = torch.autograd.functional.hessian(lambda v: f(x[0, 0], v, steps[0])[0], u[0, 0])
    torch.testing.assert_close(hessian, reference, rtol=1e-12, atol=1e-13)


def test_shapes() -> None:
    """Broadcast, empty, single, strided, expanded and zero-stride gradient inputs equal the contiguous batch."""
    x, u = on_sphere(4, 3, 6), updates(4, 3, 6)
    y = sphere_residual(x, u)
    assert sphere_residual(x[:0], u[:0]).shape == (0, 3, 6)
    torch.testing.assert_close(sphere_residual(x[0, 0], u[0, 0]), y[0, 0], rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(sphere_residual(x[0, 0], u)[2, 1], sphere_residual(x[0, 0], u[2, 1]))
    strided = sphere_residual(x.transpose(0, 1), u.transpose(0, 1))
    torch.testing.assert_close(strided.transpose(0, 1), y, rtol=1e-14, atol=1e-15)
    wide = torch.cat((x, x), -1)[..., ::2]
    torch.testing.assert_close(sphere_residual(wide, u), sphere_residual(wide.contiguous(), u))
    leaf = x[0, 0].clone().requires_grad_()
    sphere_residual(leaf, u).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.shape == (6,)
    torch.testing.assert_close(
        leaf.grad,
        torch.autograd.grad(turn_plain(leaf, u, 1.0, Turn(2.0, math.sqrt(6), None)).sum(), leaf)[0],
    )
    empty = torch.zeros(0, 6, requires_grad=True)
    sphere_residual(empty, empty).sum().backward()
    one = torch.ones(3, 1, dtype=torch.float64)
    torch.testing.assert_close(sphere_residual(one, updates(3, 1)), one, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("p", "normalize"), [(2.0, True), (math.inf, False)])
def test_compile(p: float, normalize: bool) -> None:
    """One graph without breaks, dynamic shapes, float32 and bfloat16, with and without gradient: the eager numbers."""
    torch.compiler.reset()
    residual = SphereResidual(48, p, normalize_update=normalize)
    compiled = torch.compile(residual, fullgraph=True, dynamic=True)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 5e-2)):
        for rows in (7, 12):
            x, u = on_sphere(rows, 48).to(dtype), updates(rows, 48).to(dtype)
            results = []
            for run in (residual, compiled):
                a, b = x.clone().requires_grad_(), u.clone().requires_grad_()
                residual.zero_grad()
                y = run(a, b)
                y.square().mul(torch.arange(48.0).to(dtype)).sum().backward()
                assert residual.raw_step is not None
                results.append((y.detach(), a.grad, b.grad, residual.raw_step.grad))
            for one, other in zip(*results):
                assert one is not None
                assert other is not None
                scale = float(one.float().abs().max()) + 1e-6
                torch.testing.assert_close(other, one, rtol=0, atol=tolerance * scale)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.float(), u.float()), residual(x.float(), u.float()), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_compile_with_vmap_and_autocast() -> None:
    """Both compose with compilation."""
    torch.compiler.reset()
    x, u = on_sphere(5, 3, 16, dtype=torch.float32), updates(5, 3, 16, dtype=torch.float32)
    mapped = torch.compile(torch.vmap(lambda a, b: sphere_residual(a, b)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(mapped(x, u), sphere_residual(x, u), rtol=1e-5, atol=1e-6)

    def step(x: Tensor, u: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return sphere_residual(x, u.to(torch.bfloat16))

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, u), step(x, u), rtol=1e-5, atol=1e-6)


# The Triton kernels.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("p", POWERS)
def test_cuda_kernels_equal_the_cpu(p: float, normalize: bool, dtype: torch.dtype) -> None:
    """Values and gradients of the kernel pair, for a row length that is no power of two."""
    x, u, g = (t.to(dtype) for t in (on_sphere(33, 100), updates(33, 100), updates(33, 100, seed=2)))
    u[3] = 0
    u[4] = 2 * x[4]
    results = []
    for device in ("cpu", "cuda"):
        a, b = x.to(device).detach().requires_grad_(), u.to(device).detach().requires_grad_()
        step = torch.tensor(0.6, device=device, requires_grad=True)
        y = sphere_residual(a, b, p, step=step, normalize_update=normalize)
        grads = torch.autograd.grad(y, (a, b, step), g.to(device))
        results.append([t.detach().cpu().float() for t in (y, *grads)])
    tolerance = 1e-5 if dtype == torch.float32 else 4 * float(torch.finfo(dtype).eps)
    for cpu, cuda in zip(*results):
        torch.testing.assert_close(cuda, cpu, rtol=0, atol=tolerance * max(1.0, float(cpu.abs().max())))


@pytest.mark.gpu
def test_cuda_double_backward_and_long_rows() -> None:
    """Second derivatives go through ordinary operations; rows beyond a kernel's block do too."""
    x = on_sphere(3, 5).cuda().requires_grad_()
    u = updates(3, 5).cuda().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda a, b: sphere_residual(a, b, 3.0), (x, u))
    long_x, long_u = on_sphere(2, 200_000).float(), updates(2, 200_000).float()
    torch.testing.assert_close(
        sphere_residual(long_x.cuda(), long_u.cuda()).cpu(), sphere_residual(long_x, long_u), rtol=1e-4, atol=1e-4
    )


# Bad input.


def test_points_off_the_sphere() -> None:
    """Kept, projected or refused; a zero row has a documented value and finite gradients."""
    x, u = on_sphere(4, 9), updates(4, 9)
    x[2] *= 1.1
    with pytest.raises(ValueError, match=r"x\[2\] must have norm 3, got 3\.3"):
        sphere_residual(x, u, off_sphere="raise")
    projected = sphere_residual(x, u, off_sphere="project")
    torch.testing.assert_close(projected.norm(dim=-1), torch.full((4,), 3.0, dtype=torch.float64))
    kept = sphere_residual(x, u)
    torch.testing.assert_close(kept[[0, 1, 3]], projected[[0, 1, 3]], rtol=1e-12, atol=1e-12)
    assert float((kept[2] - projected[2]).norm()) > 0.1
    assert sphere_residual(x[:2], u[:2], off_sphere="raise").shape == (2, 9)
    zero = torch.zeros(1, 9, dtype=torch.float64, requires_grad=True)
    for option in ("keep", "project"):
        y = sphere_residual(zero, u[:1], off_sphere=option)  # type: ignore[arg-type]
        (grad,) = torch.autograd.grad(y.sum(), zero)
        assert torch.isfinite(y).all()
        assert torch.isfinite(grad).all()
    with pytest.raises(ValueError, match=r"x\[0\]"):
        sphere_residual(zero, u[:1], off_sphere="raise")


def test_bad_arguments_are_named() -> None:
    x, u = on_sphere(4, 9), updates(4, 9)
    for p in (0.0, -2.0, math.nan):
        with pytest.raises(ValueError, match=r"p must be in \(0, inf\]"):
            sphere_residual(x, u, p)
    for radius in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="radius must be positive"):
            sphere_residual(x, u, radius=radius)
    with pytest.raises(TypeError, match=r"x and u must have one dtype, got torch\.float64 and torch\.float32"):
        sphere_residual(x, u.float())
    with pytest.raises(ValueError, match="on one device, got cpu and meta"):
        sphere_residual(x, u.to("meta"))
    with pytest.raises(TypeError, match="u must have a real floating dtype"):
        sphere_residual(x, u.to(torch.complex128))
    with pytest.raises(TypeError, match="x must have a real floating dtype"):
        sphere_residual(x.long(), u.long())
    with pytest.raises(ValueError, match="one d >= 1"):
        sphere_residual(x, u[:, :5])
    with pytest.raises(ValueError, match="x and u must broadcast"):
        sphere_residual(x, u[:3])
    with pytest.raises(ValueError, match="step must broadcast against the batch shape"):
        sphere_residual(x, u, step=torch.ones(3))
    with pytest.raises(ValueError, match="eps must be positive"):
        sphere_residual(x, u, eps=0.0)
    with pytest.raises(ValueError, match="off_sphere must be"):
        sphere_residual(x, u, off_sphere="clip")  # type: ignore[arg-type]


def test_not_finite_input_stays_visible_and_alone() -> None:
    """NaN and overflow give NaN in their own row, never a plausible number."""
    x, u = on_sphere(4, 9, dtype=torch.float32), updates(4, 9, dtype=torch.float32)
    u[1, 0] = torch.nan
    u[2] *= 1e30
    for p in POWERS:
        y = sphere_residual(x, u, p)
        assert torch.isnan(y[1]).any()
        assert torch.isnan(y[2]).any()
        assert torch.isfinite(y[[0, 3]]).all()


# The module.


def test_module_computes_the_function() -> None:
    """Defaults: p = 2, normalised update, radius sqrt(d), step 1 / sqrt(2 L)."""
    x, u = on_sphere(5, 16, dtype=torch.float32), updates(5, 16, dtype=torch.float32)
    residual = SphereResidual(16, num_layers=8)
    expected = sphere_residual(x, u, 2.0, 4.0, 0.25, normalize_update=True)
    torch.testing.assert_close(residual(x, u), expected, rtol=1e-6, atol=1e-6)
    assert float(SphereResidual(16).step.detach()) == pytest.approx(0.25)  # type: ignore[union-attr]
    assert SphereResidual(16, num_layers=2).state_dict().keys() == {"raw_step"}
    fixed = SphereResidual(16, step=0.5, normalize_update=False)
    assert list(fixed.parameters()) == []
    torch.testing.assert_close(fixed(x, u), sphere_residual(x, u, step=0.5))


def test_named_forms() -> None:
    """They fix p; another p is refused."""
    for cls, p in ((GeoNorm, math.inf), (ProjSpheretNorm, 1.0), (CaySpheretNorm, 2.0)):
        assert cls(8).p == p
        assert cls(8, p).p == p
        with pytest.raises(ValueError, match="use SphereResidual for another p"):
            cls(8, 3.0)
    assert SpheretNorm(8, 3.0).p == 3.0


@pytest.mark.parametrize(("decay", "factors"), [("harmonic", (1, 1 / 2, 1 / 3)), ("linear", (1, 3 / 4, 1 / 2))])
def test_depth_and_loop_decay(decay: str, factors: tuple[float, ...]) -> None:
    """The decays of GeoNorm over layers, and the same over the applications of one block."""
    for layer, factor in enumerate(factors):
        residual = SphereResidual(4, decay=decay, layer=layer, num_layers=4, initial_step=0.8)  # type: ignore[arg-type]
        assert float(residual.step.detach()) == pytest.approx(0.8 * factor)  # type: ignore[union-attr]
    looped = SphereResidual(4, step=0.8, loop_decay=decay, num_loops=4)  # type: ignore[arg-type]
    x, u = on_sphere(3, 4), updates(3, 4)
    for loop, factor in enumerate(factors):
        expected = sphere_residual(x, u, step=0.8 * factor, normalize_update=True)
        torch.testing.assert_close(looped(x, u, loop=loop), expected)
    assert decay_factor("sqrt", 3, None, "decay", "num_layers") == 0.5


def test_module_round_trips() -> None:
    """state_dict, deepcopy and pickle keep the step; it learns; double() and a device move it."""
    residual = SphereResidual(6, initial_step=0.7, decay="sqrt", layer=3)
    other = SphereResidual(6, decay="sqrt", layer=3)
    other.load_state_dict(residual.state_dict())
    x, u = on_sphere(5, 6, dtype=torch.float32), updates(5, 6, dtype=torch.float32)
    for twin in (other, copy.deepcopy(residual), pickle.loads(pickle.dumps(residual))):
        assert torch.equal(twin(x, u), residual(x, u))
    assert residual.double()(x.double(), u.double()).dtype == torch.float64
    learner = SphereResidual(6, initial_step=0.1)
    target = sphere_residual(x, u, step=0.6, normalize_update=True)
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        F.mse_loss(learner(x, u), target).backward()
        optimizer.step()
    assert float(learner.step.detach()) == pytest.approx(0.6, rel=1e-2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"step": "fast"}, 'step must be "learn" or a number'),
        ({"step": math.nan}, "finite number"),
        ({"step": 0.1, "initial_step": 0.1}, "initial_step is for a learnable step"),
        ({"initial_step": -1.0}, "initial_step must be positive"),
        ({"decay": "cubic"}, "decay must be None"),
        ({"decay": "linear"}, "needs num_layers above the index"),
        ({"decay": "linear", "layer": 4, "num_layers": 4}, "needs num_layers above the index"),
        ({"loop_decay": "linear"}, "needs num_loops"),
        ({"radius": 0.0}, "radius must be positive"),
        ({"p": 0.0}, "p must be in"),
        ({"layer": -1}, "must be at least 0"),
        ({"num_layers": 0}, "num_layers must be at least 1"),
        ({"off_sphere": "clip"}, "off_sphere must be"),
        ({"eps": 0.0}, "eps must be positive"),
    ],
)
def test_bad_settings_are_named(options: dict[str, object], match: str) -> None:
    """At construction, before any data."""
    with pytest.raises(ValueError, match=match):
        SphereResidual(8, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dim must be at least 1"):
        SphereResidual(0)
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 8\)"):
        SphereResidual(8)(torch.ones(2, 4), torch.ones(2, 4))
