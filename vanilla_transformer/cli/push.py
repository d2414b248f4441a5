"""`vanilla-transformer push`: upload a model to the Hub."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag
from vanilla_transformer.cli.files import warn
from vanilla_transformer.errors import RecipeError
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
    #: Commit message (default: one that names the directory).
    message: OptionalText = None
    #: Replace the card on the Hub even if others wrote or edited it.
    replace_card: Flag = False

    #: Also create or update a Space of the same name, where anyone can try the model in a browser.
    space: Flag = False
    #: Also create or update a static Space, NAME-explore, which shows the model's computation step by step.
    explore: Flag = False

    def run(self) -> None:
        """Pushes the model and prints its URL, and then the Space's."""
        if (self.space or self.explore) and self.revision is not None:
            raise RecipeError("A Space shows the model on the branch main, so it cannot be combined with --revision.")
        from vanilla_transformer.hub import push_model, push_space

        with TemporaryDirectory(prefix="vanilla-transformer-pages-", ignore_cleanup_errors=True) as directory:
            page, space = Path(directory, "explore"), Path(directory, "space")
            if self.explore:  # Written first, so that a failing page does not leave a partial push.
                from vanilla_transformer.explore.static_site import push_page, write_model_page

                write_model_page(str(self.model), page, report=warn)
            address = push_model(
                self.model,
                self.name,
                private=self.private,
                revision=self.revision,
                message=self.message,
                replace_card=self.replace_card,
                report=warn,
            )
            print(address)
            name = "/".join(address.split("/")[-2:])
            if self.space:
                from vanilla_transformer.demo import write_space

                if self.private:
                    warn(f"the Space reads a private model: add a token for {name} to its secrets as HF_TOKEN.")
                space.mkdir()
                write_space(space, self.model, name)
                print(push_space(space, name, private=self.private, message=self.message))
            if self.explore:
                print(push_page(page, self.model, name, private=self.private, message=self.message))
