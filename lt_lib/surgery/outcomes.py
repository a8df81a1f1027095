r"""What each image does along each direction: enough for sensitivities and for their noise.

The class means of an image's outcomes (1: it turns right between the two ends of a move, -1: it turns wrong,
0: neither), over the distance of the ends, are the sensitivities S. With the outcomes at hand every question
about noise costs no further evaluation: two disjoint halves of the images give S = (A + B) / 2, and
(A - B) / 2 has the covariances of the noise in S.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import as_vector
from lt_lib.collapse.etf import generator_of
from lt_lib.surgery.movement import Evaluator, Params, check_rows


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of n images along K directions."""

    change: Tensor  # (K, n) int8: correct at +length minus correct at -length
    labels: Tensor  # (n,) int64
    lengths: Tensor  # (K,) float64
    classes: int  # C

    @property
    def counts(self) -> Tensor:
        """Images of each class, int64 (C,)."""
        return torch.bincount(self.labels, minlength=self.classes)

    def sensitivity(self) -> Tensor:
        """Return S (K, C) float64, per unit of length; nan for an absent class."""
        return self._means(self.change.double()) / (2 * self.lengths[:, None])

    def errors(self) -> Tensor:
        """Return the standard errors (K, C) of S, as `measure_sensitivity` gives them."""
        mean, square = (self._means(v) for v in (self.change.double(), self.change.double().square()))
        variance = (square - mean.square()).clamp_min(0) / (self.counts - 1)
        variance = torch.where(self.counts > 1, variance, torch.inf)
        return variance.sqrt() / (2 * self.lengths[:, None])

    def signal_spectrum(self) -> Tensor:
        r"""Return the eigenvalues (K,) of :math:`M=SS^T-\sum_c\hat\Sigma_c/n_c`, largest first.

        Sigma_c is the sample covariance of the scaled outcomes of class c, so M is an unbiased estimate of
        S S^T without noise; its eigenvalues estimate squared singular values and may be negative.

        Raises:
            ValueError: a class has fewer than 2 images.
        """
        if int(self.counts.min()) < 2:
            raise ValueError(
                f"Each class needs 2 images to tell noise from signal; class {int(self.counts.argmin())} has "
                f"{int(self.counts.min())}. Leave it out, or add images."
            )
        scaled, means = self.change.double() / (2 * self.lengths[:, None]), self.sensitivity()
        weight = 1 / (self.counts * (self.counts - 1)).double().sqrt()
        centred = (scaled - means[:, self.labels]) * weight[self.labels]
        return torch.linalg.eigvalsh(means @ means.T - centred @ centred.T).flip(0)

    def take(self, index: Tensor) -> "Outcomes":
        """Return those of the images at `index`."""
        return Outcomes(self.change[:, index], self.labels[index], self.lengths, self.classes)

    def draw(self, size: int, seed: Any = 0) -> Tensor:
        """Return positions of `size` random images of each class, class by class."""
        generator, found = generator_of(seed), []
        for c in range(self.classes):
            mine = (self.labels == c).nonzero().flatten()
            if len(mine) < size:
                raise ValueError(f"`size` must be at most {len(mine)}, as class {c} has; found {size}.")
            found.append(mine[torch.randperm(len(mine), generator=generator)[:size]])
        return torch.cat(found)

    def halves(self, draws: int, size: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return sensitivities A and B, (draws, K, C) each, of two random disjoint halves of the images.

        Args:
            draws: how often the images are drawn and halved.
            size: images of each class in both halves together; None: as many as the smallest class has. An
                odd one is left out.
            seed: of the draws.

        Raises:
            ValueError: `size` is below 2 or above the smallest class.
        """
        half = (int(self.counts.min()) if size is None else size) // 2
        if half < 1:
            raise ValueError(f"Halves need 2 images of each class; found {2 * half}.")
        generator, pairs = generator_of(seed), []
        for _ in range(draws):
            picked = self.draw(2 * half, generator).view(self.classes, 2, half)
            pairs.append([self.take(picked[:, k].flatten()).sensitivity() for k in (0, 1)])
        return torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])

    def shuffled(self, draws: int, seed: int = 0) -> Tensor:
        """Return sensitivities (draws, K, C) with the labels shuffled among the images."""
        generator = generator_of(seed)
        orders = [torch.randperm(len(self.labels), generator=generator) for _ in range(draws)]
        return torch.stack(
            [Outcomes(self.change, self.labels[o], self.lengths, self.classes).sensitivity() for o in orders]
        )

    def _means(self, values: Tensor) -> Tensor:
        sums = values.new_zeros(len(values), self.classes).index_add_(1, self.labels, values)
        return sums / self.counts


def measure_outcomes(
    model: nn.Module,
    vectors: Tensor,
    images: Tensor,
    labels: Tensor,
    lengths: Any,
    classes: int | None = None,
    params: Params = None,
    batch: int | None = None,
) -> Outcomes:
    """Evaluate every image at both ends of each move; the result lies on the CPU.

    Args:
        model: maps images to logits (B, C); eval mode inside, left as it was.
        vectors: (K, P) unit rows in the order of `named_parameters()`.
        images: (n, ...) as the network takes them; held out from training.
        labels: (n,) in 0..C-1, each class at least once.
        lengths: (K,) positive, how far to go in each direction.
        classes: as in `measure_sensitivity`.
        params: likewise.
        batch: likewise.

    Raises:
        ValueError: as `measure_sensitivity` for the model, images and labels; or `lengths` that are not K
            positive numbers.
    """
    steps = as_vector(lengths, "lengths", len(vectors)).detach().cpu()
    if not bool(((steps > 0) & steps.isfinite()).all()):
        raise ValueError(f"`lengths` must be positive and finite; found {steps.tolist()[:10]}.")
    evaluator = Evaluator(model, images, labels, classes, params, batch)
    check_rows(vectors, evaluator.problem.size, "vectors")
    rows = []
    for vector, step in zip(vectors, steps.tolist(), strict=True):
        plus, minus = (evaluator.correct(vector, sign * step).to(torch.int8) for sign in (1, -1))
        rows.append((plus - minus).cpu())
    return Outcomes(torch.stack(rows), evaluator.labels.cpu(), steps, evaluator.classes)
