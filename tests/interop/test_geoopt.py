"""geoopt's optimizers and containers with our manifolds, and serialisation of parameters."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

geoopt = pytest.importorskip("geoopt")

from manifoldnorm import SPDAffineInvariant, SPDLogCholesky, SPDLogEuclidean, Sphere
from manifoldnorm.interop.geoopt import as_geoopt, parameter
from tests.nn.test_batchnorm import GEOMETRIES, points


def optimizers(p: nn.Parameter) -> list[torch.optim.Optimizer]:
    return [
        geoopt.optim.RiemannianAdam([p], lr=0.05),
        geoopt.optim.RiemannianAdam([p], lr=0.05, amsgrad=True, stabilize=5),
        geoopt.optim.RiemannianSGD([p], lr=0.1),
        geoopt.optim.RiemannianSGD([p], lr=0.05, momentum=0.9, nesterov=False, stabilize=7),
    ]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_optimizers_reach_the_mean_on_the_manifold(
    manifold: SPDAffineInvariant, which: int, dtype: torch.dtype
) -> None:
    x = points(5, dtype=dtype)
    p = parameter(points(seed=3, dtype=dtype), manifold)
    optimizer = optimizers(p)[which]
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 120)
    for _ in range(120):
        optimizer.zero_grad()
        manifold.dist2(p, x).mean().backward()
        optimizer.step()
        scheduler.step()
    assert manifold.check_point_on_manifold(p.detach())
    assert float(manifold.dist(p.detach(), manifold.mean(x))) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_decay_alone_does_not_move_a_point_of_a_sphere(dtype: torch.dtype) -> None:
    """Its direction is normal; Adam would scale the round-off of the projection up to a step of the learning rate."""
    x = Sphere().random(20, 7, dtype=dtype)
    p = parameter(x.clone(), Sphere())
    optimizer = geoopt.optim.RiemannianAdam([p], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    torch.testing.assert_close(p.detach(), x, rtol=0, atol=4 * torch.finfo(dtype).eps)
    small = 1e-3 * Sphere().random_tangent(x)
    torch.testing.assert_close(Sphere().egrad2rgrad(x, x + small), Sphere().proju(x, x + small), rtol=0, atol=0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.point = parameter(points(2, seed=1), SPDLogEuclidean())


def test_copies_checkpoints_and_optimizer_state() -> None:
    model = Model()
    optimizer = geoopt.optim.RiemannianAdam(model.parameters(), lr=0.1)
    x = points(2)

    def step(m: Model, o: torch.optim.Optimizer) -> None:
        o.zero_grad()
        SPDLogEuclidean().dist2(m.point, x).sum().backward()
        o.step()

    step(model, optimizer)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(other.point, geoopt.ManifoldParameter)
        assert other.point.manifold == SPDLogEuclidean()
        resumed = geoopt.optim.RiemannianAdam(other.parameters(), lr=0.1)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step(other, resumed)
        reference = copy.deepcopy(model)
        again = geoopt.optim.RiemannianAdam(reference.parameters(), lr=0.1)
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step(reference, again)
        torch.testing.assert_close(other.point.data, reference.point.data)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = Model()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(fresh.point.data, model.point.data)
    assert model.double().point.manifold == SPDLogEuclidean()


def test_equal_manifolds_are_accepted_as_the_same() -> None:
    tensor = geoopt.ManifoldTensor(points(), manifold=SPDAffineInvariant())
    assert geoopt.ManifoldParameter(tensor, manifold=SPDAffineInvariant()).manifold == SPDAffineInvariant()


def test_scaled_and_product_of_geoopt() -> None:
    x, y = points(4), points(4, seed=1)
    base = SPDLogCholesky()
    scaled = geoopt.Scaled(as_geoopt(base), scale=2.0, learnable=False)
    torch.testing.assert_close(scaled.dist(x, y), 2 * base.dist(x, y), check_dtype=False)
    torch.testing.assert_close(scaled.expmap(x, scaled.logmap(x, y)), y, check_dtype=False)
    product = geoopt.ProductManifold((as_geoopt(base), (3, 3)), (geoopt.Euclidean(ndim=1), 2))
    point = product.pack_point(x, torch.zeros(4, 2, dtype=x.dtype))
    other = product.pack_point(y, torch.ones(4, 2, dtype=x.dtype))
    torch.testing.assert_close(product.dist2(point, other), base.dist2(x, y) + 2)
    wrapped = as_geoopt(base)
    assert wrapped == as_geoopt(SPDLogCholesky())
    assert isinstance(wrapped, geoopt.manifolds.base.Manifold)
    assert not list(wrapped.parameters())
    wrapped.assert_check_point_on_manifold(x)
    with pytest.raises(ValueError, match="symmetric"):
        wrapped.assert_check_point_on_manifold(torch.ones(3, 3, dtype=x.dtype).triu())


def test_a_bad_point_is_named() -> None:
    with pytest.raises(ValueError, match="positive definite"):
        parameter(-torch.eye(3), SPDAffineInvariant())
    with pytest.raises(ValueError, match="square"):
        geoopt.ManifoldParameter(torch.ones(3, 4), manifold=SPDAffineInvariant())
