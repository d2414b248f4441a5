"""Combines models that differ in one field, and calls functions with values that the commands refuse.

What does not belong together, and what a command refuses, is refused in one sentence; anything else has its exact
result.
"""

import json
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.stress.cases import (
    Command,
    Fault,
    Group,
    check_manners,
    check_untouched,
    copied,
    main,
    model_ground,
    run,
    snapshot,
)
from scripts.stress.models import WEIGHTS
from scripts.stress.options import EVALUATE, LINES, TRAIN, TRANSLATE, Option, _float, check_translations
from scripts.stress.reference import Reference, read_safetensors

_TEXT = ["abc abd", "xyz abc"]
_SIZES: dict[str, Any] = {"vocab_size": 280, "d_model": 16}
_STACK: dict[str, Any] = {**_SIZES, "d_ff": 32, "num_heads": 2, "d_k": 8, "d_v": 8}
# Fields in which only training differs, and limits that sinusoids do not have.
_ONLY_TRAINING: dict[str, list[Any]] = {
    "dropout": [0.0, 0.5],
    "attention_dropout": [0.1],
    "activation_dropout": [0.1],
    "label_smoothing": [0.2],
    "initializer_range": [0.5],
    "max_position_embeddings": [99],
}
_OF_STACKS: dict[str, list[Any]] = {
    **_ONLY_TRAINING,
    "vocab_size": [290],
    "d_model": [8, 32],
    "d_ff": [16],
    "num_heads": [1, 4],
    "d_k": [4],
    "d_v": [4],
    "positional_encoding": ["learned"],
    "layer_norm_eps": [0.0, 0.1, 1.0],
    "attention_bias": [True],
    "output_bias": [True],
    "activation_function": ["gelu", "tanh"],
    "tie_word_embeddings": [False],
    "pad_token_id": [3],
    "eos_token_id": [3, [2, 3]],
    "vocabulary": [["pqr pqs", "pqr stu"]],
}
_LABELS = {"id2label": {0: "plant", 1: "animal"}, "label2id": {"plant": 0, "animal": 1}}
_OTHER_LABELS = {0: "animal", 1: "plant"}
# A family's model and configuration, its sizes, and other values of its fields.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], dict[str, list[Any]]]] = {
    "encoder-decoder": (
        "VanillaTransformerForConditionalGeneration",
        "VanillaTransformerConfig",
        {**_STACK, "encoder_layers": 1, "decoder_layers": 1},
        {
            **_OF_STACKS,
            "encoder_layers": [2],
            "decoder_layers": [2],
            "decoder_start_token_id": [2],
        },
    ),
    "encoder": (
        "VanillaTransformerEncoderForSequenceClassification",
        "VanillaTransformerEncoderConfig",
        {**_STACK, **_LABELS, "encoder_layers": 1},
        {**_OF_STACKS, "encoder_layers": [2], "classifier_pooling": ["first"], "id2label": [_OTHER_LABELS]},
    ),
    "decoder": (
        "VanillaTransformerDecoderForCausalLM",
        "VanillaTransformerDecoderConfig",
        {**_STACK, "decoder_layers": 1},
        {**_OF_STACKS, "decoder_layers": [2], "documents": ["packed"]},
    ),
    "recurrent": (
        "RecurrentEncoderDecoderForConditionalGeneration",
        "RecurrentEncoderDecoderConfig",
        {**_SIZES, "num_layers": 1},
        {
            **{name: _ONLY_TRAINING[name] for name in ("dropout", "label_smoothing", "initializer_range")},
            **{name: _OF_STACKS[name] for name in ("vocab_size", "d_model", "tie_word_embeddings", "eos_token_id")},
            "num_layers": [2],
            "cell": ["gru"],
            "attention": ["luong-dot", "bahdanau"],
            "input_feeding": [False],
            "attention_window": [2],
            "bidirectional": [False],
            "decoder_start_token_id": [2],
            "vocabulary": _OF_STACKS["vocabulary"],
        },
    ),
}
# What models must have in common to choose each next token together.
_TOGETHER = {"vocab_size", "vocabulary", "pad_token_id", "eos_token_id", "decoder_start_token_id"}


def _save(place: Path, family: str, seed: int, field: str = "", value: Any = None) -> None:
    """Saves a model of a family, with another value in a field, and its tokenizer."""
    import vanilla_transformer as package

    kind, config_kind, sizes, _ = FAMILIES[family]
    changed = {} if field in ("", "vocabulary") else {field: value}
    if field == "id2label":
        changed["label2id"] = {label: number for number, label in value.items()}
    torch.manual_seed(seed)
    config = getattr(package, config_kind)(**{**sizes, **changed})
    model = getattr(package, kind)(config)
    model.save_pretrained(place)
    texts = value if field == "vocabulary" else _TEXT
    package.VanillaTransformerTokenizer.train(texts * 9, vocab_size=262).save_pretrained(place)


def _pair(directory: Path, draw: random.Random, families: Sequence[str]) -> tuple[str, str, Any]:
    """Saves two models that differ in one field, in either order; returns family, field and the other value."""
    family = draw.choice(families)
    field = draw.choice(sorted(FAMILIES[family][3]))
    value = draw.choice(FAMILIES[family][3][field])
    names = draw.sample(["one", "other"], 2)
    _save(directory / names[0], family, 0)
    _save(directory / names[1], family, 1, field, value)
    return family, field, value


def average_case(directory: Path, draw: random.Random) -> str:
    """Averages two models that differ in one field."""
    family, field, value = _pair(directory, draw, sorted(FAMILIES))
    before = snapshot(directory)
    outcome = run(Command(["average", "one", "other", "--output", "mean"]), directory)
    try:
        check_manners(outcome, names=[field, "entries", "missing", "split"])
        if outcome.code:
            if field in _ONLY_TRAINING:
                raise Fault(f"refused, though only training differs: {outcome.refusal}")
            if "other" not in outcome.refusal:
                raise Fault(f"refused without the model: {outcome.refusal}")
            check_untouched(before, directory)
            return "refused"
        if field not in _ONLY_TRAINING:
            raise Fault("different models were averaged")
        one, other, mean = (read_safetensors(directory / name / WEIGHTS) for name in ("one", "other", "mean"))
        if any(not np.allclose(mean[name], (one[name] + other[name]) / 2, atol=1e-7) for name in one):
            raise Fault("that is not their mean")
    except Fault as fault:
        raise Fault(f"average of {family}s, {field} {value!r} in one: {fault}") from fault
    return "their mean"


def ensemble_case(directory: Path, draw: random.Random) -> str:
    """Translates with two models that differ in one field, and with the mean of what each says of the next token."""
    family, field, value = _pair(directory, draw, ["encoder-decoder", "recurrent"])
    lines = draw.sample(["abc", "abd xyz", "x", "abc abc abd"], 2)
    search = ["--num-beams", "1", "--max-length-beyond-source", "3", "--precision", "float32"]
    words = ["translate", "one", "other", *search]
    outcome = run(Command(words, stdin="".join(f"{line}\n" for line in lines).encode()), directory)
    try:
        check_manners(outcome, names=[field, "entries", "missing", "split"])
        if outcome.code:
            if field not in _TOGETHER:
                raise Fault(f"refused, though they can decode together: {outcome.refusal}")
            return "refused"
        if field in _TOGETHER:
            raise Fault("they decoded together")
        wanted = _greedy([directory / "one", directory / "other"], lines, beyond=3)
        if outcome.out.split("\n")[:-1] != wanted:
            raise Fault(f"{outcome.out!r}, and the mean says {wanted}")
    except Fault as fault:
        raise Fault(f"ensemble of {family}s, {field} {value!r} in one, {lines}: {fault}") from fault
    return "the likeliest by their mean"


def _greedy(places: Sequence[Path], lines: Sequence[str], beyond: int) -> list[str]:
    """Returns the likeliest tokens by the mean probability, from whole forward passes without a cache."""
    from vanilla_transformer.translation import load_model

    models, tokenizers = zip(*(load_model(place, device="cpu") for place in places), strict=True)
    config, tokenizer = models[0].config, tokenizers[0]
    found = []
    for line in lines:
        source = tokenizer(line, return_tensors="pt")["input_ids"]
        target = [config.decoder_start_token_id]
        for _ in range(source.shape[1] + beyond):
            with torch.no_grad():
                given = {"input_ids": source, "decoder_input_ids": torch.tensor([target])}
                shares = [model(**given).logits[0, -1].double().softmax(-1) for model in models]
            target.append(int(torch.stack(shares).mean(0).argmax()))
            if target[-1] == config.eos_token_id:
                break
        found.append(" ".join(tokenizer.decode(target, skip_special_tokens=True).splitlines()))
    return found


# --- calls from Python -----------------------------------------------------------------------------------------------


def _translate(model: str, settings: dict[str, Any], lines: list[str]) -> Any:
    from vanilla_transformer import translate_lines
    from vanilla_transformer.translation import load_model

    return [line.text for line in translate_lines(*load_model(model, device="cpu"), lines, **settings)]


def _evaluate(model: str, settings: dict[str, Any], lines: list[str]) -> Any:
    from vanilla_transformer import evaluate

    return list(evaluate(model, ("test.en", "test.de"), **settings).predictions)


def _recipe(model: str, settings: dict[str, Any], lines: list[str]) -> Any:
    from vanilla_transformer import Recipe

    Recipe.of(**settings)
    return []


def _config(model: str, settings: dict[str, Any], lines: list[str]) -> Any:
    from vanilla_transformer import VanillaTransformerConfig

    VanillaTransformerConfig(**{"d_model": 64, "num_heads": 1, **settings})
    return []


def _tokenizer(model: str, settings: dict[str, Any], lines: list[str]) -> Any:
    from vanilla_transformer import VanillaTransformerTokenizer

    given = {name.removeprefix("tokenizer_"): value for name, value in settings.items()}
    VanillaTransformerTokenizer.train(["one two three four five"] * 9, **{"vocab_size": 270, **given})
    return []


_NUMBERS = [option for option in TRAIN if option.parse in (int, float) or "sinusoidal" in option.values]
_SIZES_OF_STACKS = ("d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers")
# As in the library's own configurations, these may be 1.
_SHARES = [_float(name, high=1, sure=0.9) for name in ("dropout", "label_smoothing")]
_SEARCH = ("num_beams", "length_penalty", "max_length_beyond_source", "batch_tokens")
# Functions, and the options of the command beside each.
CALLS: dict[str, tuple[Callable[[str, dict[str, Any], list[str]], Any], list[Option]]] = {
    "translate_lines": (_translate, [option for option in TRANSLATE if option.name in _SEARCH]),
    "evaluate": (_evaluate, [option for option in EVALUATE if option.name in _SEARCH]),
    "Recipe.of": (_recipe, _NUMBERS),
    "VanillaTransformerConfig": (
        _config,
        [*_SHARES, *(option for option in TRAIN if option.name in _SIZES_OF_STACKS)],
    ),
    "VanillaTransformerTokenizer.train": (
        _tokenizer,
        [option for option in TRAIN if option.name in ("vocab_size", "tokenizer_algorithm")],
    ),
}


def _call(function: str, model: str, settings: dict[str, Any], lines: list[str]) -> None:
    """Has the process call a function where it would run a command: what it raises becomes the command's sentence."""
    from vanilla_transformer import cli
    from vanilla_transformer.recipe.blocks import RecipeError

    def instead(words: list[str]) -> int:
        try:
            print(json.dumps(CALLS[function][0](model, settings, lines)))
        except (ValueError, RecipeError) as error:
            print(f"vanilla-transformer: error: {str(error).rstrip('.')}.", file=sys.stderr)
            return 1
        return 0

    cli.main = instead  # type: ignore[assignment]


def _in_python(option: Option, value: str) -> Any:
    """Returns the value as Python has it: a number, None, or text where it is no number."""
    if value == "None":
        return None
    try:
        number = option.parse(value)
    except (ValueError, OverflowError):
        try:
            number = float(value)
        except ValueError:
            return value
    return number


def call_case(directory: Path, draw: random.Random) -> str:
    """Calls a function with a value of an option of the command beside it."""
    function = draw.choice(sorted(CALLS))
    option = draw.choice(CALLS[function][1])
    value = _in_python(option, draw.choice(option.values))
    verdict = None if value is None else option.verdict(str(value))
    lines = draw.sample(LINES, 2)
    with copied(model_ground(), directory, "test.en", "test.de"):
        pass
    model = model_ground() / "model"
    patch = partial(_call, function, str(model), {option.name: value}, lines)
    outcome = run(Command([], patch=patch), directory)
    try:
        check_manners(outcome, names=[option.name, option.name.removeprefix("tokenizer_"), "vocabulary", "heads"])
        if outcome.code:
            if verdict is True:
                raise Fault(f"refused, though it makes sense: {outcome.refusal}")
            return "refused"
        if verdict is False:
            raise Fault("taken without a word")
        if function in ("translate_lines", "evaluate"):
            sources = lines if function == "translate_lines" else (directory / "test.en").read_text().splitlines()
            settings = {option.name: value} if option.name != "batch_tokens" and value is not None else {}
            output = "".join(f"{line}\n" for line in json.loads(outcome.out))
            check_translations(Reference.load(model), sources, output, **settings)
    except Fault as fault:
        raise Fault(f"{function}({option.name}={value!r}): {fault}") from fault
    return "done as said"


GROUPS = {
    "average": Group(1, average_case),
    "ensemble": Group(1, ensemble_case),
    "call": Group(3, call_case),
}

if __name__ == "__main__":
    main("scripts.stress.misuse", __doc__, GROUPS, 500, "cases")
