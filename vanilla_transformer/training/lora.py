"""LoRA (Hu et al. 2022): small matrices learned beside the weights of a model, and added to them at the end."""

from collections.abc import Iterable
from typing import Any

import torch
from transformers import PreTrainedModel

from vanilla_transformer.checkpointing.averaging import Weights
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe

DEFAULT_TARGETS = ("q_proj", "v_proj")  # As in the LoRA paper.
_BASE = ".base_layer."
_FIRST, _SECOND = ".lora_A.default.weight", ".lora_B.default.weight"


def check_lora(recipe: Recipe) -> None:
    """Refuses, before any text is read, settings that cannot be combined with LoRA.

    Raises:
        RecipeError: The message says what to add or to leave out.
    """
    if recipe.lora.rank is None:
        for option in recipe.used("lora"):
            raise RecipeError(f"{option} is for LoRA: add lora_rank, or leave {option} out.")
        return
    if recipe.start.model is None:
        raise RecipeError("lora_rank adapts the weights of a saved model: give the model as --from, too.")
    try:
        import peft  # noqa: F401
    except ImportError:
        raise RecipeError("lora_rank needs PEFT: run `pip install 'vanilla-transformer[lora]'`.") from None


def add_lora(model: PreTrainedModel, recipe: Recipe, new: Iterable[str]) -> str:
    """Adds trainable matrices to a model, freezes its own weights, and says how many parameters train.

    Args:
        model: Changed in place.
        recipe: Gives the rank and the modules.
        new: Names of weights that come from no saved model: they train as well.

    Raises:
        RecipeError: The model has no such module.
    """
    from peft import LoraConfig

    assert recipe.lora.rank is not None
    targets = recipe.lora.targets or DEFAULT_TARGETS
    heads = {id(model.get_output_embeddings())}
    there = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and id(module) not in heads
    }
    for name in targets:
        if name not in there:
            raise RecipeError(f"lora_targets: there is no {name} in the model; there are {', '.join(sorted(there))}.")
    fresh = [weight for name, weight in model.named_parameters() if name in set(new)]
    alpha: Any = _alpha(recipe)  # PEFT declares an integer, and accepts other numbers.
    model.add_adapter(LoraConfig(r=recipe.lora.rank, lora_alpha=alpha, target_modules=list(targets)))
    for weight in fresh:
        weight.requires_grad_(True)
    learned = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return (
        f"LoRA of rank {recipe.lora.rank} on {', '.join(targets)}: {learned:,} parameters are trained, and "
        "merged into the others at the end."
    )


def merged(weights: Weights, recipe: Recipe) -> Weights:
    """Returns the weights without LoRA: each with the product learned beside it added."""
    if recipe.lora.rank is None:
        return weights
    scale, plain = _alpha(recipe) / recipe.lora.rank, {}
    for name, weight in weights.items():
        if name.endswith((_FIRST, _SECOND)):
            continue
        place, is_base, kind = name.partition(_BASE)
        first = weights.get(place + _FIRST) if is_base and kind == "weight" else None
        if first is not None:
            added = weights[place + _SECOND].double() @ first.double()
            weight = (weight.double() + scale * added).to(weight.dtype)
        plain[f"{place}.{kind}" if is_base else name] = weight
    return plain


def _alpha(recipe: Recipe) -> float:
    """Returns the scale of the product of the two matrices, times their rank."""
    return recipe.lora.alpha if recipe.lora.alpha is not None else 2.0 * (recipe.lora.rank or 0)
