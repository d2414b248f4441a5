"""The model card, which is written from the other files in the model directory. Unknown facts are left out."""

import dataclasses
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from huggingface_hub import EvalResult, ModelCard, ModelCardData, parse_local_safetensors_file_metadata

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.data.sources import CMUDICT, CorpusSpec, table_suffix
from vanilla_transformer.errors import PushError
from vanilla_transformer.evaluation.metrics import Score
from vanilla_transformer.graph.onnx_file import CLIENT, NAME
from vanilla_transformer.model_directory import CARD, CURVES, RECIPE, SUMMARY
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import Task, task_of_model
from vanilla_transformer.training.summary import Summary, describe_weights

TEMPLATE = Path(__file__).with_name("model_card.md")


_Run = tuple[Task | None, Recipe | None, Summary | None]
_CHECKSUM = "\n<!-- as vanilla_transformer wrote it: "
_HUB_ID = r"[\w-][\w.-]*(/[\w.-]+)?"


def write_model_card(directory: Path, summary: Summary | None = None, answers: Sequence[str] = ()) -> None:
    """Writes the card of a model. If a person has edited the card, it is kept, and model_card.md is written.

    Args:
        summary: The summary of the run, if it is not in the directory yet.
        answers: The outputs of the model for the examples in the recipe.
    """
    file = directory / CARD
    if file.exists() and not is_unmodified(_read(file)):
        file = directory / "model_card.md"
    run = _run(directory, summary)
    atomic_write_text(file, _rendered(directory, _metadata(directory, run, answers), run))


def card_for_hub(directory: Path, repo_id: str) -> str:
    """Returns the text of a card. If no person has edited the card, its title is the name on the Hub."""
    text = _read(directory / CARD)
    return _rendered(directory, _parsed(directory)[1], _run(directory), repo_id) if is_unmodified(text) else text


def add_scores(directory: Path, corpus: CorpusSpec, scores: Sequence[Score], settings: Mapping[str, object]) -> None:
    """Adds scores to the metadata of a card; they replace scores with the same data, metric and settings.

    NaN and infinity are left out, because the Hub does not accept them.

    Args:
        settings: The decoding settings that differ from the model's generation_config.json.
    """
    if not (directory / CARD).is_file():
        write_model_card(directory)
    task = _task(directory)
    scores = [score for score in scores if math.isfinite(score.value)]
    added = [_result(task, corpus, score, settings) for score in scores]
    identities = [_identity(result) for result in added]
    unmodified = is_unmodified(_read(directory / CARD))
    card, metadata = _parsed(directory)
    kept = [result for result in metadata.eval_results or [] if _identity(result) not in identities]
    metadata.eval_results = kept + added
    metadata.model_name = metadata.model_name or directory.resolve().name
    listed = [metadata.metrics] if isinstance(metadata.metrics, str) else list(metadata.metrics or [])
    metadata.metrics = listed + sorted({score.name for score in scores if score.name not in listed})
    # The text of the card is written again unless a person has edited it.
    atomic_write_text(directory / CARD, _rendered(directory, metadata, _run(directory)) if unmodified else str(card))


def check_card(directory: Path) -> None:
    """Raises PushError if the card of a directory cannot be read. Call it before slow computations."""
    if (directory / CARD).is_file():
        _parsed(directory)


def is_unmodified(text: str) -> bool:
    """Returns True if this package wrote the card and nobody has edited it."""
    written, mark, _ = text.rpartition(_CHECKSUM)
    return bool(mark) and text == _with_checksum(written)


def _with_checksum(text: str) -> str:
    return f"{text}{_CHECKSUM}{hashlib.sha256(text.encode()).hexdigest()[:16]} -->\n"


def _read(path: Path) -> str:
    """Returns the text with its line endings unchanged."""
    return path.read_bytes().decode("utf-8-sig")


def _parsed(directory: Path) -> tuple[ModelCard, ModelCardData]:
    path = directory / CARD
    try:
        card = ModelCard(_read(path))
    except Exception as error:  # The YAML parser or the validation of the metadata raised it.
        raise PushError(f"The metadata of the card {path} cannot be read: {' '.join(str(error).split())}") from error
    return card, cast(ModelCardData, card.data)


def _metadata(directory: Path, run: _Run, answers: Sequence[str]) -> ModelCardData:
    """Returns the metadata of a card. If the model has no run, the metadata comes only from its files."""
    task, recipe, summary = run
    facts, results = dict[str, Any](), list[EvalResult]()
    if recipe and summary:
        start = recipe.start.from_model or ""  # A name without a slash is a directory, even if it has been moved.
        shown = zip(recipe.evaluation.examples, answers, strict=False)
        results = [
            _result(task, recipe.data.corpora(part)[0], score)
            for part, scores in summary.scores.items()
            for score in scores
            if math.isfinite(score.value)
        ]
        facts = {
            "language": [re.split("[_-]", language)[0] for language in summary.languages if language],
            "datasets": [name for corpus in recipe.data.train for part in corpus.parts if (name := _hub_id(part))],
            "base_model": _hub_id(start) if "/" in start else None,
            "metrics": sorted({result.metric_type for result in results}),
            "widget": [{"text": text, "output": {"text": answer}} for text, answer in shown],
        }
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=task.pipeline if task else None,
        tags=["vanilla_transformer"],
        model_name=directory.resolve().name if results else None,
        eval_results=results or None,
        **{name: value for name, value in facts.items() if value},
    )


def _rendered(directory: Path, metadata: ModelCardData, run: _Run, title: str | None = None) -> str:
    """Fills in the template with the facts of a run and with the contents of the model's files."""
    task, recipe, summary = run
    facts, examples = dict[str, Any](), tuple[str, ...]()
    if task and recipe and summary:
        examples, start = recipe.evaluation.examples, recipe.start.from_model
        facts = {
            "languages": [language for language in summary.languages if language],
            "corpora": {part: " + ".join(map(_name, recipe.data.corpora(part))) for part in ("train", "dev", "test")},
            "start": start and _names((start,))[0],
            "built_in": any(corpus.is_built_in for corpus in recipe.data.train),
            "weights": describe_weights(summary.averaged_steps),
            "form": task.form,
            "max_length": recipe.data.max_length,
            "sentences": summary.sentences(task.loss_unit),
            "published": without_local_paths(recipe).to_yaml().strip(),
        }
    example = json.dumps(examples[0] if examples else task and task.sample, ensure_ascii=False)
    runs_alone = all((directory / name).is_file() for name in (NAME, "tokenizer.json"))
    card = ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATE),
        title=title or directory.resolve().name,
        task=task if task and task.pipeline else None,
        version=version("vanilla_transformer"),
        example=example,
        client=CLIENT.replace('"A dog runs."', example) if runs_alone else "",
        widget=metadata.get("widget") or (),
        cell=_cell,
        results=metadata.eval_results or (),
        config=_json(directory / "config.json"),
        parameters=_count_parameters(directory),
        search=_json(directory / "generation_config.json"),
        curves=CURVES if (directory / CURVES).is_file() else "",
        summary=summary,
        **facts,
    )
    return _with_checksum(f"{str(card).rstrip()}\n")


def _result(
    task: Task | None,
    corpus: CorpusSpec,
    score: Score,
    settings: Mapping[str, object] | None = None,
) -> EvalResult:
    name, part = _name(corpus), corpus.parts[0]
    return EvalResult(
        task_type=task and task.pipeline or "other",
        # The Hub rejects cards with invalid dataset ids.
        dataset_type=_hub_id(part) or re.sub(r"[^\w.-]+", "-", name),
        dataset_name=name,
        dataset_split=part.rpartition(":")[2] if len(corpus.parts) == 1 and ":" in part else None,
        metric_type=score.name,
        metric_name=score.name,
        metric_value=round(score.value, 2),
        metric_args={"signature": score.signature, **(settings or {})},
    )


def _identity(result: EvalResult) -> tuple[str, str, object]:
    """Returns the data, metric and decoding settings of a result. Other people's cards may contain any values."""
    arguments = result.metric_args
    if isinstance(arguments, dict):
        arguments = {name: value for name, value in arguments.items() if name != "signature"}
    return result.dataset_name, result.metric_type, arguments


def _cell(text: str) -> str:
    """Escapes text for a cell of a Markdown table, which a vertical bar or a line break would end."""
    return "<br>".join(html.escape(text, quote=False).replace("|", "&#124;").splitlines())


def _json(file: Path) -> dict[str, object]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _task(directory: Path) -> Task | None:
    """Returns the task of a model, or None if it is unknown or not registered."""
    try:
        return task_of_model(directory)
    except (OSError, ValueError):
        return None


def _run(directory: Path, summary: Summary | None = None) -> _Run:
    """Returns the task, recipe and summary; the last two are None if there is no finished run."""
    task, file = _task(directory), directory / RECIPE
    summary = summary or Summary.read(directory / SUMMARY)
    if not task or not summary or not file.is_file():
        return task, None, None
    return task, load_recipe(file, lenient=True), summary


def _count_parameters(directory: Path) -> int:
    """Counts the parameters in the weight files, which store tied weights only once."""
    files = map(parse_local_safetensors_file_metadata, directory.glob("model*.safetensors"))
    return sum(count for file in files for count in file.parameter_count.values())


def without_local_paths(recipe: Recipe) -> Recipe:
    """Returns the recipe for publication, in which paths are replaced by the names of files and directories."""
    data = {
        name: tuple(dataclasses.replace(corpus, parts=_names(corpus.parts)) for corpus in recipe[name])
        for name in ("train", "dev", "test")
    }
    models = {name: recipe[name] and _names((recipe[name],))[0] for name in ("tokenizer", "from_model")}
    return recipe.with_options(**data, **models, output=None)


def _hub_id(source: str) -> str | None:
    """Returns the Hub id of a model or a corpus, or None for a file, a directory or a built-in corpus.

    A name that cannot be a Hub id counts as a file even if the file does not exist, because it may have been moved.
    """
    name = source.partition(":")[0]
    is_id = re.fullmatch(_HUB_ID, name) and table_suffix(name) is None and name != CMUDICT
    return name if is_id and not Path(name).exists() else None


def _names(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the parts of a corpus, with names instead of paths. Two parts are always two files."""
    return parts if len(parts) == 1 and _hub_id(parts[0]) else tuple(Path(part).name for part in parts)


def _name(corpus: CorpusSpec) -> str:
    """Returns a readable name for a corpus, with its columns and, if it is part of a mixture, its weight."""
    pair = corpus.columns.get("source_column"), corpus.columns.get("target_column")
    beside = [
        " to ".join(name or "..." for name in pair) if any(pair) else " and ".join(corpus.columns.values()),
        "" if corpus.weight is None else f"weight {corpus.weight:g}",
    ]
    return " ".join([" and ".join(_names(corpus.parts)), *(f"({words})" for words in beside if words)])
