"""Curvature of images that are spread over processes: each multiplies by its own, the products are summed."""

from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_finite
from lt_lib._processes import Processes, current
from lt_lib.curvature.guard import untouched, unwrapped
from lt_lib.curvature.hessian import HessianOperator
from lt_lib.curvature.operators import LinearOperator
from lt_lib.curvature.terms import summed


class SharedOperator(LinearOperator):
    r"""The sum over processes of an operator that each has of its own images, such as a Hessian.

    .. math:: \frac1Z\sum_i\nabla^2\ell_i=\sum_r\Bigl(\frac1Z\sum_{i\in r}\nabla^2\ell_i\Bigr),

    Z that of all images, so that shares of any sizes add up to one process's operator. A product is summed to
    the same bits in every process; an eigen-solver started with the same seed in each therefore takes the
    same steps in each, and every process holds the same eigenpairs. Every process must ask for every product.

    Made by `share_curvature`; alone, it is the operator itself.

    Args:
        own: this process's part, of the same size in every process.
        team: the processes.
    """

    def __init__(self, own: LinearOperator, team: Processes) -> None:
        self.own, self.team = own, team
        self.size, self.dtype, self.device = own.size, own.dtype, own.device

    def _apply(self, v: Tensor) -> Tensor:
        return self.team.sum_(self.own.matvec(v).contiguous())

    def gradient(self) -> Tensor | None:
        """Return the sum of the parts' gradients (P,), if they have any; every process must ask for it."""
        own = getattr(self.own, "gradient", None)
        return None if own is None else self.team.sum_(own())


def share_curvature(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    loss: Any = None,
    normaliser: float | None = None,
    kind: Any = HessianOperator,
    **options: Any,
) -> SharedOperator:
    """Return the curvature of all processes' images; call it in every process, with its own images.

    Args:
        model: the same in every process.
        images: (N_r, ...) of this process: each image in one process alone, at least one a process;
            `lt_lib.training.processes` yields `.share(n)`, which cuts n images so.
        labels: (N_r, ...) likewise.
        loss: as in `HessianOperator`; one term a sample, which depends on that sample alone.
        normaliser: Z; None: the loss's own over all processes' images.
        kind: `HessianOperator` or `GaussNewtonOperator`.
        options: further arguments of `kind`.

    Returns:
        The operator: what `kind` is for all images at once, up to rounding.

    Raises:
        ValueError: a process has no images, weights differ between processes, the loss mixes the samples of a
            batch (batch class means, inverse reweighting: measure it in one process), or as `kind`.
    """
    team = current()
    if not team.alone:
        plain = unwrapped(model)
        normaliser = _checked(plain, images, labels, loss, normaliser, team)
    own = kind(model, images, labels, loss, normaliser=normaliser, **options)
    return SharedOperator(own, team)


def _checked(
    model: nn.Module, images: Tensor, labels: Tensor, loss: Any, normaliser: float | None, team: Processes
) -> float:
    """Return the normaliser of all images, after checks that every process passes or fails alike."""
    parameter = next(model.parameters())
    device = parameter.device
    numbers = team.counts(len(labels), device)
    if 0 in numbers:
        raise ValueError(
            f"Each process needs images of its own; found {numbers}. Take more images, or fewer processes."
        )
    team.check_same("weights", model.state_dict().values(), device)
    inputs = images.detach().to(device)
    with untouched(model, device), torch.no_grad():
        outputs = model(inputs.to(parameter.dtype) if inputs.is_floating_point() else inputs)
    every_output, every_label = (_all(rows, numbers, team) for rows in (outputs, labels.to(device)))
    given = summed(loss)
    with torch.no_grad():
        own = given.terms(outputs, labels.to(device))
        start = sum(numbers[: team.rank])
        whole = given.terms(every_output, every_label)[start : start + len(own)]
        normaliser = normaliser or given.normaliser(every_label, every_output[:1])
    _check_terms(own, whole, team)
    return normaliser


def _all(rows: Tensor, numbers: list[int], team: Processes) -> Tensor:
    """Return the rows of all processes, which bring `numbers` of them."""
    padded = rows.new_zeros(max(numbers), *rows.shape[1:])
    padded[: len(rows)] = rows
    every = team.rows(padded, len(padded) * team.size).unflatten(0, (team.size, -1))
    return torch.cat([part[:number] for part, number in zip(every, numbers, strict=True)])


def _check_terms(own: Tensor, whole: Tensor, team: Processes) -> None:
    check_finite(whole, "loss terms")
    tol = torch.finfo(own.dtype).eps ** 0.5
    near = torch.allclose(own, whole, rtol=tol, atol=tol * float(whole.abs().max()))
    apart = team.sum_(torch.tensor([0.0 if near else 1.0], device=own.device))
    if float(apart) > 0:
        raise ValueError(
            "`loss` mixes the samples of a batch, as batch class means do: its terms for the images of one "
            "process differ from those among all, so its Hessian is not a sum over processes. Measure it in "
            "one process, or take a loss whose terms are of one sample each."
        )
