"""A model that predicts rows of text, and its predictions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.batching import TokenIds, pad
from vanilla_transformer.data.columns import Row
from vanilla_transformer.limits import check_number
from vanilla_transformer.translation.translator import BATCH_TOKENS, CHUNK_LINES, evaluating

# Tokens of a row that a model reads if its positions have no limit.
LONGEST_ROW = 1024


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's prediction for a row of text.

    Attributes:
        label: What a metric compares with a reference: a text, or the cost of one.
        line: The prediction with its score in one line, for people.
        values: The prediction for machines.
        truncated: Whether the row was cut because it was too long for the model.
    """

    label: Any
    line: str
    values: Mapping[str, object]
    truncated: bool = False


class Predictor(ABC):
    """A model that predicts rows of text, in batches of about equal length.

    Args:
        batch_tokens: Tokens in a batch, padding included; chosen by device if None.

    Attributes:
        nothing: The prediction for an empty row.
        chunk_lines: Number of rows best predicted together.
    """

    nothing: Prediction

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_tokens: int | None = None
    ) -> None:
        check_number("batch_tokens", batch_tokens, 1)
        kind = "cpu" if model.device.type == "cpu" else "accelerator"
        self.model, self.tokenizer = model, tokenizer
        self.batch_tokens, self.chunk_lines = batch_tokens or BATCH_TOKENS[kind], CHUNK_LINES[kind]
        learned = getattr(model.config, "positional_encoding", None) == "learned"
        self.longest = min(LONGEST_ROW, model.config.max_position_embeddings) if learned else LONGEST_ROW

    @property
    def labels(self) -> list[str]:
        """The labels of a classifier, in the order of their ids."""
        config: Any = self.model.config
        return [config.id2label[number] for number in range(config.num_labels)]

    @abstractmethod
    def read(self, line: str) -> Row:
        """Makes a row of text from a line, without the column to be predicted."""

    def predict(self, rows: Sequence[Row], progress: Callable[[int], object]) -> list[Prediction]:
        """Predicts each row, in order; an empty one gets `nothing`."""
        predictions = [self.nothing] * len(rows)
        full = [place for place, row in enumerate(rows) if row[0].strip()]
        progress(len(rows) - len(full))
        found = self.predictions([rows[place] for place in full], progress) if full else ()
        for place, prediction in found:
            predictions[full[place]] = prediction
        return predictions

    @abstractmethod
    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterable[tuple[int, Prediction]]:
        """Yields the place of each row, none of which is empty, and its prediction, in any order."""

    def logits(self, rows: Sequence[TokenIds]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Yields the places of rows of ids in batches of about equal length, longest first, and their logits."""
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
        with evaluating(self.model), torch.inference_mode():
            while order:
                count = max(1, self.batch_tokens // max(1, len(rows[order[0]])))
                batch, order = order[:count], order[count:]
                ids, mask = pad([rows[place] for place in batch], self.model.config.pad_token_id)
                device = self.model.device
                yield batch, self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits

    def answers(
        self,
        rows: Sequence[Sequence[int]],
        progress: Callable[[int], object],
        activated: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits.softmax(-1),
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the place of each row of ids, longest first, and what is `activated` from its logits.

        By default these are the probabilities of labels of which one is right.
        """
        for batch, logits in self.logits(rows):
            yield from zip(batch, activated(logits.float()).cpu().numpy(), strict=True)
            progress(len(batch))

    def cut(self, ids: Sequence[int]) -> list[int]:
        """Cuts a row to the length that the model can read, keeping its end token."""
        return [*ids] if len(ids) <= self.longest else [*ids[: self.longest - 1], ids[-1]]
