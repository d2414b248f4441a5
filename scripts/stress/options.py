"""Gives random values to the options of every command: refused by name, or visible in the result."""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import yaml

from scripts.stress.cases import (
    LONGEST_WAIT,
    MOST_MEMORY,
    SIZES,
    STEPS,
    Command,
    Fault,
    Group,
    Outcome,
    case,
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
    strict_json,
    succeed,
    write_corpora,
)
from scripts.stress.reference import Reference, Unusable, read_safetensors

INTEGERS = ["1", "2", "3", "4", "5", "7", "8", "12", "16", "30", "64", "100", "257"]
ODD_INTEGERS = [
    *("0", "-1", "-7", "1000", "9999", "65536", "2147483647", "2147483648", "9223372036854775808", "1" + "0" * 30),
    *("1.5", "1e3", "nan", "inf", "", " ", "abc", "None", "true", "0x10", "1_000", "+3", " 5 ", "\uff15", "--", "[1]"),
]
NUMBERS = ["0", "0.1", "0.3", "0.5", "0.6", "0.9", "1", "1.5", "2", "1e-3", "1e-9"]
ODD_NUMBERS = [
    *("-0.0", "-0.1", "-1", "-1e300", "0.999999999", "1.0000001", "1e9", "1e38", "1e39", "1e308", "1e400", "1e-320"),
    *("nan", "NaN", "-nan", "inf", "-inf", "Infinity", "", "abc", "0,5", "1/2", "None", "true", "5%", "1e", "[0.1]"),
]
TEXTS = [
    "",
    " ",
    "none",
    "None",
    "no-such",
    "../x",
    "a b",
    "\u00fc\U0001f642",
    "-",
    "null",
    "0",
    "x" * 300,
    "a/b",
    "\t",
]
# Tolerance of scores beside the reference's.
CLOSE = 1e-4


@dataclass(frozen=True)
class Option:
    """An option, and which of its values make sense.

    Attributes:
        values: Values to try.
        parse: Returns the meaning of a value; raises ValueError if it has none.
        low, high: Values outside must be refused.
        sure: Values up to this must be accepted.
        effect: Looks for the value in the command's output files; raises a Fault if it is missing.
    """

    name: str
    values: Sequence[str]
    parse: Callable[[str], Any]
    low: float = -math.inf
    high: float = math.inf
    sure: float = math.inf
    open: bool = False

    def verdict(self, value: str) -> bool | None:
        """Returns True if the value must be accepted, False if refused, None if either is right."""
        if value == "None":  # Chosen by the command, as without the option.
            return None
        try:
            parsed = self.parse(value)
        except (ValueError, OverflowError):
            return False
        if not isinstance(parsed, int | float):
            return None
        if not self.low <= parsed <= self.high or (self.open and parsed == self.high) or not math.isfinite(parsed):
            return False
        plain = re.fullmatch(r"[0-9]+|[0-9]+\.[0-9]+|1e-[0-9]", value) is not None
        return True if plain and parsed <= self.sure else None


def _int(name: str, low: int = 1, high: float = math.inf, sure: float = 64, values: Sequence[str] = ()) -> Option:
    return Option(name, [*(values or INTEGERS), *ODD_INTEGERS], int, low, high, sure)


def _float(name: str, low: float = 0, high: float = math.inf, sure: float = 2, *, open: bool = False) -> Option:
    return Option(name, [*NUMBERS, *ODD_NUMBERS], float, low, high, sure, open)


def _choice(name: str, *choices: str, others: Sequence[str] = ()) -> Option:
    odd = [choices[0].upper(), choices[-1][:-1], f" {choices[0]}", *TEXTS[:5], "1"]

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(value)
        return value

    return Option(name, [*choices, *choices, *others, *odd], parse)


# --- train ---------------------------------------------------------------------------------------------------------

TRAIN = [
    _int("max_length", sure=0),
    _choice("tokenizer_algorithm", "bpe", "wordpiece", "unigram", "character", "presplit"),
    _choice("tokenizer_sides", "both", "source", "target"),
    _int("vocab_size", sure=0, values=["270", "280", "290", "300", "400", "4000", "262"]),
    Option("preset", ["tiny", "small", "base", "big", "table3-E", "table3-A-h1", *TEXTS], str),
    _int("d_model", sure=0),
    _int("d_ff", sure=64),
    _int("num_heads", sure=2),
    _int("d_k", sure=64),
    _int("d_v", sure=64),
    _int("encoder_layers", sure=4),
    _int("decoder_layers", sure=4),
    _float("dropout", high=1, sure=0.9, open=True),
    _float("label_smoothing", high=1, sure=0.9, open=True),
    _choice("positional_encoding", "sinusoidal", "learned"),
    _int("batch_tokens", sure=0, values=["50", "100", "300", "1000", "5000"]),
    _int("batches_per_step", sure=8),
    _int("max_steps", sure=8, values=["1", "2", "3", "5", "8"]),
    _int("warmup_steps", sure=100),
    _float("learning_rate_scale", sure=1),
    _float("adam_beta1", high=1, sure=0.9, open=True),
    _float("adam_beta2", high=1, sure=0.9, open=True),
    _float("adam_epsilon", sure=1),
    _float("max_grad_norm", sure=2),
    _choice("precision", "float32", "bfloat16", "auto"),
    _int("seed", low=0, high=2**31 - 1, sure=1000),
    _int("eval_steps", sure=100),
    _int("patience", sure=100),
    Option("metrics", ["sacrebleu", "chrf", "ter", "wer", "per", "tokenized_bleu", "paper_bleu", *TEXTS], str),
    Option("examples", ["one two", *TEXTS], str),
    _int("save_steps", sure=100),
    _int("average_checkpoints", sure=100),
    _choice("keep_checkpoints", "averaged", "doubling"),
    _int("log_steps", sure=100),
    _int("num_beams", sure=8),
    _float("length_penalty", sure=2),
    _choice("length_penalty_type", "google", "huggingface"),
    Option("source_column", TEXTS, str),
    Option("target_column", TEXTS, str),
    Option("trackers", TEXTS, str),
]
TRAIN_BY_NAME = {option.name: option for option in TRAIN}
BASE = {
    **{name.replace("-", "_"): value for name, value in re.findall(r"--(\S+) (\S+)", f"{SIZES} {STEPS}")},
    "max_steps": "4",
    "save_steps": "2",
    "eval_steps": "2",
    "log_steps": "1",
    "warmup_steps": "4",
    "seed": "1",
    "dropout": "0.1",
    "label_smoothing": "0.1",
    "num_beams": "2",
    "average_checkpoints": "2",
    "metrics": "chrf",
}
SIZES_OF_PRESETS = {"num_heads", "d_ff", "d_model"}
# Options that must leave the last checkpoint unchanged, and below those that must change it.
NO_EFFECT_ON_WEIGHTS = {
    *("metrics", "examples", "log_steps", "num_beams", "length_penalty", "length_penalty_type", "average_checkpoints"),
    *("save_steps", "eval_steps", "trackers", "keep_checkpoints"),
}
EFFECT_ON_WEIGHTS = {
    *("dropout", "label_smoothing", "learning_rate_scale", "adam_beta1", "adam_beta2", "seed", "warmup_steps"),
    *("positional_encoding", "d_ff", "encoder_layers", "decoder_layers", "d_k", "d_v", "batch_tokens"),
}


def train_case(directory: Path, draw: random.Random) -> str:
    """Runs `train` with one to three options, as words or in a recipe, on corpora of a few pairs."""
    write_corpora(directory)
    chosen = draw.sample(TRAIN, draw.choice((1, 1, 1, 2, 3)))
    given = {option.name: draw.choice(option.values) for option in chosen}
    values = {**BASE, **given}
    if "preset" in given:  # Takes the preset's sizes instead of small ones.
        values = {name: value for name, value in values.items() if name in given or name not in SIZES_OF_PRESETS}
    as_recipe = draw.random() < 0.4
    if as_recipe:
        fields = {name: _as_yaml(value) if name in given else yaml.safe_load(value) for name, value in values.items()}
        files = {name: [f"{name}.en", f"{name}.de"] for name in ("train", "dev")}
        (directory / "r.yaml").write_text(yaml.safe_dump(files | fields, allow_unicode=True), encoding="utf-8")
        words = ["train", "r.yaml", "--output", "model"]
    else:
        options = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]
        words = ["train", *corpora(), *options, "--output", "model"]
    before = snapshot(directory)
    outcome = run(Command(words), directory)
    try:
        meant = {name: str(_as_yaml(value)) for name, value in given.items()} if as_recipe else given
        return judge_train(directory, outcome, meant, {**values, **meant}, before, as_recipe=as_recipe)
    except Fault as fault:
        raise Fault(f"train {given}{' in a recipe' if as_recipe else ''}: {fault}") from fault


def _as_yaml(value: str) -> Any:
    """Reads a value as YAML for a recipe, or as text if it is no YAML."""
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):
        return value


def judge_train(
    directory: Path,
    outcome: Outcome,
    given: dict[str, str],
    values: dict[str, str],
    before: dict[str, str],
    *,
    as_recipe: bool = False,
) -> str:
    """Judges a run: refused as it may be, or finished as its options say.

    Raises:
        Fault: The run did neither.
    """
    verdicts = {name: TRAIN_BY_NAME[name].verdict(value) for name, value in given.items()}
    if _is_too_much(outcome, given):
        return TOO_MUCH
    names = [*given, "preset", "vocabulary", "d_model", "loss", "d_k and d_v", "recipe", "columns"]
    check_manners(outcome, names=names)
    if outcome.code != 0:
        if all(verdict is True for verdict in verdicts.values()) and len(given) == 1:
            raise Fault(f"refused, though it makes sense: {outcome.refusal}")
        if "Loss" not in outcome.refusal and "loss" not in outcome.refusal:
            check_untouched(before, directory, may_be_new=["model"])
            left = {path.name for path in (directory / "model").glob("*")} if (directory / "model").exists() else set()
            if (
                left
                - {"recipe.yaml", "train.log", "prepared", "tokenizer.json", "tokenizer_config.json"}
                - {"trackers", "checkpoints", "metrics.jsonl"}
            ):
                raise Fault(f"refused, and yet left {', '.join(sorted(left))}")
        return "refused"
    bad = [name for name, verdict in verdicts.items() if verdict is False and given[name] != "None"]
    if bad:
        raise Fault(f"taken without a word: {', '.join(bad)}")
    check_run(directory / "model", values)
    if len(given) == 1:
        check_weights(directory / "model", given)
    return "done as said"


def check_run(model: Path, given: dict[str, str]) -> None:
    """Checks a finished run against its options, by its files alone; open choices are not checked.

    Raises:
        Fault: The run contradicts an option; the message names it.
    """
    values = {name: TRAIN_BY_NAME[name].parse(value) for name, value in given.items() if value != "None"}
    summary = strict_json((model / "summary.json").read_text(), "summary.json")
    check_finite(summary, "summary.json")
    records = [strict_json(line, "metrics.jsonl") for line in (model / "metrics.jsonl").read_text().splitlines()]
    check_finite(records, "metrics.jsonl")
    config = strict_json((model / "config.json").read_text(), "config.json")
    settings = strict_json((model / "generation_config.json").read_text(), "generation_config.json")
    kept = yaml.safe_load((model / "recipe.yaml").read_text(encoding="utf-8"))
    for name, value in values.items():
        for file, there in (("config.json", config), ("recipe.yaml", kept)):
            if isinstance(value, int | float) and there.get(name, value) != value and name != "vocab_size":
                raise Fault(f"{name} is {there[name]} in {file}")
    for name in ("num_beams", "length_penalty") if values["num_beams"] > 1 else ("num_beams",):
        if name in values and settings[name] != values[name]:
            raise Fault(f"the model's search is {settings}")
    weights = read_safetensors(model / "model.safetensors")
    for name, weight in weights.items():
        if not np.isfinite(weight).all():
            raise Fault(f"{name} of the model is not finite, and the run ended well")
    if summary["parameters"] != sum(weight.size for weight in weights.values()):
        raise Fault(f"{summary['parameters']} parameters in summary.json")
    _check_steps(model, summary, records, config, values)
    _check_mean(model, weights, summary, values)
    scores = [score["name"] for score in summary["scores"].get("dev", [])]
    if not any(values["metrics"].partition(":")[0] in name for name in scores):
        raise Fault(f"--metrics {values['metrics']} gave {scores}")


def _check_steps(
    model: Path, summary: dict[str, Any], records: list[dict[str, Any]], config: dict[str, Any], values: dict[str, Any]
) -> None:
    """Checks that the run has the right steps, log lines and checkpoints, at Eq. 3's rate."""
    steps = summary["steps"]
    if steps != values.get("max_steps", steps) and "patience" not in values:
        raise Fault(f"{steps} steps of {values['max_steps']}")
    for name, field in (("log_steps", "loss"), ("eval_steps", "dev_loss")):
        found = [record["step"] for record in records if field in record]
        wanted = sorted({*range(values.get(name, 1), steps + 1, values.get(name, 1)), steps})
        if found != wanted and name in values:
            raise Fault(f"{field} was written at the steps {found}, not {wanted}")
    for record in records:
        if "loss" in record and "warmup_steps" in values:
            step, scale = record["step"], values["learning_rate_scale"] * config["d_model"] ** -0.5
            rate = scale * min(step**-0.5, step * float(values["warmup_steps"]) ** -1.5)
            if not math.isclose(record["learning_rate"], rate, rel_tol=1e-4, abs_tol=1e-12):
                raise Fault(f"the learning rate of step {step} is {record['learning_rate']}, not {rate}")
    for path in (model / "checkpoints").glob("step-*"):
        step = int(path.name.removeprefix("step-"))
        if step % values.get("save_steps", 1) and step != steps:
            raise Fault(f"there is a checkpoint of step {step}")


def _check_mean(model: Path, weights: dict[str, Any], summary: dict[str, Any], values: dict[str, Any]) -> None:
    """Section 6.1: checks that the model is the mean of the right number of last checkpoints."""
    paths = sorted((model / "checkpoints").glob("step-*"))[-values["average_checkpoints"] :]
    if summary["averaged_steps"] != [int(path.name.removeprefix("step-")) for path in paths]:
        raise Fault(f"the mean is of {summary['averaged_steps']}, and kept are {[path.name for path in paths]}")
    checkpoints = [read_safetensors(path / "model.safetensors") for path in paths]
    for name, weight in weights.items():
        mean = sum(checkpoint[name] for checkpoint in checkpoints) / len(checkpoints)
        if not np.allclose(weight, mean, rtol=1e-6, atol=1e-7):
            raise Fault(f"{name} is not the mean of the last {len(paths)} checkpoints")


def _make_base_run(place: Path) -> None:
    write_corpora(place)
    options = [word for name, value in BASE.items() for word in (f"--{name.replace('_', '-')}", value)]
    succeed(Command(["train", *corpora(), *options, "--output", "model"]), place)


def check_weights(model: Path, given: dict[str, str]) -> None:
    """Checks that one option changed the weights of the last step, or left them, as it must.

    Raises:
        Fault: The opposite happened.
    """
    [(name, value)] = given.items()
    if TRAIN_BY_NAME[name].verdict(value) is not True or name not in NO_EFFECT_ON_WEIGHTS | EFFECT_ON_WEIGHTS:
        return
    base = ground("base run", _make_base_run) / "model"
    here, there = (
        (sorted((run / "checkpoints").glob("step-*"))[-1] / "model.safetensors").read_bytes() for run in (model, base)
    )
    if name in NO_EFFECT_ON_WEIGHTS and here != there:
        raise Fault("the weights of the last step are others than without the option")
    changed = value.lstrip("0") != BASE.get(name, "").lstrip("0") and value not in _DEFAULTS.get(name, ())
    if name in EFFECT_ON_WEIGHTS and changed and here == there:
        raise Fault("the weights of the last step are the same as without the option")


_DEFAULTS = {
    "adam_beta1": ("0.9",),
    "adam_beta2": ("0.98",),
    "positional_encoding": ("sinusoidal",),
    "d_k": ("8",),
    "d_v": ("8",),
    "batch_tokens": ("300", "1000", "5000"),
    "learning_rate_scale": ("1", "1.0"),
}


# --- translate -----------------------------------------------------------------------------------------------------

TRANSLATE = [
    _int("num_beams", sure=16),
    _float("length_penalty", low=-math.inf, sure=2),
    _int("max_length_beyond_source", low=0, sure=100),
    _int("batch_tokens", sure=1000),
    _choice("precision", "auto", "float32", "bfloat16", "int8"),
    Option("device", ["cpu", "cpu", "cuda", "cuda:99", "mps", "meta", "cpu:0", "cpu:1", "xpu", *TEXTS], str),
    _int("threads", sure=1),
    _int("nbest", sure=2, values=["1", "2", "2", "3", "4"]),
]
TRANSLATE_BY_NAME = {option.name: option for option in TRANSLATE}
LINES = ["one two three", "", "ten", "four four five one nine", "  ", "six seven"]


@cache
def _reference(path: Path) -> Reference:
    return Reference.load(path)


def translate_case(directory: Path, draw: random.Random) -> str:
    """Runs `translate` with one to three options, from a file or from standard input."""
    model = model_ground() / "model"
    chosen = draw.sample(TRANSLATE, draw.choice((1, 1, 2, 3)))
    given = {option.name: draw.choice(option.values) for option in chosen}
    lines = draw.sample(LINES, draw.randint(1, 4))
    text = "".join(f"{line}\n" for line in lines)
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    way = draw.choice(("pipe", "files", "resume"))
    words = ["translate", str(model), *options]
    if way != "pipe":
        (directory / "in").write_text(text)
        words[2:2] = ["in", "--output", "out", *(["--resume"] if way == "resume" else [])]
    before = snapshot(directory)
    outcome = run(Command(words, stdin=text.encode()), directory)
    try:
        return judge_translation(directory, outcome, given, lines, before, model, written=way != "pipe")
    except Fault as fault:
        raise Fault(f"translate {given} {lines} {way}: {fault}") from fault


TOO_MUCH = "more than a case has time or memory for, as it was asked to"


def _is_too_much(outcome: Outcome, given: dict[str, str]) -> bool:
    """Returns True if thousands of hypotheses, tokens, layers or dimensions explain the time or memory used."""
    sizes = {
        "max_steps",
        "d_model",
        "d_ff",
        "d_k",
        "d_v",
        "num_heads",
        "encoder_layers",
        "decoder_layers",
        "num_beams",
    }
    numbers = [given[name] for name in sizes | {"max_length_beyond_source"} if name in given]
    asked = max((int(number) for number in numbers if re.fullmatch(r"[0-9][0-9_]*", number)), default=0)
    return asked >= 250 and (outcome.memory > MOST_MEMORY or outcome.seconds > LONGEST_WAIT)


def _search(given: dict[str, str]) -> dict[str, Any]:
    """Returns the search settings in the options; None leaves a setting to the model."""
    names = ("num_beams", "length_penalty", "max_length_beyond_source")
    known = {
        name: given[name] for name in names if name in given and TRANSLATE_BY_NAME[name].verdict(given[name]) != 0
    }
    return {name: TRANSLATE_BY_NAME[name].parse(value) for name, value in known.items() if value != "None"}


def judge_translation(
    directory: Path,
    outcome: Outcome,
    given: dict[str, str],
    lines: list[str],
    before: dict[str, str],
    model: Path,
    *,
    written: bool,
) -> str:
    """Judges a translation: refused, or equal to the reference's.

    Raises:
        Fault: The translation was neither.
    """
    verdicts = {name: TRANSLATE_BY_NAME[name].verdict(value) for name, value in given.items()}
    if _is_too_much(outcome, given):
        return TOO_MUCH
    check_manners(outcome, names=list(given))
    if outcome.code != 0:
        if all(verdict is True for verdict in verdicts.values()) and "nbest" not in given:
            raise Fault(f"refused, though it makes sense: {outcome.refusal}")
        if outcome.out:
            raise Fault(f"refused after {outcome.out!r}")
        check_untouched(before, directory)
        return "refused"
    if False in verdicts.values():
        bad = [name for name, verdict in verdicts.items() if verdict is False]
        raise Fault(f"taken without a word: {', '.join(bad)} ({outcome.out!r})")
    output = (directory / "out").read_text(encoding="utf-8") if written else outcome.out
    numbers = _search(given)
    nbest = int(given["nbest"]) if given.get("nbest", "None") != "None" else None
    tolerance = {"bfloat16": 0.3, "int8": 0.3}.get(given.get("precision", "float32"), CLOSE)
    check_translations(_reference(model), lines, output, nbest=nbest, tolerance=tolerance, **numbers)
    return "as the reference translates"


def check_translations(
    reference: Reference,
    lines: Sequence[str],
    output: str,
    *,
    nbest: int | None = None,
    tolerance: float = CLOSE,
    **settings: Any,
) -> None:
    """Checks that lines were translated as by the reference, up to hypotheses of equal score.

    Raises:
        Fault: A line is missing, or another translation is better.
        Unusable: The reference finds no translation.
    """
    written = output.split("\n")
    if written.pop() != "":
        raise Fault("the last line has no end")
    each = nbest or 1
    if len(written) != each * len(lines):
        raise Fault(f"{len(written)} lines for {len(lines)}: {output!r}")
    for number, line in enumerate(lines):
        found = written[number * each : (number + 1) * each]
        texts, scores = found, [None] * each
        if nbest is not None:
            parts = [text.split(" ||| ") for text in found]
            if any(len(part) != 3 or part[0] != str(number) for part in parts):
                raise Fault(f"no n-best lines of line {number}: {found}")
            texts, scores = [part[1] for part in parts], [float(part[2]) for part in parts]  # type: ignore[misc]
        if not line.strip():
            if any(text != "" for text in texts):
                raise Fault(f"an empty line became {texts}")
            continue
        wanted = reference.translations(line, returned=each, **settings)
        good = [text for text, score in wanted if score >= wanted[each - 1][1] - tolerance]
        if tolerance == CLOSE and any(text not in good for text in texts):
            raise Fault(f"{line!r} became {texts}, and the reference has {wanted[: each + 1]}")
        if texts[0] not in good and reference.score(line, texts[0], **settings) < wanted[0][1] - tolerance:
            raise Fault(f"{line!r} became {texts[0]!r}, which is far worse than {wanted[0]}")
        if tolerance == CLOSE and nbest is not None:
            for score, (_, exact) in zip(scores, wanted, strict=False):
                if score is None or not math.isclose(score, exact, rel_tol=1e-3, abs_tol=1e-3):
                    raise Fault(f"{line!r} has the scores {scores}, and the reference {wanted[:each]}")


# --- the others ----------------------------------------------------------------------------------------------------

EVALUATE = [
    *TRANSLATE[:6],
    Option(
        "metrics",
        ["sacrebleu", "chrf", "ter", "wer", "per", "tokenized_bleu", "paper_bleu", "paper_bleu:fr", *TEXTS],
        str,
    ),
    Option("source_column", TEXTS, str),
    Option("target_column", TEXTS, str),
]


def evaluate_case(directory: Path, draw: random.Random) -> str:
    """Runs `evaluate` with one or two options; the scores must be those of the translations that it writes."""
    place = model_ground()
    with copied(place, directory, "test.en", "test.de"):
        pass
    chosen = draw.sample(EVALUATE, draw.choice((1, 1, 2)))
    given = {option.name: draw.choice(option.values) for option in chosen}
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    data = ["--data", "test.en", "test.de", "--json", "--output", "out"]
    before = snapshot(directory)
    outcome = run(Command(["evaluate", str(place / "model"), *data, *options]), directory)
    try:
        if _is_too_much(outcome, given):
            return TOO_MUCH
        check_manners(outcome, names=[*given, "column"])
        verdicts = [option.verdict(given[option.name]) for option in chosen]
        if outcome.code != 0:
            if all(verdict is True for verdict in verdicts):
                raise Fault(f"refused, though it makes sense: {outcome.refusal}")
            check_untouched(before, directory)
            return "refused"
        if False in verdicts:
            raise Fault(f"taken without a word ({outcome.out!r})")
        _check_evaluation(directory, outcome, place / "model", given)
    except Fault as fault:
        raise Fault(f"evaluate {given}: {fault}") from fault
    return "as the reference translates and scores"


def _check_evaluation(directory: Path, outcome: Outcome, model: Path, given: dict[str, str]) -> None:
    report = strict_json(outcome.out, "what evaluate prints")
    check_finite(report, "what evaluate prints")
    sources, targets = ((directory / f"test.{side}").read_text().splitlines() for side in ("en", "de"))
    output = (directory / "out").read_text(encoding="utf-8")
    numbers = _search(given)
    tolerance = {"bfloat16": 0.3, "int8": 0.3}.get(given.get("precision", "float32"), CLOSE)
    check_translations(_reference(model), sources, output, tolerance=tolerance, **numbers)
    translations = output.split("\n")[:-1]
    for score in report["scores"]:
        exact = {
            "sacrebleu": lambda: sacrebleu.corpus_bleu(translations, [targets]).score,
            "chrf": lambda: sacrebleu.corpus_chrf(translations, [targets]).score,
            "ter": lambda: sacrebleu.corpus_ter(translations, [targets]).score,
        }.get(score["name"])
        if exact is not None and not math.isclose(score["value"], exact(), abs_tol=1e-6):
            raise Fault(f"{score['name']} is {score['value']}, and {exact()} of what was written")


INFO = [
    _int("vocab_size", sure=257, values=["270", "37000"]),
    _int("sentence_length", sure=257),
]


def info_case(directory: Path, draw: random.Random) -> str:
    """Runs `info` on a preset with one or two options."""
    preset = draw.choice(("tiny", "small", "base", "big", "table3-E"))
    chosen = draw.sample(INFO, draw.choice((1, 2)))
    given = {option.name: draw.choice(option.values) for option in chosen}
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    outcome = run(Command(["info", preset, "--json", *options]), directory)
    try:
        check_manners(outcome, names=list(given))
        verdicts = [option.verdict(given[option.name]) for option in chosen]
        if outcome.code != 0:
            if all(verdict is True for verdict in verdicts):
                raise Fault(f"refused, though it makes sense: {outcome.refusal}")
            return "refused"
        if False in verdicts:
            raise Fault("taken without a word")
        report = strict_json(outcome.out, "what info prints")
        check_finite(report, "what info prints")
        sizes = report["sizes"]
        if given.get("vocab_size", "None") != "None" and sizes["vocab_size"] != int(given["vocab_size"]):
            raise Fault(f"vocab_size is {sizes['vocab_size']}")
        if report["parameters"]["total"] != _parameters(sizes):
            raise Fault(f"{report['parameters']} parameters, not {_parameters(sizes):,}")
    except Fault as fault:
        raise Fault(f"info {preset} {given}: {fault}") from fault
    return "done as said"


def _parameters(sizes: dict[str, Any]) -> int:
    """Returns the number of parameters of the paper's model of these sizes."""
    d, ff, keys, values = sizes["d_model"], sizes["d_ff"], sizes["d_k"], sizes["d_v"]
    attention = 2 * d * sizes["num_heads"] * (keys + values) + 2 * d
    feed_forward = 2 * d * ff + d + ff + 2 * d
    positions = 2 * 1024 * d if sizes["positional_encoding"] == "learned" else 0
    layers = sizes["encoder_layers"] * (attention + feed_forward)
    layers += sizes["decoder_layers"] * (2 * attention + feed_forward)
    return int(sizes["vocab_size"] * d + layers + positions)


TOKENIZER = [
    _int("vocab_size", sure=0, values=5 * ["262", "270", "275", "280", "285", "300"]),
    _choice("algorithm", "bpe", "wordpiece", "unigram", "character", "presplit"),
]


def tokenizer_case(directory: Path, draw: random.Random) -> str:
    """Trains a vocabulary of any size by any algorithm: it must have that size, and text must survive it."""
    write_corpora(directory)
    given = {"vocab_size": "280"} | {option.name: draw.choice(option.values) for option in draw.sample(TOKENIZER, 1)}
    if draw.random() < 0.4:
        given |= {option.name: draw.choice(option.values) for option in TOKENIZER}
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    before = snapshot(directory)
    outcome = run(Command(["tokenizer", "train", "train.en", "train.de", *options, "--output", "t"]), directory)
    try:
        check_manners(outcome, names=[*given, "vocabulary", "types"])
        if outcome.code != 0:
            check_untouched(before, directory)
            return "refused"
        if False in [option.verdict(given[option.name]) for option in TOKENIZER if option.name in given]:
            raise Fault("taken without a word")
        strict_json((directory / "t" / "tokenizer.json").read_text(), "tokenizer.json")
        text = (directory / "train.en").read_bytes()
        encoded = run(Command(["tokenizer", "encode", "t", "--ids"], stdin=text), directory)
        decoded = run(Command(["tokenizer", "decode", "t", "--ids"], stdin=encoded.out.encode()), directory)
        if decoded.out.encode() != text:
            raise Fault(f"the text does not come back: {decoded.out[:100]!r} {decoded.err!r}")
        if given["vocab_size"] == "None":
            return "text comes back"
        highest = max(int(token) for token in encoded.out.split())
        if given.get("algorithm") != "presplit" and highest >= int(given["vocab_size"]):
            raise Fault(f"there is a type {highest}")
    except Fault as fault:
        raise Fault(f"tokenizer train {given}: {fault}") from fault
    return "text comes back"


def average_case(directory: Path, draw: random.Random) -> str:
    """Averages a number of last checkpoints."""
    place = model_ground()
    option = _int("last", sure=3, values=["1", "2", "3", "4"])
    value = draw.choice(option.values)
    outcome = run(Command(["average", str(place / "model"), "--output", "mean", "--last", value]), directory)
    try:
        check_manners(outcome, names=["last", "checkpoint"])
        if outcome.code != 0:
            if option.verdict(value):
                raise Fault(f"refused, though it makes sense: {outcome.refusal}")
            check_untouched({}, directory)
            return "refused"
        if option.verdict(value) is False:
            raise Fault("taken without a word")
        paths = sorted((place / "model" / "checkpoints").glob("step-*"))
        if value == "None":
            return "done as said"
        if int(value) > len(paths) and "warning" not in outcome.err and str(len(paths)) not in outcome.err:
            told = outcome.err.count("step-")
            if told != len(paths):
                raise Fault(f"there are {len(paths)} checkpoints, and nothing is said of that: {outcome.err!r}")
        checkpoints = [read_safetensors(path / "model.safetensors") for path in paths[-int(value) :]]
        weights = read_safetensors(directory / "mean" / "model.safetensors")
        for name, weight in weights.items():
            mean = sum(checkpoint[name] for checkpoint in checkpoints) / len(checkpoints)
            if not np.allclose(weight, mean, rtol=1e-6, atol=1e-7):
                raise Fault(f"{name} is not the mean of the last {len(checkpoints)}")
        Reference.load(directory / "mean")
    except Fault as fault:
        raise Fault(f"average --last {value}: {fault}") from fault
    except Unusable as error:
        raise Fault(f"average --last {value} made a model that is none: {error}") from error
    return "done as said"


GROUPS = {
    "train": Group(6, train_case),
    "translate": Group(7, translate_case),
    "evaluate": Group(3, evaluate_case),
    "info": Group(1, info_case),
    "tokenizer": Group(2, tokenizer_case),
    "average": Group(1, average_case),
}
__all__ = ["GROUPS", "case"]

if __name__ == "__main__":
    main("scripts.stress.options", __doc__, GROUPS, 2000, "values")
