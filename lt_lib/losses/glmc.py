"""Global and local mixture consistency, cumulative learning (GLMC)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, log_softmax

from lt_lib._checks import check_choice
from lt_lib.losses._base import ClassLoss, class_totals, gather_class
from lt_lib.losses.views import MixedViews, check_pair, check_rows, check_shares, check_views
from lt_lib.losses.weighted import inverse_frequency_weights
from lt_lib.reweighting import InverseReweighting
from lt_lib.reweighting._entry import LabelCheck, check_batch, check_number, widen

PARTNERS = ("instance", "balanced", "inverse", "square_root")
INVERSE_HEADS = ("rebalanced", "both")
_BRANCHES = 2


class _Terms(NamedTuple):
    """Cross-entropies of 2 heads, 2 branches, B images with 2 labels each, and what they count."""

    labels: Tensor  # (4B,) by branch, then label, then image
    shares: Tensor  # (4B,) lambda of the first label, 1 - lambda of the partner's
    plain: Tensor  # (4B,) cross-entropy of the plain head
    rebalanced: Tensor  # (4B,) of the re-balanced head


class GLMCLoss(ClassLoss):
    r"""Loss of GLMC (Du et al., CVPR 2023, arXiv 2305.08661).

    An image of class y and a partner of class y', drawn by a second sampler, are mixed twice: over all pixels
    (MixUp, branch g) and by a pasted box (CutMix, branch l), with label shares :math:`\lambda_b` and
    :math:`1-\lambda_b`. With :math:`\ell_b` the cross-entropy of the plain head on branch b, :math:`\ell'_b`
    that of the re-balanced head, h the projections, u the predictions made of them and sg a stopped gradient,

    .. math::

       L &= a_t \sum_b \bigl[\lambda_b \ell_b(y) + (1-\lambda_b)\,\ell_b(y')\bigr]
          + (1 - a_t) \sum_b \bigl[\lambda_b w_y \ell'_b(y) + (1-\lambda_b)\,w_{y'} \ell'_b(y')\bigr]
          - g \bigl[\cos(u_g, \mathrm{sg}\,h_l) + \cos(u_l, \mathrm{sg}\,h_g)\bigr], \\
       a_t &= 1 - (t / T)^2, \qquad w_c \propto n_c^{-k} \text{ with mean one over classes},

    averaged over the batch; t counts epochs from 0. The logits that the loss is called with are the
    re-balanced head's, which is `model.head` and the one that is evaluated.

    Defaults are those of the published command for CIFAR-100-LT (power 1.2, g 10, beta 0.5, partners drawn as
    the data are). Where paper and released code (without a licence: read for facts, not copied) differ:

    - The code passes one :math:`\lambda` to both branches and keeps it as the CutMix label's share, although
      the box is rounded and cut at the border. Here the share is that of the area really pasted.
    - Its commands say beta 0.5, but its mixing function draws from Beta(1, 1): `beta=1` is what ran.
    - The paper's second sampler draws a class in proportion to 1 / n_c (`partner="inverse"`). The commands
      draw an image with weight n_c^-k at k = 0 (CIFAR: `partner="instance"`) or 0.2 (ImageNet-LT). Together
      with label weights near 1 / n_c the inverse sampler weighs classes by about 1 / n_c^2.
    - `power` is 1.2 in the commands for CIFAR and 1 for ImageNet-LT; g differs between versions of them.
    - The paper's equations, as restated in public notes, average the cross-entropy over both branches, where
      the code sums, as here: g of the paper is 2 g here. Its own text of constants we have not seen.

    **With inverse reweighting** ("+Loss" of arXiv 2605.10047, whose appendix we have not seen: OA9) each
    mixed image counts as two samples of its two classes, with weights :math:`\lambda_b` and
    :math:`1-\lambda_b`, in each branch: :math:`L_c` is the mean of the re-balanced head's cross-entropy under
    these weights, both branches are one batch, and the inferred weights stand in the place of
    :math:`w_c = n_c^{-k}` (`inverse_head="rebalanced"`), which they replace as one class weighting replaces
    another. The alternative multiplies the plain head's terms as well (`inverse_head="both"`). With
    ``mean="sample"`` the mean loss is that of the class losses :math:`L_c` over all 4B pairs of an image and
    a label, each pair counted once whatever its share.

    Args:
        class_counts: training images of each class, (C,).
        power: k of the label weights.
        consistency: g.
        beta: of the Beta(beta, beta) distribution of lambda, read by the recipe.
        partner: how partners are drawn, see `lt_lib.training.sampling`: classes in proportion to 1 / n_c
            ("inverse"), alike ("balanced"), or as in the data ("instance").
        inverse_head: where inferred weights act, see above.
        dtype: of the label weights.

    Raises:
        ValueError: a class is empty, or a constant is out of range or unknown.
    """

    extras = "glmc"
    class_weights: Tensor  # (C,)
    cumulative: Tensor  # () a_t

    def __init__(
        self,
        class_counts: Any,
        power: float = 1.2,
        consistency: float = 10.0,
        beta: float = 0.5,
        partner: str = "instance",
        inverse_head: str = "rebalanced",
        dtype: torch.dtype | None = None,
    ) -> None:
        weights = inverse_frequency_weights(class_counts, power)
        super().__init__(len(weights))
        check_choice(partner, PARTNERS, "partner")
        check_choice(inverse_head, INVERSE_HEADS, "inverse_head")
        self.consistency = check_number(consistency, "consistency", low=0)
        self.beta = check_number(beta, "beta", low=0, open_low=True)
        self.partner, self.inverse_head = partner, inverse_head
        self._check_partners = LabelCheck()
        dtype = dtype or torch.get_default_dtype()
        self.register_buffer("class_weights", weights.to(dtype))
        self.register_buffer("cumulative", torch.ones((), dtype=dtype))

    @property
    def recipe(self) -> str:
        """Recipe that draws its partners as `partner` says."""
        return "glmc" if self.partner == "instance" else f"glmc_{self.partner}"

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Start `epoch` of 0..epochs-1: a_t = 1 - (epoch / epochs)^2, so 1 in the first epoch.

        Raises:
            ValueError: `epoch` is outside 0..epochs-1.
        """
        super().set_epoch(epoch, epochs)
        # replaced, not overwritten: a graph that waits for its backward pass holds the old factor
        self.cumulative = torch.full_like(self.cumulative, 1 - (epoch / epochs) ** 2)

    def weighted_forward(self, logits: Tensor, labels: Tensor, views: Any, class_weights: Tensor) -> Tensor:
        """Return the loss with `class_weights` (C,) in the place of n_c^-k.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or the views are missing.
        """
        return self._parts(logits, labels, views, class_weights).mean()

    def reweighted_forward(
        self, logits: Tensor, labels: Tensor, views: Any, reweighting: InverseReweighting
    ) -> Tensor:
        """Return the loss with weights that `reweighting` infers from this batch; see the class.

        Before `reweighting` starts it is the plain loss, which `reweighting` may look at.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or the views are missing.
        """
        logits, labels = self._enter(logits, labels)
        views = self._check(views, labels)
        terms = self._cross_entropies(logits, labels, views)
        mass = terms.shares.new_zeros(self.classes).index_add(0, terms.labels, terms.shares)
        class_loss = mass.new_zeros(self.classes).index_add(0, terms.labels, terms.shares * terms.rebalanced)
        mass = mass.clamp(min=torch.finfo(mass.dtype).tiny)  # a box may cover all, and leave a class no share
        class_loss = class_loss / mass
        # every pair stands for its class's mean, so that the mean that is taken over pairs is this one
        weights = reweighting.weights(class_loss.index_select(0, terms.labels), terms.labels)
        if not reweighting.active:
            return self._sum(terms, self.class_weights, views).mean()
        counts = terms.shares * gather_class(weights, terms.labels, terms.shares)
        if reweighting.options.reduction == "class":
            present = class_totals(terms.labels, self.classes, mass.dtype).count_nonzero()
            counts = counts / mass.index_select(0, terms.labels) * (_BRANCHES * len(labels) / present)
        plain = counts if self.inverse_head == "both" else terms.shares
        both = torch.lerp(counts * terms.rebalanced, plain * terms.plain, self._factor(logits))
        return both.sum() / len(labels) + self.consistency * self._distance(views).mean()

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        return self._parts(logits, labels, features, self.class_weights)

    def _parts(self, logits: Tensor, labels: Tensor, views: Any, class_weights: Tensor) -> Tensor:
        logits, labels = self._enter(logits, labels)
        views = self._check(views, labels)
        return self._sum(self._cross_entropies(logits, labels, views), class_weights, views)

    def _sum(self, terms: _Terms, class_weights: Tensor, views: MixedViews) -> Tensor:
        """Return the loss of each image, (B,)."""
        weights = gather_class(class_weights, terms.labels, terms.plain)
        both = terms.shares * torch.lerp(weights * terms.rebalanced, terms.plain, self._factor(terms.plain))
        return both.view(-1, len(views.partner_labels)).sum(0) + self.consistency * self._distance(views)

    def _factor(self, like: Tensor) -> Tensor:
        return self.cumulative.to(like.dtype)

    def _check(self, views: Any, labels: Tensor) -> MixedViews:
        views = check_views(views, MixedViews, "glmc")
        check_rows(views.local_logits, len(labels), self.classes, "local_logits")
        check_pair(views.plain_logits, len(labels), self.classes, "plain_logits")
        width = check_pair(views.projections, len(labels), None, "projections")
        check_pair(views.predictions, len(labels), width, "predictions")
        check_shares(views.shares)
        check_batch(views.local_logits, views.partner_labels, self.classes)
        self._check_partners.every(views.partner_labels, self.classes)
        return views

    def _cross_entropies(self, logits: Tensor, labels: Tensor, views: MixedViews) -> _Terms:
        """Return the cross-entropies of both labels in both branches and heads."""
        pair = torch.stack((labels, views.partner_labels))  # (2, B)
        first = logits.new_tensor(views.shares)
        shares = torch.stack((first, 1 - first), 1)  # (2, 2) by branch, then label
        scores = torch.stack(
            [head.to(logits.dtype) for head in (*views.plain_logits, logits, views.local_logits)]
        )
        logs = -log_softmax(scores, 2).gather(2, pair.t().expand(4, -1, -1))  # (4, B, 2)
        plain, rebalanced = logs.transpose(1, 2).reshape(2, -1)
        spread = shares.unsqueeze(2).expand(-1, -1, len(labels)).reshape(-1)
        return _Terms(pair.repeat(_BRANCHES, 1).reshape(-1), spread, plain, rebalanced)

    def _distance(self, views: MixedViews) -> Tensor:
        """Return the negative cosines (B,), summed over the two directions."""
        (h_g, h_l), (u_g, u_l) = (map(widen, pair) for pair in (views.projections, views.predictions))
        return -cosine_similarity(u_g, h_l.detach()) - cosine_similarity(u_l, h_g.detach())
