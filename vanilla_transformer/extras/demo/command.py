"""`vanilla-transformer demo`: a page to try models in the browser."""

import errno
import importlib.util
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import UsageError, at_least_one
from vanilla_transformer.cli.decoding import Computing
from vanilla_transformer.cli.streams import warn

if TYPE_CHECKING:
    from vanilla_transformer.extras.demo.shown import ShownModel


@dataclass(frozen=True)
class Demo:
    """Open a web page to try models: text in, answers as you type, several models side by side.

    Translations come with scores, n-best lists and, where heads were chosen, alignments; classifiers, taggers, masked
    models and language models show their predictions. Every model shows its attention. "Use via API" on the page gives
    the address for programs. The page is visible to this machine only, unless --host says otherwise; nothing leaves
    the machine, and no usage statistics are collected.
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
        self._check()
        shown = [self._shown(model) for model in self.models]
        names = [model.name for model in shown]
        for model, path in zip(shown, self.models, strict=True):
            if names.count(model.name) > 1:
                model.name = path
        from vanilla_transformer.extras.demo.live_page import build_page, open_page

        page = build_page(shown)
        print(open_page(page, host=self.host, port=self.port), flush=True)
        print("Ctrl-C ends.", file=sys.stderr)
        page.block_thread()

    def _check(self) -> None:
        """Refuses impossible options before any model is loaded."""
        if not self.models:
            raise UsageError("Name a model: `demo MODEL`.")
        at_least_one(max_characters=self.max_characters)
        self.computing.check()
        if importlib.util.find_spec("gradio") is None:
            raise UsageError("The package gradio is not installed: run `pip install 'vanilla-transformer[demo]'`.")
        if not 1 <= self.port <= 65535:
            raise UsageError(f"--port must be between 1 and 65535, not {self.port}.")
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
        except socket.gaierror:
            raise UsageError(f"--host {self.host} is not an address: leave it out, or give 0.0.0.0.") from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            option = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
            raise UsageError(
                f"The page cannot be served at {self.host}:{self.port} ({reason}): give another {option}."
            ) from None

    def _shown(self, path: str) -> "ShownModel":
        from vanilla_transformer.extras.demo.shown import ShownModel

        print(f"Loading {path} ...", file=sys.stderr)
        model, tokenizer = self.computing.load(path, translates=False)
        return ShownModel.from_model(path, model, tokenizer, max_characters=self.max_characters)


def prepare_space(push: Any, folder: Path) -> Callable[[str], str]:
    """Returns the function that makes the Space of `push --space`; the Space reads the pushed model."""

    def publish(name: str) -> str:
        from vanilla_transformer.extras.demo.space import push_demo

        if push.private:
            warn(
                f"the Space reads a private model: add a token that may read {name} to the Space's secrets as "
                "HF_TOKEN."
            )
        return push_demo(push.model, name, private=push.private, message=push.message)

    return publish
