"""Times `generate` on single short sentences, on one thread, against CTranslate2, Marian and older code.

    python -m scripts.benchmarks.one_sentence MODEL SOURCE --other before=../checkout-of-an-older-commit

MODEL is a directory that `vanilla-transformer train` made, SOURCE a file of short lines. Each contestant is a process
of its own that stays loaded, and they take turns. A turn decodes each line twice and measures the processor time of
the second call. The minimum over all turns is taken for each line, so that other load on the machine counts little,
and the table gives the mean of these minima.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from scripts.benchmarks.decode import Case, Contestant, export, read_lines

CASES = (Case("greedy", 1, 1), Case("greedy, with keys and values", 1, 1), Case("beam 4, with scores", 1, 4))
THEIRS = ("ctranslate2", "marian")
# Contexts that last until the process ends.
_HELD = ExitStack()


def main() -> None:
    """Writes the exports, starts the contestants, lets them take turns and prints the table."""
    arguments = _arguments()
    if arguments.worker is not None:
        serve(arguments)
        return
    here = Path(__file__).resolve().parents[2]
    checkouts = {"here": here, **{name: Path(path).resolve() for name, path in arguments.other}}
    checkouts |= dict.fromkeys(arguments.beside, here)
    read_lines(arguments.source, arguments.lines)
    with tempfile.TemporaryDirectory() as work:
        export(arguments.model, Path(work))
        command = [sys.executable, __file__, arguments.model, arguments.source, "--lines", str(arguments.lines)]
        command += ["--frozen"] * arguments.frozen
        contestants = {
            name: Contestant(
                name,
                [*command, "--work", work, "--worker", name if name in arguments.beside else "ours"],
                {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
            )
            for name, checkout in checkouts.items()
        }
        times = take_turns(contestants, arguments.turns)
        versions = {name: contestant.leave()["versions"] for name, contestant in contestants.items()}
    print(table(times))
    print("\n" + "; ".join(sorted(set(versions.values()))) + f"; load {os.getloadavg()[0]:.1f}")


def take_turns(contestants: dict[str, Contestant], turns: int) -> dict[str, dict[str, float]]:
    """Returns milliseconds per call for each case and contestant: the mean over lines of the minimum over turns."""
    least: dict[tuple[str, str], list[float]] = {}
    for _ in range(turns):
        for case in CASES:
            for name, contestant in contestants.items():
                found = contestant.decode(case)["milliseconds"]
                before = least.get((case.name, name), found)
                least[case.name, name] = list(map(min, before, found))
    return {
        case.name: {name: sum(least[case.name, name]) / len(least[case.name, name]) for name in contestants}
        for case in CASES
    }


def table(times: dict[str, dict[str, float]]) -> str:
    """Formats milliseconds of each contestant, and the time of the code here as a multiple of the others'."""
    names = list(next(iter(times.values())))
    others = names[1:]
    lines = ["| ms a call, CPU | " + " | ".join([*names, *(f"here over {name}" for name in others)]) + " |"]
    lines.append("|---" * (1 + len(names) + len(others)) + "|")
    for case, by_name in times.items():
        cells = [f"{by_name[name]:.2f}" for name in names]
        cells += [f"{by_name['here'] / by_name[name]:.2f}" for name in others]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def serve(arguments: argparse.Namespace) -> None:
    """Answers each line on standard input with one on standard output."""
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(Path(arguments.work) / "marian")
    rows = tokenizer(read_lines(arguments.source, arguments.lines))["input_ids"]
    makers = {"ours": our_calls, "marian": marian_calls, "ctranslate2": ctranslate2_calls}
    calls, versions = makers[arguments.worker](arguments, rows, tokenizer)
    for of_case in calls.values():
        for call in of_case * 3:
            call()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if not question:
            print(json.dumps({"versions": versions}), flush=True)
            return
        print(json.dumps({"milliseconds": list(map(second_call, calls[question["name"]]))}), flush=True)


def second_call(call: Callable[[], Any]) -> float:
    """Returns the milliseconds of processor time of a call that follows an identical one."""
    call()
    start = time.process_time_ns()
    call()
    return (time.process_time_ns() - start) / 1e6


Calls = dict[str, list[Any]]


def our_calls(arguments: argparse.Namespace, rows: list[list[int]], tokenizer: Any) -> tuple[Calls, str]:
    """Returns the measured calls of this package, as it stands in the contestant's checkout."""
    import torch

    from vanilla_transformer.translation import load_model

    model: Any
    model, _ = load_model(arguments.model, device="cpu", dtype=torch.float32)
    if arguments.frozen:
        _HELD.enter_context(model.frozen())
    calls = _calls_of_generate(model, rows)
    for case in CASES[1:]:
        calls[case.name] = [partial(call, return_dict_in_generate=True) for call in calls[case.name]]
    return calls, _versions()


def marian_calls(arguments: argparse.Namespace, rows: list[list[int]], tokenizer: Any) -> tuple[Calls, str]:
    """Returns calls of Hugging Face's own `MarianMTModel`, with its own search."""
    import torch
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(Path(arguments.work) / "marian", dtype=torch.float32).eval()
    settings = {"max_new_tokens": max(map(len, rows)) + 50, "early_stopping": False}
    return _calls_of_generate(model, rows, **settings), _versions()


def ctranslate2_calls(arguments: argparse.Namespace, rows: list[list[int]], tokenizer: Any) -> tuple[Calls, str]:
    """Returns calls of CTranslate2 in float32, with its own search."""
    import ctranslate2

    directory = str(Path(arguments.work) / "ctranslate2")
    translator = ctranslate2.Translator(
        directory, device="cpu", compute_type="float32", inter_threads=1, intra_threads=1
    )
    texts = [[tokenizer.convert_ids_to_tokens(row)] for row in rows]
    settings = {"max_decoding_length": max(map(len, rows)) + 50}
    calls = {
        case.name: [partial(translator.translate_batch, text, beam_size=case.beam, **settings) for text in texts]
        for case in CASES
    }
    return calls, f"ctranslate2 {ctranslate2.__version__}"


def _calls_of_generate(model: Any, rows: list[list[int]], **settings: Any) -> Calls:
    import torch

    inputs = [{"input_ids": torch.tensor([row]), "attention_mask": torch.ones(1, len(row)).long()} for row in rows]
    return {
        case.name: [partial(model.generate, **one, num_beams=case.beam, **settings) for one in inputs]
        for case in CASES
    }


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("torch", "transformers", "onnxruntime"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def _checkout(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not (Path(path) / "vanilla_transformer").is_dir() or name in ("", "here", *THEIRS):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=DIRECTORY with a name of its own and a checkout of this package: give for example "
            "before=../older."
        )
    return name, path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory that `vanilla-transformer train` made")
    parser.add_argument("source", help="file of short lines, plain or .gz")
    parser.add_argument("--beside", nargs="*", choices=THEIRS, default=["ctranslate2"], metavar="NAME")
    parser.add_argument("--other", nargs="*", type=_checkout, default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--lines", type=int, default=20, help="of the file")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--frozen", action="store_true", help="call within `model.frozen()`")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
