"""Language modeling with a decoder-only model: each token from those before it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.columns import PACKED_TEXT, TEXTS_IN_BLOCKS
from vanilla_transformer.data.preparation import Encoder, token_ids
from vanilla_transformer.data.token_corpus import Rows
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.evaluation.language_models import LANGUAGE_MODEL_METRICS, TextCost
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerDecoderConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.plain_text import plain_text
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.encoders import EncoderPredictor, EncoderTask, Row, Texts
from vanilla_transformer.tasks.interface import Batch, Prediction, RowRandom
from vanilla_transformer.translation.translator import evaluating

if TYPE_CHECKING:
    from datasets import Dataset

# Number of tokens that continue an example.
_CONTINUATION = 40


def in_blocks(ids: Sequence[int], most: int, stride: int | None = None) -> list[list[int]]:
    """Splits a text into blocks of `most` ids, each `stride` after the one before.

    By default `stride` is the number of ids that a block predicts, so that each block but the first begins with the
    last id of the one before: all ids of the text but the first are predicted exactly once.
    """
    stride = stride or most - 1
    return [[*ids[start : start + most]] for start in range(0, max(1, len(ids) - 1 - (most - 1 - stride)), stride)]


class TextScorer(EncoderPredictor):
    """A model that gives texts their cost."""

    nothing = Prediction(TextCost(), "", {})

    def read(self, line: str) -> Row:
        """Returns the line as a row."""
        return (line,)

    def summed_losses(
        self,
        inputs: Sequence[Sequence[int]],
        labels: Sequence[Sequence[int]],
        shift: int,
        rows: int,
        progress: Callable[[int], object],
    ) -> list[float]:
        """Returns each input's summed negative log-probability of its labels, each `shift` after its predictor.

        Args:
            rows: What `progress` counts, of which each input is an equal part.
        """
        sums, done = [0.0] * len(inputs), 0
        for batch, logits in self.logits(inputs):
            expected = pad([labels[place] for place in batch], LABEL_PADDING)[0][:, shift:].to(logits.device)
            scored = logits[:, : expected.shape[1]].float().transpose(1, 2)
            losses = torch.nn.functional.cross_entropy(scored, expected, reduction="none")
            for place, loss in zip(batch, losses.sum(-1, dtype=torch.float64).tolist(), strict=True):
                sums[place] = loss
            progress(rows * (done + len(batch)) // len(inputs) - rows * done // len(inputs))
            done += len(batch)
        return sums


class NextTokenScorer(TextScorer):
    """Gives each text its log-probability, including its end unless the model was trained on continuous text.

    A row is a text, or a text and the pieces in which the model read it in training.

    Args:
        stride: Tokens that each further block adds to a text longer than a block; by default all that it predicts.
            Fewer give tokens more context.
    """

    nothing = Prediction(TextCost(), "", {"log_probability": None, "tokens": 0})

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        batch_tokens: int | None = None,
        stride: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, batch_tokens)
        self.context = int(model.config.max_position_embeddings)
        if stride is not None and not 1 <= stride < self.context:
            raise RecipeError(
                f"stride must be at least 1 and at most {self.context - 1}, the number of tokens that a block "
                f"of this model predicts, not {stride}."
            )
        self.stride = stride or self.context - 1
        self.ends = getattr(model.config, "documents", "lines") == "lines"

    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterator[tuple[int, Prediction]]:
        """Yields the log-probability of each text, in nats; reads texts too long for the model in blocks."""
        pieces = [row[1:] or row for row in rows]
        encoded = iter(token_ids([*chain.from_iterable(pieces)], self.tokenizer))
        end, texts = [self.tokenizer.eos_token_id] * self.ends, []
        for row in pieces:
            # Only the first piece of a text keeps its begin token.
            first, *others = islice(encoded, len(row))
            texts.append([*first, *chain.from_iterable(ids[1:] for ids in others), *end])
        places, blocks, labels = [], [], []
        for place, ids in enumerate(texts):
            for number, block in enumerate(in_blocks(ids, self.context, self.stride)):
                # Tokens that an earlier block has predicted are only context.
                seen = self.context - self.stride if number else 1
                places.append(place)
                blocks.append(block)
                labels.append([LABEL_PADDING] * seen + block[seen:])
        nats = [0.0] * len(rows)
        losses = self.summed_losses(blocks, labels, 1, sum(map(len, pieces)), progress)
        for place, loss in zip(places, losses, strict=True):
            nats[place] += loss
        for place, ids in enumerate(texts):
            cost = TextCost(nats[place], len(ids) - 1, self.context, self.stride, self.ends)
            yield place, Prediction(cost, cost.line, {"log_probability": -cost.nats, "tokens": cost.tokens})


class ModelingOfTexts(EncoderTask):
    """A model of text itself: it reads blocks of at most `max_length` tokens, and is scored by their cost.

    Attributes:
        min_length: Tokens of the shortest block in which something is predicted.
        content: Their names.
    """

    form = TEXTS_IN_BLOCKS
    columns: tuple[str, ...] = ("text",)
    min_length: int
    content: str

    def config(self, recipe: Recipe) -> Any:
        """Returns the sizes of the model, with the block length as its context."""
        if recipe.data.max_length < self.min_length:
            raise RecipeError(f"max_length must be {self.min_length} or more for {self.name}: {self.content}.")
        config = super().config(recipe)
        config.max_position_embeddings = recipe.data.max_length
        return config

    def references(self, corpus: "Dataset") -> list[str]:
        """Returns the texts, whose characters and bytes are counted."""
        return list(corpus["text"])

    def size(self, predictions: Sequence[Prediction]) -> tuple[int, str]:
        """Returns the number of tokens that were predicted."""
        return sum(prediction.label.tokens for prediction in predictions), "tokens"

    def written(self, prediction: Prediction) -> str:
        """Returns the log-probability and the number of the tokens, as `predict` writes them."""
        return prediction.line


class LanguageModeling(ModelingOfTexts):
    """A row is a text between `<s>` and `</s>`, or a block of one: each token but the first is an item of the loss."""

    name = "language-modeling"
    foreign = ("classification",)
    evaluation_settings = ("stride",)
    config_class = VanillaTransformerDecoderConfig
    auto_class = "AutoModelForCausalLM"
    model_class = VanillaTransformerDecoderForCausalLM
    predictor_class = NextTokenScorer
    metrics = LANGUAGE_MODEL_METRICS
    min_length, content = 2, "a block needs its first token and at least one more"

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns the encoder of texts as blocks of at most the recipe's length."""

        def encode(texts: Texts, tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
            rows = ([*ids, tokenizer.eos_token_id] for ids in token_ids(texts["text"], tokenizer))
            return {"text": [block for ids in rows for block in in_blocks(ids, recipe.data.max_length)]}

        return self.row_encoder(encode)

    def items(self, *lengths: Lengths) -> Lengths:
        """Counts all tokens but the first."""
        return lengths[0] - 1

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads texts on the right, where no token sees the padding, to `input_ids` and `labels`."""
        # Without rows, two tokens of padding, because the first is never predicted.
        return {
            name: pad(rows["text"] or [[padding] * 2], padding)[0]
            for name, padding in (("input_ids", config.pad_token_id), ("labels", LABEL_PADDING))
        }

    def answers(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """Continues each text by greedy search."""
        continued, tokenizer = [], plain_text(tokenizer)
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt").to(model.device)
            with evaluating(model):
                ids: Any = model.generate(**inputs, max_new_tokens=_CONTINUATION, do_sample=False)  # type: ignore[operator]
            continued.append(str(tokenizer.decode(ids[0], skip_special_tokens=True)))
        return continued


class PackedLanguageModeling(LanguageModeling):
    """A row is a block of continuous text: each token but the first is an item of the loss."""

    form = PACKED_TEXT

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns an encoder of pieces, which are cut into blocks afterwards; an empty piece begins a new text."""

        def encode(texts: Texts, tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
            rows = zip(texts["text"], token_ids(texts["text"], tokenizer), strict=True)
            return {"text": [ids[1:] if piece else ids for piece, ids in rows]}

        return self.row_encoder(encode, settings=("packed",))

    def config(self, recipe: Recipe) -> Any:
        """Also records that texts had no end."""
        config = super().config(recipe)
        config.documents = "packed"
        return config

    def rows(self, corpus: "Dataset") -> list[Row]:
        """Returns each whole text, and its pieces."""
        pieces = list(corpus["text"])
        starts = [place for place, piece in enumerate(pieces) if not piece]
        bounds = pairwise([*starts, len(pieces)])
        return [("".join(pieces[start:end]), *pieces[start:end]) for start, end in bounds]

    def references(self, corpus: "Dataset") -> list[str]:
        """Returns the whole texts."""
        return [text for text, *_ in self.rows(corpus)]
