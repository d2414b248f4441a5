"""Text that goes on, by a decoder-only model: each token from those before it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.analysis.text_cost import TextCost
from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.columns import TEXTS_IN_BLOCKS, TextForm
from vanilla_transformer.data.preparation import Rows, token_ids
from vanilla_transformer.model.configuration_vanilla_transformer_decoder import VanillaTransformerDecoderConfig
from vanilla_transformer.model.modeling_vanilla_transformer_decoder import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.recipe.defaults import LEAST_WARMUP, SizePreset
from vanilla_transformer.recipe.schema import Recipe, RecipeError
from vanilla_transformer.tasks.encoders import ONE_STACK_FOREIGN, EncoderPredictor, EncoderTask, Row, evaluating
from vanilla_transformer.tasks.interface import Batch, Prediction, RowRandom, SpecialTokens

if TYPE_CHECKING:
    from vanilla_transformer.data.streams import TextStream
    from vanilla_transformer.evaluation.metrics import Metric

# Tokens that an example is continued by.
_CONTINUATION = 40


def in_blocks(ids: Sequence[int], most: int) -> list[list[int]]:
    """A text in blocks of so many ids, each but the first beginning with the last of the one before.

    So all ids but the first of the text are predicted, and once.
    """
    return [[*ids[start : start + most]] for start in range(0, max(1, len(ids) - 1), most - 1)]


def ids_of_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """The ids of each text, with its end, which the tokenizer leaves out so that a prompt can go on."""
    return [[*ids, tokenizer.eos_token_id] for ids in token_ids(texts, tokenizer)]


class _BlockEncoder:
    """Texts in blocks of so many ids."""

    form: TextForm = TEXTS_IN_BLOCKS
    columns: tuple[str, ...] = ("text",)

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most

    @property
    def settings(self) -> tuple[Any, ...]:
        return ()

    def ids(self, tokenizer: PreTrainedTokenizerFast) -> int:
        return len(tokenizer)

    def encode(
        self, texts: Mapping[str, Sequence[str]], tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, list[list[int]]]:
        rows = ids_of_texts(texts["text"], tokenizer)
        return {"text": [block for ids in rows for block in in_blocks(ids, self.most)]}


class TextScorer(EncoderPredictor):
    """Gives each text its log-probability, its end included."""

    def read(self, line: str) -> Row:
        """The line."""
        return (line,)

    def predict(self, rows: Sequence[Row], progress: Callable[[int], object]) -> list[Prediction]:
        """The log-probability of each text that is not empty, in nats; longer ones than the model reads in blocks."""
        predictions = [Prediction("", "", {"log_probability": None, "tokens": 0})] * len(rows)
        full = [place for place, (text, *_) in enumerate(rows) if text.strip()]
        most = self.model.config.max_position_embeddings
        texts = [in_blocks(ids, most) for ids in ids_of_texts([rows[place][0] for place in full], self.tokenizer)]
        blocks = [(place, block) for place, text in zip(full, texts, strict=True) for block in text]
        ids = [block for _, block in blocks]
        nats = [0.0] * len(rows)
        for (place, _), cost in zip(blocks, summed_losses(self, ids, ids, shift=1), strict=True):
            nats[place] += cost
        for place, text in zip(full, texts, strict=True):
            tokens = sum(len(block) - 1 for block in text)
            predictions[place] = Prediction(
                str(TextCost(nats[place], tokens, most)),
                f"{-nats[place]:.4f}\t{tokens}",
                {"log_probability": -nats[place], "tokens": tokens},
            )
        progress(len(rows))
        return predictions


def summed_losses(
    scorer: EncoderPredictor, inputs: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], shift: int
) -> list[float]:
    """Of each row: the sum of minus the log-probabilities of its labels, so many places after those that predict."""
    sums = [0.0] * len(inputs)
    order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place]))
    with evaluating(scorer.model), torch.inference_mode():
        while order:
            count = max(1, scorer.batch_tokens // len(inputs[order[0]]))
            batch, order = order[:count], order[count:]
            ids, mask = (
                one.to(scorer.model.device)
                for one in pad([inputs[place] for place in batch], scorer.model.config.pad_token_id)
            )
            expected = pad([labels[place] for place in batch], LABEL_PADDING)[0][:, shift:].to(ids.device)
            logits = scorer.model(input_ids=ids, attention_mask=mask).logits[:, : expected.shape[1]]
            losses = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), expected, reduction="none")
            for place, loss in zip(batch, losses.sum(-1, dtype=torch.float64).tolist(), strict=True):
                sums[place] = loss
    return sums


class LanguageModeling(EncoderTask):
    """A row is a text between `<s>` and `</s>`, or a block of one: each token but the first is an item of the loss."""

    name = "language-modeling"
    form = TEXTS_IN_BLOCKS
    columns: tuple[str, ...] = ("text",)
    foreign = (*ONE_STACK_FOREIGN, "encoder_layers", "labels")
    kind = "a decoder"
    config_class = VanillaTransformerDecoderConfig
    # The end is not the tokenizer's: a prompt must be able to go on.
    special_tokens = SpecialTokens(begins=True, ends=False)
    auto_class = "AutoModelForCausalLM"
    pipeline = "text-generation"
    model_class = VanillaTransformerDecoderForCausalLM
    metrics: tuple[str, ...] = ("perplexity", "bits_per_character")
    item = "tokens"
    use = "Writing text that goes on"
    least_warmup = LEAST_WARMUP
    size_presets: tuple[SizePreset, ...] = (
        SizePreset(20_000, 4_000, "tiny", "tiny", 0.3, 2_048, 40),
        SizePreset(100_000, 8_000, "tiny", "tiny", 0.2, 4_096, 20),
        SizePreset(1_000_000, 16_000, "small", "small", 0.1, 8_192, 10),
        SizePreset(math.inf, 32_000, "base", "small", 0.1, 25_000, 5),
    )

    def check(self, recipe: Recipe) -> None:
        """Refuses also blocks in which nothing is predicted."""
        super().check(recipe)
        if recipe.max_length < 2:
            raise RecipeError(f"max_length must be 2 or more for {self.name}: a block is its first token and others.")

    def complete(self, recipe: Recipe, corpora: "Mapping[str, Sequence[TextStream]]") -> Recipe:
        """The recipe as it is."""
        return recipe

    def encoder(self, recipe: Recipe) -> _BlockEncoder:
        """With the length of the blocks."""
        return _BlockEncoder(self.name, recipe.max_length)

    def known_metrics(self) -> "Mapping[str, Metric]":
        """Those of language models."""
        from vanilla_transformer.evaluation.language_models import LANGUAGE_MODEL_METRICS

        return LANGUAGE_MODEL_METRICS

    def config(self, recipe: Recipe) -> VanillaTransformerDecoderConfig:
        """The sizes of the model, and the length of the blocks as that of its context."""
        config = super().config(recipe)
        config.max_position_embeddings = recipe.max_length
        return config

    def items(self, *lengths: Lengths) -> Lengths:
        """All tokens but the first."""
        return lengths[0] - 1

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads texts on the right, where no token sees the padding, to `input_ids` and `labels`."""
        if not rows["text"]:
            nothing = torch.full((1, 2), config.pad_token_id)
            return {"input_ids": nothing, "labels": torch.full_like(nothing, LABEL_PADDING)}
        return {
            "input_ids": pad(rows["text"], config.pad_token_id)[0],
            "labels": pad(rows["text"], LABEL_PADDING)[0],
        }

    def reference(self, row: Mapping[str, str]) -> str:
        """The text, whose characters and bytes are counted."""
        return row["text"]

    def predictor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, batch_tokens: int | None = None
    ) -> TextScorer:
        """Gives each text its log-probability."""
        return TextScorer(model, tokenizer, batch_tokens)

    def show(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """What each text goes on with, by greedy search."""
        continued = []
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt").to(model.device)
            with evaluating(model):
                ids: Any = model.generate(**inputs, max_new_tokens=_CONTINUATION, do_sample=False)  # type: ignore[operator]
            continued.append(str(tokenizer.decode(ids[0], skip_special_tokens=True)))
        return continued
