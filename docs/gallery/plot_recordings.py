"""
Why a batch norm needs a state per recording
============================================

Covariance matrices of muscle signals from two sessions of one person: between them the electrodes were put on anew.
"""

import matplotlib.pyplot as plt
import torch

from manifoldnorm import SPDLogEuclidean
from manifoldnorm.datasets.emg import emg
from manifoldnorm.nn import DomainBatchNorm
from manifoldnorm.nn.spdnet import vectorize_symmetric

data = emg()
data = data.select(data.in_recordings("mg_s1", "mg_s2"))
matrices = data.covariances()
names = [data.recordings[i] for i in data.recording]

# %%
# The two sessions lie apart. A batch norm with one state per session puts both at the identity with variance one, and
# what is left is the gesture.

layer = DomainBatchNorm(SPDLogEuclidean(), (8, 8), domains=["mg_s1", "mg_s2"], affine=False, dtype=torch.float64)
for name in layer.domains:
    layer.refit(matrices[[n == name for n in names]], name)
aligned = layer.eval()(matrices, names)


def plane(x):
    """The two leading principal components of log-matrices."""
    features = vectorize_symmetric(SPDLogEuclidean().deform(x))
    features = features - features.mean(0)
    return features @ torch.linalg.svd(features, full_matrices=False).Vh[:2].T


figure, axes = plt.subplots(1, 2, figsize=(9, 4))
for axis, x, title in zip(axes, (matrices, aligned), ("as recorded", "one state per recording")):
    points = plane(x)
    for session, marker in (("mg_s1", "o"), ("mg_s2", "x")):
        rows = torch.tensor([n == session for n in names])
        axis.scatter(
            *points[rows].T, c=data.gesture[rows], cmap="tab10", vmin=0, vmax=9, marker=marker, s=12, label=session
        )
    axis.set_title(title)
    axis.legend()
plt.tight_layout()
plt.show()
