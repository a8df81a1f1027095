"""How well a classifier does, class by class, and how sure we are of it."""

from lt_lib.metrics.accuracy import (
    Accuracy,
    accuracy,
    geometric_mean,
    per_class_accuracy,
    shot_accuracy,
    shot_groups,
)
from lt_lib.metrics.intervals import (
    Interval,
    Paired,
    bootstrap_interval,
    paired_comparison,
    seed_interval,
)

__all__ = [
    "Accuracy",
    "Interval",
    "Paired",
    "accuracy",
    "bootstrap_interval",
    "geometric_mean",
    "paired_comparison",
    "per_class_accuracy",
    "seed_interval",
    "shot_accuracy",
    "shot_groups",
]
