"""A teacher's distribution at each target token of a corpus, written once for students to learn from.

Shapes in names: B rows · T target · V vocabulary · K types of a token.
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from transformers import PreTrainedModel

from vanilla_transformer.atomic_files import atomic_write_files, named_when_full
from vanilla_transformer.data.batching import LABEL_PADDING
from vanilla_transformer.data.corpus import open_corpus
from vanilla_transformer.data.token_corpus import PreparedCorpus
from vanilla_transformer.extras.synthetic.distilled_corpus import (
    FACTS_FILE,
    IDS_FILE,
    PROBABILITIES_FILE,
    PROBABILITY,
    SoftTargetsError,
    SoftTargetsFacts,
)
from vanilla_transformer.fingerprints import fingerprint_file
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import RowRandom, Task, task_for
from vanilla_transformer.training.inputs import prepare_train
from vanilla_transformer.training.vocabulary import check_tags, check_tokenizer
from vanilla_transformer.translation.loading import load_own_tokenizer
from vanilla_transformer.translation.translator import BATCH_TOKENS, LOGITS, evaluating

# Rows written at a time: an interrupted run continues after the last ones. Batches are sorted by length within them.
_ROWS_TOGETHER = 2000


def write_soft_targets(
    recipe: Recipe,
    load: Callable[[], tuple[PreTrainedModel, str]],
    output: Path,
    top_k: int,
    *,
    batch_tokens: int | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    progress: Callable[[int, int], object] = lambda done, of: None,
) -> None:
    """Writes a teacher's distribution at each target token of a corpus; continues an interrupted run.

    Args:
        recipe: The corpora as `train`, the teacher's tokenizer, and `max_length`.
        load: Returns the teacher, a model or an ensemble, and a text that identifies it.
        output: The directory for the soft targets.
        top_k: Number of types kept for each token.
        batch_tokens: Target tokens that the teacher reads together, padding included.
        say: Called with a sentence about what was read.
        progress: Called after each batch with the number of rows done since the last call, and the number of all rows.

    Raises:
        SoftTargetsError: The directory holds other soft targets, or another process is writing there.
        RecipeError, OSError, ValueError: The text or the tokenizer cannot be used.
    """
    task = task_for(recipe)
    assert recipe.tokenizer.name is not None
    tokenizer = load_own_tokenizer(recipe.tokenizer.name)
    check_tags(tokenizer, recipe.tokenizer.name, recipe.data.train)
    check_tokenizer(tokenizer, recipe.tokenizer.name, task.special_tokens)
    if not 1 <= top_k <= len(tokenizer):
        raise RecipeError(
            f"top_k must be at least 1 and at most {len(tokenizer):,}, the size of the vocabulary, not {top_k}."
        )
    output.mkdir(parents=True, exist_ok=True)
    lock = FileLock(output / ".lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise SoftTargetsError(f"Another process is writing soft targets to {output}: wait until it ends.") from None
    try:
        streams = [
            open_corpus(corpus, form=task.form, cache_dir=output / "text") for corpus in recipe.data.corpora("train")
        ]
        parts = prepare_train(recipe.data.train, streams, tokenizer, recipe, output / "tokens", say)
        model: Any
        model, teacher = load()
        facts = SoftTargetsFacts(
            teacher=teacher,
            top_k=top_k,
            vocab_size=len(tokenizer),
            max_length=recipe.data.max_length,
            texts=[text for part in parts for text in part.texts],
            tokens=[part.tokens for part in parts],
            target_tokens=sum(int(part.lengths["target"].sum(dtype=np.int64)) for part in parts),
        )
        if _begin(facts, output, tokenizer):
            _Writer(model, facts, output, batch_tokens).write(parts, task, progress)
    finally:
        lock.release()


def _begin(facts: SoftTargetsFacts, output: Path, tokenizer: VanillaTransformerTokenizer) -> bool:
    """Prepares the directory for these soft targets; returns False if they are all there."""
    if (output / FACTS_FILE).is_file():
        there = SoftTargetsFacts.read(output)
        for name, value in dataclasses.asdict(facts).items():
            if name != "contents" and getattr(there, name) != value:
                raise SoftTargetsError(
                    f"{output} holds the soft targets of another {name.replace('_', ' ')}: name another directory."
                )
        return there.contents is None
    with atomic_write_files(output, "tokenizer") as temporary:
        tokenizer.save_pretrained(temporary)
    facts.write(output)
    return True


class _Writer:
    """Appends to the files of soft targets, one chunk of rows after the other."""

    def __init__(self, model: Any, facts: SoftTargetsFacts, output: Path, batch_tokens: int | None) -> None:
        self.model, self.facts, self.output = model, facts, output
        kind = "cpu" if model.device.type == "cpu" else "accelerator"
        self.most_tokens = min(batch_tokens or BATCH_TOKENS[kind], LOGITS[kind] // facts.vocab_size)

    def write(self, parts: Sequence[PreparedCorpus], task: Task, progress: Callable[[int, int], object]) -> None:
        """Continues where the files end, and marks them as complete at the end."""
        rows = sum(map(len, parts))
        ids_size, probability_size = (kind.itemsize * self.facts.top_k for kind in (self.facts.id_type, PROBABILITY))
        with (
            named_when_full(self.output, self.output),
            open(self.output / IDS_FILE, "ab") as ids,
            open(self.output / PROBABILITIES_FILE, "ab") as probabilities,
        ):
            there = min(ids.tell() // ids_size, probabilities.tell() // probability_size)
            with evaluating(self.model):
                for part, chunk, before, tokens in self._chunks(parts):
                    if before + tokens <= there:
                        progress(len(chunk), rows)
                        continue
                    # A chunk that a killed process left unfinished is written again.
                    ids.truncate(before * ids_size)
                    probabilities.truncate(before * probability_size)
                    found = self._of_rows(part, chunk, task, lambda count: progress(count, rows))
                    ids.write(np.concatenate([of_row[0] for of_row in found]).tobytes())
                    probabilities.write(np.concatenate([of_row[1] for of_row in found]).tobytes())
                    for file in (ids, probabilities):
                        file.flush()
                        os.fsync(file.fileno())
        digest = hashlib.blake2b(digest_size=16)
        for name in (IDS_FILE, PROBABILITIES_FILE):
            digest.update(fingerprint_file(self.output / name).encode())
        dataclasses.replace(self.facts, contents=digest.hexdigest()).write(self.output)

    def _chunks(self, parts: Sequence[PreparedCorpus]) -> Iterator[tuple[PreparedCorpus, np.ndarray, int, int]]:
        """Yields rows of a part that are read together, with the number of tokens before them and of their own."""
        before = 0
        for part in parts:
            lengths = part.lengths["target"].astype(np.int64)
            for start in range(0, len(part), _ROWS_TOGETHER):
                chunk = np.arange(start, min(start + _ROWS_TOGETHER, len(part)))
                tokens = int(lengths[chunk].sum())
                yield part, chunk, before, tokens
                before += tokens

    def _of_rows(
        self, part: PreparedCorpus, chunk: np.ndarray, task: Task, progress: Callable[[int], object]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the types and probabilities of each row, each (target length, types)."""
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        longest = np.maximum(part.lengths["source"][chunk], part.lengths["target"][chunk])
        order, start = chunk[np.argsort(-longest, kind="stable")], 0
        lengths = np.sort(longest)[::-1]
        while start < len(order):
            rows = order[start : start + max(1, self.most_tokens // int(lengths[start]))]
            for row, of_row in zip(rows.tolist(), self._of_batch(part, rows, task), strict=True):
                found[row] = of_row
            progress(len(rows))
            start += len(rows)
        return [found[row] for row in chunk.tolist()]

    @torch.inference_mode()
    def _of_batch(self, part: PreparedCorpus, rows: np.ndarray, task: Task) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        batch = task.collate(part.rows(rows), RowRandom(0, 0, rows), self.model.config)
        batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
        # Embedding rows beyond the vocabulary are no types.
        logits_BTV = self.model(**batch).logits[..., : self.facts.vocab_size].float()
        values_BTK, ids_BTK = logits_BTV.topk(self.facts.top_k, dim=-1)
        probabilities_BTK = values_BTK.softmax(-1).cpu().numpy().astype(PROBABILITY)
        ids = ids_BTK.cpu().numpy().astype(self.facts.id_type)
        counts = (batch["labels"] != LABEL_PADDING).sum(1).tolist()
        for place, count in enumerate(counts):
            yield ids[place, :count], probabilities_BTK[place, :count]
