"""Learning rates in closed form, so that any step can be computed without the steps before it."""

import math

from lt_lib.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    r"""Return the learning rate of optimiser step `step` (from 0) of the whole training.

    With $W$ warm-up steps and $T$ steps in all, $\eta_t = \eta\,(t+1)/W$ for $t < W$; after that

    - cosine: $\eta_t = \frac{\eta}{2}\bigl(1+\cos\pi\frac{t-W}{T-W}\bigr)$;
    - step: $\eta$ times `decay` for each milestone epoch that is reached;
    - constant: $\eta$.

    Units: the optimiser's. The warm-up's last step has the full rate, as has the first step after it.
    Differs from the code released with arXiv 2605.10047, whose decay is a Mittag-Leffler function of
    the step.
    """
    warmup, total = config.warmup * steps_per_epoch, config.epochs * steps_per_epoch
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.schedule == "cosine":
        return 0.5 * config.lr * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
    if config.schedule == "step":
        reached = sum(step >= milestone * steps_per_epoch for milestone in config.milestones)
        return config.lr * config.decay**reached
    return config.lr
