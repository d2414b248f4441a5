"""Damages models and checkpoints: refused by name, or the result must follow from the files, to the last token."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.stress.cases import (
    SIZES,
    STEPS,
    Command,
    Fault,
    Group,
    Outcome,
    check_finite,
    check_manners,
    check_untouched,
    copied,
    corpora,
    ground,
    main,
    model_ground,
    run,
    snapshot,
    start,
    strict_json,
    succeed,
    write_corpora,
)
from scripts.stress.options import check_translations
from scripts.stress.reference import Reference, Unusable, read_safetensors

WEIGHTS, CONFIG, SETTINGS = "model.safetensors", "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEXT = "one two three\nten\n\nfour four five one nine\n"
# Damages a model, and says what was done.
Damage = Callable[[Path, random.Random], str]
VALUES: list[Any] = [None, True, -1, 0, 1, 3, 9, 1.5, 10**12, "2", "", [], [2, 3], {}, "no-such", 1e-3]


def _read(file: Path) -> tuple[dict[str, Any], bytes]:
    """Returns header and body of a file of tensors."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _write(file: Path, header: dict[str, Any], body: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + body)


def flip_a_bit(model: Path, draw: random.Random) -> str:
    """Flips a random bit of the weights."""
    header, body = _read(model / WEIGHTS)
    changed = bytearray(body)
    place = draw.randrange(len(changed))
    changed[place] ^= 1 << draw.randrange(8)
    _write(model / WEIGHTS, header, bytes(changed))
    return "a bit flipped"


def change_the_header(model: Path, draw: random.Random) -> str:
    """Changes some bytes of the header."""
    data = bytearray((model / WEIGHTS).read_bytes())
    size = int.from_bytes(data[:8], "little")
    for _ in range(draw.choice((1, 3))):
        data[draw.randrange(8 + size)] = draw.randrange(256)
    (model / WEIGHTS).write_bytes(bytes(data))
    return "bytes of the header of weights changed"


def cut(name: str) -> Damage:
    """Returns damage that cuts a file short."""

    def damage(model: Path, draw: random.Random) -> str:
        size = (model / name).stat().st_size
        os.truncate(model / name, draw.choice((0, size - 1, size // 2, draw.randrange(size))))
        return f"{name} cut short"

    return damage


def lengthen(name: str) -> Damage:
    """Returns damage that appends to a file."""

    def damage(model: Path, draw: random.Random) -> str:
        with (model / name).open("ab") as file:
            file.write(draw.choice((b"\n", b"\0" * 8, b"{}", b"x")))
        return f"{name} lengthened"

    return damage


def remove(name: str) -> Damage:
    """Returns damage that removes a file."""

    def damage(model: Path, draw: random.Random) -> str:
        (model / name).unlink()
        return f"no {name}"

    return damage


def other_keys(model: Path, draw: random.Random) -> str:
    """Renames, removes or adds a tensor."""
    header, body = _read(model / WEIGHTS)
    names = [name for name in header if name != "__metadata__"]
    name, way = draw.choice(names), draw.choice(("renamed", "missing", "extra", "a layer more"))
    if way == "renamed":
        header[draw.choice((name + "_", name.replace("model.", "", 1), name.upper()))] = header.pop(name)
    elif way == "missing":
        start, end = header.pop(name)["data_offsets"]
        body = body[:start] + body[end:]
        for entry in header.values():
            if "data_offsets" in entry and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [place - (end - start) for place in entry["data_offsets"]]
    else:
        extra = name.replace("layers.0", "layers.7").replace("layers.1", "layers.7") if way != "extra" else "extra"
        extra = extra if extra not in header else f"{extra}.more"
        start, end = header[name]["data_offsets"]
        header[extra] = {**header[name], "data_offsets": [len(body), len(body) + end - start]}
        body += body[start:end]
    _write(model / WEIGHTS, header, body)
    return f"a tensor {way}"


def not_finite(model: Path, draw: random.Random) -> str:
    """Replaces one number of a tensor, or all, by NaN or infinity."""
    header, body = _read(model / WEIGHTS)
    name = draw.choice([name for name in header if name != "__metadata__"])
    start, end = header[name]["data_offsets"]
    number = np.array(draw.choice((np.nan, np.inf, -np.inf)), np.float32).tobytes()
    count = draw.choice((1, (end - start) // 4))
    place = start + 4 * draw.randrange((end - start) // 4 - count + 1)
    _write(model / WEIGHTS, header, body[:place] + number * count + body[place + 4 * count :])
    return "weights not finite"


def other_shape(model: Path, draw: random.Random) -> str:
    """Gives a tensor another shape with the same numbers."""
    header, body = _read(model / WEIGHTS)
    name = draw.choice([name for name, entry in header.items() if len(entry.get("shape", ())) == 2])
    rows, columns = header[name]["shape"]
    header[name]["shape"] = draw.choice(([rows * columns], [rows * 2, columns // 2], [1, rows, columns], [rows]))
    _write(model / WEIGHTS, header, body)
    return "a tensor of another shape"


def other_type(model: Path, draw: random.Random) -> str:
    """Stores all weights as another type, correctly: this is no damage."""
    header, body = _read(model / WEIGHTS)
    type_, name = draw.choice(((np.float16, "F16"), (np.float64, "F64")))
    parts: list[bytes] = []
    for key, entry in header.items():
        if key != "__metadata__":
            start, end = entry["data_offsets"]
            parts.append(np.frombuffer(body[start:end], np.float32).astype(type_).tobytes())
            begin = sum(map(len, parts[:-1]))
            entry.update(dtype=name, data_offsets=[begin, begin + len(parts[-1])])
    _write(model / WEIGHTS, header, b"".join(parts))
    return f"weights as {name}"


def other_weights(model: Path, draw: random.Random) -> str:
    """Takes the weights of another model of the same shape: this is a valid model too."""
    shutil.copy(model_ground() / "other" / WEIGHTS, model / WEIGHTS)
    return "weights of another model"


def no_tensors(model: Path, draw: random.Random) -> str:
    """Writes something else instead of weights."""
    (model / WEIGHTS).write_bytes(draw.choice((b"", b"PK\x03\x04", draw.randbytes(100), b"version https://git-lfs\n")))
    return "something else as weights"


SIZE_FIELDS = ["vocab_size", "d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers"]
OTHER_FIELDS = [
    *("model_type", "dtype", "layer_norm_eps", "positional_encoding", "activation_function", "tie_word_embeddings"),
    *("attention_bias", "output_bias", "eos_token_id", "pad_token_id", "decoder_start_token_id", "architectures"),
    *("is_encoder_decoder", "use_cache", "dropout", "label_smoothing", "transformers_version", "auto_map"),
]


def _change(model: Path, name: str, field: str, value: Any) -> None:
    document = json.loads((model / name).read_text())
    if value is Ellipsis:
        document.pop(field, None)
    else:
        document[field] = value
    (model / name).write_text(json.dumps(document))


def other_size(model: Path, draw: random.Random) -> str:
    """Changes a size in the configuration so that it contradicts the weights."""
    field = draw.choice(SIZE_FIELDS)
    size = json.loads((model / CONFIG).read_text())[field]
    value = draw.choice([size + 1, max(1, size - 1), size * 2, size // 2, 9, *VALUES])
    _change(model, CONFIG, field, value)
    return f"{field} {value!r}"


def other_field(model: Path, draw: random.Random) -> str:
    """Changes or removes another field of the configuration."""
    field = draw.choice(OTHER_FIELDS)
    likely = {"dtype": ["float16", "bfloat16", "float8"], "activation_function": ["gelu", "tanh"]}
    value = draw.choice([*likely.get(field, ["learned", False, 7]), *VALUES, ...])
    _change(model, CONFIG, field, value)
    return f"{field} {'taken away' if value is ... else repr(value)}"


def other_setting(model: Path, draw: random.Random) -> str:
    """Changes or removes a setting of the search."""
    fields = ["num_beams", "length_penalty", "max_length_beyond_source", "early_stopping", "length_penalty_type"]
    field = draw.choice([*fields, "eos_token_id", "decoder_start_token_id", "pad_token_id", "quantization"])
    value = draw.choice([1, 2, 5, 0.0, 1.0, "never", *VALUES, ...])
    _change(model, SETTINGS, field, value)
    return f"{field} {'taken away' if value is ... else repr(value)} in the settings of the search"


def garbled(name: str) -> Damage:
    """Returns damage that changes some bytes of a text file."""

    def damage(model: Path, draw: random.Random) -> str:
        data = (model / name).read_bytes()
        for _ in range(draw.choice((1, 1, 4))):
            place = draw.randrange(len(data))
            piece = draw.choice((b"", b"{", b'"', b"}", b"\xff", b"\0", b"0", b",", draw.randbytes(3)))
            data = data[:place] + piece + data[place + draw.randrange(3) :]
        (model / name).write_bytes(data)
        return f"{name} garbled"

    return damage


def _make_tokenizers(place: Path) -> None:
    """Makes vocabularies of other sizes, and one of the same size of other text."""
    write_corpora(place)
    (place / "letters.txt").write_text("abc xyz uvw rst\nqrs jkl mno\n" * 30)
    for size in (262, 290):
        options = ["--vocab-size", str(size), "--output", f"size-{size}"]
        succeed(Command(["tokenizer", "train", "train.en", "train.de", *options]), place)
    same = ["--vocab-size", "280", "--output", "same-size"]
    succeed(Command(["tokenizer", "train", "letters.txt", *same]), place)


def other_tokenizer(model: Path, draw: random.Random) -> str:
    """Takes the files of another tokenizer."""
    kind = draw.choice(("size-262", "size-290", "same-size"))
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        shutil.copy(ground("tokenizers", _make_tokenizers) / kind / name, model / name)
    return f"a tokenizer: {kind}"


DAMAGES: dict[Damage, str] = {
    flip_a_bit: WEIGHTS,
    change_the_header: WEIGHTS,
    cut(WEIGHTS): WEIGHTS,
    lengthen(WEIGHTS): WEIGHTS,
    remove(WEIGHTS): WEIGHTS,
    other_keys: WEIGHTS,
    not_finite: WEIGHTS,
    other_shape: WEIGHTS,
    other_type: WEIGHTS,
    other_weights: WEIGHTS,
    no_tensors: WEIGHTS,
    other_size: CONFIG,
    other_field: CONFIG,
    cut(CONFIG): CONFIG,
    garbled(CONFIG): CONFIG,
    remove(CONFIG): CONFIG,
    other_setting: SETTINGS,
    cut(SETTINGS): SETTINGS,
    garbled(SETTINGS): SETTINGS,
    remove(SETTINGS): SETTINGS,
    other_tokenizer: TOKENIZER,
    cut(TOKENIZER): TOKENIZER,
    garbled(TOKENIZER): TOKENIZER,
    remove(TOKENIZER): TOKENIZER,
    garbled(TOKENIZER_CONFIG): TOKENIZER_CONFIG,
    remove(TOKENIZER_CONFIG): TOKENIZER_CONFIG,
}
# Names of the damaged files in refusals, besides their file names.
ALSO_CALLED = {
    WEIGHTS: ["weights"],
    CONFIG: ["configuration", "weights", *SIZE_FIELDS, *OTHER_FIELDS],
    SETTINGS: ["generation", "num_beams", "length_penalty", "max_length_beyond_source", "early_stopping"],
    TOKENIZER: ["tokenizer", "vocabulary"],
    TOKENIZER_CONFIG: ["tokenizer"],
}
# A line that the tokenizers library prints in any case.
LIBRARYS_REMARK = "Ignored unknown kwarg option"
PAPERS_SEARCH = {"length_penalty_type": "google", "early_stopping": "never"}
_PARTS = (WEIGHTS, CONFIG, SETTINGS, TOKENIZER, TOKENIZER_CONFIG)


def _damaged(directory: Path, draw: random.Random, allowed: tuple[str, ...] = _PARTS) -> tuple[str, str]:
    """Puts a damaged model into the directory; returns the damage and the file."""
    model = directory / "model"
    model.mkdir()
    with copied(model_ground() / "model", model, *_PARTS):
        pass
    file = draw.choice(allowed)
    damage = draw.choice([damage for damage, name in DAMAGES.items() if name == file])
    return damage(model, draw), file


def _expected(directory: Path) -> Reference | None:
    """Returns the model that the files define, or None if they define none."""
    try:
        return Reference.load(directory / "model")
    except Unusable:
        return None


def translate_case(directory: Path, draw: random.Random) -> str:
    """Runs `translate` with a damaged model."""
    done, file = _damaged(directory, draw)
    outcome = run(Command(["translate", "model"], stdin=TEXT.encode()), directory)
    try:
        return judge(directory, outcome, outcome.out, TEXT.splitlines(), file)
    except Fault as fault:
        raise Fault(f"translate, {done}: {fault}") from fault


def evaluate_case(directory: Path, draw: random.Random) -> str:
    """Runs `evaluate` on a damaged model."""
    done, file = _damaged(directory, draw)
    with copied(model_ground(), directory, "test.en", "test.de"):
        pass
    words = ["evaluate", "model", "--data", "test.en", "test.de", "--json", "--output", "out"]
    outcome = run(Command(words), directory)
    try:
        if outcome.code == 0:
            check_finite(strict_json(outcome.out, "what evaluate prints"), "what evaluate prints")
        output = (directory / "out").read_text() if (directory / "out").exists() else ""
        return judge(directory, outcome, output, (directory / "test.en").read_text().splitlines(), file)
    except Fault as fault:
        raise Fault(f"evaluate, {done}: {fault}") from fault


def judge(directory: Path, outcome: Outcome, output: str, lines: list[str], file: str) -> str:
    """Judges the use of a damaged model: refused, or used as the reference uses the same files.

    Raises:
        Fault: The use was neither.
    """
    check_manners(outcome, names=[file, *ALSO_CALLED[file]])
    if outcome.code != 0:
        if "model" not in outcome.refusal and file != SETTINGS:  # Fields of SETTINGS are options as well.
            raise Fault(f"refused without the directory: {outcome.refusal}")
        if [line for line in output.splitlines() if not line.startswith(LIBRARYS_REMARK)]:
            raise Fault(f"refused after {output!r}")
        return "refused"
    expected, same = _expected(directory), Reference.load(model_ground() / "model")
    if expected is None:
        # Superfluous weights change nothing but reveal a mistake; an unused field does not.
        if file in (CONFIG, TOKENIZER_CONFIG) and _is_translated(same, lines, output):
            return "as without damage"
        raise Fault(f"used in silence: {output!r}")
    settings = {name: expected.settings[name] for name in ("num_beams", "length_penalty", "max_length_beyond_source")}
    if settings["max_length_beyond_source"] is None or (
        settings["num_beams"] != 1 and not PAPERS_SEARCH.items() <= expected.settings.items()
    ):
        return "by another search, not looked at"
    if any(not isinstance(value, int | float) or isinstance(value, bool) for value in settings.values()):
        raise Fault(f"settings taken that are none: {settings}")
    with np.errstate(all="ignore"):
        try:
            check_translations(expected, lines, output, **settings)
        except (Unusable, ArithmeticError, ValueError, TypeError, LookupError) as error:
            raise Fault(f"used in silence, and {error}: {output!r}") from error
    return "as without damage" if _is_translated(same, lines, output) else "as the files say"


def _is_translated(reference: Reference, lines: list[str], output: str) -> bool:
    try:
        check_translations(reference, lines, output)
    except Fault:
        return False
    return True


def info_case(directory: Path, draw: random.Random) -> str:
    """Runs `info` on a model with a damaged configuration."""
    done, file = _damaged(directory, draw, (CONFIG,))
    outcome = run(Command(["info", "model", "--json"]), directory)
    try:
        check_manners(outcome, names=[file, *ALSO_CALLED[file]])
        if outcome.code != 0:
            return "refused"
        check_finite(strict_json(outcome.out, "what info prints"), "what info prints")
    except Fault as fault:
        raise Fault(f"info, {done}: {fault}") from fault
    return "as the files say"


def average_case(directory: Path, draw: random.Random) -> str:
    """Runs `average` on a run with one damaged checkpoint."""
    place = model_ground()
    with copied(place, directory, "model"):
        pass
    checkpoints = sorted((directory / "model" / "checkpoints").glob("step-*"))
    victim = draw.choice(checkpoints[-3:])
    done = damage_checkpoint(victim, draw)
    named = draw.random() < 0.3
    what = [f"model/checkpoints/{path.name}" for path in checkpoints[-3:]] if named else ["model"]
    options = [] if named else ["--last", "3"]
    before = snapshot(directory)
    outcome = run(Command(["average", *what, *options, "--output", "mean"]), directory)
    try:
        check_manners(outcome, names=[victim.name])
        if outcome.code != 0:
            check_untouched(before, directory)
            return "refused"
        found = read_safetensors(directory / "mean" / WEIGHTS)
        whole = sorted((place / "model" / "checkpoints").glob("step-*"))[-3:]
        left = [path for path in whole if path.name != victim.name]
        if _is_mean(found, whole) and (read_or_none(victim / WEIGHTS) is not None):
            return "as without damage"
        if victim.name not in outcome.err.replace(", ".join(what), ""):
            raise Fault(f"another mean, and nothing was said of {victim.name}: {outcome.err!r}")
        if not (_is_mean(found, left) or _is_mean(found, sorted((place / "model/checkpoints").glob("step-*"))[:1])):
            earlier = [path for path in sorted((place / "model" / "checkpoints").glob("step-*")) if path not in whole]
            if not _is_mean(found, [*earlier[-1:], *left]):
                raise Fault("the mean is not that of the whole checkpoints")
    except Fault as fault:
        raise Fault(f"average of {'checkpoints' if named else 'a run'}, {done} of {victim.name}: {fault}") from fault
    return "left out, and said so"


def read_or_none(file: Path) -> dict[str, Any] | None:
    """Reads the tensors of a file, or returns None if it holds none."""
    try:
        return read_safetensors(file)
    except Unusable:
        return None


def _is_mean(found: dict[str, Any], paths: list[Path]) -> bool:
    """Returns True if weights are the mean of those of checkpoints."""
    if not paths:
        return False
    parts = [read_safetensors(path / WEIGHTS) for path in paths]
    return all(
        np.allclose(weight, sum(part[name] for part in parts) / len(parts), rtol=1e-6, atol=1e-7)
        for name, weight in found.items()
    )


def damage_checkpoint(checkpoint: Path, draw: random.Random) -> str:
    """Damages a checkpoint in a way that its manifest reveals."""
    files = sorted(path for path in checkpoint.iterdir() if path.name != "manifest.json")
    file = draw.choice(files)
    way = draw.choice(("bit", "cut", "lengthened", "removed", "exchanged", "manifest", "hash", "no manifest"))
    if way == "bit":
        data = bytearray(file.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(bytes(data))
    elif way == "cut":
        os.truncate(file, draw.randrange(file.stat().st_size))
    elif way == "lengthened":
        file.write_bytes(file.read_bytes() + b"\0")
    elif way == "removed":
        file.unlink()
    elif way == "exchanged":
        file = checkpoint / WEIGHTS
        shutil.copy(model_ground() / "other" / WEIGHTS, file)
    elif way == "manifest":
        garbled("manifest.json")(checkpoint, draw)
    elif way == "no manifest":
        (checkpoint / "manifest.json").unlink()
    else:
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        name = draw.choice(sorted(manifest["files"]))
        field = draw.choice(("sha256", "bytes"))
        manifest["files"][name][field] = "0" * 64 if field == "sha256" else 1
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return f"{file.name if way in ('bit', 'cut', 'lengthened', 'removed', 'exchanged') else 'its files'}: {way}"


RUN = f"{SIZES} {STEPS} --max-steps 60 --save-steps 10 --eval-steps 30 --seed 1 --average-checkpoints 3".split()


def train_words(output: str = "model") -> list[str]:
    """Returns the command of the run that is stopped and resumed."""
    return ["train", *corpora("train", "dev"), *RUN, "--output", output]


def _make_stopped(place: Path) -> None:
    """Makes a run killed after its third checkpoint, and the same one undisturbed."""
    write_corpora(place)
    succeed(Command(train_words("whole")), place)
    process, files = start(Command(train_words()), place)
    while not (place / "model" / "checkpoints" / "step-00000030").exists() and process.is_alive():
        time.sleep(0.001)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    shutil.rmtree(files)
    if (place / "model" / "summary.json").exists():
        raise RuntimeError("the run was over before it was killed")


def stopped_ground() -> Path:
    """Returns a directory with corpora, `model`, a run that was killed, and `whole`, the same run undisturbed."""
    return ground("stopped", _make_stopped)


def figures(model: Path) -> list[dict[str, Any]]:
    """Reads metrics.jsonl without its times and speeds."""
    records = [strict_json(line, "metrics.jsonl") for line in (model / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: record[name] for name in record if name not in ("seconds", "tokens_per_second")} for record in records
    ]


def check_same_run(model: Path, whole: Path) -> None:
    """Checks that a run ended like another: weights bit for bit, and all figures.

    Raises:
        Fault: The runs differ.
    """
    for name in (WEIGHTS, CONFIG, SETTINGS, TOKENIZER):
        if (model / name).read_bytes() != (whole / name).read_bytes():
            raise Fault(f"{name} is another than that of the run from the start")
    if figures(model) != figures(whole):
        raise Fault("metrics.jsonl is another than that of the run from the start")


def resume_case(directory: Path, draw: random.Random) -> str:
    """Runs `train` to resume a run with one damaged checkpoint."""
    place = stopped_ground()
    with copied(place, directory, "train.en", "train.de", "dev.en", "dev.de", "model"):
        pass
    checkpoints = sorted((directory / "model" / "checkpoints").glob("step-*"))
    victim = draw.choice(checkpoints[-2:])
    done = damage_checkpoint(victim, draw)
    before = snapshot(directory / "model" / "checkpoints")
    outcome = run(Command(train_words()), directory)
    try:
        check_manners(outcome, names=[victim.name, "checkpoint"])
        if outcome.code != 0:
            check_untouched(before, directory / "model" / "checkpoints")
            return "refused"
        strict_json((directory / "model" / "summary.json").read_text(), "summary.json")
        if (directory / "model" / WEIGHTS).read_bytes() != (place / "whole" / WEIGHTS).read_bytes():
            averaged = strict_json((directory / "model/summary.json").read_text(), "summary.json")["averaged_steps"]
            if f"step-{averaged[0]:08}" == victim.name or victim.name not in outcome.err:
                raise Fault("the model is another than without damage")
    except Fault as fault:
        raise Fault(f"train goes on, {done} of {victim.name}: {fault}") from fault
    return "as without damage"


GROUPS = {
    "translate": Group(6, translate_case),
    "evaluate": Group(1, evaluate_case),
    "info": Group(1, info_case),
    "average": Group(2, average_case),
    "go on training": Group(2, resume_case),
}

if __name__ == "__main__":
    main("scripts.stress.models", __doc__, GROUPS, 500, "models")
