"""What surgery hands back: its trace, what it changed, and the way back."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.state import SurgeryState, Weights, below, digest_of, flat
from lt_lib.surgery.trace import Iteration, columns


@dataclass(frozen=True, eq=False)
class Operation:
    """A finished surgery. The model has its new weights; `restore` gives it the old ones."""

    config: SurgeryConfig
    trace: tuple[Iteration, ...]
    stopped: str  # why it ended, a sentence
    last: SurgeryState  # to go on from, and what `restore` needs: holds both sets of weights
    weights: Weights  # of the model

    @property
    def before(self) -> Tensor:
        """Accuracies of the classes on the calibration images at the start, (C,) float64."""
        return self.trace[0].before

    @property
    def after(self) -> Tensor:
        """Accuracies of the classes on the calibration images at the end, (C,) float64."""
        return self.trace[-1].after

    @property
    def accepted(self) -> int:
        """Number of steps that were kept."""
        return sum(iteration.accepted for iteration in self.trace)

    @property
    def products(self) -> int:
        """Operator products spent."""
        return sum(iteration.products for iteration in self.trace)

    @property
    def passes(self) -> float:
        """Evaluation sweeps over the calibration images spent."""
        return sum(iteration.passes for iteration in self.trace)

    @property
    def digests(self) -> tuple[str, str]:
        """Hex SHA-256 of the chosen parameters at the start and at the end."""
        return digest_of(self._saved("first")), digest_of(self._saved("current"))

    def restore(self) -> None:
        """Give the model the weights that it had before surgery, bit for bit.

        Whatever its weights became since; parameters that were put in place of others under the same names
        are written to, too.

        Raises:
            ValueError: a parameter is gone, has another shape, or a type that cannot hold the bits.
        """
        self.weights.put(self._saved("first"))

    def redo(self) -> None:
        """Give the model the weights that it had after surgery, bit for bit."""
        self.weights.put(self._saved("current"))

    def offset(self) -> Tensor:
        """Return by how much surgery moved the weights, (P,) in the order of `named_parameters()`."""
        return flat(self._saved("current")) - flat(self._saved("first"))

    def table(self) -> dict[str, list[Any]]:
        """Return one row an iteration as columns: sigma, balanced and worst accuracy, lengths, verdicts."""
        return columns(self.trace)

    def state(self) -> SurgeryState:
        """Return the last state, for a file; `state.record` alone holds settings and trace as JSON types."""
        return self.last

    def _saved(self, name: str) -> dict[str, Tensor]:
        return below(name, self.last.tensors)
