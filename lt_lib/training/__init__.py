"""Training and evaluation: plain loops, deterministic, resumable bit for bit."""

from lt_lib._processes import gathered
from lt_lib.training.config import TrainConfig, resolve_device
from lt_lib.training.contrastive import BCLRecipe
from lt_lib.training.distributed import evaluate_together, processes
from lt_lib.training.evaluate import Predictions, evaluate, evaluation
from lt_lib.training.feed import batch_bounds
from lt_lib.training.loop import Callback, Trainer, train
from lt_lib.training.meta import MetaRecipe, meta_weights
from lt_lib.training.mittag_leffler import mittag_leffler, order_of
from lt_lib.training.mixing import GLMCRecipe, cutmix, mixup
from lt_lib.training.numerics import cpu_threads, repeatable
from lt_lib.training.pixels import Images
from lt_lib.training.recipes import Batch, Recipe, apply_loss, full_precision, recipe_of, register
from lt_lib.training.recorder import Recorder, classifier_of, collapse_of, epoch_weights
from lt_lib.training.schedules import learning_rate, with_order
from lt_lib.training.state import TrainState

__all__ = [
    "BCLRecipe",
    "Batch",
    "Callback",
    "GLMCRecipe",
    "Images",
    "MetaRecipe",
    "Predictions",
    "Recipe",
    "Recorder",
    "TrainConfig",
    "TrainState",
    "Trainer",
    "apply_loss",
    "batch_bounds",
    "classifier_of",
    "collapse_of",
    "cpu_threads",
    "cutmix",
    "epoch_weights",
    "evaluate",
    "evaluate_together",
    "evaluation",
    "full_precision",
    "gathered",
    "learning_rate",
    "meta_weights",
    "mittag_leffler",
    "mixup",
    "order_of",
    "processes",
    "recipe_of",
    "register",
    "repeatable",
    "resolve_device",
    "train",
    "with_order",
]
