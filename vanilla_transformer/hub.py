"""A model directory to the Hub: what of it is sent, to where, and what to do when that fails."""

import fnmatch
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from huggingface_hub import HfApi, constants, get_token, hf_hub_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo

import vanilla_transformer.model
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.recipe.schema import RecipeError, load_recipe
from vanilla_transformer.reporting.model_card import (
    CARD,
    is_unmodified,
    set_hub_name,
    set_license,
    without_local_paths,
    write_plain_card,
)
from vanilla_transformer.training.run_directory import RECIPE
from vanilla_transformer.translation.loading import (
    TOKENIZER_FILES,
    VOCABULARIES,
    load_config,
    load_weights_and_config,
)

# The code of a model's classes; models of earlier versions carry helpers under a longer name.
_CODE = (
    *sorted(path.name for folder in map(Path, vanilla_transformer.model.__path__) for path in folder.glob("[!_]*.py")),
    "*_vanilla_transformer.py",
)
# Of a directory nothing else leaves the machine: no checkpoint, no log, no corpus.
SENT = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    *TOKENIZER_FILES,
    *_CODE,
    CARD,
    RECIPE,
    "learning_curves.png",
)
# What an earlier push may have left that this one has no more: weights in other pieces, code of another version.
_REPLACED = ["model*.safetensors", "model.safetensors.index.json", *_CODE]


class PushError(OSError):
    """A model that cannot be pushed, or not to there, said in one sentence."""


def push_model(
    directory: Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    license: str | None = None,
    replace_card: bool = False,
    say: Callable[[str], object] = lambda sentence: None,
) -> str:
    """Sends a model with its tokenizer, card, code and recipe to the Hub, and returns the address.

    The repository is made where there is none, and a card where the directory has none. A card on the Hub that others
    wrote or edited stays there. Broken off, the same call sends what is missing.

    Args:
        repo_id: ORG/NAME, or NAME in the user's own namespace.
        private: Whether a new repository is for its owners alone; one that is public is refused.
        revision: Branch, made where there is none; `main` if None.
        license: Put into a card that names none.
        replace_card: Put the directory's card in the place of one on the Hub that others wrote or edited.
        say: Called with what the user should know.

    Raises:
        PushError: The directory is no model, or the Hub does not take it.
        CardError: The card names another licence.
    """
    _check_model(directory)
    token = get_token()
    if token is not None and not (token.isascii() and token.isprintable()):
        raise PushError(
            "The token for the Hub has letters that no token has: copy it anew from "
            f"{constants.ENDPOINT}/settings/tokens, into the environment variable HF_TOKEN or `hf auth login`."
        )
    if token is None:
        raise PushError(
            "There is no token for the Hub: log in with `hf auth login`, or put a token that may write "
            f"({constants.ENDPOINT}/settings/tokens) into the environment variable HF_TOKEN."
        )
    api = HfApi(library_name="vanilla_transformer")
    with _in_one_sentence(repo_id):
        repo_id = _prepare_place(api, repo_id, private)
        if revision not in (None, constants.DEFAULT_REVISION):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        names = _files(directory, license, repo_id)
        if not replace_card and _is_of_others_on_the_hub(directory, repo_id, revision):
            say(
                f"the card of {repo_id} on the Hub was written or edited by others and stays as it is: --replace-card "
                f"puts that of {directory} in its place."
            )
            names.remove(CARD)
        with _gathered(directory, names, say) as folder:
            api.upload_folder(
                folder_path=folder,
                repo_id=repo_id,
                revision=revision,
                commit_message=message or f"Push {directory.resolve().name} with vanilla_transformer",
                delete_patterns=_REPLACED,
            )
    return f"{constants.ENDPOINT}/{repo_id}" + (f"/tree/{revision}" if revision else "")


def _check_model(directory: Path) -> None:
    """Raises PushError for a directory that others could not load."""
    if not directory.is_dir():
        raise PushError(f"There is no model directory {directory}: push sends what lies on this machine.")
    if (directory / "checkpoints").is_dir() and not (directory / "summary.json").is_file():
        raise PushError(
            f"The run in {directory} is not finished: give its `train` command again, or push what `average` makes of "
            "its checkpoints."
        )
    for either in (
        *(["config.json"], ["model*.safetensors"], VOCABULARIES),
        *(["tokenizer_config.json"], ["modeling_vanilla_transformer.py"]),
    ):
        if not any(any(directory.glob(pattern)) for pattern in either):
            raise PushError(
                f"{directory} is not a whole model, it has no {either[0]}: `save_pretrained` of the model and of the "
                "tokenizer writes all of it."
            )
    load_config(directory)
    load_weights_and_config(directory, torch.float32)


def _prepare_place(api: HfApi, repo_id: str, private: bool) -> str:
    """Makes the repository where there is none, and returns its full name."""
    if "/" not in repo_id:
        repo_id = f"{api.whoami()['name']}/{repo_id}"
    try:
        there = api.model_info(repo_id)
    except RepositoryNotFoundError:
        return api.create_repo(repo_id, private=private or None, exist_ok=True).repo_id
    _check_place(there, repo_id, private)
    return repo_id


def _check_place(there: ModelInfo, repo_id: str, private: bool) -> None:
    """Raises PushError where what is there already must not be written over, or is open to all against the wish."""
    kind = (there.config or {}).get("model_type")
    if kind not in (None, VanillaTransformerConfig.model_type):
        raise PushError(f"The name {repo_id} is taken on the Hub, by a model of the type {kind}: choose another.")
    if private and not there.private:
        raise PushError(
            f"{repo_id} is on the Hub already and open to all: make it private in its settings there, or choose "
            "another name."
        )


def _files(directory: Path, license: str | None, repo_id: str) -> list[str]:
    """Names of the files to send, with a card that is complete."""
    if not (directory / CARD).is_file():
        write_plain_card(directory, repo_id)
    set_hub_name(directory, repo_id)
    if license is not None:
        set_license(directory, license)
    names = sorted(file.name for file in directory.iterdir() if file.is_file())
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in SENT)]


@contextmanager
def _gathered(directory: Path, names: Sequence[str], say: Callable[[str], object]) -> Iterator[Path]:
    """A folder with the files to send, and with the recipe as others may see it; it is gone after the block."""
    with TemporaryDirectory(prefix="vanilla-transformer-push-", ignore_cleanup_errors=True) as folder:
        for name in names:
            file, place = (directory / name).resolve(), Path(folder) / name
            if name == RECIPE:
                try:
                    place.write_text(without_local_paths(load_recipe(file)).to_yaml(), encoding="utf-8")
                except RecipeError as error:
                    say(f"{name} stays here, as it is no recipe: {error}")
                continue
            try:
                place.symlink_to(file)
            except OSError:  # Windows allows links to few users.
                shutil.copyfile(file, place)
        yield Path(folder)


def _is_of_others_on_the_hub(directory: Path, repo_id: str, revision: str | None) -> bool:
    try:
        # By force: a copy from an earlier push would hide what others have written since.
        file = hf_hub_download(repo_id, CARD, revision=revision, force_download=True)
    except (RemoteEntryNotFoundError, RevisionNotFoundError):
        return False
    except ValueError as error:
        # That is how it tells that the Hub could not be asked; the reason is the cause.
        if isinstance(error.__cause__, HTTPError):
            raise error.__cause__ from error
        raise
    there = Path(file).read_text(encoding="utf-8")
    return not is_unmodified(there) and there != (directory / CARD).read_text(encoding="utf-8")


@contextmanager
def _in_one_sentence(repo_id: str) -> Iterator[None]:
    """Turns what the Hub and the network answer into what to do about it."""
    again = "give the same command again, it sends what is missing"
    try:
        yield
    except OfflineModeIsEnabled:
        raise PushError("The Hub is not to be asked, as HF_HUB_OFFLINE is set: unset it to push.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            sentence = (
                "The Hub does not accept the token: log in with `hf auth login`, or set HF_TOKEN to a valid one."
            )
        elif status == 403:
            sentence = (
                f"The token may not write to {repo_id}: choose a name of your own that is not taken, or use a "
                f"token that has the right ({constants.ENDPOINT}/settings/tokens)."
            )
        elif status >= 500 or status == 429:
            sentence = f"The Hub has trouble at the moment ({status}): {again}."
        else:
            said = error.server_message or re.sub(r"\s+", " ", str(error))
            sentence = f"The Hub refuses {repo_id} ({status}): {said.rstrip('.')}."
        raise PushError(sentence) from error
    except HTTPError as error:
        raise PushError(
            f"The connection to {constants.ENDPOINT} was lost ({str(error).rstrip('.')}): {again}."
        ) from error
