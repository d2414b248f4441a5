"""`vanilla-transformer demo`: a page to try models in the browser."""

import sys
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Computing
from vanilla_transformer.errors import SettingError
from vanilla_transformer.options import number


@dataclass(frozen=True)
class Demo:
    """Open a web page to try models: a text in, each model's answer out, several models side by side.

    "Use via API" on the page gives the address for programs. The page is visible to this machine only, unless the
    environment has GRADIO_SERVER_NAME=0.0.0.0; nothing leaves the machine, and no usage statistics are collected.
    """

    #: Directories or Hub ids of models.
    models: Annotated[tuple[str, ...], Positional, arg(metavar="MODEL [MODEL ...]", help_behavior_hint="")]
    #: Port to listen on.
    port: Annotated[int, number(int, 1, 65536)] = 7860
    computing: Computing = Computing()

    def run(self) -> None:
        """Serves the page until Ctrl-C."""
        if not self.models:
            raise SettingError("Name a model: `demo MODEL`.")
        import gradio  # noqa: F401  Says that it is missing before models are loaded.

        from vanilla_transformer.demo import build_page, open_page

        models = [(path, *self.computing.load(path)) for path in self.models]
        print(open_page(page := build_page(models), port=self.port), flush=True)
        print("Ctrl-C ends.", file=sys.stderr)
        page.block_thread()
