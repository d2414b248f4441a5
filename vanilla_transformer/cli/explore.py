"""`vanilla-transformer explore`: a page on which a model computes live."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from vanilla_transformer.cli.arguments import Model, OptionalPath
from vanilla_transformer.cli.files import check_new_directory, warn
from vanilla_transformer.options import OptionalText


@dataclass(frozen=True)
class Explore:
    """Write a web page on which a model computes live, number by number, in the paper's order.

    For one text, it shows the whole computation: embeddings, positions, each head's queries, keys, values, scores and
    weights, feed-forward units and logits; the beam search as a tree; the effect of removing a head, a layer or the
    positions; and, if MODEL has its run's checkpoints, a replay of the training. The folder works offline and on any
    static file host, and contacts no other host. View it with `python -m http.server --directory OUTPUT`.
    """

    #: Model directory or Hub id, of any family, with at most 40 million parameters.
    model: Model
    #: Directory to write; must be empty or not exist (default: MODEL-explore in the current directory).
    output: OptionalPath = None
    #: Texts to offer on the page, which starts with the first (default: the examples in the model's card).
    text: Annotated[tuple[str, ...], arg(metavar="TEXT ...", help_behavior_hint="")] = ()
    #: URL of this documentation, so that each number links to its chapter (default: none).
    documentation: OptionalText = None

    def run(self) -> None:
        """Writes the folder and prints it."""
        output = self.output or Path(f"{Path(self.model).resolve().name}-explore")
        check_new_directory(output)
        from vanilla_transformer.explore.static_site import write_page
        from vanilla_transformer.hub import card_of
        from vanilla_transformer.loading.models import load_model

        model, tokenizer = load_model(self.model, device="cpu", translates=False)
        directory = Path(self.model)
        write_page(
            model,
            tokenizer,
            output,
            name=directory.resolve().name if directory.is_dir() else self.model,
            examples=self.text or card_of(self.model)[1],
            run=directory,
            documentation=self.documentation,
            report=warn,
        )
        print(output)
