"""Text to other text, by the encoder-decoder of the paper: the task of sections 5 and 6."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.encoding import RowEncoder, Rows, Texts, token_ids
from vanilla_transformer.data.sources import PAIRS
from vanilla_transformer.errors import SettingError
from vanilla_transformer.evaluation import METRICS, check_names
from vanilla_transformer.evaluation.scoring import ALONE, EvaluationResult, Processes, evaluate_translation
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.generation_vanilla_transformer import MAX_LENGTH_BEYOND_SOURCE, paper_generation_config
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.registration import model_class
from vanilla_transformer.tasks.interface import Batch, RowRandom, Task, refuse_options
from vanilla_transformer.tasks.sizes import MODEL_FIELDS, SIZES_FOR_PAIRS
from vanilla_transformer.translation import Translator
from vanilla_transformer.translation.minimum_bayes_risk import Utility

if TYPE_CHECKING:
    from datasets import Dataset

# Width and layers of recurrent models, with about as many parameters as the Transformer of that name; `big` is that of
# Luong et al. 2015.
RECURRENT_SIZES = {"tiny": (192, 2), "small": (384, 2), "base": (768, 3), "big": (1000, 4)}


class Translation(Task):
    """Pairs of texts: each target token is an item of the loss."""

    name = "translation"
    form = PAIRS
    auto_class, command, loss_unit = "AutoModelForSeq2SeqLM", "translate", "target tokens"
    special_tokens = {"begins": False, "ends": True, "mask_token": False}
    sizes = SIZES_FOR_PAIRS
    metrics = METRICS
    columns: tuple[str, ...] = ("source", "target")
    config_class: type[VanillaTransformerConfig] = VanillaTransformerConfig

    def encoder(self, recipe: Recipe) -> RowEncoder:
        return RowEncoder(self.name, self.form, self.columns, _encode)

    def config(self, recipe: Recipe) -> PreTrainedConfig:
        refuse_options(recipe, self.name, "documents", "classification")
        if recipe.model.architecture == "recurrent":
            return _recurrent_config(recipe)
        for option in recipe.used("recurrent"):
            raise SettingError(f"{option} is for recurrent models: leave it out, or add architecture: recurrent.")
        given = {name: recipe[name] for name in MODEL_FIELDS if recipe[name] is not None}
        config = self.config_class.from_preset(recipe.model.preset or "base", **given)
        # Only learned positions have a limit: it must cover the longest source and the tokens that may follow.
        beyond = recipe.decoding.max_length_beyond_source
        longest = recipe.data.max_length + (MAX_LENGTH_BEYOND_SOURCE if beyond is None else beyond)
        config.max_position_embeddings = max(config.max_position_embeddings, longest)
        return config

    def build(self, recipe: Recipe) -> PreTrainedModel:
        """Builds the recipe's model, with random weights and with the recipe's search for `generate`."""
        config = self.config(recipe)
        model: PreTrainedModel = model_class(config)(config)
        given = {name: recipe[name] for name in recipe.used("decoding")}
        model.generation_config = paper_generation_config(config, **given)
        return model

    def items(self, *lengths: Lengths) -> Lengths:
        return lengths[-1]

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads pairs to `input_ids`, `attention_mask` and `labels` (with -100)."""
        input_ids, attention_mask = pad(rows["source"], config.pad_token_id)
        labels, _ = pad(rows["target"], LABEL_PADDING)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object] = lambda count: None,
        mbr: Utility | None = None,
        processes: Processes = ALONE,
        **settings: Any,
    ) -> EvaluationResult:
        check_names(metrics)
        translator = Translator(model, tokenizer, **{"precision": "float32"} | settings)
        return evaluate_translation(translator, corpus, metrics, progress=progress, mbr=mbr, processes=processes)

    def answers(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[str]:
        return [translation.text for translation in Translator(model, tokenizer, precision="float32")(texts)]


def _recurrent_config(recipe: Recipe) -> PreTrainedConfig:
    """Returns the sizes of a recurrent encoder-decoder; refuses what only the Transformer has."""
    from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig

    fields = [name for name in MODEL_FIELDS if hasattr(RecurrentEncoderDecoderConfig(), name)]
    for option in recipe.used(*({*MODEL_FIELDS} - {*fields}), "compile"):
        raise SettingError(f"{option} is for Transformers only: leave it out, or leave out architecture: recurrent.")
    preset = recipe.model.preset or "base"
    if preset not in RECURRENT_SIZES:
        raise SettingError(f"Recurrent models have no preset {preset!r}: there are {', '.join(RECURRENT_SIZES)}.")
    width, layers = RECURRENT_SIZES[preset]
    given = {name: recipe[name] for name in (*fields, "cell", "attention", "attention_window")}
    numbers = {given.pop("encoder_layers"), given.pop("decoder_layers")} - {None} or {layers}
    if len(numbers) > 1:
        raise SettingError(
            "Each decoder layer starts from the last state of its encoder layer: encoder_layers and decoder_layers "
            f"must be equal, not {recipe.model.encoder_layers} and {recipe.model.decoder_layers}."
        )
    sizes = {"d_model": width, "num_layers": numbers.pop()}
    return RecurrentEncoderDecoderConfig(**sizes | {name: one for name, one in given.items() if one is not None})


def _encode(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
    return {name: token_ids(texts[name], tokenizer, target=name == "target") for name in ("source", "target")}
