"""Decodes the same sentences with the same weights through this package, Hugging Face's Marian and CTranslate2.

    python -m scripts.benchmarks.decode MODEL SOURCE

MODEL is a directory that `vanilla-transformer train` made, or a Marian model; SOURCE is a file of sentences. Each
contestant is a process of its own that stays loaded; they take turns, so that other load on the machine affects all of
them, and ratios are taken within a turn. Prints a table.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from scripts.turns import Contest, cells, report, spread
from vanilla_transformer.data.text_lines import read_lines

# The command line's default on a CPU, used for all.
FILE_BATCH_TOKENS = 2048
# The graph that `Translator` runs, and `generate` on live weights.
OURS = ("ours-float32", "ours-int8", "live-bfloat16")
CONTESTANTS = (*OURS, "marian-float32", "marian-bfloat16", "ctranslate2-float32", "ctranslate2-int8")
# If asked for: accelerators have half precision and no graph.
OTHERS = ("live-float32", "live-float16", "marian-float16", "ctranslate2-float16")
Turn = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Sentences to decode at a time, the beam, and a fixed length or None to stop at `</s>`."""

    name: str
    sentences: int
    beam: int
    forced: int | None = None
    calls: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        """The search's settings, as arguments of `generate`."""
        forced = {} if self.forced is None else {"min_new_tokens": self.forced, "max_new_tokens": self.forced}
        return {"num_beams": self.beam, **forced}


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Returns the cases of the table; decoding of a single sentence is measured on several."""
    found = []
    for forced, how in ((arguments.forced, f"{arguments.forced} tokens each"), (None, "real stopping")):
        found += [
            *(Case(f"{many} sentences, beam 4, {how}", many, 4, forced) for many in arguments.sentences),
            *(Case(f"{many} sentences, greedy, {how}", many, 1, forced) for many in arguments.sentences),
            Case(f"1 sentence, beam 4, {how}", 1, 4, forced, arguments.singles),
            Case(f"1 sentence, greedy, {how}", 1, 1, forced, arguments.singles),
        ]
    return [*found, Case(f"file of {arguments.lines:,} lines, beam 4, from text to text", 0, 4)]


def main() -> None:
    """Writes the exports, starts the contestants, lets them take turns and prints the table."""
    arguments = _arguments()
    # The contestants inherit them, and their libraries read them when they are loaded.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(arguments.threads))
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        work = Path(directory)
        export(arguments.model, work, any(name.startswith("ctranslate2") for name in arguments.contestants))
        chosen = [case for case in cases(arguments) if all(part in case.name for part in arguments.case)]
        contests = [Contest(name, take_part, arguments, work) for name in arguments.contestants]
        for contest in contests:
            stack.callback(contest.end)
        for contest in contests:
            succeeded(contest, contest.answer())  # Several load their models side by side.
        measured = take_turns(contests, chosen, arguments.repeats)
        memory = {contest.name: succeeded(contest, contest.ask(None)) for contest in contests}
    print(table(measured, memory))


def export(model_directory: str, work: Path, with_ctranslate2: bool = True) -> None:
    """Exports the same weights for the other two; settings that Marian cannot express are not measured.

    The others read a Marian model as it is, CTranslate2 by its own converter.
    """
    from vanilla_transformer.export.conversion import as_marian
    from vanilla_transformer.export.to_ctranslate2 import export_ctranslate2
    from vanilla_transformer.loading.models import load_model

    if json.loads(Path(model_directory, "config.json").read_text(encoding="utf-8"))["model_type"] == "marian":
        (work / "marian").symlink_to(Path(model_directory).resolve())
        if with_ctranslate2:
            from ctranslate2.converters import TransformersConverter

            TransformersConverter(model_directory).convert(str(work / "ctranslate2"))
        return

    model, tokenizer = load_model(model_directory, device="cpu")
    for part in as_marian(model, tokenizer)[:2]:
        part.save_pretrained(work / "marian")
    if with_ctranslate2:
        export_ctranslate2(model, tokenizer, work / "ctranslate2")


def succeeded(contest: Contest, answer: Turn) -> Turn:
    """Returns the answer of a contestant, unless it failed."""
    if "failed" in answer:
        raise SystemExit(f"{contest.name} {answer['failed']}: what it said stands above.")
    return answer


def take_turns(contests: list[Contest], chosen: list[Case], repeats: int) -> dict[str, dict[str, list[Turn]]]:
    """Returns the measurements of all turns for each case and contestant, without a first turn that warms up."""
    measured = {}
    for case in chosen:
        turns: dict[str, list[Turn]] = {contest.name: [] for contest in contests}
        for turn in range(repeats + 1):
            for contest in contests:
                time.sleep(0.05)  # The threads of the one before spin for a while.
                found = succeeded(contest, contest.ask(case))
                if turn or not repeats:
                    turns[contest.name].append(found)
            report(f"{case.name}: turn {turn} of {repeats}")
        measured[case.name] = turns
    return measured


def table(measured: dict[str, dict[str, list[Turn]]], memory: dict[str, Turn]) -> str:
    """Formats medians over the turns, and our speed-up: their seconds over ours, turn by turn."""
    lines = []
    for case, turns in measured.items():
        ours = [name for name in turns if name.startswith(("ours", "live"))]
        theirs = [name for name in turns if name not in ours]
        head = ["", "tokens/s", "seconds a call", *(f"{name} is faster by" for name in ours)]
        lines += [f"\n### {case}\n", cells(head), cells(["---"] * len(head))]
        for name in [*ours, *theirs]:
            rate = statistics.median(turn["tokens"] / turn["seconds"] for turn in turns[name])
            call = statistics.median(turn["call"] for turn in turns[name])
            pairs = [list(zip(turns[name], turns[one], strict=True)) for one in ours if name in theirs]
            ratios = [spread([their["seconds"] / our["seconds"] for their, our in pair], 2) for pair in pairs]
            lines.append(cells([name, f"{rate:,.0f}", f"{call:.3f}", *(ratios or [""] * len(ours))]))
    lines += ["\n### Memory\n", "| | peak, all cases | versions |", "|---|---|---|"]
    lines += [f"| {name} | {one['peak'] / 1e9:.2f} GB | {one['versions']} |" for name, one in memory.items()]
    return "\n".join(lines)


def take_part(name: str, arguments: argparse.Namespace, work: Path, connection: Connection) -> None:
    """Runs a contestant's process: measures case by case, and in the end its peak memory and its versions."""
    kind, precision = name.split("-")
    lines = list(islice(filter(None, map(str.strip, read_lines(arguments.source))), arguments.lines))
    if len(lines) < arguments.lines:
        raise SystemExit(f"{arguments.source} has {len(lines):,} lines of text: give fewer as --lines.")
    kinds = {"ours": GraphDecoder, "live": LiveDecoder, "marian": MarianDecoder, "ctranslate2": CTranslate2Decoder}
    decoder: Any = kinds[kind](arguments, work, precision)
    rows = decoder.encode(lines)
    if arguments.early_stopping and kind != "ctranslate2":
        decoder.settings["early_stopping"] = True
    connection.send({})
    while (case := connection.recv()) is not None:
        connection.send(measure(decoder, lines, rows, case))
    if arguments.device.startswith("cuda"):
        import torch

        peak = torch.cuda.max_memory_allocated() or float("nan")  # CTranslate2 takes memory without torch.
    else:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        peak = int(status["VmHWM"].split()[0]) * 1024
    connection.send({"peak": peak, "versions": decoder.versions()})


def measure(decoder: Any, lines: list[str], rows: list[list[int]], case: Case) -> Turn:
    """Decodes a case; returns the seconds, the target tokens and the median seconds of a call."""
    decoder.prepare(case)
    calls, tokens = [], 0
    for call in range(case.calls):
        start = time.perf_counter()
        if case.sentences:
            batch = rows[call * case.sentences : (call + 1) * case.sentences]
            tokens += decoder.decode(batch, case)
        else:
            tokens += decoder.translate(lines, case)
        calls.append(time.perf_counter() - start)
    return {"seconds": sum(calls), "tokens": tokens, "call": statistics.median(calls)}


class _Decoder:
    """What a contestant does if it says nothing else."""

    libraries: tuple[str, ...] = ("torch", "transformers")
    way = "its own search"
    settings: dict[str, Any]
    model: Any
    tokenizer: Any

    def prepare(self, case: Case) -> None:
        """Loads what a case needs, before its time is taken."""

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Returns the tokens of each line."""
        return self.tokenizer(lines)["input_ids"]

    def versions(self) -> str:
        """Names the libraries that ran, and the search."""
        return ", ".join([f"{name} {version(name)}" for name in self.libraries] + [self.way])


class GraphDecoder(_Decoder):
    """The graph that `Translator` runs on a processor, where torch is loaded only to convert a model."""

    libraries = ("onnxruntime",)
    case: Case | None = None
    translator: Any = None

    def __init__(self, arguments: argparse.Namespace, work: Path, precision: str) -> None:
        from vanilla_transformer.translation.tokenizer_file import TokenizerFile

        self.model, self.way = arguments.model, f"the graph in {precision}"
        self.settings = {"precision": precision, "device": arguments.device}
        self.converts = (work / "marian").is_symlink() or TokenizerFile.of(Path(self.model)) is None
        self.prepare(Case("any", 1, 4))

    def prepare(self, case: Case) -> None:
        """Makes the graph of a case, once the one before has left memory; ends if it is not what the name says."""
        from vanilla_transformer import Translator
        from vanilla_transformer.graph.session import Session

        if case == self.case:
            return
        self.case, self.translator = case, None
        settings = {**self.settings, **case.settings}
        self.translator = Translator(self.model, batch_tokens=FILE_BATCH_TOKENS, **settings)
        found, kind = self.translator.precision, type(self.translator.search)
        if kind is not Session or found != self.settings["precision"]:
            raise SystemExit(f"This was to be {self.way}, and is a {kind.__name__} in {found}.")
        if "torch" in sys.modules and not self.converts:
            raise SystemExit(f"This was to be {self.way} without torch, which is loaded.")

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Returns the tokens of each line."""
        return self.translator.tokenizer.encode(lines)

    def decode(self, rows: list[list[int]], case: Case) -> int:
        """Decodes a batch; returns the number of new tokens."""
        found = [hypotheses[0].tokens for hypotheses in self.translator.search.search(rows)]
        self.translator.tokenizer.decode(found)
        return sum(map(len, found))

    def translate(self, lines: list[str], case: Case) -> int:
        """Translates all lines; returns the number of tokens of the translations."""
        return sum(len(translation.hypotheses[0].ids) for translation in self.translator(lines))


class _TorchDecoder(_Decoder):
    """Shared parts of both models with a `generate`."""

    def decode(self, rows: list[list[int]], case: Case) -> int:
        """Decodes a batch; returns the number of new tokens."""
        import torch

        inputs = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self.model.device)
        settings = {**self.settings, **case.settings}
        if case.forced is None and "max_new_tokens" in settings:
            settings["max_new_tokens"] = inputs.input_ids.shape[1] + 50
        output = self.model.generate(**inputs, **settings)
        if output.is_cuda:
            torch.cuda.synchronize()
        self.tokenizer.batch_decode(output, skip_special_tokens=True)
        return self.new_tokens(output)

    def translate(self, lines: list[str], case: Case) -> int:
        """Translates as a careful user would: sorted by length, in batches of a fixed number of tokens."""
        rows, tokens = sorted(self.encode(lines), key=len, reverse=True), 0
        while rows:
            size = max(1, FILE_BATCH_TOKENS // len(rows[0]))
            tokens += self.decode(rows[:size], case)
            rows = rows[size:]
        return tokens

    def new_tokens(self, sequences: Any) -> int:
        """Counts the tokens after the first, up to `</s>`, with which Marian's search also pads."""
        ended = (sequences[:, 1:] == self.tokenizer.eos_token_id).long().cumsum(1)
        alive = (ended == 0) & (sequences[:, 1:] != self.tokenizer.pad_token_id)
        return int(alive.sum() + (ended > 0).any(1).sum())


class LiveDecoder(_TorchDecoder):
    """This package's models in `generate`, with the weights as they are at each call."""

    def __init__(self, arguments: argparse.Namespace, work: Path, precision: str) -> None:
        import torch

        from vanilla_transformer.loading.models import load_model

        dtype = getattr(torch, precision)
        self.model, self.tokenizer = load_model(arguments.model, device=arguments.device, dtype=dtype)
        self.settings, self.way = {}, f"generate in {precision}"


class MarianDecoder(_TorchDecoder):
    """Hugging Face's own `MarianMTModel`, with its own search and penalty."""

    def __init__(self, arguments: argparse.Namespace, work: Path, precision: str) -> None:
        from transformers import AutoTokenizer, MarianMTModel

        model: Any = MarianMTModel.from_pretrained(work / "marian", dtype=precision)
        self.model = model.eval().to(arguments.device)
        self.tokenizer = AutoTokenizer.from_pretrained(work / "marian")
        self.settings = {"early_stopping": False, "max_new_tokens": 1}


class CTranslate2Decoder(_Decoder):
    """CTranslate2, with its own search and penalty."""

    libraries = ("ctranslate2", "transformers")

    def __init__(self, arguments: argparse.Namespace, work: Path, precision: str) -> None:
        import ctranslate2
        from transformers import AutoTokenizer, GenerationConfig

        self.translator = ctranslate2.Translator(
            str(work / "ctranslate2"),
            device=arguments.device.partition(":")[0],
            compute_type=precision,
            inter_threads=1,
            intra_threads=arguments.threads,
        )
        self.tokenizer = AutoTokenizer.from_pretrained(work / "marian")
        self.length_penalty = GenerationConfig.from_pretrained(work / "marian").length_penalty or 1.0

    def decode(self, rows: list[list[int]], case: Case, **batching: Any) -> int:
        """Decodes a batch; returns the number of new tokens."""
        results = self.translator.translate_batch(
            list(map(self.tokenizer.convert_ids_to_tokens, rows)),
            beam_size=case.beam,
            length_penalty=self.length_penalty if case.beam > 1 else 1.0,
            min_decoding_length=case.forced or 1,
            max_decoding_length=case.forced or max(map(len, rows)) + 50,
            return_end_token=True,
            **batching,
        )
        found = [self.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        self.tokenizer.batch_decode(found, skip_special_tokens=True)
        return sum(map(len, found))

    def translate(self, lines: list[str], case: Case) -> int:
        """Translates all lines; CTranslate2 sorts and batches them."""
        return self.decode(self.encode(lines), case, max_batch_size=FILE_BATCH_TOKENS, batch_type="tokens")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory that `vanilla-transformer train` made")
    parser.add_argument("source", help="file of sentences, plain or .gz")
    parser.add_argument("--contestants", nargs="+", choices=(*CONTESTANTS, *OTHERS), default=CONTESTANTS)
    parser.add_argument("--case", nargs="+", default=(), help="only the cases whose name has all of these in it")
    parser.add_argument("--sentences", type=int, nargs="+", default=[32], help="in a batch")
    parser.add_argument("--singles", type=int, default=8, help="sentences that are decoded one by one")
    parser.add_argument("--lines", type=int, default=1000, help="of the file")
    parser.add_argument("--forced", type=int, default=30, help="tokens, where the length is fixed")
    parser.add_argument(
        "--early-stopping",
        action="store_true",
        help="let ours, live and Marian end a search by CTranslate2's rule: once as many hypotheses have ended as run",
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns after one that warms up; with 0 that one counts")
    parser.add_argument("--threads", type=int, default=2, help="most that a contestant may use")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
