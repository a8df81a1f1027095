"""Learning rates in closed form, so that any step can be computed without the steps before it."""

import math
from dataclasses import replace

from torch import Tensor

from lt_lib.training.config import TrainConfig, check_number
from lt_lib.training.mittag_leffler import multiplier, order_of


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    r"""Return the learning rate of optimiser step `step` (from 0) of the whole training.

    With $W$ warm-up steps and $T$ steps in all, $\eta_t = \eta\,(t+1)/W$ for $t < W$; after that

    - cosine: $\eta_t = \frac{\eta}{2}\bigl(1+\cos\pi\frac{t-W}{T-W}\bigr)$;
    - step: $\eta$ times `decay` for each milestone epoch that is reached;
    - constant: $\eta$;
    - mittag_leffler: $\eta\,E_a\bigl(-\frac{t-W}{P-W}\bigr)$ up to step $P$, the start of the epoch that
      `phase` means; then $\frac{\eta}{\Gamma(1-a)}\,\frac{T-t}{T-P}$. The schedule of the code released with
      arXiv 2605.10047, whose $a$ is `order`.

    Units: the optimiser's. The warm-up's last step has the full rate, as has the first step after it.

    The Mittag-Leffler schedule drops at $P$, from $E_a(-1)$ to $1/\Gamma(1-a)$: at $a=0.903$ (100 classes,
    imbalance 100) from 0.378 to 0.102 of the base rate, and at $a=1$ (balanced classes) to 0, so that
    nothing is learned after it. In the released code the loss changes from cross-entropy to the reweighted
    one at that same epoch (160 of 200, `phase` 0.8). A comparison of the two halves of such a training
    therefore shows the drop and the new loss together; to tell them apart, train plain cross-entropy under
    this schedule, and the reweighted loss under another. With `phase` at 1 there is no second phase.

    Raises:
        ValueError: `step` is outside 0..T-1, or the schedule is Mittag-Leffler's and `order` is None; see
            `with_order`.
    """
    check_number(steps_per_epoch, "steps_per_epoch", 1, 2**63 - 1, whole=True)
    check_number(step, "step", 0, config.epochs * steps_per_epoch - 1, whole=True)
    warmup, total = config.warmup * steps_per_epoch, config.epochs * steps_per_epoch
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.schedule == "cosine":
        return 0.5 * config.lr * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
    if config.schedule == "step":
        reached = sum(step >= milestone * steps_per_epoch for milestone in config.milestones)
        return config.lr * config.decay**reached
    if config.schedule == "mittag_leffler":
        return config.lr * multiplier(_order(config), step, warmup, config.switch * steps_per_epoch, total)
    return config.lr


def with_order(config: TrainConfig, labels: Tensor) -> TrainConfig:
    """Return `config` with the `order` of Mittag-Leffler's schedule set, from the classes of `labels` (n,).

    Classes without an image do not count. Other schedules, and an order that is given, stay as they are.
    """
    if config.schedule != "mittag_leffler" or config.order is not None:
        return config
    counts = labels.bincount()
    return replace(config, order=order_of(counts[counts > 0]))


def _order(config: TrainConfig) -> float:
    if config.order is None:
        raise ValueError(
            "The Mittag-Leffler schedule needs its `order`, which is None. Take it from the training labels "
            "by `lt_lib.training.with_order(config, labels)`, or set it."
        )
    return config.order
