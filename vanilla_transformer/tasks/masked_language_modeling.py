"""Masked language modeling with an encoder-only model that reads what stands before and after each masked token."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.cost import tokens_masked
from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.encoding import RowEncoder, Rows, Texts, token_ids
from vanilla_transformer.data.sources import Row
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.evaluation.metrics import MASKED_METRICS
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import VanillaTransformerEncoderForMaskedLM
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.interface import Batch, RowRandom, Task
from vanilla_transformer.tasks.language_modeling import Block, ModelingOfTexts, TextScorer
from vanilla_transformer.tasks.sizes import SIZES_FOR_MASKED_TOKENS
from vanilla_transformer.translation.live_models import evaluating

# Shares of the masked tokens: 80% become `<mask>`; half of the rest become random tokens, half stay as they are.
_HIDDEN, _HIDDEN_OR_OTHER = 0.8, 0.9
# Smaller ids are special tokens; the last id is `<mask>`.
_FIRST_PIECE = 4


def masked(ids: Sequence[int], random: np.random.Generator, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks some tokens of a row; returns the row and its labels, -100 at the other tokens."""
    seen = np.array(ids, dtype=np.int64)
    labels = np.full_like(seen, LABEL_PADDING)
    count = int(tokens_masked(np.array([len(seen)]))[0])
    places = 1 + random.permutation(len(seen) - 2)[:count]
    labels[places] = seen[places]
    draws, others = random.random(count), random.integers(_FIRST_PIECE, vocab_size - 1, count)
    seen[places] = np.where(draws < _HIDDEN, vocab_size - 1, np.where(draws < _HIDDEN_OR_OTHER, others, seen[places]))
    return seen, labels


def blocks_of_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int) -> list[list[list[int]]]:
    """Returns the ids of each text in blocks of at most `length`, each with a text's begin and end tokens.

    Raises:
        CorpusError: `<mask>` is not the last entry of the vocabulary, where the model expects it.
    """
    if tokenizer.mask_token_id != len(tokenizer) - 1:
        raise CorpusError("<mask> must be the last entry of the tokenizer: train one by leaving --tokenizer out")
    found = []
    for first, *inner, last in token_ids(texts, tokenizer):
        starts = range(0, max(1, len(inner)), length - 2)
        found.append([[first, *inner[start : start + length - 2], last] for start in starts])
    return found


class MaskedScorer(TextScorer):
    """Masks each text, always at the same places, and computes the cost of the masked tokens."""

    def blocks(self, rows: Sequence[Row]) -> list[list[Block]]:
        """Returns each text in blocks, some of whose tokens are masked."""
        texts = blocks_of_texts([text for (text,) in rows], self.tokenizer, self.context)
        size: int = self.model.config.vocab_size
        return [[masked(ids, np.random.default_rng(ids), size) for ids in text] for text in texts]


class MaskedLanguageModeling(ModelingOfTexts):
    """A row is a text between `<s>` and `</s>`, or a block of one: each masked token is an item of the loss.

    15% of a row's tokens are masked, others in each epoch: 80% of them become `<mask>`, 10% any token and 10% stay.
    """

    name = "masked-language-modeling"
    auto_class, command, loss_unit = "AutoModelForMaskedLM", "evaluate", "masked tokens"
    sample = "... <mask> ..."
    special_tokens = {"begins": True, "ends": True, "mask_token": True}
    sizes = SIZES_FOR_MASKED_TOKENS
    model_class = VanillaTransformerEncoderForMaskedLM
    predictor_class = MaskedScorer
    metrics = MASKED_METRICS
    min_length = 3  # `<s>`, `</s>` and a token between them.

    def encoder(self, recipe: Recipe) -> RowEncoder:
        def encode(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
            rows = blocks_of_texts(texts["text"], tokenizer, recipe.data.max_length)
            return {"text": [block for text in rows for block in text]}

        return RowEncoder(self.name, self.form, self.columns, encode)

    def items(self, *lengths: Lengths) -> Lengths:
        return tokens_masked(lengths[0])

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Masks texts and pads them to `input_ids`, `attention_mask` and `labels`, with the places of the labels."""
        hidden = [masked(ids, rng[place], config.vocab_size) for place, ids in enumerate(rows["text"])]  # type: ignore[arg-type]
        input_ids, attention_mask = pad([seen for seen, _ in hidden], config.pad_token_id)
        labels, _ = pad([labels for _, labels in hidden], LABEL_PADDING)
        positions = (labels != LABEL_PADDING).flatten().nonzero().squeeze(1)
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "labels": labels,
            "label_positions": positions,
        }

    predictor = Task.predictor  # It refuses: the library's pipeline fills masks.

    def answers(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[str]:
        """Fills each `<mask>` with its likeliest token."""
        filled = []
        with evaluating(model), torch.inference_mode():
            for text in texts:
                ids = torch.tensor(token_ids([text], tokenizer), device=model.device)
                seen = torch.where(ids == tokenizer.mask_token_id, model(input_ids=ids).logits.argmax(-1), ids)
                filled.append(str(tokenizer.decode(seen[0], skip_special_tokens=True)))
        return filled
