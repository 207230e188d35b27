"""The public slope checks: they pass what is right, fail what is wrong, and refuse what they cannot check."""

import math

import pytest
import torch
from torch import Tensor

from manifoldnorm import Sphere
from manifoldnorm.testing import check_gradient, check_retraction


class WrongRetraction(Sphere):
    """Turns a tenth too far."""

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        return self.expmap(x, 1.1 * u)


class WrongGradient(Sphere):
    """Forgets to project."""

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        return 1.1 * super().egrad2rgrad(x, u)


def sample() -> tuple[Tensor, Tensor]:
    x = Sphere().random(4, dtype=torch.float64)
    return x, Sphere().random_tangent(x)


def test_orders_of_retractions() -> None:
    x, u = sample()
    for p, second in ((1.0, True), (2.0, True), (math.inf, True)):
        assert check_retraction(Sphere(retraction=p), x, u).passed
        assert check_retraction(Sphere(retraction=p), x, u, order=2).passed is second
    report = check_retraction(WrongRetraction(), x, u)
    assert not report.passed
    assert report.slope == pytest.approx(1.0, abs=0.05)


def test_gradients() -> None:
    x, _ = sample()
    assert check_gradient(Sphere(), lambda p: p[0] ** 2 + p[1], x).passed
    assert not check_gradient(WrongGradient(), lambda p: p[0] ** 2 + p[1], x).passed


def test_what_cannot_be_checked_is_refused() -> None:
    x, u = sample()
    sphere = Sphere()
    with pytest.raises(ValueError, match=r"x is not in the sphere.*norm"):
        check_retraction(sphere, 2 * x, u)
    with pytest.raises(ValueError, match=r"one point, with 1 dimensions, got shape \(3, 4\)"):
        check_retraction(sphere, x.expand(3, 4), u)
    for vector, words in ((u + x, "tangent"), (0 * u, "not zero"), (u.expand(2, 4), r"got shape \(2, 4\)")):
        with pytest.raises(ValueError, match=words):
            check_retraction(sphere, x, vector)
    for function, words in (
        (lambda p: p, r"got a tensor of shape \(4,\)"),
        (lambda p: torch.zeros(()), "got a constant"),
    ):
        with pytest.raises(ValueError, match=words):
            check_gradient(sphere, function, x)
