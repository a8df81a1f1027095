"""What is refused before surgery touches anything: wrong kinds, unfit images, networks that are not ready."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lt_lib._checks import check_labels
from lt_lib.curvature.guard import buffers_kept, check_batch_norm, untouched, unwrapped
from lt_lib.curvature.problem import IN_PLACE
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages, check_disjoint
from lt_lib.surgery.state import SurgeryState

_WAYS = {
    "model": "Pass the network itself, wrapped in a module if it is a function.",
    "hessian": "Build one from images and labels, or from a split with `from_split`.",
    "calibration": "Build one from images, labels and classes, or from a split with `from_split`.",
    "config": "Take `SurgeryConfig.as_written(classes)`, or `SurgeryConfig.from_dict` of a mapping.",
    "state": "Pass what `step.state()` returned, or None.",
}


def check_arguments(model: Any, hessian: Any, calibration: Any, config: Any, state: Any = None) -> None:
    """Refuse arguments of another kind, layers that are not initialised, and sets that share an image.

    Raises:
        ValueError: any of these; or a label of a Hessian image is not a class of the calibration images.
    """
    kinds: dict[str, tuple[Any, Any]] = {
        "model": (model, nn.Module),
        "hessian": (hessian, HessianImages),
        "calibration": (calibration, Calibration),
        "config": (config, SurgeryConfig),
        "state": (state, SurgeryState | None),
    }
    for name, (value, kind) in kinds.items():
        if not isinstance(value, kind):
            wanted = "SurgeryState" if name == "state" else kind.__name__
            raise ValueError(f"`{name}` must be a `{wanted}`; found {type(value).__name__}. {_WAYS[name]}")
    lazy = [n for n, p in model.named_parameters() if is_lazy(p)]
    if lazy:
        raise ValueError(
            f"Parameter `{lazy[0]}` of `model` is not initialised yet (a lazy layer), so there is no trained "
            "network to move. Pass a batch through it and train it first."
        )
    check_labels(hessian.labels, calibration.classes, "labels of the Hessian images")
    check_disjoint(hessian, calibration)


def check_model(model: nn.Module, hessian: HessianImages, calibration: Calibration) -> None:
    """Refuse a model whose output for one image of either set is not a finite tensor (1, C).

    Raises:
        ValueError: that is so, the model fails on the image, or it holds BatchNorm without statistics.
    """
    check_batch_norm(unwrapped(model))
    for images, name in ((calibration.images, "calibration"), (hessian.images, "Hessian")):
        outputs = _output(model, images[:1], name)
        if not isinstance(outputs, Tensor) or tuple(outputs.shape) != (1, calibration.classes):
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(
                f"`model` must map images to logits (n, {calibration.classes}), one tensor; for one image it "
                f"returns {found}. Wrap it in a module that does."
            )
        if not bool(torch.isfinite(outputs).all()):
            raise ValueError("`model` gives logits that are NaN or infinite. Look for weights that are.")


def _output(model: nn.Module, image: Tensor, name: str) -> Any:
    first = next(model.parameters())
    with buffers_kept(model), untouched(model, first.device), torch.no_grad():
        try:
            image = image.to(first).clone()
            outputs = model(image)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"`model` fails on one of the {name} images, of shape {tuple(image.shape)}: {said}. Pass "
                "images (n, channels, height, width) of the size and channels that it was trained on."
            ) from error
    if image._version:
        raise ValueError(IN_PLACE)
    return outputs
