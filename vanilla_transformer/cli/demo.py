"""`vanilla-transformer demo`: a page to try models in the browser."""

import importlib.util
import sys
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import UsageError, at_least_one
from vanilla_transformer.cli.decoding import Computing


@dataclass(frozen=True)
class Demo:
    """Open a web page to try models: a text in, each model's answer out, several models side by side.

    "Use via API" on the page gives the address for programs. The page is visible to this machine only, unless --host
    says otherwise; nothing leaves the machine, and no usage statistics are collected.
    """

    models: Annotated[tuple[str, ...], Positional, arg(metavar="MODEL [MODEL ...]", help_behavior_hint="")]
    """Directories or Hub ids of models."""
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets others on your network in."""
    port: int = 7860
    """Port to listen on."""
    max_characters: int = 1000
    """Maximum characters of a text that a visitor may send."""
    computing: Computing = Computing()

    def run(self) -> None:
        """Serves the page until Ctrl-C."""
        if not self.models:
            raise UsageError("Name a model: `demo MODEL`.")
        at_least_one(max_characters=self.max_characters)
        if not 1 <= self.port <= 65535:
            raise UsageError(f"--port must be between 1 and 65535, not {self.port}.")
        self.computing.check()
        if importlib.util.find_spec("gradio") is None:
            raise UsageError("The package gradio is not installed: run `pip install 'vanilla-transformer[demo]'`.")
        from vanilla_transformer.demo import build_page, open_page

        models = [(path, *self.computing.load(path, translates=False)) for path in self.models]
        page = build_page(models, max_characters=self.max_characters)
        print(open_page(page, host=self.host, port=self.port), flush=True)
        print("Ctrl-C ends.", file=sys.stderr)
        page.block_thread()
