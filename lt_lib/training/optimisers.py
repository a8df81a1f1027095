"""SGD and AdamW on lists of tensors, with all their state in named tensors.

Why not `torch.optim`: its first use in a process imports the compiler (3.6 s on a slow core, longer
than a whole run on the digits), and its state dict mixes tensors with settings. The formulas are
`torch.optim`'s, which the tests compare with.
"""

import torch
from torch import Tensor, nn

from lt_lib.training.config import TrainConfig


class Optimiser:
    """Updates parameters in place from their `.grad`; one without a gradient is left alone, state too."""

    slots: tuple[str, ...] = ()

    def __init__(self, parameters: list[nn.Parameter], config: TrainConfig) -> None:
        self.parameters, self.config = parameters, config
        self.state = {
            name: [torch.zeros_like(p, requires_grad=False) for p in parameters] for name in self.slots
        }
        self.steps = [0] * len(parameters)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Take one step at learning rate `lr`."""
        active = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        if active:
            self._update(active, lr)
        for i in active:
            self.steps[i] += 1

    def _update(self, active: list[int], lr: float) -> None:
        raise NotImplementedError

    def _lists(self, active: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        values: list[Tensor] = [self.parameters[i] for i in active]
        return values, [value.grad for value in values if value.grad is not None]


class SGD(Optimiser):
    r"""Gradient descent with momentum: :math:`v \leftarrow \mu v + g + \lambda p, p \leftarrow p - \eta v`.

    Nesterov: :math:`p \leftarrow p - \eta (g + \lambda p + \mu v)` with the new v. v starts at 0, so
    its first value is the first gradient, undamped.
    """

    slots = ("momentum",)

    def _update(self, active: list[int], lr: float) -> None:
        values, gradients = self._lists(active)
        decay, momentum = self.config.weight_decay, self.config.momentum
        steps = list(torch._foreach_add(gradients, values, alpha=decay)) if decay else gradients
        if momentum:
            velocity = [self.state["momentum"][i] for i in active]
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, steps)
            steps = (
                list(torch._foreach_add(steps, velocity, alpha=momentum))
                if self.config.nesterov
                else velocity
            )
        torch._foreach_add_(values, steps, alpha=-lr)


class AdamW(Optimiser):
    r"""Adam with decoupled weight decay (Loshchilov and Hutter, 2019), betas (0.9, 0.999), eps 1e-8."""

    slots = ("first", "second")
    betas = (0.9, 0.999)
    eps = 1e-8

    def _update(self, active: list[int], lr: float) -> None:
        values, gradients = self._lists(active)
        first, second = ([self.state[name][i] for i in active] for name in self.slots)
        torch._foreach_mul_(values, 1 - lr * self.config.weight_decay)
        torch._foreach_lerp_(first, gradients, 1 - self.betas[0])
        torch._foreach_mul_(second, self.betas[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - self.betas[1])
        ages = [self.steps[i] + 1 for i in active]
        scale = list(torch._foreach_sqrt(second))
        torch._foreach_div_(scale, [(1 - self.betas[1] ** age) ** 0.5 for age in ages])
        torch._foreach_add_(scale, self.eps)
        torch._foreach_addcdiv_(values, first, scale, [-lr / (1 - self.betas[0] ** age) for age in ages])


def make_optimiser(model: nn.Module, config: TrainConfig) -> Optimiser:
    """Return the optimiser of `config` over all parameters that require a gradient, in their order."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return (AdamW if config.optimiser == "adamw" else SGD)(parameters, config)
