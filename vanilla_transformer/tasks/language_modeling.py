"""Language modeling with a decoder-only model: each token from those before it."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, TokenIds, pad
from vanilla_transformer.data.encoding import RowEncoder, Rows, Texts, token_ids
from vanilla_transformer.data.sources import PACKED_TEXT, TEXTS_IN_BLOCKS, Row
from vanilla_transformer.errors import SettingError
from vanilla_transformer.evaluation.metrics import LANGUAGE_MODEL_METRICS, TextCost
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerDecoderConfig
from vanilla_transformer.model.modeling_vanilla_transformer_decoder import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.encoders import EncoderTask
from vanilla_transformer.tasks.interface import Batch, Prediction, Predictor, RowRandom
from vanilla_transformer.tasks.sizes import SIZES_FOR_NEXT_TOKENS
from vanilla_transformer.translation.live_models import evaluating

if TYPE_CHECKING:
    from datasets import Dataset

# Number of tokens that continue an example.
_CONTINUATION = 40


def in_blocks(ids: Sequence[int], length: int) -> list[list[int]]:
    """Splits a text into blocks of `length` ids, each of which begins with the last id of the one before.

    So all ids of the text but the first are predicted exactly once.
    """
    return [[*ids[start : start + length]] for start in range(0, max(1, len(ids) - 1), length - 1)]


Block = tuple[TokenIds, TokenIds]
"""Ids of a text, or of a part of one, and their labels."""


class TextScorer(Predictor):
    """A model that gives texts their cost: the summed negative log-probability of their labels.

    A row is a text, or a text and the pieces in which the model read it in training.

    Attributes:
        context: Maximum number of tokens that the model sees at once.
        ends: Whether the end of a text is one of its tokens, as in all but continuous text.
    """

    nothing = Prediction(TextCost(), "", {"log_probability": None, "tokens": 0})

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_tokens: int | None = None
    ) -> None:
        super().__init__(model, tokenizer, batch_tokens)
        self.context = int(model.config.max_position_embeddings)
        self.ends = getattr(model.config, "documents", "lines") == "lines"

    def read(self, line: str) -> Row:
        return (line,)

    @abstractmethod
    def blocks(self, rows: Sequence[Row]) -> list[list[Block]]:
        """Returns each text in blocks that the model can read."""

    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterator[tuple[int, Prediction]]:
        """Yields the cost of each text; `progress` counts its pieces, or itself."""
        texts = self.blocks(rows)
        blocks = [block for text in texts for block in text]
        count, done, losses = sum(len(row[1:] or row) for row in rows), 0, [0.0] * len(blocks)
        for batch, logits in self.logits([ids for ids, _ in blocks]):
            expected, _ = pad([blocks[place][1] for place in batch], LABEL_PADDING)
            scored, expected = logits.float().transpose(1, 2), expected.to(logits.device)
            nats = torch.nn.functional.cross_entropy(scored, expected, reduction="none").sum(-1, dtype=torch.float64)
            for place, loss in zip(batch, nats.tolist(), strict=True):
                losses[place] = loss
            progress(count * (done + len(batch)) // len(blocks) - count * done // len(blocks))
            done += len(batch)
        found = iter(losses)
        for place, text in enumerate(texts):
            tokens = sum(int((np.asarray(labels) != LABEL_PADDING).sum()) for _, labels in text)
            cost = TextCost(sum(islice(found, len(text)), 0.0), tokens, self.context, self.ends)
            yield place, Prediction(cost, str(cost), {"log_probability": -cost.nats, "tokens": cost.tokens})


class NextTokenScorer(TextScorer):
    """Gives each text its log-probability, including its end unless the model was trained on continuous text."""

    def blocks(self, rows: Sequence[Row]) -> list[list[Block]]:
        """Returns each text in blocks, whose labels are the tokens that follow."""
        pieces = [row[1:] or row for row in rows]
        encoded = iter(token_ids([*chain.from_iterable(pieces)], self.tokenizer))
        end, texts = [self.tokenizer.eos_token_id] * self.ends, list[list[Block]]()
        for row in pieces:
            # Only the first piece of a text keeps its begin token.
            first, *others = islice(encoded, len(row))
            blocks = in_blocks([*first, *chain.from_iterable(ids[1:] for ids in others), *end], self.context)
            texts.append([(ids[:-1], ids[1:]) for ids in blocks if len(ids) > 1])
        return texts


class ModelingOfTexts(EncoderTask):
    """A model of text itself: it reads blocks of at most `max_length` tokens, and is scored by their cost.

    Attributes:
        min_length: Tokens of the shortest block in which something is predicted.
    """

    form = TEXTS_IN_BLOCKS
    columns: tuple[str, ...] = ("text",)
    min_length: int

    def head(self, recipe: Recipe) -> dict[str, object]:
        """Returns the length of its blocks as the limit of positions."""
        if recipe.data.max_length < self.min_length:
            raise SettingError(f"max_length must be {self.min_length} or more for {self.name}.")
        return {"max_position_embeddings": recipe.data.max_length}

    def references(self, corpus: "Dataset", predictor: Predictor) -> list[str]:
        """Returns the texts, whose characters and bytes are counted."""
        return list(corpus["text"])

    def size(self, predictions: Sequence[Prediction]) -> tuple[int, str]:
        return sum(prediction.label.tokens for prediction in predictions), "tokens"


class LanguageModeling(ModelingOfTexts):
    """A row is a text between `<s>` and `</s>`, or a block of one: each token but the first is an item of the loss."""

    name = "language-modeling"
    foreign = ("classification",)
    config_class = VanillaTransformerDecoderConfig
    auto_class, command, loss_unit = "AutoModelForCausalLM", "generate", "tokens"
    special_tokens = {"begins": True, "ends": False, "mask_token": False}  # A prompt must be able to continue.
    sizes = SIZES_FOR_NEXT_TOKENS
    model_class = VanillaTransformerDecoderForCausalLM
    predictor_class = NextTokenScorer
    metrics = LANGUAGE_MODEL_METRICS
    min_length = 2  # Its first token and one to predict.

    def encoder(self, recipe: Recipe) -> RowEncoder:
        def encode(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
            rows = ([*ids, tokenizer.eos_token_id] for ids in token_ids(texts["text"], tokenizer))
            return {"text": [block for ids in rows for block in in_blocks(ids, recipe.data.max_length)]}

        return RowEncoder(self.name, self.form, self.columns, encode)

    def items(self, *lengths: Lengths) -> Lengths:
        """Counts all tokens but the first."""
        return lengths[0] - 1

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads texts on the right, where no token sees the padding, to `input_ids` and `labels`."""
        return {
            name: pad(rows["text"], padding)[0]
            for name, padding in (("input_ids", config.pad_token_id), ("labels", LABEL_PADDING))
        }

    def answers(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[str]:
        """Continues each text by greedy search."""
        from transformers import pipeline

        reader: Any = plain_text(tokenizer)
        generate: Any = pipeline("text-generation", model=model, tokenizer=reader)
        settings = {"max_new_tokens": _CONTINUATION, "do_sample": False, "return_dict_in_generate": False}
        with evaluating(model):
            return [generate(text, **settings)[0]["generated_text"] for text in texts]


class PackedLanguageModeling(LanguageModeling):
    """A row is a block of continuous text: each token but the first is an item of the loss."""

    form = PACKED_TEXT

    def encoder(self, recipe: Recipe) -> RowEncoder:
        """Returns an encoder of pieces, which are cut into blocks afterwards; an empty piece begins a new text."""

        def encode(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
            rows = zip(texts["text"], token_ids(texts["text"], tokenizer), strict=True)
            return {"text": [ids[1:] if piece else ids for piece, ids in rows]}

        return RowEncoder(self.name, self.form, self.columns, encode, settings=("packed",))

    def head(self, recipe: Recipe) -> dict[str, object]:
        """Also records that texts had no end."""
        return {**super().head(recipe), "documents": "packed"}

    def rows(self, corpus: "Dataset") -> list[Row]:
        """Returns each whole text, and its pieces."""
        pieces = list(corpus["text"])
        starts = [place for place, piece in enumerate(pieces) if not piece]
        bounds = pairwise([*starts, len(pieces)])
        return [("".join(pieces[start:end]), *pieces[start:end]) for start, end in bounds]

    def references(self, corpus: "Dataset", predictor: Predictor) -> list[str]:
        """Returns the whole texts."""
        return [text for text, *_ in self.rows(corpus)]
