"""Convolutions and BatchNorm as a Hessian product wants them: differentiated twice, by the fast kernels.

PyTorch differentiates a convolution's backward by convolutions with images and channels exchanged, whose
shapes no kernel is made for. Written out, the second derivative needs nothing but a forward and a backward
convolution of the usual shapes. BatchNorm with its running statistics is the affine map `x * s + t`; where
it follows a convolution, `s` and `t` go into that convolution's weight and bias, so that no product touches
the activations for it. The hard sigmoid and the weight norm are written out: of the first PyTorch 2.14 has no
second derivative, of the second another than difference quotients have. All are exact up to rounding;
parameters stay those of the model.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Geometry(NamedTuple):
    """Everything of a 2-D convolution but its tensors."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def _backward(g: Tensor, x: Tensor, w: Tensor, how: Geometry, mask: tuple[bool, bool]) -> tuple[Any, Any]:
    """Return the gradients of `sum(g * conv(x, w))` with respect to x and w, where the mask asks for them."""
    gx, gw, _ = torch.ops.aten.convolution_backward(
        g, x, w, None, how.stride, how.padding, how.dilation, False, (0, 0), how.groups, (*mask, False)
    )
    return gx, gw


class Convolution(Function):
    """A 2-D convolution whose backward is `ConvolutionBackward`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, how: Geometry, linear: bool = False
    ) -> Tensor:
        """Return conv(x, w) + b; `linear`: only the incoming gradient will be differentiated through."""
        ctx.save_for_backward(x, w)
        ctx.how, ctx.linear = how, linear
        return torch.conv2d(x, w, b, *how)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients with respect to x, w and b."""
        x, w = (t.detach() if ctx.linear else t for t in ctx.saved_tensors)
        need_x, need_w, need_b = ctx.needs_input_grad[:3]
        gx, gw = ConvolutionBackward.apply(grads[0], x, w, ctx.how, (need_x, need_w))
        return gx, gw, grads[0].sum((0, 2, 3)) if need_b else None, None, None


class ConvolutionBackward(Function):
    """The backward of a convolution; linear in each of g, x, w, so its own backward is convolutions again."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, w: Tensor, how: Geometry, mask: tuple[bool, bool]
    ) -> tuple[Any, Any]:
        """Return the gradients with respect to x and w; None where the mask does not ask for one."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g, x, w)
        ctx.how = how
        return _backward(g, x, w, how, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, vx: Tensor | None, vw: Tensor | None) -> Any:
        """Return the gradients of <vx, gx> + <vw, gw> with respect to g, x and w."""
        g, x, w = ctx.saved_tensors
        need_g, need_x, need_w = ctx.needs_input_grad[:3]
        to_g = None
        if need_g and vx is not None:
            to_g = torch.conv2d(vx, w, None, *ctx.how)
        if need_g and vw is not None:
            part = torch.conv2d(x, vw, None, *ctx.how)
            to_g = part if to_g is None else to_g.add_(part)
        mask = need_x and vw is not None, need_w and vx is not None
        to_x = to_w = None
        if any(mask):
            to_x, to_w = _backward(g, x if vx is None else vx, w if vw is None else vw, ctx.how, mask)
        return to_g, to_x, to_w, None, None


Conv = Callable[[Tensor, Tensor, Tensor | None, Geometry], Tensor]


def _plain(x: Tensor, w: Tensor, b: Tensor | None, how: Geometry) -> Tensor:
    return torch.conv2d(x, w, b, *how)


def _fast(x: Tensor, w: Tensor, b: Tensor | None, how: Geometry, linear: bool) -> Tensor:
    return Convolution.apply(x, w, b, how, linear)


class _Made(NamedTuple):
    out: Tensor  # kept, so that its id stays its own
    x: Tensor
    w: Tensor
    b: Tensor | None
    how: Geometry


class Foldable(TorchFunctionMode):
    """While active, convolutions are twice differentiable fast and BatchNorm is folded into them.

    Args:
        fast: use `Convolution`; False leaves convolutions to PyTorch, which transforms of `torch.func` need.
        linear: gradients will be differentiated only by the gradient that came in (for products with the
            Jacobian), never by parameters or activations.
    """

    def __init__(self, fast: bool = True, linear: bool = False) -> None:
        super().__init__()
        self._conv: Conv = partial(_fast, linear=linear) if fast else _plain
        self._made: dict[int, _Made] = {}

    def __exit__(self, *error: Any) -> None:
        """Drop what was kept."""
        self._made.clear()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d:
            return self._convolve(args, kwargs)
        if func is functional.batch_norm:
            return self._normalise(args, kwargs)
        if func is functional.hardsigmoid:
            return _hardsigmoid(*args, **kwargs)
        if func is torch._weight_norm:
            return _weight_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _convolve(self, args: Any, kwargs: Any) -> Tensor:
        x, w, b, stride, padding, dilation, groups = _conv_arguments(*args, **kwargs)
        if isinstance(padding, str) or x.ndim != 4:
            return torch.conv2d(*args, **kwargs)
        how = Geometry(_pair(stride), _pair(padding), _pair(dilation), groups)
        out = self._conv(x, w, b, how)
        self._made[id(out)] = _Made(out, x, w, b, how)
        return out

    def _normalise(self, args: Any, kwargs: Any) -> Tensor:
        given = _BATCH_NORM.bind(*args, **kwargs)
        given.apply_defaults()
        x, mean, variance, weight, bias, training, _, eps = given.arguments.values()
        if training or mean is None:
            return functional.batch_norm(*args, **kwargs)
        scale = torch.rsqrt(variance + eps)
        scale = scale if weight is None else weight * scale
        shift = -mean * scale if bias is None else bias - mean * scale
        made = self._made.pop(id(x), None)
        # a convolution's output that was changed in place is no longer what the convolution gave
        if made is not None and made.out is x and x._version == 0:
            shift = shift if made.b is None else made.b * scale + shift
            return self._conv(made.x, made.w * scale[:, None, None, None], shift, made.how)
        column = (-1, *(1 for _ in x.shape[2:]))
        return x * scale.view(column) + shift.view(column)


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Return the hard sigmoid by operations that PyTorch differentiates twice, which its own is not."""
    value = (input + 3).clamp(0, 6) / 6
    return input.copy_(value) if inplace else value


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return g v / ||v||, written out (tests/curvature/test_unusual_networks.py compares)."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


_BATCH_NORM = inspect.signature(functional.batch_norm)


def _conv_arguments(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...]:
    return input, weight, bias, stride, padding, dilation, groups


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = value * 2 if len(value) == 1 else value
    return first, second
