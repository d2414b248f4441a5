"""LoRA as a part of the recipe, and the model with and without its matrices."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vanilla_transformer.recipe.blocks import RecipeError, setting
from vanilla_transformer.recipe.schema import ModelAdapter, Recipe

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

DEFAULT_TARGETS = ("q_proj", "v_proj")  # As in the LoRA paper.
# Matrices that start at zero need larger steps; ten times the rate of the full weights is the usual rule.
RATE_FACTOR = 10
_BASE = ".base_layer."
_FIRST, _SECOND = ".lora_A.default.weight", ".lora_B.default.weight"


@dataclass(frozen=True)
class Lora(ModelAdapter):
    """Low-rank matrices trained beside the frozen weights of a saved model (Hu et al. 2022)."""

    rank: int | None = setting(option="lora_rank", least=1)
    """Freeze the model of `--from` and train only matrices of this rank beside its projections (LoRA, through PEFT).
    At the end they are merged, so the output is a model like any other."""
    alpha: float | None = setting(option="lora_alpha", above=0)
    """Scale of the matrices: their product is multiplied by alpha / rank; by default twice the rank."""
    targets: tuple[str, ...] | None = setting(option="lora_targets")
    """Projections that get matrices, from q_proj, k_proj, v_proj, out_proj, w_1 and w_2; by default q_proj and
    v_proj."""

    def complete(self, recipe: Recipe) -> Recipe:
        """Returns the recipe unchanged, after checking that it can be combined with LoRA.

        Raises:
            RecipeError: The message says what to add or to leave out.
        """
        if self.rank is None:
            for option in recipe.used("lora"):
                raise RecipeError(f"{option} is for LoRA: add lora_rank, or leave {option} out.")
            return recipe
        if recipe.start.model is None:
            raise RecipeError("lora_rank adapts the weights of a saved model: give the model as --from, too.")
        try:
            import peft  # noqa: F401
        except ImportError:
            raise RecipeError("lora_rank needs PEFT: run `pip install 'vanilla-transformer[lora]'`.") from None
        return recipe

    def choices(self, recipe: Recipe) -> tuple[dict[str, Any], str]:
        """Returns the learning rate."""
        from vanilla_transformer.recipe.defaults import fine_tuning_rate

        if self.rank is None:
            return {}, ""
        rate = fine_tuning_rate(recipe, RATE_FACTOR)
        sentence = f"Optimisation: a learning rate of {rate:g} after the warm-up, which suits LoRA's matrices."
        return {"learning_rate": rate}, sentence

    def adapt(self, model: "PreTrainedModel", new: Iterable[str]) -> str:
        """Adds trainable matrices to a model, freezes its own weights, and says how many parameters train.

        Raises:
            RecipeError: The model has no such module.
        """
        import torch
        from peft import LoraConfig

        assert self.rank is not None
        targets = self.targets or DEFAULT_TARGETS
        heads = {id(model.get_output_embeddings())}
        there = {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and id(module) not in heads
        }
        for name in targets:
            if name not in there:
                raise RecipeError(
                    f"lora_targets: there is no {name} in the model; there are {', '.join(sorted(there))}."
                )
        fresh = [weight for name, weight in model.named_parameters() if name in set(new)]
        alpha: Any = self._alpha  # PEFT declares an integer, and accepts other numbers.
        model.add_adapter(LoraConfig(r=self.rank, lora_alpha=alpha, target_modules=list(targets)))
        for weight in fresh:
            weight.requires_grad_(True)
        learned = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        return (
            f"LoRA of rank {self.rank} on {', '.join(targets)}: {learned:,} parameters are trained, and "
            "merged into the others at the end."
        )

    def merged(self, weights: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """Returns the weights without LoRA: each with the product learned beside it added."""
        assert self.rank is not None
        scale, plain = self._alpha / self.rank, {}
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

    @property
    def _alpha(self) -> float:
        """The scale of the product of the two matrices, times their rank."""
        return 2.0 * (self.rank or 0) if self.alpha is None else self.alpha
