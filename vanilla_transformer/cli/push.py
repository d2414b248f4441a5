"""`vanilla-transformer push`: upload a model to the Hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, OptionalText, UsageError
from vanilla_transformer.cli.streams import warn


@dataclass(frozen=True)
class Push:
    """Upload a model to the Hub: weights, tokenizer, configs, card, code, recipe and learning curves, nothing else.

    Log in with `hf auth login` or set HF_TOKEN. Pushing to the same name again updates the model or completes an
    interrupted upload. A model card is written if the directory has none.
    """

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """Model directory."""
    name: Annotated[str, Positional, arg(metavar="ORG/NAME")]
    """Repository on the Hub; NAME alone is in your own namespace."""
    private: Flag = False
    """Create a private repository."""
    revision: OptionalText = None
    """Branch to push to, created if it does not exist (default: main)."""
    message: OptionalText = None
    """Commit message (default: names the directory)."""
    license: OptionalText = None
    """Licence to add to a card without one, by its Hub identifier: apache-2.0, cc-by-4.0, ... (default: none)."""
    replace_card: Flag = False
    """Replace the card on the Hub even if it was written or edited by others."""

    space: Flag = False
    """Also make a Space of the same name, where anybody can try the model in a browser, or renew it."""

    def run(self) -> None:
        """Pushes the model and prints its URL, and then that of the Space."""
        if self.space and self.revision is not None:
            raise UsageError("--space shows what is on the branch main: it cannot be combined with --revision.")
        from vanilla_transformer.hub import push_model

        address = push_model(
            self.model,
            self.name,
            private=self.private,
            revision=self.revision,
            message=self.message,
            license=self.license,
            replace_card=self.replace_card,
            report=warn,
        )
        print(address)
        if self.space:
            from vanilla_transformer.demo.space import push_demo

            name = "/".join(address.split("/")[-2:])
            print(push_demo(self.model, name, private=self.private, message=self.message))
            if self.private:
                warn(
                    f"the Space reads a private model: add a token that may read {name} to the Space's secrets as "
                    "HF_TOKEN."
                )
