"""`vanilla-transformer attend`: what the heads of a model attend to, as a page or a picture."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, Model, OptionalPath, OptionalText, UsageError
from vanilla_transformer.cli.streams import check_output, read_input, warn

if TYPE_CHECKING:
    from vanilla_transformer.inspection import Attention

_PICTURES = ".png", ".svg", ".pdf"


@dataclass(frozen=True)
class Attend:
    """Show what the heads of a model attend to, as a page that any browser opens, or as a picture.

    The page holds encoder self-attention, decoder self-attention and cross-attention of every layer and head, as
    lines between words, as heat maps or all heads at once, and needs no network. `attend MODEL "A dog runs."` writes
    attention.html.
    """

    model: Model
    """Directory or Hub id of the model."""
    text: Annotated[str | None, Positional, arg(metavar="[TEXT]", help_behavior_hint="")] = None
    """Sentence to read."""
    input: OptionalPath = None
    """File of UTF-8 text in the place of TEXT: the page shows each of its lines."""
    target: OptionalText = None
    """What the decoder shall write (default: the model's own translation)."""
    target_input: OptionalPath = None
    """File with as many lines as --input, what the decoder shall write for each."""
    output: OptionalPath = None
    """HTML page to write (default: attention.html, or none where --picture is given)."""
    picture: OptionalPath = None
    """PNG, SVG or PDF of one layer's attention to write, of one sentence."""
    kind: Literal["encoder", "decoder", "cross"] = "cross"
    """In the picture: self-attention of the encoder, of the decoder, or attention of the decoder to the source."""
    layer: Annotated[str, arg(metavar="INT|mean")] = "-1"
    """In the picture: the layer, from 0, -1 for the last one, or the mean of all."""
    head: Annotated[str, arg(metavar="INT|mean|all")] = "mean"
    """In the picture: the head, from 0, the mean of the layer's heads, or all of them."""
    view: Literal["heatmap", "lines"] = "heatmap"
    """In the picture: a heat map, or lines between words as in the paper's figures 3 to 5."""
    words: Flag = False
    """In the picture: whole words in the place of pieces (the mean over the pieces of a word that attends, the sum
    over those of a word attended to). The page has a box for it."""

    def run(self) -> None:
        """Writes the page, the picture or both, and prints their names."""
        sources, targets = self._sentences()
        page = Path("attention.html") if self.output is None and self.picture is None else self.output
        self._check(page, sources)
        from transformers.utils.logging import disable_progress_bar

        from vanilla_transformer.inspection import attention, attention_page
        from vanilla_transformer.translation import load_model

        if Path(self.model).is_dir():
            disable_progress_bar()
        model, tokenizer = load_model(self.model)
        seen = [attention(model, tokenizer, *pair) for pair in zip(sources, targets, strict=True)]
        if self.picture is not None:
            self._draw(seen[0], self.picture)
            print(self.picture)
        if page is not None:
            page.write_text(attention_page(seen, title=f"Attention of {Path(self.model).name}"), encoding="utf-8")
            print(page)

    def _sentences(self) -> tuple[list[str], list[str | None]]:
        """Sources, and a target for each where there is one."""
        if (self.text is None) == (self.input is None):
            raise UsageError('Give one sentence, `attend MODEL "A dog runs."`, or a file of lines by --input.')
        if self.target is not None and self.input is not None:
            raise UsageError(
                "--target is for one sentence: with --input give --target-input, a file of its own lines."
            )
        if self.target_input is not None and self.input is None:
            raise UsageError("--target-input goes with --input: for one sentence give --target.")
        if self.text is not None:
            return [self.text], [self.target]
        sources = list(read_input(self.input))
        if not any(map(str.strip, sources)):
            raise UsageError(f"{self.input} has no text.")
        targets: list[str | None] = [None] * len(sources)
        if self.target_input is not None:
            targets = list(read_input(self.target_input))
        if len(targets) != len(sources):
            raise UsageError(
                f"{self.input} has {len(sources)} lines and {self.target_input} {len(targets)}: they must be as many."
            )
        pairs = [(source, target) for source, target in zip(sources, targets, strict=True) if source.strip()]
        return [source for source, _ in pairs], [target for _, target in pairs]

    def _check(self, page: Path | None, sources: list[str]) -> None:
        """Refuses what cannot be written or drawn before a model is loaded."""
        if self.picture is not None:
            if self.picture.suffix.lower() not in _PICTURES:
                raise UsageError(f"{self.picture} must end with {', '.join(_PICTURES)}.")
            if len(sources) > 1:
                raise UsageError(f"--picture shows one sentence, not the {len(sources)} of {self.input}.")
            self._which()
        for file in (page, self.picture):
            if file is not None and file.is_dir():
                raise UsageError(f"{file} is a directory: name a file to write.")
            check_output(file)

    def _draw(self, seen: "Attention", picture: Path) -> None:
        from vanilla_transformer.inspection import plot_attention, plot_heads

        seen = seen.words() if self.words else seen
        layer, head = self._which()
        if head == "all" and self.view == "heatmap":
            figure = plot_heads(seen, self.kind, layer)[0, 0].figure
        else:
            figure = plot_attention(seen, self.kind, layer, head, self.view).figure
        with warnings.catch_warnings(record=True) as caught:
            figure.savefig(picture, dpi=150)
        if any("missing from font" in str(warning.message) for warning in caught):
            warn(f"the font of {picture} lacks some of the characters: the page shows them.")

    def _which(self) -> tuple[Any, Any]:
        """The layer and the head as numbers, where they are none of the words that are allowed."""
        return _number(self.layer, "--layer", "mean"), _number(self.head, "--head", "mean", "all")


def _number(text: str, option: str, *words: str) -> int | str:
    if text in words:
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{option} must be a number or {' or '.join(words)}, not {text}.") from None
