"""Section 5.3: Adam, and the learning rate that rises, then falls with the inverse square root of the step."""

from collections.abc import Iterable

import torch
from torch.optim.lr_scheduler import LambdaLR

from vanilla_transformer.recipe.learning_rate import paper_learning_rate
from vanilla_transformer.recipe.schema import Recipe


def make_optimizer(parameters: Iterable[torch.nn.Parameter], recipe: Recipe, device: torch.device) -> torch.optim.Adam:
    """Section 5.3: Adam with the recipe's β1, β2 and ε, as one kernel where torch has it for the device."""
    return torch.optim.Adam(
        parameters,
        lr=1.0,  # The schedule gives the learning rate itself.
        betas=(recipe.optimization.adam_beta1, recipe.optimization.adam_beta2),
        eps=recipe.optimization.adam_epsilon,
        fused=device.type in ("cpu", "cuda"),
    )


def make_schedule(
    optimizer: torch.optim.Optimizer, d_model: int, warmup_steps: int, scale: float, constant: float | None = None
) -> LambdaLR:
    """Eq. 3, or a constant rate after the warm-up, as a torch schedule, which counts the steps already done."""
    if constant is not None:
        return LambdaLR(optimizer, lambda steps_done: constant * min(1.0, (steps_done + 1) / warmup_steps))
    return LambdaLR(optimizer, lambda steps_done: paper_learning_rate(steps_done + 1, d_model, warmup_steps, scale))
