"""Language modeling with a decoder-only model: each token from those before it."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.columns import PACKED_TEXT, TEXTS_IN_BLOCKS
from vanilla_transformer.data.preparation import Encoder, token_ids
from vanilla_transformer.data.token_corpus import Rows
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerDecoderConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.plain_text import plain_text
from vanilla_transformer.recipe.defaults import SizePreset
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.encoders import EncoderPredictor, EncoderTask, Row, Texts
from vanilla_transformer.tasks.interface import Batch, Prediction, RowRandom, SpecialTokens
from vanilla_transformer.text_cost import TextCost
from vanilla_transformer.translation.translator import evaluating

if TYPE_CHECKING:
    from datasets import Dataset

    from vanilla_transformer.evaluation.scoring import Evaluation

# Number of tokens that continue an example.
_CONTINUATION = 40


def in_blocks(ids: Sequence[int], most: int, stride: int | None = None) -> list[list[int]]:
    """Splits a text into blocks of `most` ids, each `stride` after the one before.

    By default `stride` is the number of ids that a block predicts, so that each block but the first begins with the
    last id of the one before: all ids of the text but the first are predicted exactly once.
    """
    stride = stride or most - 1
    return [[*ids[start : start + most]] for start in range(0, max(1, len(ids) - 1 - (most - 1 - stride)), stride)]


def ids_of_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Returns the ids of each text and its end token; the tokenizer leaves it out so that a prompt can continue."""
    return [[*ids, tokenizer.eos_token_id] for ids in token_ids(texts, tokenizer)]


class Block(NamedTuple):
    """A block of a text, with the text's number; its first ids are context and the others are predicted."""

    text: int
    ids: list[int]
    seen: int


class TextScorer(EncoderPredictor):
    """A model that gives texts their cost."""

    nothing: Mapping[str, Any] = MappingProxyType({})

    def read(self, line: str) -> Row:
        """Returns the line as a row."""
        return (line,)

    def summed_losses(
        self,
        inputs: Sequence[Sequence[int]],
        labels: Sequence[Sequence[int]],
        shift: int,
        progress: Callable[[int], object] = lambda count: None,
    ) -> list[float]:
        """Returns each row's summed negative log-probability of its labels, each `shift` after its predictor."""
        sums = [0.0] * len(inputs)
        for batch, logits in self.logits(inputs):
            expected = pad([labels[place] for place in batch], LABEL_PADDING)[0][:, shift:].to(logits.device)
            scored = logits[:, : expected.shape[1]].float().transpose(1, 2)
            losses = torch.nn.functional.cross_entropy(scored, expected, reduction="none")
            for place, loss in zip(batch, losses.sum(-1, dtype=torch.float64).tolist(), strict=True):
                sums[place] = loss
            progress(len(batch))
        return sums


class NextTokenScorer(TextScorer):
    """Gives each text its log-probability, including its end unless the model was trained on continuous text.

    Args:
        stride: Tokens that each further block adds to a text longer than a block; by default all that it predicts.
            Fewer give tokens more context.
    """

    nothing = MappingProxyType({"log_probability": None, "tokens": 0})

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        batch_tokens: int | None = None,
        stride: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, batch_tokens)
        self.most = int(model.config.max_position_embeddings)
        if stride is not None and not 1 <= stride < self.most:
            raise ValueError(
                f"stride must be at least 1 and at most {self.most - 1}, the number of tokens that a block "
                f"of this model predicts, not {stride}."
            )
        self.stride = stride or self.most - 1
        self.ends = getattr(model.config, "documents", "lines") == "lines"

    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterator[tuple[int, Prediction]]:
        """Yields the log-probability of each text, in nats; reads texts too long for the model in blocks."""
        texts = [text for (text,) in rows]
        ids = ids_of_texts(texts, self.tokenizer) if self.ends else token_ids(texts, self.tokenizer)
        for place, cost in enumerate(self.costs(ids, self.losses(self.blocks(ids)))):
            values = {"log_probability": -cost.nats, "tokens": cost.tokens}
            yield place, Prediction(str(cost), cost.line, values)
        progress(len(rows))

    def blocks(self, texts: Sequence[Sequence[int]]) -> list[Block]:
        """Splits texts of these ids into blocks."""
        return [
            # Tokens that an earlier block has predicted are only context.
            Block(place, block, self.most - self.stride if number else 1)
            for place, ids in enumerate(texts)
            for number, block in enumerate(in_blocks(ids, self.most, self.stride))
        ]

    def losses(self, blocks: Sequence[Block], progress: Callable[[int], object] = lambda count: None) -> list[float]:
        """Returns the losses of the tokens that each block predicts; `progress` receives the number of blocks done."""
        labels = [[LABEL_PADDING] * block.seen + block.ids[block.seen :] for block in blocks]
        return self.summed_losses([block.ids for block in blocks], labels, shift=1, progress=progress)

    def costs(self, texts: Sequence[Sequence[int]], losses: Sequence[float]) -> list[TextCost]:
        """Returns the cost of texts of these ids, of which the first is given, from the losses of their blocks."""
        nats = [0.0] * len(texts)
        for block, loss in zip(self.blocks(texts), losses, strict=True):
            nats[block.text] += loss
        return [
            TextCost(nats[place], len(ids) - 1, self.most, self.stride, self.ends) for place, ids in enumerate(texts)
        ]


class ModelingOfTexts(EncoderTask):
    """A model of text itself: it reads blocks of at most `max_length` tokens, and is scored by their cost.

    Attributes:
        least_length: Tokens of the shortest block in which something is predicted.
        why_least: Their names.
    """

    form = TEXTS_IN_BLOCKS
    columns: tuple[str, ...] = ("text",)
    least_length: int
    why_least: str

    def check(self, recipe: Recipe) -> None:
        """Also refuses blocks in which nothing is predicted."""
        super().check(recipe)
        if recipe.data.max_length < self.least_length:
            raise RecipeError(f"max_length must be {self.least_length} or more for {self.name}: {self.why_least}.")

    def config(self, recipe: Recipe) -> Any:
        """Returns the sizes of the model, with the block length as its context."""
        config = super().config(recipe)
        config.max_position_embeddings = recipe.data.max_length
        return config

    def reference(self, row: Mapping[str, str]) -> str:
        """Returns the text, whose characters and bytes are counted."""
        return row["text"]

    def written(self, prediction: Prediction) -> str:
        """Returns the log-probability and the number of the tokens, as `predict` writes them."""
        return prediction.line

    def describe_rows(self, rows: int) -> str:
        """Describes texts, or their blocks."""
        return f"{rows:,} {self.form.unit} or blocks of them, after removing empty ones"

    def describe_limit(self, max_length: int) -> str:
        """Describes the blocks."""
        return f"{super().describe_limit(max_length)}, longer ones in blocks of as many"


class LanguageModeling(ModelingOfTexts):
    """A row is a text between `<s>` and `</s>`, or a block of one: each token but the first is an item of the loss."""

    name = "language-modeling"
    foreign = ()
    kind = "a decoder"
    evaluation_settings = ("stride",)
    config_class = VanillaTransformerDecoderConfig
    # The tokenizer adds no end: a prompt must be able to continue.
    special_tokens = SpecialTokens(begins=True, ends=False)
    auto_class = "AutoModelForCausalLM"
    pipeline = "text-generation"
    verb = command = "generate"
    model_class = VanillaTransformerDecoderForCausalLM
    predictor_class = NextTokenScorer
    known_metrics = "vanilla_transformer.evaluation.language_models:LANGUAGE_MODEL_METRICS"
    least_length, why_least = 2, "a block needs its first token and at least one more"
    metrics: tuple[str, ...] = ("perplexity", "bits_per_character")
    item = "tokens"
    use = "Writing text that goes on"
    size_presets: tuple[SizePreset, ...] = (
        SizePreset(20_000, 4_000, "tiny", "tiny", 0.3, 2_048, 40),
        SizePreset(100_000, 8_000, "tiny", "tiny", 0.2, 4_096, 20),
        SizePreset(1_000_000, 16_000, "small", "small", 0.1, 8_192, 10),
        SizePreset(math.inf, 32_000, "base", "small", 0.1, 25_000, 5),
    )

    def of_recipe(self, recipe: Recipe) -> "LanguageModeling":
        """Returns the task for separate texts, or for continuous text."""
        return PackedLanguageModeling() if recipe.data.documents == "packed" else self

    def of_config(self, config: PreTrainedConfig) -> "LanguageModeling":
        """Returns the task for the kind of text that a saved model learned."""
        return self.of_recipe(Recipe.of(documents=getattr(config, "documents", "lines")))

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns the encoder of texts as blocks of at most the recipe's length."""

        def encode(texts: Texts, tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
            rows = ids_of_texts(texts["text"], tokenizer)
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

    def show(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """Continues each text by greedy search."""
        continued, tokenizer = [], plain_text(tokenizer)
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt").to(model.device)
            with evaluating(model):
                ids: Any = model.generate(**inputs, max_new_tokens=_CONTINUATION, do_sample=False)  # type: ignore[operator]
            continued.append(str(tokenizer.decode(ids[0], skip_special_tokens=True)))
        return continued


def _encode_pieces(texts: Texts, tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
    rows = zip(texts["text"], token_ids(texts["text"], tokenizer), strict=True)
    return {"text": [ids[1:] if piece else ids for piece, ids in rows]}


class PackedLanguageModeling(LanguageModeling):
    """A row is a block of continuous text: each token but the first is an item of the loss."""

    form = PACKED_TEXT

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns an encoder of pieces, which are cut into blocks afterwards; an empty piece begins a new text."""
        return self.row_encoder(_encode_pieces, settings=("packed",))

    def config(self, recipe: Recipe) -> Any:
        """Also records that texts had no end."""
        config = super().config(recipe)
        config.documents = "packed"
        return config

    def describe_rows(self, rows: int) -> str:
        """Describes the blocks."""
        return f"{rows:,} blocks of running text, none of it left out"

    def describe_limit(self, max_length: int) -> str:
        """Describes the blocks, which have no ends of texts."""
        return f"running text in blocks of {max_length} tokens, and knows no end of a text"

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object] = lambda count: None,
        batch_tokens: int | None = None,
        **settings: Any,
    ) -> "Evaluation":
        """Returns the cost of each whole text; blocks after the first predict `stride` tokens, if given."""
        from vanilla_transformer.evaluation.metrics import score
        from vanilla_transformer.evaluation.scoring import Evaluation, in_chunks

        self.check_settings(settings)
        scorer: Any = self.predictor_class(model, tokenizer, batch_tokens, **settings)
        texts, ids = self._texts(corpus, tokenizer)
        blocks = scorer.blocks(ids)
        start = time.perf_counter()
        tell = _in_proportion(progress, len(corpus), blocks)
        losses = in_chunks(scorer.losses, blocks, scorer.chunk_lines, tell)
        seconds = time.perf_counter() - start
        costs, tokens = scorer.costs(ids, losses), sum(map(len, ids)) - len(ids)
        scores = score(metrics, list(map(str, costs)), [[text] for text in texts], self._metrics)
        return Evaluation(
            scores,
            [cost.line for cost in costs],
            texts,
            {"texts": len(costs), "tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds},
            [f"{tokens:,} tokens in {seconds:.1f} s: {tokens / seconds:,.0f} tokens/s"],
        )

    def _texts(self, corpus: "Dataset", tokenizer: PreTrainedTokenizerFast) -> tuple[list[str], list[list[int]]]:
        """Returns the whole texts of a corpus, and their ids as in training."""
        pieces = list(corpus["text"])
        encoded = _encode_pieces({"text": pieces}, tokenizer)["text"]
        starts = [place for place, piece in enumerate(pieces) if not piece]
        bounds = list(pairwise([*starts, len(pieces)]))
        texts = ["".join(pieces[start:end]) for start, end in bounds]
        return texts, [list(chain.from_iterable(encoded[start:end])) for start, end in bounds]


def _in_proportion(progress: Callable[[int], object], rows: int, blocks: Sequence[Block]) -> Callable[[int], object]:
    """Turns the share of blocks done into the same share of rows."""
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        progress(rows * (done + count) // len(blocks) - rows * done // len(blocks))
        done += count

    return tell
