"""Working with escnn: its tensors and ours, its filters as a cross-check, and a Euclidean equivariant stem.

escnn is imported when a function here is called. Its dependency lie_learn is compiled for numpy 1 and py3nj needs a
Fortran compiler, but nothing planar uses them, so install it without dependencies:

    pip install joblib && pip install --no-deps escnn==1.0.11

Both libraries number the elements of C4 and D4 alike and act alike on images, and regular fields are stored channel by
channel, so converting is a view.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from typing import Any, NoReturn

from torch import Tensor, nn

from manifoldnorm.equivariant.groups import CyclicGroup4, DihedralGroup4, PlanarGroup
from manifoldnorm.nn.curvature import Curvature
from manifoldnorm.nn.hyperbolic import FromEuclidean

_MISSING = (
    "this needs escnn; run: pip install joblib && pip install --no-deps escnn==1.0.11 (with its dependencies it would "
    "downgrade numpy and need a Fortran compiler)"
)


def load_escnn() -> types.ModuleType:
    """Import escnn and return it, with stand-ins for what planar groups never use.

    Where lie_learn cannot be imported, modules whose one function raises take its place. scikit-learn's randomized SVD,
    which refuses the matrices that escnn gives it, is switched off inside escnn, which has another way.

    Raises
    ------
    ModuleNotFoundError
        If escnn is not installed; the message says how to install it.
    """
    try:
        importlib.import_module("lie_learn.representations.SO3.wigner_d")
    except (ImportError, AttributeError, ValueError):
        _stand_in_for_lie_learn()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            escnn = importlib.import_module("escnn")
            importlib.import_module("escnn.gspaces")
            importlib.import_module("escnn.nn")
            numerical = importlib.import_module("escnn.group._numerical")
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] not in ("escnn", "joblib"):
            raise
        raise ModuleNotFoundError(_MISSING, name="escnn") from error
    if hasattr(numerical, "randomized_svd"):
        vars(numerical)["randomized_svd"] = None
    return escnn


def _stand_in_for_lie_learn() -> None:
    def wigner_matrix(*arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError("lie_learn is not installed; only planar groups are supported here")

    names = ("lie_learn", "lie_learn.representations", "lie_learn.representations.SO3")
    for name in (*names, "lie_learn.representations.SO3.wigner_d"):
        module = types.ModuleType(name)
        module.__path__ = []
        sys.modules[name] = module
    sys.modules["lie_learn.representations.SO3.wigner_d"].wigner_D_matrix = wigner_matrix  # type: ignore[attr-defined]


def group_space(group: PlanarGroup) -> Any:
    """Return escnn's space of the same symmetry, `rot2dOnR2(4)` or `flipRot2dOnR2(4)`."""
    escnn = load_escnn()
    if isinstance(group, DihedralGroup4):
        return escnn.gspaces.flipRot2dOnR2(4)
    if isinstance(group, CyclicGroup4):
        return escnn.gspaces.rot2dOnR2(4)
    raise ValueError(f"group must be CyclicGroup4() or DihedralGroup4(), got {group!r}")


def regular_fields(group: PlanarGroup, channels: int) -> Any:
    """Return escnn's field type of `channels` regular fields."""
    space = group_space(group)
    return load_escnn().nn.FieldType(space, channels * [space.regular_repr])


def from_geometric(tensor: Any, group: PlanarGroup) -> Tensor:
    """Turn an escnn GeometricTensor of regular fields into features (B, C, |G|, H, W), without a copy.

    Raises
    ------
    ValueError
        If a field is not regular, or the tensor belongs to another group.
    """
    space = group_space(group)
    kinds = {r.name for r in tensor.type.representations}
    if tensor.type.gspace != space or kinds != {space.regular_repr.name}:
        raise ValueError(
            f"tensor must hold regular fields of {group.name}, got {sorted(kinds)} on {tensor.type.gspace}; "
            "end the escnn part with a layer whose out_type is regular_fields(group, channels)"
        )
    data: Tensor = tensor.tensor
    return data.unflatten(1, (-1, group.order))


def to_geometric(features: Tensor, group: PlanarGroup) -> Any:
    """Turn features (B, C, |G|, H, W) into an escnn GeometricTensor of C regular fields."""
    group._check_orientations(features)
    field_type = regular_fields(group, features.shape[1])
    return load_escnn().nn.GeometricTensor(features.flatten(1, 2), field_type)


def base_filters(convolution: Any, group: PlanarGroup) -> Tensor:
    """Expand an escnn R2Conv with regular output and return the filters of the identity, which generate all others.

    Returns
    -------
    Tensor
        Shape (out, in, k, k) for trivial input fields (use `lift_filters`), (out, in, |G|, k, k) for regular ones
        (use `group_filters`).
    """
    weight: Tensor = convolution.expand_parameters()[0]
    base = weight.unflatten(0, (-1, group.order))[:, 0]
    if convolution.in_type.representations[0].name == convolution.in_type.gspace.regular_repr.name:
        return base.unflatten(1, (-1, group.order))
    return base


class EuclideanStem(nn.Module):
    """Run an escnn module on images and read its regular output fields as hyperbolic features.

    Parameters
    ----------
    module : escnn.nn.EquivariantModule
        From trivial fields, one per image channel, to regular fields.
    group : PlanarGroup
        The symmetry of both parts.
    c : float or Curvature
        Of the hyperbolic part that follows; features are cut at the radius that their dtype resolves.

    Raises
    ------
    ValueError
        If the module's output is not regular fields of the group.
    """

    def __init__(self, module: Any, group: PlanarGroup, *, c: float | Curvature = 1.0) -> None:
        super().__init__()
        self.module, self.group = module, group
        self.enter = FromEuclidean(c)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, channels, H, W) to log coordinates (B, C, |G|, H', W')."""
        escnn = load_escnn()
        fields = self.module(escnn.nn.GeometricTensor(x, self.module.in_type))
        features: Tensor = self.enter(from_geometric(fields, self.group))
        return features
