"""Inverse reweighting as a module on top of cross-entropy or of any loss a sample."""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_choice, check_counts
from lt_lib.reweighting._entry import (
    LabelCheck,
    check_batch,
    check_epoch,
    check_signs,
    cross_entropy,
    first_epoch,
    widen,
)
from lt_lib.reweighting.batch import Batch, gather_batch
from lt_lib.reweighting.closed_form import tikhonov, tikhonov_relative
from lt_lib.reweighting.diagnostics import Diagnostics
from lt_lib.reweighting.macro import macro_factor
from lt_lib.reweighting.options import AS_RELEASED, AS_WRITTEN, Options, prior_weights
from lt_lib.reweighting.record import LossRecord, add_rows


class InverseReweighting(nn.Module):
    r"""Inverse loss reweighting (arXiv 2605.10047), every open point an option.

    For each batch of B samples with class mean losses :math:`\ell_c` over the present classes P:

    .. math::

       \hat w_c = \mathrm{clamp}\Bigl(\beta_c\,
           \frac{\bar\ell\,\ell_c + \alpha w_c^{(0)}}{\ell_c^2 + \alpha + \varepsilon}\Bigr),\qquad
       F = \frac1B \sum_i \hat w_{y_i} \ell_i,\qquad
       \beta_c \propto \max(B_c, 1)^{-\gamma}

    The default of each option is the released code's reading, apart from clamp, eps and start:

    =====  ============================  =====================================================================
    point  option and default            readings
    =====  ============================  =====================================================================
    OA1    ``class_loss="batch"``        L_c over the batch; "running": exponential average with ``momentum``;
                                         "epoch": the previous epoch's mean, a constant
    OA2    ``mean="class"``              mean over the classes present; "sample": over the batch's samples;
                                         "macro": class mean weighted by beta; constants: "detached" (class
                                         mean without gradient), "running" and "epoch" (the same over time)
    OA3    ``through_weights=True``      the gradient also flows through w; False: w is inferred, then applied
    OA4    ``reduction="sample"``        sum of w l over samples / B; "class": mean of w_c l_c over classes
    OA5    ``clamp=None, eps=0``         the text has neither; released: clamp 10 after beta, eps 1e-8
           ``clamp_after_macro=True``    False: w is clamped first, then multiplied by beta
           ``normalise=False``           True: mean one over the classes present, before a clamp after beta
    OA6    ``macro="epoch"``             beta recomputed when an epoch starts; "step": at each batch, itself
                                         included; "off": beta stays 1
           ``macro_norm="classes"``      mean one over all classes; "samples": over the training images, so
                                         that beta leaves the mean step as it is; "none"
           ``macro_reset=False``         B_c never reset; True: an epoch's batches count for the next one only
           ``count_before_start=False``  B_c counted while reweighting only; True: from the first batch
    OA7    ``start_epoch=0``             plain cross-entropy before; an epoch, or a share of the epochs in
                                         [0, 1); released: epoch 160 of 200
    OA9    ``alpha_scale="fixed"``       alpha is a squared loss; "loss": a number of squared mean losses
    =====  ============================  =====================================================================

    Theorem T2 says what the choices mean. With the gradient through w, alpha = 0 and no active clamp, F is
    s times the mean loss, s = sum n_c beta_c / B free of gradient: ``mean="class"`` trains class-mean
    cross-entropy, ``mean="sample"`` plain cross-entropy, a constant mean nothing at all (zero gradient).
    Stopped, the gradient is that of a weighted geometric mean of the class losses. In the first case beta is
    only a step size; ``mean="macro"`` makes it a class weight.

    The weights depend on the whole batch, so the gradients of two halves do not add up to that of the whole
    (fixed class weights do): under gradient accumulation each micro-batch is its own inverse problem and
    counts as a batch.

    A class whose loss is exactly 0 at alpha = eps = 0 gets its prior weight and is counted in
    ``diagnostics.fallbacks``. State changes only in train mode, by one batch a call of `forward`,
    `apply_weights` or `weights`. All of it is in buffers, so that a state dict resumes bit for bit, the sums
    of `Diagnostics` among them. No value is read after the first batch (on a CPU labels are checked at each),
    so nothing waits for a device.
    """

    shares: Tensor | None  # (C,) what the mean of beta is taken under
    prior: Tensor  # (C,) w_c^(0), mean one
    macro: Tensor  # (C,) beta_c
    batch_counts: Tensor  # (C,) B_c, int64
    clock: Tensor  # (2,) the epoch that runs, and the first reweighted one

    def __init__(
        self,
        class_counts: Any,
        alpha: float = 0.0,
        gamma: float = 1.0,
        prior: Any = "uniform",
        through_weights: bool = True,
        clamp: float | None = None,
        eps: float = 0.0,
        mean: str = "class",
        class_loss: str = "batch",
        momentum: float = 0.9,
        reduction: str = "sample",
        macro: str = "epoch",
        macro_reset: bool = False,
        start_epoch: int | float = 0,
        clamp_after_macro: bool = True,
        normalise: bool = False,
        macro_norm: str = "classes",
        count_before_start: bool = False,
        alpha_scale: str = "fixed",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        given = locals()
        self.options = Options(**{field.name: given[field.name] for field in fields(Options)})
        counts = check_counts(class_counts)
        self.classes = len(counts)
        dtype = dtype or torch.get_default_dtype()
        self._check_labels = LabelCheck()
        shares = {"classes": torch.ones_like(counts), "samples": counts}.get(macro_norm)
        self.register_buffer("shares", None if shares is None else (shares.double() / shares.sum()).to(dtype))
        self.register_buffer("prior", prior_weights(prior, counts).to(dtype))
        self.register_buffer("macro", torch.ones(self.classes, dtype=dtype))
        self.register_buffer("batch_counts", torch.zeros(self.classes, dtype=torch.int64))
        self.diagnostics = Diagnostics(self.classes, dtype)
        self.loss_record = LossRecord(self.classes, class_loss, momentum, dtype)
        self.mean_record = LossRecord(1, mean if mean in ("running", "epoch") else "batch", momentum, dtype)
        # the epoch also lives in Python, so that no step reads a device to learn whether to reweight
        self._epoch, self._first = -1, 1 if start_epoch else 0
        self.register_buffer("clock", torch.tensor([self._epoch, self._first]))

    @classmethod
    def as_written(cls, class_counts: Any, alpha: float = 1.0, **over: Any) -> "InverseReweighting":
        """Build the method as the paper's text states it; every option can be overridden.

        From epoch 0, class losses of the batch, mean over the classes present, stop-gradient ("infer", then
        "apply"), no clamp, no eps, beta with mean one over classes and gamma 1. The text gives no value for
        `alpha`: 1.0 is the default of the released class (its published commands pass 0).
        """
        return cls(class_counts, **{**AS_WRITTEN, "alpha": alpha, **over})

    @classmethod
    def as_released(cls, class_counts: Any, **over: Any) -> "InverseReweighting":
        """Build the method as the released code runs it; every option can be overridden.

        alpha 0, gamma 1, gradient through the weights, eps 1e-8, clamp to 0..10 after beta, uniform prior,
        plain cross-entropy before epoch 160 of 200 (here 0.8 of the epochs that `set_epoch` is told). B_c is
        counted only inside the reweighted loss and never reset, and beta is recomputed when an epoch starts,
        so that beta is 1 during the first reweighted epoch.
        """
        return cls(class_counts, **{**AS_RELEASED, **over})

    @property
    def active(self) -> bool:
        """Whether the weights are applied now (`start_epoch` is reached)."""
        return max(self._epoch, 0) >= self._first

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Start `epoch` of 0..epochs-1: recompute beta, turn the records over, reset the epoch's diagnostics.

        Called again for the epoch that runs already, it changes at most the start: a resumed epoch goes on.

        Raises:
            ValueError: `epoch` is outside, or `start_epoch` is not reached within `epochs`.
        """
        check_epoch(epoch, epochs)
        self._first = first_epoch(self.options.start_epoch, epochs, "start_epoch")
        self.clock.copy_(torch.tensor([epoch, self._first]))
        if epoch == self._epoch:
            return
        self._epoch = epoch
        if self.options.macro == "epoch":
            self._refresh_macro()
        if self.options.macro_reset:
            self.batch_counts.zero_()
        self.loss_record.turn_epoch()
        self.mean_record.turn_epoch()
        self.diagnostics.turn_epoch()

    def forward(self, logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        """Reweighted cross-entropy of logits (B, C) and labels (B,), in float32 at least.

        Returns:
            A scalar; with reduction="none" the terms (B,) whose mean it is.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or `reduction` is unknown.
        """
        labels = check_batch(logits, labels, self.classes)
        self._check_labels.first(labels, self.classes)
        return self._reduce(cross_entropy(logits, labels), labels, reduction)

    def apply_weights(self, per_sample_loss: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        """Reweight any sample losses (B,), at least 0, as `forward` does those of cross-entropy.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, a loss is negative (looked for on a CPU
                only), or `reduction` is unknown.
        """
        labels = self._enter(per_sample_loss, labels)
        return self._reduce(widen(per_sample_loss), labels, reduction)

    def weights(self, per_sample_loss: Tensor, labels: Tensor) -> Tensor:
        """Effective weights (C,) of this batch, beta and clamp included; the prior for an absent class.

        Ones before `start_epoch`. They carry a gradient under ``through_weights``.

        Raises:
            ValueError: a shape is wrong or a label is outside 0..C-1.
        """
        labels = self._enter(per_sample_loss, labels)
        loss = widen(per_sample_loss)
        batch = self._gather(loss, labels)
        if batch is None:
            return loss.new_ones(self.classes)
        weights = self._infer(batch) * batch.share
        spread = loss.new_zeros(self.classes).index_add(0, labels, weights)
        absent = torch.ones_like(spread, dtype=torch.bool).index_fill(0, labels, False)
        return torch.where(absent, self.prior.to(spread.dtype), spread)

    def _enter(self, losses: Tensor, labels: Tensor) -> Tensor:
        labels = check_batch(losses, labels, self.classes, samples=True)
        self._check_labels.every(labels, self.classes)
        check_signs(losses)
        return labels

    def _reduce(self, loss: Tensor, labels: Tensor, reduction: str) -> Tensor:
        check_choice(reduction, ("mean", "none"), "reduction")
        batch = self._gather(loss, labels)
        if batch is None:
            return loss.mean() if reduction == "mean" else loss
        weights = self._infer(batch)
        if self.options.reduction == "class":
            weights = weights * batch.share * (len(labels) / batch.classes)
        return loss * weights if reduction == "none" else torch.dot(loss, weights) / len(labels)

    def _gather(self, loss: Tensor, labels: Tensor) -> Batch | None:
        """See the batch by class; before the start only remember it if asked, and return None."""
        counting = self.options.count_before_start and self.options.macro != "off"
        if not self.active and not counting and self.loss_record.mode == self.mean_record.mode == "batch":
            return None
        batch = gather_batch(loss, labels, self.classes)
        if self.training and (self.active or counting):
            add_rows(self.batch_counts, labels, 1)
        if self.active:
            return batch
        with torch.no_grad():
            self._losses(batch)
        return None

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Give the class loss of each sample (B,) and the mean loss (), in the readings that were chosen."""
        losses, kind = self.loss_record.observe(batch.class_loss, batch.labels), self.options.mean
        if kind == "sample":
            return losses, losses.mean()
        members = batch.share * self._of(self.macro, batch) if kind == "macro" else batch.share
        mean = torch.dot(losses, members / batch.classes)
        if kind in ("detached", "running", "epoch"):
            mean = self.mean_record.observe(mean.detach().reshape(1), batch.labels.new_zeros(1))[0]
        return losses, mean

    def _of(self, per_class: Tensor, batch: Batch) -> Tensor:
        return per_class.index_select(0, batch.labels).to(batch.loss.dtype)

    def _infer(self, batch: Batch) -> Tensor:
        """Infer the effective weight of each sample (B,), with a gradient if asked, and take note of it."""
        options = self.options
        if options.macro == "step" and self.training:
            self._refresh_macro()
        with torch.set_grad_enabled(torch.is_grad_enabled() and options.through_weights):
            losses, mean = self._losses(batch)
            # at alpha = 0 < eps the prior has no part: one look-up less
            prior = batch.ones if options.alpha == 0 < options.eps else self._of(self.prior, batch)
            infer = tikhonov_relative if options.relative else tikhonov
            weights = infer(losses, mean, options.alpha, prior, options.eps)
            factor = self._of(self.macro, batch)
            if options.clamp_after_macro:
                weights = weights * factor
            if options.normalise:
                weights = weights * (batch.classes / torch.dot(weights, batch.share))
            over, weights = self._clamp(weights)
            if not options.clamp_after_macro:
                weights = weights * factor
        if self.training:
            self.diagnostics.note(batch.labels, weights.detach(), batch.ones, batch.samples, over)
            if options.alpha == 0 and options.eps == 0:
                self.diagnostics.note_zeros(losses.detach(), batch.share)
        return weights

    def _clamp(self, weights: Tensor) -> tuple[Tensor | None, Tensor]:
        if self.options.clamp is None:
            return None, weights
        over = weights.detach() > self.options.clamp
        return over, weights.masked_fill(over, self.options.clamp)  # as clamp: no gradient where it binds

    def _refresh_macro(self) -> None:
        # replaced, not overwritten: a graph that still waits for its backward pass holds the old factor
        self.macro = macro_factor(self.batch_counts, self.options.gamma, self.shares).to(self.macro.dtype)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._epoch, self._first = self.clock.tolist()
