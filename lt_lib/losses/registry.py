"""Losses by name."""

import inspect
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from lt_lib._checks import check_choice, check_counts
from lt_lib.losses._base import ClassLoss
from lt_lib.losses._builders import BUILDERS, reweighting_of
from lt_lib.losses.deferral import Deferred, DeferredReweighting
from lt_lib.losses.inverse import Reweighted
from lt_lib.losses.weighted import class_balanced_weights
from lt_lib.reweighting import InverseReweighting

LOSS_NAMES: tuple[str, ...] = tuple(BUILDERS)
_WRAPPERS = ("defer_epoch", "drw_epoch", "drw_beta", "inverse")  # options of every loss


def _reweighting_options() -> list[str]:
    # without `dtype`: options are plain numbers, names, lists and mappings
    return [p for p in inspect.signature(InverseReweighting).parameters if p not in ("class_counts", "dtype")]


def loss_options(name: str) -> tuple[str, ...]:
    """List the hyper-parameters that `make_loss` takes for a loss.

    Raises:
        ValueError: the loss is unknown.
    """
    check_choice(name, LOSS_NAMES, "name")
    own = [p for p in inspect.signature(BUILDERS[name]).parameters if p not in ("counts", "options")]
    if name != "inverse":
        return (*_WRAPPERS, *own)
    return (*(wrapper for wrapper in _WRAPPERS if wrapper != "inverse"), *own, *_reweighting_options())


def make_loss(name: str, class_counts: Any, **hyper: Any) -> ClassLoss:
    r"""Build a loss by name.

    It has `forward(logits, labels, features=None)`, a scalar, `per_sample(logits, labels, features=None)`,
    (B,), `set_epoch(epoch, epochs)`, and `recipe`, which says what `features` must be.

    The loss is the mean over the B samples of these terms, with n the training images of the class and z the
    logits:

    - ``ce``: -log p_y.
    - ``class_mean``: the class means of the batch, averaged over the classes present.
    - ``inverse_frequency``: w_y (-log p_y), w ~ n^-power with mean 1 over classes; `power` 1.
    - ``class_balanced``: w_y (-log p_y), w ~ (1 - beta) / (1 - beta^n) with sum C; `beta` 0.9999.
    - ``focal``: w_y (1 - p_y)^gamma (-log p_y); `gamma` 2, `weights` none.
    - ``balanced_softmax``: -log softmax(z + log n)_y.
    - ``logit_adjustment``: -log softmax(z + tau log pi)_y, pi = n / sum n; `tau` 1.
    - ``inverse``: inverse reweighting; `preset` ("as_written" or "as_released") and the options of
      `InverseReweighting`.
    - ``ldam``: -log softmax(z - scale Delta_y e_y)_y, Delta ~ n^-1/4 with largest `max_margin` 0.5; `scale`
      30 is that of the cosine head.
    - ``ib``: alpha w_y (-log p_y) / (|p - e_y|_1 |h|_1 + 0.001), w ~ 1/n with mean 1; `alpha` 1000, `detach`
      false; cross-entropy before `start_epoch` 0.5. Features h.
    - ``dr``: (h m_y - |m_y| |h|)^2 / (2 |h|) on an ETF head with rows m; `scale` 1 is that of the head,
      `lengths` "unit" or "batch", `detach` true. Features h.
    - ``group_dro``: sum of q_c times the batch's class means, q by exponentiated gradient; `step` 0.01,
      `adjustment` 0.
    - ``loss_proportional``: w_y (-log p_y), w the batch's class mean over the mean of those; `clamp` none.
    - ``meta``: B w_i (-log p_y), w >= 0 with sum one, learned at each step. Weights w.
    - ``glmc``: two mixtures of each image with a partner, on two heads; `power` 1.2, `consistency` 10, `beta`
      0.5, `partner` "instance", `inverse_head` "rebalanced": see `GLMCLoss`. Views of the recipe `glmc`.
    - ``bcl``: `classification` 1 times logit adjustment, plus `contrast` 0.35 times balanced contrast at
      `temperature` 0.07; `anchor_in_sum` false: see `BCLLoss`. Views of the recipe `bcl`.

    Further options of every loss:

    - `defer_epoch`: plain cross-entropy before that epoch (an epoch, or a share of the epochs in [0, 1)).
      For `inverse` and `ib` it is `start_epoch`. Otherwise it hides the earlier batches, so an inverse
      reweighting that learns from them is refused: it takes `start_epoch` itself.
    - `drw_epoch`, `drw_beta` (0.9999): the loss throughout, its terms times class-balanced weights from that
      epoch on.
    - `inverse`: inverse reweighting on top ("+Loss"), a mapping of `preset` and the options of
      `InverseReweighting`; an empty one takes their defaults. The loss `inverse` has it already.

    They combine: the terms are weighted from `drw_epoch` on, then reweighted by `inverse`, and all of it
    starts at `defer_epoch`. So ``inverse`` with `drw_epoch` is ``ce`` with `drw_epoch` and those
    options as its `inverse`. The result keeps the counts as `class_counts`, which `lt_lib.training.train`
    compares with the labels. Every rule refuses a class without images, also those that use no counts: drop
    the class, or merge it with another.

    Args:
        name: one of `LOSS_NAMES`.
        class_counts: training images of each class, (C,), at least 1.
        **hyper: see the table; plain numbers, names, lists and mappings, so that a configuration can be
            stored as JSON.

    Raises:
        ValueError: the name or a hyper-parameter is unknown, a value is not allowed, a class is empty, or
            `defer_epoch` would hide batches from a reweighting that learns from them.
    """
    known = loss_options(name)
    _check_known(hyper, known, f"The loss `{name}` has no option")
    counts = check_counts(class_counts)
    defer, drw, beta, inverse = (hyper.pop(option, None) for option in _WRAPPERS)
    if defer is not None and "start_epoch" in known:
        if "start_epoch" in hyper:
            raise ValueError(
                f"The loss `{name}` was given both `defer_epoch` and `start_epoch`. Pass one of them."
            )
        hyper["start_epoch"] = defer
    if name == "inverse" and drw is not None:  # weighted first, then reweighted, as any other loss
        name, hyper, inverse = "ce", {}, hyper
    own = BUILDERS[name](counts, **hyper)
    loss = _reweighted(_weighted_late(own, counts, drw, beta), counts, inverse)
    started = "start_epoch" in known and loss is own
    if defer is not None and not started:
        loss = Deferred(loss, defer)
    loss.class_counts = counts
    return loss


def _weighted_late(loss: ClassLoss, counts: Tensor, start: Any, beta: Any) -> ClassLoss:
    if start is None:
        if beta is not None:
            raise ValueError(
                f"`drw_beta` is {beta}, but there is no `drw_epoch`, from which its weights would act. "
                "Pass both."
            )
        return loss
    weights = class_balanced_weights(counts, 0.9999 if beta is None else beta)
    return DeferredReweighting(loss, start, weights)


def _reweighted(loss: ClassLoss, counts: Tensor, options: Any) -> ClassLoss:
    if options is None:
        return loss
    if not isinstance(options, Mapping):
        raise ValueError(
            f'`inverse` must be a mapping such as {{"preset": "as_released"}} or {{}}; found {options!r}.'
        )
    _check_known(options, ("preset", *_reweighting_options()), "`inverse` has no entry")
    return Reweighted(loss, reweighting_of(counts, **options))


def _check_known(given: Iterable[str], known: tuple[str, ...], complaint: str) -> None:
    for option in given:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"{complaint} `{option}`; known: {', '.join(known)}.{hint}")
