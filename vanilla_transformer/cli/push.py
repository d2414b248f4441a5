"""`vanilla-transformer push`: upload a model to the Hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag
from vanilla_transformer.cli.files import warn
from vanilla_transformer.options import OptionalText


@dataclass(frozen=True)
class Push:
    """Upload a model to the Hub: weights, tokenizer, configs, card, code, recipe and learning curves, nothing else.

    Log in with `hf auth login`, or set HF_TOKEN. Pushing to the same name again updates the model, or completes an
    interrupted upload. If the directory has no model card, one is written.
    """

    #: Model directory.
    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    #: Repository on the Hub; NAME alone means your own namespace.
    name: Annotated[str, Positional, arg(metavar="ORG/NAME")]
    #: Create a private repository.
    private: Flag = False
    #: Branch to push to, created if it does not exist (default: main).
    revision: OptionalText = None

    def run(self) -> None:
        """Pushes the model and prints its URL."""
        from huggingface_hub.utils import get_token_to_send

        get_token_to_send(True)  # Says where nobody is logged in, before anything slow is imported.
        from vanilla_transformer.hub import push_model

        print(push_model(self.model, self.name, private=self.private, revision=self.revision, report=warn))
