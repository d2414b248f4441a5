"""`vanilla-transformer attend`: attention weights as an HTML page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.cli.arguments import Model
from vanilla_transformer.cli.files import check_output
from vanilla_transformer.errors import SettingError
from vanilla_transformer.options import OptionalText


@dataclass(frozen=True)
class Attend:
    """Show the attention weights of a model, as a self-contained HTML page.

    The page shows every layer and head of encoder self-attention, decoder self-attention and cross-attention, as lines
    between words or as heat maps, one head or all of them side by side. All model families work; recurrent models show
    cross-attention only. An existing file is never overwritten. In Python, `attention_page` shows several sentences,
    and `plot_attention` and `plot_heads` draw pictures.
    """

    #: Model directory or Hub id.
    model: Model
    #: Source sentence.
    text: Annotated[str, Positional, arg(metavar="TEXT")]
    #: Target sentence for the decoder (default: the model's own translation); not for models without an encoder or
    #: without a decoder.
    target: OptionalText = None
    #: HTML page to write.
    output: Path = Path("attention.html")

    def run(self) -> None:
        """Writes the page, and prints its path."""
        if self.output.exists():
            raise SettingError(f"{self.output} exists: delete it, or name another file with --output.")
        check_output(self.output)
        from vanilla_transformer.inspection import attention, attention_page
        from vanilla_transformer.loading.models import load_model

        model, tokenizer = load_model(self.model, translates=False)
        seen = attention(model, tokenizer, self.text, self.target)
        atomic_write_text(self.output, attention_page([seen], title=f"Attention of {Path(self.model).name}"))
        print(self.output)
