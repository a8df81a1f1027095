"""Training and evaluation: plain loops, deterministic, resumable bit for bit."""

from lt_lib.training.config import TrainConfig, resolve_device
from lt_lib.training.evaluate import Predictions, evaluate, evaluation
from lt_lib.training.loop import Callback, Trainer, batch_bounds, train
from lt_lib.training.numerics import cpu_threads, repeatable
from lt_lib.training.pixels import Images
from lt_lib.training.recorder import Recorder, classifier_of, collapse_of, epoch_weights
from lt_lib.training.schedules import learning_rate
from lt_lib.training.state import TrainState

__all__ = [
    "Callback",
    "Images",
    "Predictions",
    "Recorder",
    "TrainConfig",
    "TrainState",
    "Trainer",
    "batch_bounds",
    "classifier_of",
    "collapse_of",
    "cpu_threads",
    "epoch_weights",
    "evaluate",
    "evaluation",
    "learning_rate",
    "repeatable",
    "resolve_device",
    "train",
]
