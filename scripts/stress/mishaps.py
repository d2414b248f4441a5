"""Makes mistakes that people make with models and data: refused by name, or nothing lost and nothing silently wrong.

    python -m scripts.stress.mishaps --mishaps 200

Averages models that differ in one field, and lets them translate together; lets each command meet a full disk; flips a
bit of a prepared corpus; gives functions values that commands refuse.
"""

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.stress.cases import (
    SIZES,
    STEPS,
    Command,
    Fault,
    Group,
    check_manners,
    check_untouched,
    copied,
    corpora,
    ground,
    main,
    model_ground,
    run,
    snapshot,
    succeed,
    write_corpora,
)
from scripts.stress.models import CONFIG, TOKENIZER, _change

# Fields that change what the same weights compute, with values that differ from the ground's models.
FIELDS: dict[str, Any] = {
    "num_heads": 1,
    "activation_function": "gelu",
    "layer_norm_eps": 0.1,
}
# Fields of training alone, in which models may differ.
HARMLESS: dict[str, Any] = {"dropout": 0.4, "attention_dropout": 0.2, "label_smoothing": 0.3}


def one_field_case(directory: Path, draw: random.Random) -> str:
    """Runs `average` or `translate` with two models that differ in one field or in the order of their vocabulary."""
    for name in ("one", "other"):
        shutil.copytree(model_ground() / "model", directory / name)
    field = draw.choice([*FIELDS, *HARMLESS, "vocabulary"])
    if field == "vocabulary":
        _exchange_two_pieces(directory / "other" / TOKENIZER)
    else:
        _change(directory / "other", CONFIG, field, (FIELDS | HARMLESS)[field])
    before = snapshot(directory)
    together = draw.choice(["average", "translate"])
    words = {
        "average": ["average", "one", "other", "--output", "mean"],
        "translate": ["translate", "one", "--models", "other"],
    }[together]
    outcome = run(Command(words, stdin=b"one two three\n"), directory)
    check_manners(outcome, names=[field, "other"])
    # An ensemble combines distributions over one vocabulary, whatever each model computes them by.
    may = field in HARMLESS or (together == "translate" and field != "vocabulary")
    if outcome.code != 0:
        if may:
            raise Fault(f"{together} refuses models that differ in {field} alone: {outcome.refusal}")
        check_untouched(before, directory)
        return "refused"
    if not may:
        raise Fault(f"{together} takes models that differ in {field}")
    return "taken"


def _exchange_two_pieces(file: Path) -> None:
    parts = json.loads(file.read_text())
    vocabulary = parts["model"]["vocab"]
    one, other = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    file.write_text(json.dumps(parts))


def _commands() -> dict[str, list[str]]:
    text, output = ["train.en"], ["--output", "out"]
    train = corpora("train")
    return {
        "train": [
            "train",
            *corpora("train", "dev"),
            *f"{SIZES} {STEPS} --max-steps 4 --save-steps 2".split(),
            *output,
        ],
        "tokenizer": ["tokenizer", "train", *text, "--vocab-size", "270", *output],
        "prepare": ["prepare", *train, "--tokenizer", "model", "--tasks", "2", *output],
        "translate": ["translate", "model", *text, *output],
        "tasks": ["translate", "model", *text, "--tasks", "2", *output],
        "evaluate": ["evaluate", "model", "--data", "dev.en", "dev.de", "--metrics", "chrf", *output],
        "average": ["average", "model", "model", *output],
        "attend": ["attend", "model", "one", "--target", "two", "--output", "out.html"],
        "align": ["align", "model", "dev.en", "dev.de", "--alignment-heads", "0", *output],
        "convert": ["convert", "model", "out"],
        **{f"export {to}": ["export", "model", "out", "--to", to] for to in ("marian", "onnx", "ctranslate2")},
    }


RESUMED = ("train", "prepare", "translate", "tasks")


def full_disk_case(directory: Path, draw: random.Random) -> str:
    """Runs a command that may write only files up to some size, and then again without the limit."""
    write_corpora(directory)
    shutil.copytree(model_ground() / "model", directory / "model")
    before = snapshot(directory)
    name, words = draw.choice(list(_commands().items()))
    limit = int(2 ** draw.uniform(0, 18))
    outcome = run(Command(words, file_size=limit), directory)
    try:
        check_manners(outcome, names=["out", "tmp"])
        if "a bug" in outcome.err:
            raise Fault(outcome.refusal)
        if outcome.code != 0:
            check_untouched(before, directory, may_be_new=["out", "out.resume"] if name in RESUMED else [])
            succeed(Command(words), directory)
    except (Fault, RuntimeError) as fault:
        raise Fault(f"{name} with no file above {limit} bytes: {fault}") from fault
    return "room enough" if outcome.code == 0 else "refused, and works later"


def _make_prepared(place: Path) -> None:
    write_corpora(place)
    size = ["--vocab-size", "280"]
    succeed(Command(["prepare", *corpora("train"), *size, "--tasks", "2", "--output", "shards"]), place)


def flipped_bit_case(directory: Path, draw: random.Random) -> str:
    """Runs `train` on a prepared corpus with one flipped bit."""
    with copied(ground("prepared", _make_prepared), directory, "shards"):
        pass
    victim = draw.choice(
        sorted(path for path in (directory / "shards").iterdir() if path.suffix in (".arrow", ".npy"))
    )
    data = bytearray(victim.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    victim.write_bytes(bytes(data))
    words = ["train", "--train", "prepared:shards", *f"{SIZES} {STEPS} --max-steps 4".split(), "--output", "out"]
    outcome = run(Command(words), directory)
    check_manners(outcome, names=[victim.name, "shards"])
    if outcome.code == 0:
        raise Fault(f"a bit of {victim.name} was flipped, and it was learned from")
    return "refused"


WRONG: dict[str, list[Any]] = {
    "num_beams": [0, -1, 1.5, True, "4"],
    "length_penalty": [float("nan"), float("inf"), "0.6"],
    "max_length_beyond_source": [-1, 1.5, "3"],
    "max_new_tokens": [0, -3, "9"],
    "num_return_sequences": [0, 9],
    "lines": ["A dog.", ["A dog.", None], [b"A dog."], [3]],
}


def python_case(directory: Path, draw: random.Random) -> str:
    """Calls `translate_lines` with values that the command refuses."""
    from vanilla_transformer import translate_lines
    from vanilla_transformer.translation import load_model

    name = draw.choice(list(WRONG))
    value = draw.choice(WRONG[name])
    model, tokenizer = load_model(model_ground() / "model", device="cpu")
    lines = value if name == "lines" else ["one two", "three"]
    call: Callable[[], Any] = partial(translate_lines, model, tokenizer, lines)
    try:
        found = list(call() if name == "lines" else call(**{name: value}))
    except (ValueError, TypeError) as error:
        if name != "lines" and name not in str(error):
            raise Fault(f"{name}={value!r} is refused without its name: {error}") from error
        return "refused"
    except Exception as error:
        raise Fault(f"{name}={value!r}: {error!r}") from error
    raise Fault(f"{name}={value!r} gives {found!r:.100}")


GROUPS = {
    "models that differ in one field": Group(2, one_field_case),
    "full disk": Group(3, full_disk_case),
    "flipped bit": Group(1, flipped_bit_case),
    "Python calls": Group(2, python_case),
}

if __name__ == "__main__":
    main("scripts.stress.mishaps", __doc__, GROUPS, 200, "mishaps")
