"""Uploads a model directory to the Hub."""

from collections.abc import Callable, Iterable
from pathlib import Path

import yaml
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    RepoCard,
    constants,
    hf_hub_download,
)
from huggingface_hub.errors import HTTPError, RemoteEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from transformers.dynamic_module_utils import get_relative_import_files

from vanilla_transformer.errors import PushError
from vanilla_transformer.graph.onnx_file import NAME, renew
from vanilla_transformer.loading.models import load_config
from vanilla_transformer.loading.tokenizers import TOKENIZER_FILES, load_tokenizer
from vanilla_transformer.model_directory import CARD, CHECKPOINTS, CURVES, RECIPE, SUMMARY
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import saved_code
from vanilla_transformer.training.model_card import card_for_hub, is_unmodified, without_local_paths, write_model_card

# The folders with the code of the model classes.
_FOLDERS = [Path(__file__).with_name(name) for name in ("model", "recurrent")]
_CODE = tuple(sorted({file.name for folder in _FOLDERS for file in folder.glob("[!_]*.py")}))
# Only these files are uploaded, so no checkpoints, logs or data. A file of an earlier push, such as a shard of the
# weights, is deleted from the Hub if the directory no longer contains it.
SENT = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    *TOKENIZER_FILES,
    *_CODE,
    NAME,
    CARD,
    RECIPE,
    CURVES,
]


def push_model(
    directory: Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    report: Callable[[str], object] = lambda message: None,
) -> str:
    """Uploads a model with its tokenizer, card, code and recipe to the Hub, and returns its URL.

    The repository and the card are created if they do not exist. If a person has written or edited the card on the
    Hub, that card is kept. The code of the model classes is always the code of the installed package, so edits of
    these files in the directory are not uploaded. After an interruption, the same call uploads the missing files.

    Args:
        repo_id: ORG/NAME, or NAME in the user's own namespace.
        private: Create a private repository. An existing public repository is an error.
        revision: The branch, which is created if it does not exist (default: `main`).
        report: A function that is called with messages for the user.

    Raises:
        PushError: The directory is not a complete model, or the repository contains something else.
    """
    if revision == "":
        raise PushError("The name of the branch is empty: name one, or leave --revision out.")
    model_type = _check_model(directory)
    api = HfApi(library_name="vanilla_transformer", token=True)
    repo_id = repo_id if "/" in repo_id else f"{api.whoami()['name']}/{repo_id}"
    is_new = _is_new(api, repo_id, model_type, private)
    renew(directory)
    if not (directory / CARD).is_file():
        write_model_card(directory)
    names, card = _sent(directory), card_for_hub(directory, repo_id)
    replaced = {CARD: card.encode(), **_current_code(names)}
    if any((directory / name).read_bytes() != replaced.get(name) for name in names if name in _CODE):
        report(f"the code in {directory} differs from this version's code, which is uploaded instead.")
    names = sorted({*names, *replaced})
    if RECIPE in names:
        recipe = without_local_paths(load_recipe(directory / RECIPE, lenient=True))
        replaced[RECIPE] = recipe.to_yaml().encode()
    if is_new:
        api.create_repo(repo_id, private=private or None, exist_ok=True)
    if revision not in (None, constants.DEFAULT_REVISION):
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    if _others_wrote_the_card(card, repo_id, revision):
        report(f"the card of {repo_id} on the Hub was written or edited by others and is kept.")
        names.remove(CARD)
    earlier = filter_repo_objects(api.list_repo_files(repo_id, revision=revision), allow_patterns=SENT)
    added = [CommitOperationAdd(name, replaced.get(name, directory / name)) for name in names]
    commit = api.create_commit(
        repo_id,
        [*added, *(CommitOperationDelete(name) for name in {*earlier} - {*names, CARD})],
        commit_message=f"Push {directory.resolve().name} with vanilla_transformer",
        revision=revision,
    )
    return str(commit.repo_url) + (f"/tree/{revision}" if revision else "")


def _check_model(directory: Path) -> str:
    """Returns the model type of a directory, or raises PushError if the directory is not complete."""
    if not directory.is_dir():
        raise PushError(f"There is no model directory {directory}. The command `push` requires a local directory.")
    if (directory / CHECKPOINTS).is_dir() and not (directory / SUMMARY).is_file():
        raise PushError(
            f"The run in {directory} is not finished. Run its `train` command again, or push the output of `average`."
        )
    config = load_config(directory)
    load_tokenizer(directory)
    for part, pattern in (("weights", "model*.safetensors"), ("code", "modeling_*.py")):
        if not any(directory.glob(pattern)):
            raise PushError(
                f"{directory} has no {part} ({pattern}). Save the model with `save_pretrained`, or use `convert`."
            )
    return config.model_type


def _is_new(api: HfApi, repo_id: str, model_type: str, private: bool) -> bool:
    """Returns True if the repository does not exist, or raises PushError if it contains something else."""
    try:
        there = api.model_info(repo_id)
    except RepositoryNotFoundError:
        return True
    kind = (there.config or {}).get("model_type", model_type)
    found = f"a {kind} model" if kind != model_type else "public" if private and not there.private else None
    if found:
        raise PushError(f"{repo_id} on the Hub is {found}. Choose another name, or change the repository's settings.")
    return False


def _sent(directory: Path) -> list[str]:
    """Returns the names of the files to upload."""
    files = [*directory.iterdir(), *directory.glob("additional_chat_templates/*")]
    names = sorted(file.relative_to(directory).as_posix() for file in files if file.is_file())
    return list(filter_repo_objects(names, allow_patterns=SENT))


def _current_code(names: Iterable[str]) -> dict[str, bytes]:
    """Returns the installed version of each code file among these names, and of the files that it imports.

    Code that an earlier version of the package saved may be wrong with the installed transformers, although the
    weights are right.
    """
    code = saved_code() if any(name.startswith("modeling_recurrent") for name in names) else {}
    files = [_FOLDERS[0] / name for name in names if name in _CODE]
    for file in filter(Path.is_file, files):
        for needed in (file, *map(Path, get_relative_import_files(file))):
            code[needed.name] = needed.read_text(encoding="utf-8")
    return {name: text.encode() for name, text in code.items()}


def _others_wrote_the_card(card: str, repo_id: str, revision: str | None) -> bool:
    """Returns True if a person wrote or edited the card on the Hub, and it differs from `card`."""
    try:
        # A cached copy would not contain later edits.
        file = hf_hub_download(repo_id, CARD, revision=revision, force_download=True)
    except RemoteEntryNotFoundError:
        return False
    there = Path(file).read_bytes().decode("utf-8-sig")
    return not is_unmodified(there) and there != card


def card_of(model: str) -> tuple[str, list[str]]:
    """Returns the first paragraph and at most five short examples (`widget`) of a model's card."""
    try:
        card = RepoCard.load(Path(model, CARD) if Path(model).is_dir() else model, ignore_metadata_errors=True)
    except (OSError, ValueError, HTTPError, yaml.YAMLError):
        return "", []  # The model can be shown although its card is missing or damaged.
    first = next((part for part in card.text.split("\n\n") if part.strip()[:1].isalpha()), "")
    widget = card.data.get("widget")
    texts = [one.get("text") for one in widget if isinstance(one, dict)] if isinstance(widget, list) else []
    return first, [text for text in texts if isinstance(text, str) and text.strip() and len(text) <= 200][:5]
