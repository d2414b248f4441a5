"""Uploads a folder to the Hub as a Space."""

from pathlib import Path
from typing import Any

from huggingface_hub import RepoCard, constants
from huggingface_hub.errors import RepositoryNotFoundError

from vanilla_transformer.hub import PushError, check_private, full_name, hub_errors, write_access
from vanilla_transformer.links import refuse_links_out
from vanilla_transformer.reporting.model_card import CARD

# The tag of a Space that may be replaced by another push.
SPACE_TAG = "vanilla_transformer"


def push_space(folder: Path, repo_id: str, *, private: bool = False, message: str | None = None) -> str:
    """Uploads a folder as a Space, of the kind given in the front matter of its README.md, and returns its URL.

    The Space is created if it does not exist, and then holds the files of the folder and no others.

    Args:
        repo_id: ORG/NAME, or NAME in the user's own namespace.
        private: Create a private Space; an existing public one is refused.

    Raises:
        PushError: A Space of that name was not made by this package, or the Hub refuses it.
    """
    refuse_links_out(folder, folder.rglob("*"))
    api = write_access()
    head: Any = RepoCard.load(folder / CARD).data
    with hub_errors(repo_id, "spaces/"):
        repo_id = full_name(api, repo_id)
        try:
            there = api.space_info(repo_id)
        except RepositoryNotFoundError:
            api.create_repo(repo_id, repo_type="space", space_sdk=head.sdk, private=private or None, exist_ok=True)
        else:
            if SPACE_TAG not in (getattr(there.card_data, "tags", None) or ()):
                raise PushError(
                    f"spaces/{repo_id} is already taken on the Hub by a Space that this command did not make: choose "
                    "another name."
                )
            if there.sdk != head.sdk:
                raise PushError(
                    f"spaces/{repo_id} is a {there.sdk} Space, but this would be a {head.sdk} Space: delete "
                    "it in its settings, or choose another name."
                )
            check_private(there, f"spaces/{repo_id}", private)
        api.upload_folder(
            folder_path=folder,
            repo_id=repo_id,
            repo_type="space",
            commit_message=message or "Push with vanilla_transformer",
            delete_patterns=["*"],
        )
    return f"{constants.ENDPOINT}/spaces/{repo_id}"
