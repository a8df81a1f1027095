"""A stored run, as readers of the book see it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from torch import Tensor, nn

from lt_lib.posthoc import adjusted_head
from lt_lib.runs.config import RunConfig
from lt_lib.runs.experiment import make_net


@dataclass(frozen=True)
class Run:
    """A finished run. E measurements, C classes; the weights stay on the disk until asked for."""

    config: RunConfig
    key: str
    history: dict[str, np.ndarray]  # (E,) or (E, C), names as in `lt_lib.training.Recorder`
    metrics: dict[str, Any]  # after the last epoch, see `lt_lib.runs.experiment.final_metrics`
    folder: Path
    made: dict[str, Any]  # torch and Python version, device, seconds: information, no part of the key

    def weights(self) -> dict[str, Tensor]:
        """Return the network's state dict after the last epoch."""
        state: dict[str, Tensor] = safetensors.torch.load_file(self.folder / "weights.safetensors")
        return state

    def load_model(self) -> nn.Module:
        """Return the trained network, on the CPU and in eval mode. Reads the data, for its shape.

        Of a run with `after` it is the edited one, whose head is a `LinearHead` with a bias.
        """
        model: Any = make_net(self.config, self.config.split())
        if self.config.after is not None:
            model.head = adjusted_head(model.head)
        model.load_state_dict(self.weights())
        network: nn.Module = model.eval()
        return network
