"""`vanilla-transformer soft-targets`: a teacher's distribution at each target token, for `train --distil-from`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import (
    Directory,
    Model,
    ShowProgress,
    UsageError,
    at_least_one,
    refuse_full_directory,
)
from vanilla_transformer.cli.decoding import BatchedComputing
from vanilla_transformer.cli.streams import print_result
from vanilla_transformer.progress import progress_bar
from vanilla_transformer.seams import load

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EnsembleOptions: Any = load("options", "ensemble")


@dataclass(frozen=True)
class SoftTargets:
    """Write the tokens that a larger model, the teacher, finds likeliest at each position of a target.

    For word-level distillation: `train --train CORPUS --distil-from OUTPUT --decoder-layers 1`, with the same corpora
    in the same order; only their weights may differ. OUTPUT holds the tokenizer and the ids and probabilities of the
    likeliest tokens, 4 bytes each (6 if the vocabulary exceeds 65,536). Several teachers form an ensemble. If
    interrupted, run the same command again to continue.
    """

    teacher: Annotated[Model, arg(metavar="TEACHER")]
    """Directory or Hub id of the teacher."""
    train: Annotated[tuple[str, ...], arg(metavar="CORPUS ...")]
    """Pairs that the student will be trained on, as in `train`."""
    output: Directory
    """Directory for the soft targets."""
    teachers: Annotated[tuple[str, ...], Positional, arg(metavar="[TEACHER ...]", help_behavior_hint="")] = ()
    """Further teachers of the same vocabulary."""
    top_k: int = 8
    """Number of likeliest tokens to keep for each target token; their probabilities are scaled to sum to 1."""
    max_length: int = 256
    """Skip pairs with more tokens than this on either side, as in `train`."""
    progress: ShowProgress = False
    ensemble: EnsembleOptions = EnsembleOptions()
    computing: BatchedComputing = BatchedComputing()

    def run(self) -> None:
        """Writes the soft targets that the teacher gives for the pairs, and prints the directory."""
        at_least_one(top_k=self.top_k, max_length=self.max_length)
        self.computing.check()
        self._check_output()
        from vanilla_transformer.extras.synthetic.teacher import write_soft_targets
        from vanilla_transformer.recipe.schema import Recipe
        from vanilla_transformer.tasks import task_of_model

        if not task_of_model(self.teacher).form.parallel:
            raise UsageError(f"{self.teacher} does not translate, but soft targets need a translation model.")
        recipe = Recipe.of(train=self.train, tokenizer=self.teacher, max_length=self.max_length)
        with progress_bar(self.progress, "pairs", quiet=True) as bar:

            def progress(done: int, of: int) -> None:
                bar.total = of
                bar.refresh()
                bar.update(done)

            write_soft_targets(
                recipe,
                self._load,
                Path(self.output),
                self.top_k,
                batch_tokens=self.computing.batch_tokens,
                say=lambda sentence: print(sentence, file=sys.stderr),
                progress=progress,
            )
        print_result(self.output)

    @property
    def _models(self) -> tuple[str, ...]:
        return (self.teacher, *self.teachers)

    def _load(self) -> "tuple[PreTrainedModel, str]":
        model, _ = self.ensemble.load(self._models, self.computing)
        self.computing.announce(model)
        parts = [self.ensemble.fingerprint(self._models, model), self.computing.taken(model)]
        return model, ", ".join([*parts, *self.ensemble.settings(self._models).values()])

    def _check_output(self) -> None:
        """Refuses a directory that holds anything but soft targets, before anything is read."""
        from vanilla_transformer.extras.synthetic.distilled_corpus import FACTS_FILE

        output = Path(self.output)
        if "://" in self.output:
            raise UsageError(f"{self.output} is not on this machine: name a local directory for --output.")
        known = {FACTS_FILE, ".lock", "text", "tokens"}
        if not (output.is_dir() and known & {file.name for file in output.iterdir()}):
            refuse_full_directory(output)
