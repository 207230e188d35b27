"""
What turns with the image, and what does not
============================================

Features of an equivariant Poincaré network turn with the image and permute their orientations; the scores stay. Turned
by 45 degrees, or shifted by half a pixel, they do not.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

from manifoldnorm.datasets.digits import digits
from manifoldnorm.equivariant import CyclicGroup4, EquivariantPoincareResNet, check_equivariance, recalibrate
from manifoldnorm.manifolds.poincare import PoincareLogChart

torch.manual_seed(0)
images, labels = digits()
image = images[(labels == 4).nonzero()[0]]
group = CyclicGroup4()
model = EquivariantPoincareResNet(1, 10, group=group, widths=(4, 6), depths=(1, 1), c=0.1)
recalibrate(model, torch.split(images[:600], 100))
model.eval()

# %%
# The length of the hyperbolic features of the first layers, for the four orientations (columns), of the image and of
# the image turned once. Each picture of the second row is one of the first row, turned, and one place further.

figure, axes = plt.subplots(2, 5, figsize=(8, 3.4), layout="constrained")
for row, turns in zip(axes, (0, 1)):
    turned = torch.rot90(image, turns, (-2, -1))
    with torch.no_grad():
        lengths = model.stem(turned).norm(dim=1)[0]
    row[0].imshow(turned[0, 0], cmap="gray")
    row[0].set_title("image" if turns == 0 else "turned")
    for g, axis in enumerate(row[1:]):
        axis.imshow(lengths[g], cmap="viridis")
        axis.set_title(f"orientation {g}")
    for axis in row:
        axis.set_axis_off()

# %%
# The check runs over all elements of the group, over one element per sample, and over the products of elements.

print(check_equivariance(model, group, images[:8]))

# %%
# How much the scores change when the image is turned by any angle, relative to their largest entry: rounding at the
# four elements of the group, and a plain difference in between, where the pixel grid is not mapped to itself.


def turned_by(x, degrees):
    angle = torch.deg2rad(torch.tensor(float(degrees)))
    matrix = torch.stack([angle.cos(), -angle.sin(), 0 * angle, angle.sin(), angle.cos(), 0 * angle]).view(1, 2, 3)
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), x.shape, align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


some = images[:100]
angles = torch.arange(0, 361, 15)
with torch.no_grad():
    scores = model(some)
    change = [float((model(turned_by(some, a)) - scores).abs().max() / scores.abs().max()) for a in angles]

plt.figure(figsize=(6, 3))
plt.semilogy(angles, [max(c, 1e-7) for c in change], "o-")
plt.xticks(range(0, 361, 45))
plt.xlabel("angle in degrees")
plt.ylabel("relative change of the scores")
plt.tight_layout()

# %%
# The space itself: geodesics through points of the disk, and two means of the same points. The midpoint has a closed
# form and is what the batch norm uses by default; the Frechet mean minimises squared distances.

chart = PoincareLogChart(1.0)
points = 0.9 * torch.randn(12, 2, generator=torch.Generator().manual_seed(3)) + torch.tensor([0.6, 0.2])
ball = torch.tanh(points.norm(dim=1, keepdim=True)) * points / points.norm(dim=1, keepdim=True)
plt.figure(figsize=(4.5, 4.5))
plt.gca().add_patch(plt.Circle((0, 0), 1, fill=False))
mean = chart.mean(points)
for point in points:
    curve = chart.geodesic(mean, point.expand(40, 2), torch.linspace(0, 1, 40))
    curve = torch.tanh(curve.norm(dim=1, keepdim=True)) * F.normalize(curve, dim=1)
    plt.plot(*curve.T, color="0.7", linewidth=1)
plt.plot(*ball.T, "k.", label="points")
for name, value, mark in (("Frechet mean", mean, "ro"), ("midpoint", chart.midpoint(points), "b^")):
    plt.plot(*(torch.tanh(value.norm()) * F.normalize(value, dim=0)), mark, label=name)
plt.legend(loc="lower left")
plt.axis("equal")
plt.axis("off")
plt.tight_layout()
