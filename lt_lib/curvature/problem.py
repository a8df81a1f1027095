"""What is differentiated: the loss of a model on given data as a function of some of its parameters."""

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lt_lib._checks import check_finite
from lt_lib.curvature.guard import check_batch_norm, untouched, unwrapped
from lt_lib.curvature.terms import class_labels, loss_sum, summed
from lt_lib.curvature.twice import Foldable

Theta = tuple[Tensor, ...]
IN_PLACE = "`model` changes its input in place, so a second pass sees others. Have it begin with a copy."
Params = str | Sequence[str] | None  # name patterns; None: what requires gradients


class Problem:
    """The loss `sum(terms) / normaliser` at a copy of the parameters; the model itself is only called.

    Args:
        model, images, labels, loss, params, normaliser: as in `HessianOperator`.
        channels_last: keep images and 4-D parameters in that memory format, where the model can take it.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        loss: Any = None,
        params: Params = None,
        normaliser: float | None = None,
        channels_last: bool = False,
    ) -> None:
        self.model = unwrapped(model)
        with torch.inference_mode(False):  # tensors of inference mode cannot be differentiated
            self._prepare(images, labels, loss, params, normaliser, channels_last)

    def _prepare(
        self, images: Tensor, labels: Tensor, given: Any, params: Params, normaliser: float | None, last: bool
    ) -> None:
        chosen = select(self.model, params)
        check_batch_norm(self.model)
        self.names = tuple(chosen)
        self.shapes = tuple(p.shape for p in chosen.values())
        self.size = sum(p.numel() for p in chosen.values())
        first = next(iter(chosen.values()))
        self.dtype, self.device = first.dtype, first.device
        self.images, self.labels = check_data(images, labels, first)
        loss = summed(given)
        self._terms = loss.terms
        # copies: neither later steps of the model nor a forward that writes buffers reach what is measured
        with torch.no_grad():
            self.theta: Theta = tuple(p.detach().clone() for p in chosen.values())
            rest = {n: t.detach().clone() for n, t in self.model.named_buffers()}
            rest |= {n: p.detach().clone() for n, p in self.model.named_parameters() if n not in chosen}
        self._rest = rest
        if last and self._takes_channels_last():
            self.images = self.images.contiguous(memory_format=torch.channels_last)
            self.theta = tuple(_channels_last(p) for p in self.theta)
        one = self._output_of_one()
        self.labels = class_labels(given, self.labels, one)
        self.normaliser = _normaliser(loss.normaliser(self.labels, one) if normaliser is None else normaliser)

    def outputs(self, theta: Theta, images: Tensor) -> Tensor:
        """Return the model's outputs at parameters `theta`."""
        tensors = dict(zip(self.names, theta, strict=True)) | self._rest
        outputs = functional_call(self.model, tensors, (images,))
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != images.shape[:1]:
            shape = f" of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else ""
            raise ValueError(
                "`model` must return one tensor whose first dimension runs over the images; found "
                f"{type(outputs).__name__}{shape}. Wrap it in a module that does."
            )
        return outputs

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the part of the loss that these outputs make, a scalar."""
        loss = loss_sum(self._terms, outputs, labels, self.normaliser)
        if outputs.requires_grad and not loss.requires_grad:
            raise ValueError("`loss` has no gradient: it does not use the outputs, or only their argmax.")
        return loss

    def value(self, theta: Theta, images: Tensor, labels: Tensor, fast: bool = True) -> Tensor:
        """Return the part of the loss that these images make; `fast` as in `Foldable`."""
        with Foldable(fast):
            outputs = self.outputs(theta, images)
        return self.loss(outputs, labels)

    def chunks(self, size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels, `size` at a time (None: all at once)."""
        size = size or len(self.images)
        yield from zip(self.images.split(size), self.labels.split(size), strict=True)

    def check_split(self, size: int) -> None:
        """Refuse a loss whose terms depend on which images share a batch; one forward pass without gradients.

        Raises:
            ValueError: terms of `size` images at a time differ from those of all at once.
        """
        with self.surroundings(), torch.no_grad():
            outputs = [self.outputs(self.theta, images) for images, _ in self.chunks(size)]
            pairs = zip(outputs, self.labels.split(size), strict=True)
            parts = torch.cat([self._terms(z, labels) for z, labels in pairs])
            whole = self._terms(torch.cat(outputs), self.labels)
        tol = torch.finfo(whole.dtype).eps ** 0.5
        if not torch.allclose(parts, whole, rtol=tol, atol=tol * float(whole.abs().max()), equal_nan=True):
            raise ValueError(
                f"`loss` mixes the samples of a batch, as batch class means do: its terms for {size} images "
                f"at a time differ from those for all {len(whole)}, so its Hessian cannot be a sum over "
                "micro-batches. Take all images at once (`micro_batch=None` and a larger `memory_limit`), or "
                "a loss whose terms are of one sample each."
            )

    def leaves(self) -> Theta:
        """Return the parameters as leaves that ask for gradients."""
        return tuple(p.detach().requires_grad_() for p in self.theta)

    def split(self, v: Tensor) -> Theta:
        """Return views of a flat vector (P,), in the parameters' shapes."""
        sizes = [shape.numel() for shape in self.shapes]
        return tuple(part.view(s) for part, s in zip(v.split(sizes), self.shapes, strict=True))

    def surroundings(self) -> Any:
        """Return the context in which the model may be called."""
        return untouched(self.model, self.device)

    def _takes_channels_last(self) -> bool:
        if self.images.ndim != 4:
            return False
        one = self.images[:1].contiguous(memory_format=torch.channels_last)
        try:
            with self.surroundings(), torch.no_grad():
                self.outputs(self.theta, one)
        except RuntimeError:  # a `view` across channels and positions
            return False
        return True

    def _output_of_one(self) -> Tensor:
        """Return the outputs of the first image; refuse a model that gives others the second time."""
        image = self.images[:1].clone()
        with self.surroundings(), torch.no_grad():
            one, again = (self.outputs(self.theta, image) for _ in range(2))
        if image._version:
            raise ValueError(IN_PLACE)
        if one.shape != again.shape or not torch.allclose(one, again, rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ValueError(
                "`model` gave two outputs for one image, in eval mode: it draws random numbers or keeps a "
                "state, so it has no Hessian. Give `dropout(x, training=self.training)` its mode, and take "
                "noise and augmentation out of the model."
            )
        return one


def _normaliser(given: float) -> float:
    if not 0 < given < math.inf:
        raise ValueError(
            f"`normaliser` must be positive and finite; found {given}. None takes the loss's own."
        )
    return float(given)


def select(model: nn.Module, params: Params) -> dict[str, nn.Parameter]:
    """Return the parameters whose names match a glob pattern, in the order of `named_parameters()`.

    None takes those that require gradients; a pattern takes what it names, frozen or not.

    Raises:
        ValueError: a pattern matches nothing, nothing requires gradients, `model` is no module or has not
            seen its first batch (lazy modules), or the parameters are of half precision, complex, or of
            several dtypes or devices.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model` must be a `torch.nn.Module`; found {type(model).__name__}. Wrap it.")
    named = dict(model.named_parameters())
    lazy = [n for n, p in named.items() if isinstance(p, nn.UninitializedParameter)]
    if lazy:
        raise ValueError(f"Parameter `{lazy[0]}` has no shape yet. Pass a batch through `model` first.")
    if params is None:
        chosen = {n: p for n, p in named.items() if p.requires_grad}
        if not chosen:
            raise ValueError(
                'No parameter of `model` requires gradients. Name some with `params`, as in `"*"`.'
            )
    else:
        patterns = _patterns(params)
        for pattern in patterns:
            if not any(fnmatchcase(n, pattern) for n in named):
                raise ValueError(
                    f"`params` pattern `{pattern}` matches no parameter; there are "
                    f"{', '.join(list(named)[:20])} (shared weights under their first name)."
                )
        chosen = {n: p for n, p in named.items() if any(fnmatchcase(n, pattern) for pattern in patterns)}
        if not chosen:
            raise ValueError("`params` must name some parameters; found an empty list.")
    _check_kind(chosen)
    return chosen


def _patterns(params: Any) -> list[str]:
    patterns = [params] if isinstance(params, str) else params
    if not isinstance(patterns, Sequence) or not all(isinstance(p, str) for p in patterns):
        raise ValueError(f"`params` must be a name pattern or a list of them; found {params!r}.")
    return list(patterns)


def _check_kind(chosen: dict[str, nn.Parameter]) -> None:
    kinds = {(p.dtype, p.device) for p in chosen.values()}
    if len(kinds) > 1:
        raise ValueError(
            "Parameters must share one dtype and one device; found "
            f"{', '.join(sorted(f'{d} on {where}' for d, where in kinds))}. Convert the model, or select "
            "with `params`."
        )
    dtype = next(iter(kinds))[0]
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"Curvature needs real parameters in float32 or float64; found {dtype}. Derivatives of half "
            "precision are mostly rounding: convert a copy with `model.float()`."
        )


def check_data(images: Tensor, labels: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return images and labels, detached, on the device of a parameter; float images in its dtype.

    Raises:
        ValueError: no tensors, none or not equally many, pixels in uint8, or images that are not finite.
    """
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        raise ValueError(
            f"`images` and `labels` must be tensors; found {type(images).__name__} and "
            f"{type(labels).__name__}. Convert them with `torch.as_tensor`."
        )
    if len(images) == 0 or len(images) != len(labels):
        raise ValueError(
            f"`images` and `labels` must be equally many, at least one; found {len(images)} and "
            f"{len(labels)}."
        )
    if images.dtype == torch.uint8:
        raise ValueError(
            "`images` must be what the network takes, normalised; found pixels in uint8. Normalise them as "
            "in training."
        )
    images, labels = (t.detach().as_subclass(Tensor).to(like.device) for t in (images, labels))
    if images.is_floating_point():
        check_finite(images, "images")
        images = images.to(like.dtype)
    images, labels = (t.clone() if t.is_inference() else t for t in (images, labels))
    return images, labels


def _channels_last(p: Tensor) -> Tensor:
    return p.contiguous(memory_format=torch.channels_last) if p.ndim == 4 else p
