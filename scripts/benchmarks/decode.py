"""Decodes the same sentences with the same weights through this package, Hugging Face's Marian and CTranslate2.

    python -m scripts.benchmarks.decode MODEL SOURCE

MODEL is a directory that `vanilla-transformer train` made, or a Marian model; SOURCE is a file of sentences. Each
contestant is a process of its own that stays loaded; they take turns, so that other load on the machine affects all of
them, and ratios are taken within a turn. Prints a table.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from scripts.turns import Contest, cells, say, spread
from vanilla_transformer.data.text_lines import read_lines

# The command line's default on a CPU, used for all three.
FILE_BATCH_TOKENS = 2048
OURS = ("ours-float32", "ours-bfloat16", "ours-int8")
CONTESTANTS = (*OURS, "marian-float32", "marian-bfloat16", "ctranslate2-float32", "ctranslate2-int8")
# Of accelerators.
HALF_PRECISION = ("ours-float16", "marian-float16", "ctranslate2-float16")
Turn = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Sentences to decode at a time, the beam, and a fixed length or None to stop at `</s>`."""

    name: str
    sentences: int
    beam: int
    forced: int | None = None
    calls: int = 1


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Returns the cases of the table; decoding of a single sentence is measured on several."""
    found = []
    for forced, how in ((arguments.forced, f"{arguments.forced} tokens each"), (None, "real stopping")):
        found += [
            *(Case(f"{many} sentences, beam 4, {how}", many, 4, forced) for many in arguments.sentences),
            Case(f"1 sentence, beam 4, {how}", 1, 4, forced, arguments.singles),
            Case(f"1 sentence, greedy, {how}", 1, 1, forced, arguments.singles),
        ]
    return [*found, Case(f"file of {arguments.lines:,} lines, beam 4, from text to text", 0, 4)]


def main() -> None:
    """Writes the exports, starts the contestants, lets them take turns and prints the table."""
    arguments = _arguments()
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
    from vanilla_transformer.translation.loading import load_model

    if json.loads(Path(model_directory, "config.json").read_text(encoding="utf-8"))["model_type"] == "marian":
        (work / "marian").symlink_to(Path(model_directory).resolve())
        if with_ctranslate2:
            from ctranslate2.converters import TransformersConverter

            TransformersConverter(model_directory).convert(str(work / "ctranslate2"))
        return

    model, tokenizer = load_model(model_directory, device="cpu")
    as_marian(model, tokenizer).save(work / "marian")
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
            say(f"{case.name}: turn {turn} of {repeats}")
        measured[case.name] = turns
    return measured


def table(measured: dict[str, dict[str, list[Turn]]], memory: dict[str, Turn]) -> str:
    """Formats medians over the turns, and our speed-up: their seconds over ours, turn by turn."""
    lines = []
    for case, turns in measured.items():
        ours = [name for name in turns if name.startswith("ours")]
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
    import torch

    torch.set_num_threads(arguments.threads)
    kind, precision = name.split("-")
    lines = list(islice(filter(None, map(str.strip, read_lines(arguments.source))), arguments.lines))
    if len(lines) < arguments.lines:
        raise SystemExit(f"{arguments.source} has {len(lines):,} lines of text: give fewer as --lines.")
    engines: dict[str, Any] = {"ours": OurEngine, "marian": MarianEngine, "ctranslate2": CTranslate2Engine}
    engine = engines[kind](arguments.model, work, precision, arguments.device, arguments.threads)
    rows = [engine.tokenizer(line)["input_ids"] for line in lines]
    if arguments.early_stopping and kind != "ctranslate2":
        engine.settings["early_stopping"] = True
    connection.send({})
    while (case := connection.recv()) is not None:
        connection.send(measure(engine, lines, rows, case))
    if arguments.device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated() or float("nan")  # CTranslate2 takes memory without torch.
    else:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        peak = int(status["VmHWM"].split()[0]) * 1024
    connection.send({"peak": peak, "versions": engine.versions()})


def measure(engine: Any, lines: list[str], rows: list[list[int]], case: Case) -> Turn:
    """Decodes a case; returns the seconds, the target tokens and the median seconds of a call."""
    calls, tokens = [], 0
    for call in range(case.calls):
        start = time.perf_counter()
        if case.sentences:
            batch = rows[call * case.sentences : (call + 1) * case.sentences]
            tokens += engine.decode(batch, case.beam, case.forced)
        else:
            tokens += engine.translate(lines)
        calls.append(time.perf_counter() - start)
    return {"seconds": sum(calls), "tokens": tokens, "call": statistics.median(calls)}


class _TorchEngine:
    """Shared parts of both models with a `generate`."""

    model: Any
    tokenizer: Any
    settings: dict[str, Any]

    def decode(self, rows: list[list[int]], beam: int, forced: int | None) -> int:
        """Decodes a batch; returns the number of new tokens."""
        import torch

        inputs = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self.model.device)
        settings = {**self.settings, "num_beams": beam}
        if forced is not None:
            settings |= {"min_new_tokens": forced, "max_new_tokens": forced}
        elif "max_new_tokens" in self.settings:
            settings["max_new_tokens"] = inputs.input_ids.shape[1] + 50
        output = self.model.generate(**inputs, **settings)
        if output.is_cuda:
            torch.cuda.synchronize()
        self.tokenizer.batch_decode(output, skip_special_tokens=True)
        return self.new_tokens(output)

    def new_tokens(self, sequences: Any) -> int:
        """Counts the tokens after the first, up to `</s>`, with which Marian's search also pads."""
        ended = (sequences[:, 1:] == self.tokenizer.eos_token_id).long().cumsum(1)
        alive = (ended == 0) & (sequences[:, 1:] != self.tokenizer.pad_token_id)
        return int(alive.sum() + (ended > 0).any(1).sum())

    def versions(self) -> str:
        """Names the libraries that computed."""
        import torch
        import transformers

        return f"torch {torch.__version__}, transformers {transformers.__version__}"


class OurEngine(_TorchEngine):
    """Engine of this package."""

    def __init__(self, model: str, work: Path, precision: str, device: str, threads: int) -> None:
        import torch

        from vanilla_transformer.translation.loading import load_model

        dtype = torch.float32 if precision == "int8" else getattr(torch, precision)
        self.model, self.tokenizer = load_model(model, device=device, dtype=dtype)
        self.settings: dict[str, Any] = {}
        self.way = f"frozen {precision} weights"
        # Frozen weights, which is how CTranslate2 always has them, for as long as the process lives.
        self.frozen = self.model.frozen("int8" if precision == "int8" else None)
        self.frozen.__enter__()

    def decode(self, rows: list[list[int]], beam: int, forced: int | None) -> int:
        """Decodes a batch as `_TorchEngine.decode` does, if the weights are as the contestant's name says."""
        self._check_way()
        return super().decode(rows, beam, forced)

    def versions(self) -> str:
        """Names the libraries that computed, and with which weights."""
        return f"{super().versions()}, {self.way}"

    def _check_way(self) -> None:
        found = way_of(self.model)
        if found != self.way:
            raise SystemExit(f"This contestant decodes with {self.way}, and here are {found}.")

    def translate(self, lines: list[str]) -> int:
        """Translates all lines; returns the number of tokens of the translations."""
        from vanilla_transformer import Translator

        self._check_way()
        found = Translator(self.model, self.tokenizer, batch_tokens=FILE_BATCH_TOKENS, **self.settings)(lines)
        return sum(len(translation.hypotheses[0].ids) for translation in found)


def way_of(model: Any) -> str:
    """Returns the weights with which a call of `generate` decodes now."""
    from vanilla_transformer.engine import opened
    from vanilla_transformer.engine.known import unknown

    if (reason := unknown(model)) is not None:
        return f"live weights in the library's search, because of {reason}"
    engine = opened(model)
    if engine is None:
        return "live weights"
    return f"frozen {engine.quantization or str(model.dtype).removeprefix('torch.')} weights"


class MarianEngine(_TorchEngine):
    """Hugging Face's own `MarianMTModel`, with its own search and penalty."""

    def __init__(self, model: str, work: Path, precision: str, device: str, threads: int) -> None:
        import torch
        from transformers import AutoTokenizer, MarianMTModel

        dtype = getattr(torch, precision)
        self.model = MarianMTModel.from_pretrained(work / "marian", dtype=dtype).eval()
        self.model.to(torch.device(device))
        self.tokenizer = AutoTokenizer.from_pretrained(work / "marian")
        self.settings = {"early_stopping": False, "max_new_tokens": 1}

    def translate(self, lines: list[str]) -> int:
        """Translates as a careful user would: sorted by length, in batches of a fixed number of tokens."""
        rows = sorted(self.tokenizer(lines)["input_ids"], key=len, reverse=True)
        tokens = 0
        while rows:
            size = max(1, FILE_BATCH_TOKENS // len(rows[0]))
            tokens += self.decode(rows[:size], 4, None)
            rows = rows[size:]
        return tokens


class CTranslate2Engine:
    """CTranslate2, with its own search and penalty."""

    tokenizer: Any

    def __init__(self, model: str, work: Path, precision: str, device: str, threads: int) -> None:
        import ctranslate2
        from transformers import AutoTokenizer, GenerationConfig

        self.translator = ctranslate2.Translator(
            str(work / "ctranslate2"),
            device=device.partition(":")[0],
            compute_type=precision,
            inter_threads=1,
            intra_threads=threads,
        )
        self.tokenizer = AutoTokenizer.from_pretrained(work / "marian")
        self.length_penalty = GenerationConfig.from_pretrained(work / "marian").length_penalty or 1.0

    def decode(self, rows: list[list[int]], beam: int, forced: int | None) -> int:
        """Decodes a batch; returns the number of new tokens."""
        limit = max(map(len, rows)) + 50
        return self._run(rows, beam_size=beam, min_decoding_length=forced or 1, max_decoding_length=forced or limit)

    def translate(self, lines: list[str]) -> int:
        """Translates all lines; CTranslate2 sorts and batches them."""
        rows = self.tokenizer(lines)["input_ids"]
        limit = max(map(len, rows)) + 50
        return self._run(
            rows, beam_size=4, max_decoding_length=limit, max_batch_size=FILE_BATCH_TOKENS, batch_type="tokens"
        )

    def _run(self, rows: list[list[int]], **settings: Any) -> int:
        texts = [self.tokenizer.convert_ids_to_tokens(row) for row in rows]
        penalty = self.length_penalty if settings["beam_size"] > 1 else 1.0
        results = self.translator.translate_batch(texts, length_penalty=penalty, return_end_token=True, **settings)
        found = [self.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        self.tokenizer.batch_decode(found, skip_special_tokens=True)
        return sum(map(len, found))

    def versions(self) -> str:
        """Names the library that computed."""
        import ctranslate2

        return f"ctranslate2 {ctranslate2.__version__}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory that `vanilla-transformer train` made")
    parser.add_argument("source", help="file of sentences, plain or .gz")
    parser.add_argument("--contestants", nargs="+", choices=(*CONTESTANTS, *HALF_PRECISION), default=CONTESTANTS)
    parser.add_argument("--case", nargs="+", default=(), help="only the cases whose name has all of these in it")
    parser.add_argument("--sentences", type=int, nargs="+", default=[32], help="in a batch")
    parser.add_argument("--singles", type=int, default=8, help="sentences that are decoded one by one")
    parser.add_argument("--lines", type=int, default=1000, help="of the file")
    parser.add_argument("--forced", type=int, default=30, help="tokens, where the length is fixed")
    parser.add_argument(
        "--early-stopping",
        action="store_true",
        help="let ours and Marian end a search by CTranslate2's rule: once as many hypotheses have ended as run",
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns after one that warms up; with 0 that one counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
