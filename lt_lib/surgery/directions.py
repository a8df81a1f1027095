"""Directions to move along instead of spikes: the controls that say whether spikes are the lever.

Surgery along any of them runs through the same loop: `SurgeryConfig(directions=kind)`. At equal length a
spike costs much loss and a random direction almost none, so compare at equal energy as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import as_vector, check_choice
from lt_lib.collapse.etf import generator_of
from lt_lib.curvature import (
    GaussNewtonOperator,
    HessianOperator,
    class_loss_gradients,
    lanczos,
    orthonormal_rows,
)
from lt_lib.curvature.class_gradients import Params
from lt_lib.curvature.eigenpairs import rayleigh_quotient
from lt_lib.curvature.guard import unwrapped
from lt_lib.curvature.problem import select
from lt_lib.nets.own import find_classifier
from lt_lib.surgery.data import HessianImages

KINDS = ("spikes", "next_ritz", "random", "class_gradients", "last_layer", "gauss_newton")
Rows = tuple[Tensor, int]  # orthonormal rows (k, P) and operator products spent
Rule = Callable[[nn.Module, HessianImages, int, int], Tensor]


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions in parameter space, and the curvature along each."""

    kind: str
    vectors: Tensor  # (k, P) orthonormal rows, in the order of `named_parameters()`
    curvatures: Tensor  # (k,) float64: q^T H q, H the Hessian over all chosen parameters
    products: int  # operator products spent, those for the curvatures included

    def lengths(self, energy: float, limit: float | None = None) -> Tensor:
        """Return `equal_energy_lengths` of the curvatures, (k,) float64."""
        return equal_energy_lengths(self.curvatures, energy, limit)


def directions(
    kind: str,
    model: nn.Module,
    hessian: HessianImages,
    k: int,
    seed: int = 0,
    *,
    params: Params = None,
    head: Params = None,
    **solver: Any,
) -> Directions:
    """Return k orthonormal directions at the model's present weights.

    - "spikes": leading Hessian eigenvectors, what surgery takes (arXiv 2605.07790).
    - "next_ritz": the k after them, K+1..2K.
    - "random": uniform over the sphere.
    - "class_gradients": the leading singular directions of the C gradients of the classes' mean losses. At
      a minimum of the mean loss these are dependent, so k = C may be one too many.
    - "last_layer": leading eigenvectors of the head's block of the Hessian, zero elsewhere.
    - "gauss_newton": leading eigenvectors of the Gauss-Newton matrix, which leaves out the curvature of the
      network itself.

    Args:
        kind: one of these.
        model: maps images to logits; left as it was.
        hessian: training images whose mean cross-entropy is meant.
        k: how many.
        seed: of random rows and of the solver's start.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        head: patterns of the last layer's names; None: the module `head`, or else the classifier that
            `find_classifier` names.
        solver: further arguments of `lanczos`, such as `tol` or `max_products`.

    Raises:
        ValueError: an unknown kind, k out of range, or class gradients of a smaller rank than k.
        RuntimeError: an eigenpair is not certified.
    """
    vectors, products = direction_rows(kind, model, hessian, k, seed, params=params, head=head, **solver)
    operator = HessianOperator(model, hessian.images, hessian.labels, params=params)
    curvatures = [rayleigh_quotient(row, operator.matvec(row))[0] for row in vectors]
    found = torch.tensor(curvatures, dtype=torch.float64)
    return Directions(kind, vectors, found, products + len(vectors))


def direction_rule(kind: str, *, params: Params = None, head: Params = None, **solver: Any) -> Rule:
    """Return the function (model, hessian, k, seed) -> (k, P) that `SurgeryConfig.directions` takes.

    Args:
        kind: as in `directions`.
        params: the same as in the configuration.
        head: as in `directions`.
        solver: as in `directions`.

    Raises:
        ValueError: an unknown kind.
    """
    check_choice(kind, KINDS, "kind")

    def rule(model: nn.Module, hessian: HessianImages, k: int, seed: int) -> Tensor:
        return direction_rows(kind, model, hessian, k, seed, params=params, head=head, **solver)[0]

    return rule


def equal_energy_lengths(curvatures: Any, energy: float, limit: float | None = None) -> Tensor:
    r"""Return :math:`\sqrt{2e/|\lambda|}`: how far to go until the quadratic model's loss changes by e nats.

    Args:
        curvatures: lambda, (k,), along unit directions; of either sign.
        energy: e > 0.
        limit: largest length; where curvature is next to none the quadratic model means nothing that far out
            (`lt_lib.curvature.equal_loss_lengths` measures the loss instead). None: no limit.

    Raises:
        ValueError: `energy` or `limit` not positive, or a curvature of 0 without a `limit`.
    """
    values = as_vector(curvatures, "curvatures").abs()
    if not (0 < energy < float("inf")) or (limit is not None and not limit > 0):
        raise ValueError(f"`energy` and `limit` must be positive; found {energy} and {limit}.")
    lengths = (2 * energy / values).sqrt()
    if limit is not None:
        return lengths.clamp_max(limit)
    flat = (values == 0).nonzero().flatten().tolist()
    if flat:
        raise ValueError(
            f"Direction {flat[0]} has curvature 0, so no length costs any energy. Pass a `limit`."
        )
    return lengths


def direction_rows(
    kind: str,
    model: nn.Module,
    hessian: HessianImages,
    k: int,
    seed: int = 0,
    *,
    params: Params = None,
    head: Params = None,
    **solver: Any,
) -> Rows:
    """Return the rows (k, P) of `directions` and the operator products spent, without the curvatures.

    Raises:
        ValueError: as `directions`.
        RuntimeError: as `directions`.
    """
    check_choice(kind, KINDS, "kind")
    chosen = select(unwrapped(model), params)
    size = sum(p.numel() for p in chosen.values())
    if not 1 <= k <= size:
        raise ValueError(f"`k` must be 1..{size}, the number of chosen parameters; found {k}.")
    if kind == "random":
        return _random(k, size, seed, next(iter(chosen.values()))), 0
    if kind == "class_gradients":
        return _class_gradients(model, hessian, k, params), 0
    if kind == "last_layer":
        return _last_layer(model, hessian, k, seed, chosen, head, solver)
    make = GaussNewtonOperator if kind == "gauss_newton" else HessianOperator
    count = 2 * k if kind == "next_ritz" else k
    operator = make(model, hessian.images, hessian.labels, params=params)
    pairs = lanczos(operator, count, seed=seed, **solver).require_converged()
    return pairs.vectors[count - k :], pairs.matvecs


def _random(k: int, size: int, seed: int, like: Tensor) -> Tensor:
    noise = torch.randn(size, k, generator=generator_of(seed), dtype=torch.float64)
    return torch.linalg.qr(noise)[0].T.contiguous().to(like)


def _class_gradients(model: nn.Module, hessian: HessianImages, k: int, params: Params) -> Tensor:
    gradients = class_loss_gradients(model, hessian.images, hessian.labels, params=params)
    basis = orthonormal_rows(gradients)
    if len(basis) < k:
        raise ValueError(
            f"The {len(gradients)} class gradients span {len(basis)} directions only, but `k` is {k}. At a "
            f"minimum of the mean loss they cancel: ask for {len(basis)}."
        )
    return basis[:k].to(gradients)


def _last_layer(
    model: nn.Module,
    hessian: HessianImages,
    k: int,
    seed: int,
    chosen: dict[str, nn.Parameter],
    head: Params,
    solver: dict[str, Any],
) -> Rows:
    inside = set(select(unwrapped(model), head or _head_pattern(unwrapped(model)))) & set(chosen)
    if not inside:
        raise ValueError("The last layer has no parameter among the chosen ones; widen `params`.")
    operator = HessianOperator(model, hessian.images, hessian.labels, params=sorted(inside))
    if k > operator.size:
        raise ValueError(f"The last layer has {operator.size} parameters only; found `k` = {k}.")
    pairs = lanczos(operator, k, seed=seed, **solver).require_converged()
    where = torch.cat([torch.full((p.numel(),), name in inside) for name, p in chosen.items()])
    rows = pairs.vectors.new_zeros(k, len(where))
    rows[:, where.to(rows.device)] = pairs.vectors
    return rows, pairs.matvecs


def _head_pattern(model: nn.Module) -> str:
    own = getattr(model, "head", None)
    if isinstance(own, nn.Module) and any(True for _ in own.parameters()):
        return "head.*"
    return f"{find_classifier(model)}.*"
