"""A tag for each word of a sentence, by an encoder-only model that reads it off the word's first piece."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.encoding import Rows, Texts, reading_backend
from vanilla_transformer.data.sources import BETWEEN_WORDS, TAGGED_SENTENCES, Row
from vanilla_transformer.data.text_lines import words_of
from vanilla_transformer.evaluation.metrics import TAG_METRICS
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForTokenClassification,
)
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.encoders import LabelTask
from vanilla_transformer.tasks.interface import Batch, Prediction, Predictor, RowRandom
from vanilla_transformer.tasks.sizes import SIZES_FOR_TAGS

if TYPE_CHECKING:
    from datasets import Dataset


def pieces_of_words(
    sentences: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[list[int], list[int]]]:
    """Returns the ids of each sentence, and the places among them where its words begin."""
    found = []
    for encoding in reading_backend(tokenizer).encode_batch(list(sentences), is_pretokenized=True):
        words = encoding.word_ids
        begins = [
            place for place, word in enumerate(words) if word is not None and (place == 0 or word != words[place - 1])
        ]
        found.append((encoding.ids, begins))
    return found


class Tagger(Predictor):
    """Gives each word its likeliest tag, with its probability."""

    nothing = Prediction("", "", {"words": [], "tags": [], "scores": []})

    def read(self, line: str) -> Row:
        return (BETWEEN_WORDS.join(words_of(line)),)

    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterator[tuple[int, Prediction]]:
        """Tags each sentence; words beyond the tokens that the model reads get `_`."""
        words = [sentence.split(BETWEEN_WORDS) for (sentence,) in rows]
        pieces = pieces_of_words(words, self.tokenizer)
        for place, shares in self.probabilities([self.cut(ids) for ids, _ in pieces], progress):
            begins = [begin for begin in pieces[place][1] if begin < len(shares) - 1]
            left_out = len(words[place]) - len(begins)
            best = shares[begins].argmax(-1)
            tags = [*(self.labels[number] for number in best), *["_"] * left_out]
            scores = [round(float(share), 6) for share in shares[begins].max(-1)]
            values = {"words": words[place], "tags": tags, "scores": [*scores, *[None] * left_out]}
            yield place, Prediction(" ".join(tags), " ".join(tags), values, truncated=left_out > 0)


class TokenClassification(LabelTask):
    """Each word is an item of the loss; its tag is one of those in `train`."""

    name = "token-classification"
    form = TAGGED_SENTENCES
    columns: tuple[str, ...] = ("tags", "words")
    auto_class, loss_unit = "AutoModelForTokenClassification", "words"
    sizes = SIZES_FOR_TAGS
    foreign = ("documents", "classifier_pooling")
    model_class = VanillaTransformerEncoderForTokenClassification
    predictor_class = Tagger
    metrics = TAG_METRICS

    def with_labels(self, recipe: Recipe, corpora: "Mapping[str, Sequence[Dataset]]") -> Recipe:
        """Returns the recipe with the labels of `train`, and for span tags with their metric."""
        recipe = super().with_labels(recipe, corpora)
        spans = all(label == "O" or label[:2] in ("B-", "I-") for label in recipe["labels"])
        if spans and recipe.evaluation.metrics is None:
            return recipe.with_options(metrics=("seqeval", "token_accuracy"))
        return recipe

    def labels_in(self, text: str) -> list[str]:
        return text.split(BETWEEN_WORDS)

    def text_ids(self, texts: Texts, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """Returns the ids of words as pieces, each id doubled, plus one where a word begins.

        So the number of tags of a row is the length of their column.
        """
        marked = []
        for ids, begins in pieces_of_words([row.split(BETWEEN_WORDS) for row in texts["words"]], tokenizer):
            doubled = [2 * one for one in ids]
            for place in begins:
                doubled[place] += 1
            marked.append(doubled)
        return marked

    def items(self, *lengths: Lengths) -> Lengths:
        return lengths[0]

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads sentences to `input_ids`, `attention_mask` and `labels`, which are -100 except where a word begins."""
        marked, attention_mask = pad(rows["words"], 2 * config.pad_token_id)
        labels = torch.full_like(marked, LABEL_PADDING)
        labels[marked % 2 == 1] = torch.from_numpy(np.fromiter(chain.from_iterable(rows["tags"]), np.int64))
        return {"input_ids": marked // 2, "attention_mask": attention_mask, "labels": labels}
