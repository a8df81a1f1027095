"""What settings each notebook has of its own; the common ones stand in `lt_lib.profiles`."""

from lt_lib._rules import Choice, Number, Numbers, Rule, Text
from lt_lib.training.config import AUGMENTATIONS

PAGES: dict[str, dict[str, Rule]] = {
    "00_in_pictures": {},
    "01_equal_loss": {},
    "02_closed_form": {},
    "03_training_dynamics": {
        "switch_share": Number(0, 0.99, whole=False),  # deferred start: share of epochs with plain CE
        "alpha": Number(0, 1_000_000, whole=False),  # Tikhonov coefficient of the method as written
    },
    "04_what_it_optimises": {
        "switch_share": Number(0, 0.99, whole=False),  # as in 03_training_dynamics, to share its runs
        "many_data": Text(data=True),  # a second data set, of many classes; the rest of its settings:
        "many_largest": Number(1, 10_000_000, absent=True),
        "many_imbalance": Number(1, 100_000, whole=False, absent=True),
        "many_test": Number(1, 1_000_000, share=True, absent=True),
        "many_epochs": Number(2, 100_000),
        "many_warmup": Number(0, 100_000),
        "many_augment": Choice(AUGMENTATIONS),
        "many_switch_share": Number(0, 0.99, whole=False),
        "many_seeds": Number(2, 1000),
    },
    "05_methods_compared": {
        "imbalances": Numbers(2, 100_000),  # one table column each; `imbalance` itself is not used
        "switch_share": Number(0, 0.99, whole=False),  # share of epochs before deferred methods start
        "costly": Choice(("everywhere", "middle")),  # where methods of several passes a step are trained
        "many": Number(1, 10_000_000),  # a class of more training images counts as many-shot
        "few": Number(1, 10_000_000),  # a class of fewer counts as few-shot
    },
    "06_ablation": {  # data and schedule are those of 04_what_it_optimises, whose runs it shares
        "map_seeds": Number(2, 1000),  # for knobs that are turned through several values
        "other_batch": Number(2, 1_000_000),  # a second batch size
    },
    "08_hessian_spikes": {
        "lengths": Numbers(1, 100_000),  # epochs of balanced trainings; long-tailed: those up to `epochs`
        "images": Number(20, 1_000_000),  # training images behind each Hessian
        "subsets": Numbers(20, 1_000_000),  # fewer, and how the spikes then turn away from those of all
    },
    "07_combined": {
        "switch_share": Number(0, 0.99, whole=False),  # start of "+Loss" and of the schedule's second phase
        "stage_epochs": Number(1, 100_000),  # of the second stage of classifier re-training
    },
    "09_bulk_walk": {  # networks are those of 03_training_dynamics with cross-entropy
        "hessian_images": Number(2, 10_000_000),  # training images of the Hessian, at most
        "tol": Number(1e-4, 0.1, whole=False),  # relative residual of the eigenpairs
        "walk_images": Number(2, 10_000_000),  # test images that walks are measured on, at most
        "walk_hessian_images": Number(2, 10_000_000),  # of the walk that recomputes its spikes
        "directions": Number(1, 10_000),  # a family
        "draws": Number(2, 100_000),  # random directions a network whose overlap with the spikes is shown
        "walk_length": Number(0, 1_000_000, whole=False),  # of a walk at equal step; the paper: 20 x 0.1
        "walk_steps": Number(1, 10_000),  # that are logged
        "loss_change": Number(0, 1_000, whole=False),  # nats, of a walk at equal loss
    },
    "10_surgery": {  # networks are those of 03_training_dynamics with cross-entropy
        "hessian_images": Number(2, 10_000_000),  # training images of the Hessian
        "tol": Number(1e-4, 0.1, whole=False),  # relative residual that certifies an eigenpair
        "spikes": Number(1, 100_000, absent=True),  # K; null: C - 1
        "energy": Number(1e-6, 100, whole=False),  # nats of a first step along the first spike
        "iterations": Number(3, 10_000),  # of the loop
        "ablation_seeds": Number(2, 1000),  # networks, at most, on which the loop is taken apart
        "hessian_sizes": Numbers(2, 10_000_000),  # training images of the Hessian, compared
        "calibration_sizes": Numbers(2, 1_000_000),  # calibration images a class, compared
        "tune_steps": Number(1, 10_000_000),  # of each fine-tuning
        "tune_lr": Number(0, 100, whole=False),  # of Adam
    },
    "11_effective_rank": {  # schedule, seeds and methods of 05_methods_compared, whose runs it shares
        "imbalances": Numbers(2, 100_000),  # others than `imbalance`, with cross-entropy
        "other_width": Number(1, 4096),  # of one more network, with cross-entropy
        "switch_share": Number(0, 0.99, whole=False),  # as in 05_methods_compared
        "spikes": Number(2, 100_000, absent=True),  # directions K; null: C - 1
        "hessian_images": Number(2, 10_000_000),  # training images of the Hessian, at most
        "tol": Number(1e-4, 0.1, whole=False),  # relative residual of the eigenpairs
        "probe_images": Number(2, 10_000_000),  # test images that sensitivities are measured on, at most
        "energy": Number(0, 1_000, whole=False),  # nats, of probes and of the first step of surgery
        "iterations": Number(1, 10_000),  # of surgery
        "eigenvectors": Choice(("kept", "anew")),  # in later iterations of surgery
    },
    "12_deflated_surgery": {  # its own data, of many classes: `data`, `largest`, ... of its section
        "hessian_images": Number(2, 10_000_000),  # training images of the Hessian, as many of each class
        "tol": Number(1e-4, 0.1, whole=False),  # relative residual that certifies one of the C - 1 eigenpairs
        "coverage": Numbers(1, 1_000_000),  # numbers of directions, compared; more than C - 1 count as C - 1
        "energy": Number(1e-6, 100, whole=False),  # nats, of probes and of a step
        "calibration_sizes": Numbers(2, 1_000_000),  # calibration images a class, compared
        "phases": Number(2, 10_000),  # of deflated surgery
        "per_phase": Number(1, 100_000),  # directions of a phase
        "iterations": Number(1, 10_000),  # of a phase
    },
    "13_complementarity": {  # methods, schedule and data of 05_methods_compared, whose runs it shares
        "switch_share": Number(0, 0.99, whole=False),  # share of epochs before deferred methods start
        "hessian_images": Number(2, 10_000_000),  # training images of the Hessian, at most
        "tol": Number(1e-4, 0.1, whole=False),  # relative residual that certifies an eigenpair
        "spikes": Number(1, 100_000, absent=True),  # K; null: C - 1
        "energy": Number(1e-6, 100, whole=False),  # nats of a first step along the first spike
        "iterations": Number(1, 10_000),  # of each surgery
        "eigenvectors": Choice(("once", "each iteration")),  # when they are computed
        "after_epochs": Number(1, 100_000),  # of the fine-tuning after the steps, by plain SGD
        "after_rate": Number(0, 100, whole=False),
        "tune_epochs": Number(1, 100_000),  # of focal and class-balanced fine-tuning, by Adam
        "tune_rate": Number(0, 100, whole=False),
        "isic_data": Text(data=True),  # eight of its classes make the ISIC-shaped set
        "isic_largest": Number(51, 10_000_000),  # training images of its largest class
        "isic_least": Number(2, 10_000_000),  # of any class at least
        "isic_epochs": Number(2, 100_000),  # of the training on it
    },
    "15_your_data": {
        "plan": Choice(("measured", "fixed")),  # fixed: `seeds` and `epochs`, whatever they take
        "minutes": Number(1, 1_000_000),  # of a measured plan
        "hessian_images": Number(2, 10_000_000),  # training images of the Hessian, at most
        "tol": Number(1e-4, 0.1, whole=False),  # relative residual of the eigenpairs
        "iterations": Number(1, 10_000),  # of surgery; a measured plan may lower them
    },
}
