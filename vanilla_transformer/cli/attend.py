"""`vanilla-transformer attend`: attention weights as an HTML page or a picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_replace, atomic_write_text
from vanilla_transformer.cli.arguments import Model, OptionalPath
from vanilla_transformer.cli.files import check_new_file, read_input
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.options import OptionalText

if TYPE_CHECKING:
    from vanilla_transformer.inspection import Attention


@dataclass(frozen=True)
class Attend:
    """Show the attention weights of a model, as a self-contained HTML page or as a picture.

    The page shows every layer and head of encoder self-attention, decoder self-attention and cross-attention, as lines
    between words or as heat maps, one head or all of them side by side. `attend MODEL "A dog runs."` writes
    attention.html. All model families work; recurrent models show cross-attention only. Existing files are never
    overwritten.
    """

    #: Model directory or Hub id.
    model: Model
    #: Source sentence.
    text: Annotated[str | None, Positional, arg(metavar="[TEXT]", help_behavior_hint="")] = None
    #: UTF-8 text file to use instead of TEXT; the page shows every line.
    input: OptionalPath = None
    #: Target sentence for the decoder (default: the model's own translation); not for models without an encoder or
    #: without a decoder.
    target: OptionalText = None
    #: HTML page to write (default: attention.html, or none if --picture is given).
    output: OptionalPath = None
    #: PNG, SVG or PDF file to write: the attention of one layer for one sentence.
    picture: OptionalPath = None
    #: Picture: encoder self-attention, decoder self-attention or cross-attention (default: cross-attention, or what
    #: the model has instead).
    kind: Annotated[
        Literal["encoder", "decoder", "cross"] | None, arg(metavar="{encoder,decoder,cross}", help_behavior_hint="")
    ] = None
    #: Picture: layer number from 1, -1 for the last, or the mean over layers.
    layer: Annotated[int | Literal["mean"], arg(metavar="INT|mean")] = -1
    #: Picture: head number from 1, the mean over heads, or all heads side by side.
    head: Annotated[int | Literal["mean", "all"], arg(metavar="INT|mean|all")] = "mean"
    #: Picture: a heat map, or lines between words as in figures 3 to 5 of the paper. Both show whole words: what the
    #: sub-words of a word attend to is averaged, what they receive is added up; the page has a checkbox for sub-words.
    view: Literal["heatmap", "lines"] = "heatmap"

    def run(self) -> None:
        """Writes the page, the picture or both, and prints their paths."""
        sources, targets = self._sentences()
        page = Path("attention.html") if self.output is None and self.picture is None else self.output
        if self.picture is not None and len(sources) > 1:
            raise RecipeError(f"--picture shows one sentence, but {self.input} has {len(sources)}.")
        for file, option in ((page, "--output"), (self.picture, "--picture")):
            check_new_file(file, option)
        from vanilla_transformer.inspection import attention, attention_page
        from vanilla_transformer.translation import load_model

        model, tokenizer = load_model(self.model, translates=False)
        seen = [attention(model, tokenizer, *pair) for pair in zip(sources, targets, strict=True)]
        if self.picture is not None:
            self._draw(seen[0], self.picture)
            print(self.picture)
        if page is not None:
            atomic_write_text(page, attention_page(seen, title=f"Attention of {Path(self.model).name}"))
            print(page)

    def _sentences(self) -> tuple[list[str], list[str | None]]:
        """Returns the sources, with a target or None for each."""
        if (self.text is None) == (self.input is None):
            raise RecipeError('Give either one sentence, `attend MODEL "A dog runs."`, or a file with --input.')
        if self.target is not None and self.input is not None:
            raise RecipeError("--target is for one sentence, so it cannot be combined with --input.")
        if self.text is not None:
            return [self.text], [self.target]
        sources = list(read_input(self.input))
        if not any(map(str.strip, sources)):
            raise RecipeError(f"{self.input} contains no text.")
        sources = [source for source in sources if source.strip()]
        return sources, [None] * len(sources)

    def _draw(self, seen: "Attention", picture: Path) -> None:
        from vanilla_transformer.inspection import plot_attention, plot_heads

        seen = seen.words()
        kind = self.kind or list(seen.weights)[-1]
        if self.head == "all":
            figure = plot_heads(seen, kind, self.layer, self.view)
        else:
            figure = plot_attention(seen, kind, self.layer, self.head, self.view)
        with atomic_replace(picture) as temporary:
            figure.savefig(temporary, dpi=150)
