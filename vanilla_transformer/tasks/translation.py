"""Text to other text, by the encoder-decoder of the paper: the task of sections 5 and 6."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.columns import PAIRS
from vanilla_transformer.data.preparation import Encoder, Texts, token_ids
from vanilla_transformer.data.token_corpus import Rows
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.generation_vanilla_transformer import paper_generation_config
from vanilla_transformer.recipe.defaults import MODEL_FIELDS, SIZE_PRESETS
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.registration import model_class
from vanilla_transformer.tasks.interface import Batch, RowRandom, SpecialTokens, Task
from vanilla_transformer.translation import translate_lines

if TYPE_CHECKING:
    from datasets import Dataset

    from vanilla_transformer.evaluation.scoring import Evaluation


class Translation(Task):
    """Pairs of texts: each target token is an item of the loss."""

    name = "translation"
    form = PAIRS
    columns: tuple[str, ...] = ("source", "target")
    special_tokens = SpecialTokens()
    size_presets = SIZE_PRESETS
    config_class: type[Any] = VanillaTransformerConfig
    auto_class = "AutoModelForSeq2SeqLM"
    translates = True
    pipeline = "translation"
    verb = command = "translate"
    metrics: tuple[str, ...] = ("sacrebleu", "chrf")
    item = "target tokens"
    use = "Text-to-text generation"

    def check(self, recipe: Recipe) -> None:
        """Refuses unknown metrics, and packed text."""
        from vanilla_transformer.evaluation.metrics import check_names

        check_names(recipe.evaluation.metrics or ())
        for option in recipe.used("documents"):
            raise RecipeError(f"Translation learns from pairs, which cannot be packed: leave {option} out.")

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns the encoder of both sides, including the end of each sentence."""
        return Encoder(self.name, self.form, self.columns, _encode)

    def vocabulary_columns(self, recipe: Recipe) -> tuple[str, ...]:
        """Returns both sides, or one, as the recipe says."""
        return self.columns if recipe.tokenizer.tokenizer_sides == "both" else (recipe.tokenizer.tokenizer_sides,)

    def config(self, recipe: Recipe) -> Any:
        """Returns the sizes of the recipe's model: its preset, overridden by the recipe's own fields."""
        given = {name: recipe[name] for name in MODEL_FIELDS if recipe[name] is not None}
        config = self.config_class.from_preset(recipe.model.preset or "base", **given)
        # Only learned positions have a limit: it must cover the longest source and the tokens that may follow.
        longest = recipe.data.max_length + recipe.decoding.max_length_beyond_source
        config.max_position_embeddings = max(config.max_position_embeddings, longest)
        return config

    def build(self, recipe: Recipe) -> PreTrainedModel:
        """Builds the recipe's model, with random weights and with the recipe's search for `generate`."""
        config, decoding = self.config(recipe), recipe.decoding
        model: PreTrainedModel = model_class(config)(config)
        model.generation_config = paper_generation_config(
            model.config,
            decoding.num_beams,
            decoding.length_penalty,
            decoding.length_penalty_type,
            decoding.max_length_beyond_source,
        )
        return model

    def numbers_kept(self, config: Any) -> int:
        """Sums over all layers of both stacks, and the logits."""
        in_layer = 20 * config.d_model + 4 * config.d_ff
        layers: int = config.encoder_layers + config.decoder_layers
        return layers * in_layer + 4 * config.vocab_size

    def items(self, *lengths: Lengths) -> Lengths:
        """Counts the tokens of each target."""
        return lengths[-1]

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads pairs to `input_ids`, `attention_mask` and `labels` (with -100)."""
        input_ids, attention_mask = pad(rows["source"], config.pad_token_id)
        labels, _ = pad(rows["target"], LABEL_PADDING)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def examples(self, corpus: "Dataset") -> int:
        """Counts each source once."""
        return len(set(corpus["source"]))

    def sample(self, corpus: "Dataset", texts: int) -> "Dataset":
        """Returns some of the sources, each with all its targets."""
        sources = list(dict.fromkeys(corpus["source"]))
        kept = {sources[number * len(sources) // texts] for number in range(texts)}
        return corpus.select([row for row, source in enumerate(corpus["source"]) if source in kept])

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object] = lambda count: None,
        **settings: Any,
    ) -> "Evaluation":
        """Translates the sources and scores the translations against the targets."""
        if "stride" in settings:
            raise ValueError("stride is for language models, but this one translates.")
        from vanilla_transformer.evaluation.scoring import evaluate_model

        return evaluate_model(model, tokenizer, corpus, metrics, progress=progress, **settings)

    def show(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """Translates each text."""
        return [translation.text for translation in translate_lines(model, tokenizer, texts)]

    def describe_limit(self, max_length: int) -> str:
        """Describes the longest pairs."""
        return f"{super().describe_limit(max_length)} per side"


def _encode(texts: Texts, tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
    return {name: token_ids(texts[name], tokenizer, target=name == "target") for name in ("source", "target")}
