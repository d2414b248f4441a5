"""The model card, README.md of a model directory, rendered from the files beside it. Unknown facts are left out."""

import dataclasses
import errno
import hashlib
import html
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from huggingface_hub import EvalResult, ModelCard, ModelCardData, parse_local_safetensors_file_metadata

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.data.sources import CMUDICT, CorpusSpec, split_off, table_suffix
from vanilla_transformer.errors import PushError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.summary import CURVES, SUMMARY, Summary, describe_weights, items_of_loss

if TYPE_CHECKING:
    from vanilla_transformer.evaluation.metrics import Score
    from vanilla_transformer.tasks import Task

TEMPLATE = Path(__file__).with_name("model_card.md")
CARD = "README.md"


class Usage(NamedTuple):
    """What a card says of models that an Auto class loads.

    `verb` names the pipeline's result in the card's example, `purpose` begins the description of their purpose, and
    `example` is a text for the pipeline where the recipe has none.
    """

    pipeline: str
    verb: str
    purpose: str
    command: str = ""
    example: str = "..."


_USAGES = {
    "AutoModelForSeq2SeqLM": Usage("translation", "translate", "Text-to-text generation", "translate"),
    "AutoModelForCausalLM": Usage("text-generation", "generate", "Writing text that goes on", "generate"),
    "AutoModelForMaskedLM": Usage(
        *("fill-mask", "fill", "Filling in masked words, and as the beginning of classifiers", "", "... <mask> ...")
    ),
    "AutoModelForSequenceClassification": Usage("text-classification", "classify", "Classifying texts", "predict"),
    "AutoModelForTokenClassification": Usage(
        *("token-classification", "tag", "Tagging the words of sentences", "predict")
    ),
    "AutoModelForQuestionAnswering": Usage("question-answering", "answer", "Answering questions about texts"),
}
_CHECKSUM = "\n<!-- as vanilla_transformer wrote it: "
_HUB_ID = r"[\w-][\w.-]*(/[\w.-]+)?"


def write_model_card(directory: Path, summary: Summary | None = None, answers: Sequence[str] = ()) -> None:
    """Writes the card of a model; an edited card is kept, and the new one is written as model_card.md.

    Args:
        summary: Of the run that has just ended, where it is not in the directory yet.
        answers: The model's outputs for the examples of the recipe.
    """
    file = directory / CARD
    if file.exists() and not is_unmodified(_read(file)):
        file = directory / "model_card.md"
    _save(file, _rendered(directory, summary=summary, head=_head(directory, summary, answers)), unmodified=True)


def card_for_hub(directory: Path, repo_id: str) -> str:
    """Returns the text of a directory's card, with the model's name on the Hub unless somebody has edited it."""
    text = _read(directory / CARD)
    head = cast(ModelCardData, _parse(text, directory / CARD).data) if is_unmodified(text) else None
    if head is None or _has_lost_figures(directory, text, head):
        return text
    return _with_checksum(_rendered(directory, repo_id, head=head))


def add_scores(directory: Path, corpus: CorpusSpec, scores: Sequence["Score"], settings: Mapping[str, Any]) -> None:
    """Adds scores to the metadata of a card, replacing earlier ones of the same data, metric and settings.

    Args:
        settings: Decoding settings that differ from the model's own.
    """
    if not (directory / CARD).is_file():
        write_model_card(directory)
    added = [_result(usage_for(_task(directory)), corpus, score, settings=settings) for score in scores]
    identities = {_identity(result) for result in added}

    def add(head: ModelCardData) -> None:
        kept = [result for result in head.eval_results or [] if _identity(result) not in identities]
        head.eval_results = kept + added
        head.model_name = head.model_name or directory.resolve().name
        listed = [head.metrics] if isinstance(head.metrics, str) else list(head.metrics or [])
        known = {name for name in listed if isinstance(name, str)}
        head.metrics = listed + sorted({score.name for score in scores} - known)

    _change(directory, add)


def set_license(directory: Path, license: str) -> None:
    """Adds a licence to the metadata of a card without one.

    Raises:
        PushError: The card has another licence.
    """
    given = _parse(_read(directory / CARD), directory / CARD).data.get("license")
    if given not in (None, license):
        raise PushError(f"The licence in {directory / CARD} is {given}: change it there, or leave out --license.")
    if given is None:
        _change(directory, lambda head: setattr(head, "license", license))


def _change(directory: Path, change: Callable[[ModelCardData], None]) -> None:
    """Changes the metadata of a card; its text follows unless somebody has edited it, or what it says is lost."""
    text = _read(directory / CARD)
    card = _parse(text, directory / CARD)
    head = cast(ModelCardData, card.data)
    unmodified = is_unmodified(text) and not _has_lost_figures(directory, text, head)
    change(head)
    _save(directory / CARD, _rendered(directory, head=head) if unmodified else str(card), unmodified=unmodified)


def check_card(directory: Path) -> None:
    """Raises PushError or OSError if `add_scores` would fail, before hours of decoding."""
    file = directory / CARD
    if file.is_file():
        _parse(_read(file), file)
    if not all(os.access(path, os.W_OK) for path in (directory, *([file] if file.is_file() else []))):
        raise PermissionError(errno.EACCES, "The card cannot be written", str(file))


def is_unmodified(text: str) -> bool:
    """Tells whether a card was written by this package and has not been edited since."""
    written, mark, _ = text.rpartition(_CHECKSUM)
    return bool(mark) and text == _with_checksum(written)


def _with_checksum(text: str) -> str:
    return f"{text}{_CHECKSUM}{hashlib.sha256(text.encode()).hexdigest()[:16]} -->\n"


def _save(card: Path, text: str, *, unmodified: bool) -> None:
    atomic_write_text(card, _with_checksum(text) if unmodified else text)


def _read(path: Path) -> str:
    """Returns the text with its line endings unchanged."""
    return path.read_bytes().decode("utf-8-sig")


def _parse(text: str, path: Path) -> ModelCard:
    try:
        return ModelCard(text)
    except Exception as error:  # From YAML, or from the validation of its contents.
        raise PushError(f"The metadata of the card {path} cannot be read: {' '.join(str(error).split())}") from error


def _head(directory: Path, summary: Summary | None, answers: Sequence[str]) -> ModelCardData:
    """Returns the metadata of a run's card, or of a model of which only the files are known."""
    usage, recipe, summary = usage_for(_task(directory)), _recipe(directory), summary or _summary(directory)
    recurrent = _json(directory / "config.json").get("model_type") == "recurrent_encoder_decoder"
    facts: dict[str, Any] = {}
    results: list[EvalResult] = []
    if recipe is not None and summary is not None:
        parts = [part for corpus in recipe.data.train for part in corpus.parts]
        asked = zip(recipe.evaluation.examples, answers, strict=False)
        results = [
            _result(usage, recipe.data.corpora(part)[0], score, split=part)
            for part, scores in summary.scores.items()
            for score in scores
        ]
        facts = {
            "language": [re.split("[_-]", language)[0] for language in summary.languages if language],
            "datasets": [name for name in map(_dataset_id, parts) if name],
            "base_model": _hub_id(recipe.start.from_model),
            "metrics": sorted({result.metric_type for result in results}),
            "widget": [{"text": text, "output": {"text": answer}} for text, answer in asked],
        }
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=usage.pipeline if usage else None,
        tags=["vanilla_transformer", *([] if recurrent else ["attention-is-all-you-need"])],
        model_name=directory.resolve().name if results else None,
        eval_results=results or None,
        **{name: value for name, value in facts.items() if value},
    )


def _rendered(
    directory: Path, title: str | None = None, *, head: ModelCardData, summary: Summary | None = None
) -> str:
    """Fills the template with the facts of a run and those in the model's files."""
    config, task, recipe = _json(directory / "config.json"), _task(directory), _recipe(directory)
    summary = (summary or _summary(directory)) if recipe and task else None
    usage = usage_for(task)
    recurrent = config.get("model_type") == "recurrent_encoder_decoder"
    stacks = ("num_layers", "num_layers") if recurrent else ("encoder_layers", "decoder_layers")
    answered = [(one["text"], one["output"]["text"]) for one in head.get("widget") or ()]
    results = head.eval_results or []
    facts: dict[str, Any] = {}
    if recipe and task and summary:
        # The summary of an earlier version names no languages, but its card does.
        known = [language for language in summary.languages or head.get("language") or () if language]
        parts = [part for corpus in recipe.data.train for part in corpus.parts]
        facts = {
            "direction": f"{known[0]} to {known[1]}" if len(known) == 2 else "",
            "corpora": {
                part: " + ".join(_name(corpus) for corpus in recipe.data.corpora(part))
                for part in ("train", "dev", "test")
            },
            "start": "" if recipe.start.from_model is None else _names((recipe.start.from_model,))[0],
            "built_in": any(part.partition(":")[0] == CMUDICT for part in parts),
            "weights": describe_weights(summary.averaged_steps),
            "learned_from": _describe_rows(task.form, summary.pairs),
            "limit": _describe_limit(task.form, recipe.data.max_length),
            "items": items_of_loss(task),
            "published": without_local_paths(recipe).to_yaml().strip(),
        }
    examples = recipe.evaluation.examples if recipe is not None else ()
    card = ModelCard.from_template(
        head,
        template_path=str(TEMPLATE),
        title=title or directory.resolve().name,
        usage=usage,
        version=version("vanilla_transformer"),
        example=json.dumps(examples[0] if examples else usage and usage.example, ensure_ascii=False),
        answers=[[_cell(text) for text in pair] for pair in answered],
        scores=[_cells(result) for result in results],
        measured=list(dict.fromkeys(result.metric_type.partition(":")[0] for result in results)),
        config=config,
        layers="+".join(str(config[name]) for name in stacks if name in config),
        parameters=_count_parameters(directory),
        search=_json(directory / "generation_config.json"),
        curves=CURVES if (directory / CURVES).is_file() else "",
        recipe=recipe,
        summary=summary,
        **facts,
    )
    return f"{str(card).rstrip()}\n"


def _result(
    usage: Usage | None,
    corpus: CorpusSpec,
    score: "Score",
    *,
    split: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> EvalResult:
    name, parts = _name(corpus), corpus.parts
    hub_id = _dataset_id(parts[0]) if len(parts) == 1 else None
    return EvalResult(
        task_type=usage.pipeline if usage else "other",
        # The Hub accepts only valid dataset ids.
        dataset_type=hub_id or re.sub(r"[^\w.-]+", "-", name),
        dataset_name=name,
        dataset_split=split or (parts[0].rpartition(":")[2] if len(parts) == 1 and ":" in parts[0] else None),
        metric_type=score.name,
        metric_name=score.name,
        metric_value=round(score.value, 2),
        metric_args={"signature": score.signature, **(settings or {})},
    )


def _settings(result: EvalResult) -> dict[str, Any]:
    """Returns the decoding settings of a result; a card written by others may hold anything there."""
    given = result.metric_args
    arguments = given if isinstance(given, Mapping) else {} if given is None else {"args": given}
    return {name: value for name, value in arguments.items() if name != "signature"}


def _identity(result: EvalResult) -> tuple[str, str, str]:
    return result.dataset_name, result.metric_type, json.dumps(_settings(result), sort_keys=True, default=str)


def _cells(result: EvalResult) -> list[str]:
    """Returns the row of a result in the table of scores."""
    settings = "".join(f", {name} {value}" for name, value in _settings(result).items())
    signature = (result.metric_args or {}).get("signature", "").replace("|", r"\|")  # A bar ends a cell.
    return [result.dataset_name + settings, result.metric_type, f"{result.metric_value:.2f}", f"`{signature}`"]


def _cell(text: str) -> str:
    """Escapes text in a table, where a bar or a line end would end its cell."""
    return "<br>".join(html.escape(text, quote=False).replace("|", "&#124;").splitlines())


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _task(directory: Path) -> "Task | None":
    """Returns the task of a directory's model; None if its files do not tell, or it is not registered."""
    from vanilla_transformer.tasks import task_of_model

    try:
        return task_of_model(directory)
    except (OSError, ValueError):
        return None


def usage_for(task: "Task | None") -> Usage | None:
    """Returns what is said of the models of a task, None where nothing is known."""
    return _USAGES.get(task.auto_class) if task else None


def _describe_rows(form: TextForm, rows: int) -> str:
    """Describes the rows that a model learned from."""
    if form.packed:
        return f"{rows:,} blocks of running text, none of it left out"
    if form.in_blocks:
        return f"{rows:,} {form.unit} or blocks of them, after removing empty ones"
    return f"{rows:,} {form.unit} after removing empty and over-long ones"


def _describe_limit(form: TextForm, length: int) -> str:
    """Describes the text of a model that learned from rows of at most that many tokens."""
    if form.packed:
        return f"running text in blocks of {length} tokens, and knows no end of a text"
    text = f"{form.unit} of at most {length} tokens"
    return f"{text}, longer ones in blocks of as many" if form.in_blocks else text + " per side" * form.parallel


def _recipe(directory: Path) -> Recipe | None:
    """Returns the recipe of a run, None where there is none that can be read."""
    try:
        return load_recipe(directory / "recipe.yaml", lenient=True)
    except (OSError, ValueError):
        return None


def _summary(directory: Path) -> Summary | None:
    """Returns the summary of a run, None where there is none that can be read."""
    return None if _is_damaged(directory / SUMMARY) else Summary.read(directory / SUMMARY)


def _has_lost_figures(directory: Path, text: str, head: ModelCardData) -> bool:
    """Tells whether an unedited card says what can no longer be read."""
    return _is_damaged(directory / SUMMARY) and _with_checksum(_rendered(directory, head=head)) != text


def _is_damaged(summary: Path) -> bool:
    """Tells whether there is the summary of a run that cannot be read."""
    try:
        Summary.read(summary)
    except (OSError, ValueError, TypeError, LookupError):
        return True
    return False


def _count_parameters(directory: Path) -> int:
    """Counts the parameters in the weight files, where tied weights are stored once."""
    files = map(parse_local_safetensors_file_metadata, directory.glob("model*.safetensors"))
    return sum(count for file in files for count in file.parameter_count.values())


def without_local_paths(recipe: Recipe) -> Recipe:
    """Returns the recipe for publication: local files and directories are reduced to their names."""
    train, dev, test = (
        tuple(dataclasses.replace(corpus, parts=_names(corpus.parts)) for corpus in corpora)
        for corpora in (recipe.data.train, recipe.data.dev, recipe.data.test)
    )
    tokenizer = _names((recipe.tokenizer.tokenizer,))[0] if recipe.tokenizer.tokenizer is not None else None
    places = {"train": train, "dev": dev, "test": test, "tokenizer": tokenizer, "output": None}
    return Recipe.of(**recipe.options | places)


def _hub_id(model: str | None) -> str | None:
    """Returns the Hub id of a model that is not a directory."""
    return model if model and re.fullmatch(_HUB_ID, model) and not Path(model).exists() else None


def _dataset_id(source: str) -> str | None:
    """Returns the Hub id of a corpus that is neither a file nor built in."""
    name = source.partition(":")[0]
    is_id = re.fullmatch(_HUB_ID, name) and name != CMUDICT
    return name if is_id and not Path(name).exists() and not Path(source).exists() else None


def _name(corpus: CorpusSpec) -> str:
    """Returns a readable name for a corpus, with its columns and, in a mixture, its weight."""
    pair = corpus.source_column, corpus.target_column
    beside = [
        " to ".join(name or "..." for name in pair) if any(pair) else " and ".join(filter(None, corpus.columns)),
        "" if corpus.weight is None else f"weight {corpus.weight:g}",
    ]
    return " ".join([" and ".join(_names(corpus.parts)), *(f"({words})" for words in beside if words)])


def _names(source: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the parts of a corpus, with local files reduced to their names.

    Decided by the form of the arguments, because the files may have been moved: two parts are always files, and one is
    a file unless it could be a Hub id.
    """
    names = []
    for part in source:
        path, split = (part, []) if os.path.isabs(part) and not Path(part).parent.is_dir() else split_off(part)
        may_be_an_id = len(source) == 1 and table_suffix(path) is None and re.fullmatch(_HUB_ID, path)
        is_here = not may_be_an_id or Path(path).exists()
        names.append(":".join([Path(path).name if is_here else path, *split]))
    return tuple(names)
