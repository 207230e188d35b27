"""
A geometry of your own
======================

A flat geometry is a pair of functions. Here the positive vectors get the metric of their logarithms, and with it a
mean, geodesics, a batch norm and the whole test suite.
"""

import matplotlib.pyplot as plt
import torch

from manifoldnorm import Flat
from manifoldnorm.nn import LieBatchNorm


class PositiveVectors(Flat):
    name = "positive vectors"
    ndim = 1

    def deform(self, x):
        return x.log()

    def undeform(self, z):
        return z.exp()


# %%
# Its geodesic between two points is not the straight line, and its mean is the geometric one.

space = PositiveVectors()
x, y = torch.tensor([0.2, 2.0]), torch.tensor([3.0, 0.3])
t = torch.linspace(0, 1, 50)
curve = space.geodesic(x, y, t)
print(space.mean(torch.stack([x, y])), (x * y).sqrt())

plt.figure(figsize=(4, 4))
plt.plot(*curve.T, label="geodesic")
plt.plot(*torch.stack([x, y]).T, "k.", label="end points")
plt.plot(*space.mean(torch.stack([x, y])), "ro", label="mean")
plt.legend()
plt.show()

# %%
# A batch norm needs nothing more.

layer = LieBatchNorm(space, (2,))
batch = space.random(256, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([100.0, 0.01])
out = layer(batch).detach()
print("mean", space.mean(out), "variance", space.variance(out))
