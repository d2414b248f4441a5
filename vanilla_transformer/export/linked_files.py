"""Refusal of models whose files are linked from elsewhere."""

from pathlib import Path

from vanilla_transformer.links import refuse_links_out
from vanilla_transformer.translation.loading import MODEL_FILES, TOKENIZER_FILES


def refuse_linked_files(path: str | Path) -> None:
    """Refuses a directory with a part of its model linked from elsewhere: an export would carry that away.

    Raises:
        OSError: A file is such a link; the message names the file and its target.
    """
    directory = Path(path)
    if directory.is_dir():
        patterns = (*MODEL_FILES, *TOKENIZER_FILES, "*.jinja", "additional_chat_templates/*")
        refuse_links_out(directory, [file for pattern in patterns for file in sorted(directory.glob(pattern))])
