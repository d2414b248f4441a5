"""`vanilla-transformer push`: a model to the Hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, OptionalText
from vanilla_transformer.cli.streams import warn


@dataclass(frozen=True)
class Push:
    """Send a model to the Hub: weights, tokenizer, settings, card, code, recipe and curves, and nothing else.

    The token is that of `hf auth login` or of the environment variable HF_TOKEN. Another push to the same name
    updates it, and completes one that was broken off. A card is written where the directory has none.
    """

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """Directory of the model."""
    name: Annotated[str, Positional, arg(metavar="ORG/NAME")]
    """Where to on the Hub; NAME alone is in your own namespace."""
    private: Flag = False
    """Only its owners see it."""
    revision: OptionalText = None
    """Branch to push to, made where there is none (default: main)."""
    message: OptionalText = None
    """What the commit says (default: the name of the directory)."""
    license: OptionalText = None
    """Licence for a card that names none, as the Hub writes it: apache-2.0, cc-by-4.0, ... (default: none)."""
    replace_card: Flag = False
    """Put the directory's card in the place of one on the Hub that others wrote or edited."""

    def run(self) -> None:
        """Pushes and prints the address."""
        from vanilla_transformer.hub import push_model

        address = push_model(
            self.model,
            self.name,
            private=self.private,
            revision=self.revision,
            message=self.message,
            license=self.license,
            replace_card=self.replace_card,
            say=warn,
        )
        print(address)
