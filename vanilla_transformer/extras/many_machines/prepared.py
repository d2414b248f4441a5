"""A tokenized corpus in shards as the training text of a run: `train --train prepared:DIR`."""

import os
import tempfile
from pathlib import Path

from vanilla_transformer.data.preparation import settings_fingerprint
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.extras.many_machines.folder import TaskFolder
from vanilla_transformer.extras.many_machines.shards import ShardedCorpus
from vanilla_transformer.fingerprints import fingerprint_settings
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.inputs import save_tokenizer
from vanilla_transformer.training.run_directory import RunDirectory
from vanilla_transformer.translation.loading import load_own_tokenizer

# The last file marks the tokenizer as complete.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class PreparedText(ShardedCorpus):
    """A corpus with the tokenizer with which it was prepared."""

    @classmethod
    def of_run(cls, url: str, recipe: Recipe, run: RunDirectory) -> "PreparedText":
        """Opens the corpus; copies of a corpus on another machine are made for this run alone."""
        place = fingerprint_settings(f"{os.path.abspath(run.path)} {url}")[:16]
        copies = Path(tempfile.gettempdir(), f"vanilla-transformer-{place}")
        return cls(url, seed=recipe.optimization.seed, part_pairs=recipe.data.part_pairs, copies=copies)

    def completed(self, recipe: Recipe) -> Recipe:
        """Returns the recipe with the labels of the corpus, unless it names them."""
        return recipe.with_options(labels=recipe["labels"] or self.manifest.labels)

    def tokenizer_for(self, recipe: Recipe, run: RunDirectory) -> VanillaTransformerTokenizer:
        """Returns the corpus's tokenizer, which becomes that of the run.

        Raises:
            RecipeError: The corpus was prepared with other settings than the recipe's.
        """
        url, manifest = self._folder.url, self.manifest
        tokenizer = load_shared_tokenizer(self._folder)
        for name, prepared, asked in (
            ("task", manifest.task, recipe.task),
            ("max_length", manifest.max_length, recipe.data.max_length),
            ("vocab_size", len(tokenizer), recipe.tokenizer.vocab_size or len(tokenizer)),
        ):
            if prepared != asked:
                raise RecipeError(
                    f"{url} was prepared with {name} {prepared}, but the recipe has {asked}: give "
                    f"--{name.replace('_', '-')} {prepared}, or prepare it again."
                )
        encoder = task_for(recipe).encoder(recipe)
        other = recipe.tokenizer.name
        own = load_own_tokenizer(other) if other is not None else tokenizer
        if settings_fingerprint(own, encoder, recipe.data.max_length) != manifest.settings:
            raise RecipeError(
                f"{url} was prepared with another tokenizer{f' than {other}' if other else ''}, with other labels or "
                "by another version: leave --tokenizer and --labels out, or prepare it again."
            )
        there = load_own_tokenizer(run.path) if run.tokenizer_config.exists() else None
        if there is None or settings_fingerprint(there, encoder, recipe.data.max_length) != manifest.settings:
            save_tokenizer(tokenizer, run)
        return tokenizer


def share_tokenizer(tokenizer: VanillaTransformerTokenizer, folder: TaskFolder) -> None:
    """Puts a tokenizer into a folder, unless it has one: all tasks use the first."""
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        for name in TOKENIZER_FILES:
            folder.put_first(Path(directory, name), name)


def load_shared_tokenizer(folder: TaskFolder) -> VanillaTransformerTokenizer:
    """Loads the tokenizer of a folder.

    Raises:
        CorpusError: The folder has no tokenizer, or a damaged one.
    """
    remedy = "restore its tokenizer, or prepare the corpus again"
    with tempfile.TemporaryDirectory() as directory:
        for name in TOKENIZER_FILES:
            try:
                folder.get(name, Path(directory, name))
            except FileNotFoundError as error:
                raise CorpusError(
                    f"{folder.url} has no {name}, which `prepare` writes before all shards: {remedy}"
                ) from error
        try:
            return load_own_tokenizer(directory)
        except (OSError, ValueError) as error:
            raise CorpusError(f"{str(error).rstrip('.').replace(directory, folder.url)}: {remedy}") from error
