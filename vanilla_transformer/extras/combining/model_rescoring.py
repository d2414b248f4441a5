"""Rescoring: ranks several translations of each line with the help of other models.

Shapes in names: B rows · T target · V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vanilla_transformer.data.batching import LABEL_PADDING, pad
from vanilla_transformer.model.generation import GoogleLengthPenalty
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.plain_text import plain_text
from vanilla_transformer.translation.lines import Translation
from vanilla_transformer.translation.sameness import difference_of_vocabularies
from vanilla_transformer.translation.translator import LOGITS, LineTranslator, evaluating, source_tokens


class RescoringError(ValueError):
    """A model that cannot rescore another's translations."""


@dataclass(frozen=True)
class ModelRescorer:
    """Scores each translation by the sum of its scores by its own search and by other models.

    Each score is the log-probability of the translation given the line, divided by the length penalty of the search
    that found it; for each model the length is in its own tokens. Models may be of any family, vocabulary and
    direction: a model of another vocabulary tokenizes line and translation itself. Texts longer than a model's learned
    positions are scored up to the last position.

    Attributes:
        models: The other models, with their tokenizers.
        same_vocabulary: For each model, True if it reads the translations' tokens unchanged.
        penalty: The exponent of the length penalty, for the length of a translation with `</s>`.
    """

    models: tuple[LineTranslator, ...]
    same_vocabulary: tuple[bool, ...]
    penalty: float

    @classmethod
    def from_models(cls, candidates: LineTranslator, models: Sequence[tuple[str, Any, Any]]) -> "ModelRescorer":
        """Makes a rescorer for a translator's candidates.

        Args:
            candidates: The translator that finds the translations, with their scores.
            models: Name, model and tokenizer of each of the other models.

        Raises:
            RescoringError: The vocabularies differ, and one of them is for pre-split text.
        """
        same = []
        for name, _, tokenizer in models:
            same.append(difference_of_vocabularies(candidates.tokenizer, tokenizer) is None)
            if not same[-1] and (_is_presplit(tokenizer) or _is_presplit(candidates.tokenizer)):
                raise RescoringError(
                    f"{name} cannot rescore: the vocabularies differ, and one of them is for pre-split text, "
                    "which the other cannot read."
                )
        translators = tuple(LineTranslator.from_model(model, tokenizer) for _, model, tokenizer in models)
        return cls(translators, tuple(same), _length_penalty(candidates))

    def scores(self, lines: Sequence[str], translations: Sequence[Translation]) -> list[list[float]]:
        """Returns the scores of each line's translations; the highest is the best."""
        places = [
            (row, column)
            for row, translation in enumerate(translations)
            for column in range(len(translation.hypotheses))
            if lines[row].strip()
        ]
        total = [[float(one.score or 0.0) for one in translation.hypotheses] for translation in translations]
        for model, is_same in zip(self.models, self.same_vocabulary, strict=True):
            sources = _sources(model, lines)
            found = [translations[row].hypotheses[column] for row, column in places]
            if is_same:
                targets = [list(one.ids) for one in found]
            else:
                tokenizer = plain_text(model.tokenizer)
                targets = tokenizer(text_target=[one.text for one in found])["input_ids"] if found else []
            targets = [_cut(model, ids) for ids in targets]
            pairs = [(sources[row], ids) for (row, _), ids in zip(places, targets, strict=True)]
            logs = log_probabilities(model, pairs)
            for (row, column), ids, value in zip(places, targets, logs, strict=True):
                total[row][column] += value / max(len(ids), 1) ** self.penalty
        return total


@torch.inference_mode()
def log_probabilities(model: LineTranslator, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
    """Returns the log-probability of the target given the source for each pair, in nats.

    Args:
        model: A model with the size of its batches; its search settings are ignored.
        pairs: Tokens of source and target, `</s>` at the end of both.
    """
    found = [0.0] * len(pairs)
    with evaluating(model.model):
        for places in _batches(model, pairs):
            # The encoder reads each source once for all of its translations.
            numbers: dict[tuple[int, ...], int] = {}
            owners = [numbers.setdefault(tuple(pairs[place][0]), len(numbers)) for place in places]
            ids, mask = pad(list(numbers), model.tokenizer.pad_token_id)
            labels, _ = pad([pairs[place][1] for place in places], LABEL_PADDING)
            ids, mask, labels_BT, owners_B = (
                part.to(model.model.device) for part in (ids, mask, labels, torch.tensor(owners))
            )
            encoded = model.model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
            encoded = type(encoded)(**{name: part[owners_B] for name, part in encoded.items()})
            logits_BTV = model.model(
                encoder_outputs=encoded, attention_mask=mask[owners_B], labels=labels_BT
            ).logits.float()
            of_labels_BT = logits_BTV.gather(2, labels_BT.clamp(min=0)[..., None])[..., 0]
            logs_BT = (of_labels_BT - logits_BTV.logsumexp(-1)) * (labels_BT != LABEL_PADDING)
            for place, value in zip(places, logs_BT.sum(1).tolist(), strict=True):
                found[place] = value
    return found


def _batches(model: LineTranslator, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[list[int]]:
    """Yields batches of places of pairs of about equal length, the longest first."""
    most = LOGITS["cpu" if model.model.device.type == "cpu" else "accelerator"] // model.model.config.vocab_size
    of_source: dict[tuple[int, ...], int] = {}
    for source, target in pairs:
        of_source[tuple(source)] = max(len(target), of_source.get(tuple(source), 0))
    # Translations of one source stand together.
    order = sorted(range(len(pairs)), key=lambda place: (-of_source[tuple(pairs[place][0])], pairs[place][0]))
    start = 0
    while start < len(order):
        longest = of_source[tuple(pairs[order[start]][0])]
        count = max(1, min(most // longest, model.batch_tokens // longest))
        yield order[start : start + count]
        start += count


def _sources(model: LineTranslator, lines: Sequence[str]) -> list[list[int]]:
    return [ids for ids, _ in source_tokens(model.tokenizer, lines, model.max_source_length)]


def _cut(model: LineTranslator, ids: list[int]) -> list[int]:
    config = model.model.config
    if getattr(config, "positional_encoding", None) != "learned":
        return ids
    return ids[: config.max_position_embeddings]


def _length_penalty(translator: LineTranslator) -> float:
    """Returns the length penalty of a translator's beam search."""
    own = translator.model.generation_config
    google = getattr(own, "length_penalty_type", "huggingface") == "google"
    given = translator.generate_kwargs.get("length_penalty", own.length_penalty)
    exponent = (0.6 if google else 1.0) if given is None else float(given)
    return GoogleLengthPenalty(exponent) if google else exponent


def _is_presplit(tokenizer: Any) -> bool:
    return isinstance(tokenizer, VanillaTransformerTokenizer) and tokenizer.detokenize("a@@ b") == "ab"
