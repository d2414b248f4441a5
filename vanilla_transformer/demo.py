"""A gradio page on which people can try models, on this machine or in a Space."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gradio
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    # The path or Hub id from which a model was loaded, the model, and its tokenizer.
    Shown = tuple[str, PreTrainedModel, PreTrainedTokenizerBase]


def build_page(models: "Sequence[Shown]", *, max_characters: int = 1000) -> "gradio.Blocks":
    """Builds a page that shows one or several models side by side, with an API for programs."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # Sends no usage statistics.
    import gradio as gr

    from vanilla_transformer.hub import card_of

    cards = [card_of(path) for path, *_ in models]
    names = [Path(path).resolve().name if Path(path).is_dir() else path for path, *_ in models]
    title = " · ".join(names)
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.HTML(f"<h1>{escape(title)}</h1>")
        with gr.Row():
            with gr.Column(min_width=280):
                text = gr.Textbox(label="Text", lines=3, max_lines=12, autofocus=True, elem_id="text")
                button = gr.Button("Answer", variant="primary")
                offered = [texts or _dev(path) for (path, *_), (_, texts) in zip(models, cards, strict=True)]
                if examples := dict.fromkeys(chain(*offered)):
                    gr.Examples([[one] for one in examples], [text], cache_examples=False)
            for number, (path, model, tokenizer) in enumerate(models):
                with gr.Column(min_width=280):
                    answer, controls, shown = _kind(path, model, tokenizer)
                    shown.label = names[number] if names.count(names[number]) == 1 else path
                    shown.elem_id = f"answer-{number}"
                    gr.HTML(f"<p>{escape(cards[number][0])}</p>")
                    gr.on(
                        [text.submit, button.click],
                        _checked(answer, model, tokenizer, max_characters),
                        [text, *controls],
                        [shown],
                        api_name=answer.__name__,
                    )
    page.queue(max_size=100)
    return page


def _dev(path: str) -> list[str]:
    """Returns examples from the dev data of the run that trained the model, if these files still exist."""
    from vanilla_transformer.data.corpus import read_corpus
    from vanilla_transformer.model_directory import RECIPE
    from vanilla_transformer.recipe.reading import load_recipe
    from vanilla_transformer.tasks import task_for

    with suppress(OSError, ValueError, LookupError):  # The files may have been moved or deleted.
        recipe = load_recipe(Path(path, RECIPE), lenient=True)
        form = task_for(recipe).form
        texts = read_corpus(recipe.data.dev[0], form=form)[:5][form.columns[0].name]
        return [text if isinstance(text, str) else " ".join(text) for text in texts]
    return []


def _checked(
    answer: Callable[..., object], model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", max_characters: int
) -> Callable[..., object]:
    """Returns a function that computes the model's output for a text, or raises an error that the page shows."""
    import gradio as gr

    positions = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    longest = min(tokenizer.model_max_length, positions)

    def reply(text: str, *values: float) -> object:
        if not text.strip():
            return None
        try:
            if len(text) > max_characters:
                raise ValueError(f"The text has {len(text):,} characters; this page accepts only {max_characters:,}.")
            tokens = len(tokenizer(text)["input_ids"])
            if tokens > longest:
                raise ValueError(f"The text has {tokens:,} tokens; the model accepts only {longest:,}.")
            return answer(text, *values)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return reply


def _kind(
    path: str, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase"
) -> "tuple[Callable[..., object], list[gradio.Slider], gradio.components.Component]":
    """Returns the function that answers a text, the sliders for its settings, and the component for the answer."""
    import gradio as gr
    from transformers import pipeline

    from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text
    from vanilla_transformer.tasks import task_of_model
    from vanilla_transformer.translation import Translator

    if model.config.is_encoder_decoder:
        beams = model.generation_config.num_beams or 1
        translator = Translator(model, tokenizer, num_return_sequences=beams)

        def translate(text: str, count: float = 1) -> str:
            found = translator([line for line in text.splitlines() if line.strip()])
            return "\n".join(one.text for translation in found for one in translation.hypotheses[: int(count)])

        counts = [gr.Slider(1, beams, 1, step=1, label="Translations of each line")] if beams > 1 else []
        return translate, counts, gr.Textbox()
    known = task_of_model(path)
    name = known.pipeline
    if name in ("fill-mask", "text-generation"):
        pipe: Any = pipeline(name, model=model, tokenizer=plain_text(tokenizer))  # type: ignore[call-overload]
    else:
        predictor = known.predictor(model, tokenizer)

    def fill(text: str) -> list[list[object]]:
        mask = pipe.tokenizer.mask_token
        if mask not in text:
            raise ValueError(f"Put {mask} where the model should fill in a word.")
        found = pipe(text, top_k=5)
        masks = found if isinstance(found[0], list) else [found]
        return [[number, one["token_str"], one["score"]] for number, mask in enumerate(masks, 1) for one in mask]

    def go_on(text: str, new_tokens: float, temperature: float) -> str:
        sampling: dict[str, object] = {"do_sample": temperature > 0}
        if temperature:
            sampling |= {"temperature": temperature, "top_k": 0}
        return str(pipe(text, max_new_tokens=int(new_tokens), num_beams=1, **sampling)[0]["generated_text"])

    def predict(text: str) -> Any:
        return predictor.predict([predictor.read(" ".join(text.split()))], lambda count: None)[0]

    def classify(text: str) -> dict[str, float]:
        return predict(text).values["scores"]

    def tag(text: str) -> list[tuple[str, str]]:
        values = predict(text).values
        return list(zip(values["words"], values["tags"], strict=True))

    if name == "fill-mask":
        return fill, [], gr.Dataframe(headers=["mask", "word", "probability"])
    if name == "text-generation":
        shown, new_tokens = gr.Textbox(), gr.Slider(1, 100, 40, step=1, label="New tokens")
        return go_on, [new_tokens, gr.Slider(0, 2, 0, step=0.1, label="Temperature (0: no sampling)")], shown
    if name == "text-classification":
        return classify, [], gr.Label(num_top_classes=10)
    if name == "token-classification":
        return tag, [], gr.HighlightedText()
    return lambda text: predict(text).line, [], gr.Textbox()


def open_page(page: "gradio.Blocks", *, host: str | None = None, port: int | None = None) -> str:
    """Serves the page in background threads, and returns its address.

    Args:
        host: The address of the server (default: `GRADIO_SERVER_NAME`, which a Space sets, or 127.0.0.1).
        port: The port of the server (default: `GRADIO_SERVER_PORT`, or the first free port from 7860).
    """
    quiet = {"prevent_thread_lock": True, "quiet": True, "share": False, "footer_links": ["api"], "ssr_mode": False}
    _, address, _ = page.launch(server_name=host, server_port=port, max_file_size="1kb", **quiet)  # type: ignore[arg-type]
    return str(address)
