"""Images at which the Hessian of a network of ReLUs is defined beyond rounding."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu, unfold
from torch.overrides import TorchFunctionMode

KINK = 5e-6  # several times the rounding of a unit in float32


def well_posed(net: nn.Module, x: Tensor, images: int) -> Tensor:
    """Return the positions of the first images (n,) at which the Hessian is defined beyond rounding.

    A unit that one order of summation puts above its kink and another below changes the Hessian of a trained
    network, which few images dominate, by some 1e-4 of its norm: more than 1e-3 of the ninth eigenvalue.
    Images with a unit, or a near tie of a maximum, within `KINK` of its kink in float64 are passed over.
    """
    exact, clear = copy.deepcopy(net).double(), []
    for first in range(0, len(x), 32):
        with torch.no_grad(), Kinks() as kinks:
            exact(x[first : first + 32].double())
        clear += (first + (kinks.distance > KINK).nonzero().flatten()).tolist()
        if len(clear) >= images:
            return torch.tensor(clear[:images])
    raise ValueError(f"only {len(clear)} images keep clear of the kinks, {images} were asked for")


class Kinks(TorchFunctionMode):
    """Records the least distance of any unit from the kink of its ReLU or maximum, an image (n,)."""

    distance: Tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.relu, torch.relu_, relu):
            self._least(args[0].abs())
        elif func is max_pool2d:
            size, stride, padding = args[1], kwargs["stride"], kwargs["padding"]
            windows = unfold(args[0].flatten(0, 1)[:, None], size, 1, padding, stride)
            first, second = windows.topk(2, 1)[0].unbind(1)
            gap = torch.where(first > 0, first - second, torch.inf)  # a tie at zero passes nothing on
            self._least(gap.reshape(len(args[0]), -1))
        return func(*args, **(kwargs or {}))

    def _least(self, distances: Tensor) -> None:
        least = distances.flatten(1).amin(1)
        self.distance = torch.minimum(self.distance, least) if hasattr(self, "distance") else least
