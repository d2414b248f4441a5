"""The page: a text, the controls, and each model's answer as the visitor types."""

import inspect
import os
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

# Sends no usage statistics.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr

from vanilla_transformer.extras.demo.answers import Control, DemoError
from vanilla_transformer.extras.demo.shown import Request, ShownModel

# The most texts of several visitors that are answered together.
_BATCH = 32
# The most requests that wait at a time; each visitor has only one.
WAITING = 100


def build_page(models: Sequence[ShownModel], *, waiting: int = WAITING) -> gr.Blocks:
    """Builds the page of one or several models, side by side, with its interface for programs.

    Args:
        waiting: Requests that may wait; more are refused.
    """
    title = " · ".join(model.name for model in models)
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        text = gr.Textbox(
            label="Text", placeholder=models[0].kind.hint, lines=3, max_lines=12, autofocus=True, elem_id="vt-text"
        )
        examples = list(dict.fromkeys(text for model in models for text in model.examples))
        if examples:
            gr.Examples([[one] for one in examples], [text], cache_examples=False)
        controls = _controls(models)
        buttons = []
        with gr.Row():
            for number, model in enumerate(models):
                with gr.Column(min_width=280):
                    buttons.append(_show_answer(model, number, text, _of(model, controls)))
        for number, (model, button) in enumerate(zip(models, buttons, strict=True)):
            _show_attention(model, number, button, text, _of(model, controls))
        for endpoint in dict.fromkeys(model.kind.endpoint for model in models):
            gr.api(
                _for_programs([model for model in models if model.kind.endpoint == endpoint]),
                api_name=endpoint,
                concurrency_limit=2,
                concurrency_id="programs",
            )
    page.queue(max_size=waiting)
    return page


def open_page(page: gr.Blocks, *, host: str | None = None, port: int | None = None) -> str:
    """Serves the page in threads of its own, and returns its address.

    Args:
        host: Address to listen at (default: `GRADIO_SERVER_NAME`, which a Space sets, or else 127.0.0.1).
        port: Port to listen at (default: `GRADIO_SERVER_PORT`, or else the first free port from 7860).
    """
    # gradio sends its own server a request to see if it is up, which must not go through a proxy.
    own = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1,localhost,0.0.0.0", host)))
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = own
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        prevent_thread_lock=True,
        quiet=True,
        footer_links=["api"],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        max_file_size="1kb",  # The page takes no uploads.
        css=_part("page.css"),
        head=f"<script>{_part('page.js')}</script>",
    )
    return str(address)


def _part(name: str) -> str:
    return files("vanilla_transformer.extras.demo").joinpath(name).read_text(encoding="utf-8")


def _controls(models: Sequence[ShownModel]) -> dict[str, gr.Slider]:
    """Adds a slider for each control; models share controls of the same name, with the range of the first model."""
    wanted: dict[str, Control] = {}
    for model in models:
        for control in model.kind.controls:
            wanted.setdefault(control.name, control)
    if not wanted:
        return {}
    with gr.Row():
        return {
            one.name: gr.Slider(
                one.least, one.most, one.default, step=one.step, label=one.label, elem_id=f"vt-{one.name}"
            )
            for one in wanted.values()
        }


def _of(model: ShownModel, controls: dict[str, gr.Slider]) -> list[gr.Slider]:
    return [controls[one.name] for one in model.kind.controls]


def _events(number: int) -> dict[str, Any]:
    """Returns the settings of a model's events, which run one at a time."""
    return {"concurrency_limit": 1, "concurrency_id": f"model {number}", "api_visibility": "private"}


def _show_answer(model: ShownModel, number: int, text: gr.Textbox, controls: list[gr.Slider]) -> gr.Button:
    """Adds a column: the model's name, its answer, and the button for its attention."""
    gr.HTML(
        f'<p class="vt-head"><b>{escape(model.name)}</b> <span class="vt-about">{model.about}</span></p>'
        + (f'<p class="vt-note">{escape(model.kind.note)}</p>' if model.kind.note else "")
    )
    answer = gr.HTML(model.html([]), elem_id=f"vt-answer-{number}", min_height=60)

    def reply(texts: list[str], *values: list[float]) -> list[list[str]]:
        settings = zip(*values, strict=True) if values else ((),) * len(texts)
        requests: list[Request] = list(zip(texts, settings, strict=True))
        return [[model.html(one) for one in model.reply(requests)]]

    gr.on(
        [text.change, *(control.change for control in controls)],
        reply,
        [text, *controls],
        [answer],
        batch=True,
        max_batch_size=_BATCH,
        # While one request is answered, only the latest of the others is kept.
        trigger_mode="always_last",
        show_progress="hidden",
        **_events(number),
    )
    return gr.Button("Show attention", size="sm", elem_id=f"vt-look-{number}")


def _show_attention(
    model: ShownModel, number: int, button: gr.Button, text: gr.Textbox, controls: list[gr.Slider]
) -> None:
    """Adds the view of a model's attention, below all columns and as wide as the page."""
    view = gr.HTML(elem_id=f"vt-view-{number}")

    def look(text: str, *values: float) -> str:
        return model.attention(text, values)

    button.click(look, [text, *controls], [view], trigger_mode="once", **_events(number))


def _for_programs(models: list[ShownModel]) -> Callable[..., list[dict[str, Any]]]:
    """Returns a function that answers a text, given the controls, with each of the models."""
    controls = models[0].kind.controls

    def answer(text: str, *values: Any, **named: Any) -> list[dict[str, Any]]:
        given = signature.bind(text, *values, **named)
        given.apply_defaults()
        _, *values_in_order = given.arguments.values()
        found = []
        for model in models:
            (reply,) = model.reply([(text, values_in_order)])
            if isinstance(reply, DemoError):
                raise gr.Error(str(reply), print_exception=False)
            found.append({"model": model.name, "answers": reply})
        return found

    parameters = [inspect.Parameter("text", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)]
    for one in controls:
        kind = int if one.step == 1 else float
        parameters.append(
            inspect.Parameter(
                one.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=kind(one.default), annotation=kind
            )
        )
    signature = inspect.Signature(parameters, return_annotation=list[dict[str, Any]])
    answer.__signature__ = signature  # type: ignore[attr-defined]
    answer.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": list[dict[str, Any]]}
    answer.__name__ = models[0].kind.endpoint
    answer.__doc__ = "What each model says of each line of the text that is not empty."
    return answer
