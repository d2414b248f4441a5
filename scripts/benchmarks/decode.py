"""Decodes the same sentences with the same weights through this package, Hugging Face's Marian and CTranslate2.

    python -m scripts.benchmarks.decode MODEL SOURCE

MODEL is a directory that `vanilla-transformer train` made, or a Marian model; SOURCE is a file of sentences. Each
contestant is a process of its own that stays loaded; they take turns, so that other load on the machine affects all of
them, and ratios are taken within a turn. Prints a table.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vanilla_transformer.data.text_lines import read_lines

# The command line's default on a CPU, used for all three.
FILE_BATCH_TOKENS = 2048
OURS = ("ours-float32", "ours-bfloat16", "ours-int8")
CONTESTANTS = (*OURS, "marian-float32", "marian-bfloat16", "ctranslate2-float32", "ctranslate2-int8")
# Of accelerators.
HALF_PRECISION = ("ours-float16", "marian-float16", "ctranslate2-float16")


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
    if arguments.worker is not None:
        Worker(arguments).serve()
        return
    with tempfile.TemporaryDirectory() as work:
        with_ctranslate2 = any(name.startswith("ctranslate2") for name in arguments.contestants)
        export(arguments.model, Path(work), with_ctranslate2)
        chosen = [case for case in cases(arguments) if all(part in case.name for part in arguments.case)]
        command = [sys.executable, __file__, arguments.model, arguments.source, "--lines", str(arguments.lines)]
        command += ["--threads", str(arguments.threads), "--device", arguments.device]
        command += ["--early-stopping"] * arguments.early_stopping
        contestants = {
            name: Contestant(name, [*command, "--work", work, "--worker", name]) for name in arguments.contestants
        }
        for contestant in contestants.values():
            contestant.answer()  # Several load their models side by side.
        measured = take_turns(contestants, chosen, arguments.repeats)
        memory = {name: contestant.ask(None) for name, contestant in contestants.items()}
    print(table(measured, memory))


def export(model_directory: str, work: Path, with_ctranslate2: bool = True) -> None:
    """Exports the same weights for the other two; settings that Marian cannot express are not measured.

    The others read a Marian model as it is, CTranslate2 by its own converter.
    """
    from vanilla_transformer.export.conversion import as_marian
    from vanilla_transformer.export.to_ctranslate2 import export_ctranslate2
    from vanilla_transformer.translation import load_model

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


class Contestant:
    """A process that decodes on request."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, case: Case | None) -> dict[str, Any]:
        """Returns a measurement: seconds, target tokens, and the median seconds per call.

        Without a case the process ends, and returns its peak memory and its versions.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(case) if case else {}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Returns the next answer; the first says that the model is loaded."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.name} ended before its turn was over: what it said stands above.")


def take_turns(
    contestants: dict[str, Contestant], chosen: list[Case], repeats: int
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Returns the measurements of all turns for each case and contestant, without a first turn that warms up."""
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for case in chosen:
        turns = {name: [] for name in contestants}  # type: dict[str, list[dict[str, Any]]]
        for turn in range(repeats + 1):
            for name, contestant in contestants.items():
                found = contestant.ask(case)
                if turn or not repeats:
                    turns[name].append(found)
            print(f"{case.name}: turn {turn} of {repeats}", file=sys.stderr)
        measured[case.name] = turns
    return measured


def table(measured: dict[str, dict[str, list[dict[str, Any]]]], memory: dict[str, dict[str, Any]]) -> str:
    """Formats medians over the turns, and our speed-up as median, minimum and maximum of the ratios."""
    lines = []
    for case, turns in measured.items():
        lines += [f"\n### {case}\n"]
        theirs = [name for name in turns if name not in OURS]
        ours = [name for name in turns if name in OURS]
        lines += ["| | tokens/s | seconds a call | " + " | ".join(f"{name} is faster by" for name in ours) + " |"]
        lines += ["|---" * (3 + len(ours)) + "|"]
        for name in [*ours, *theirs]:
            rate = statistics.median(turn["tokens"] / turn["seconds"] for turn in turns[name])
            call = statistics.median(turn["call"] for turn in turns[name])
            ratios = [ratio(turns[name], turns[one]) if name in theirs else "" for one in ours]
            lines.append(f"| {name} | {rate:,.0f} | {call:.3f} | {' | '.join(ratios)} |")
    lines += ["\n### Memory\n", "| | peak, all cases | versions |", "|---|---|---|"]
    lines += [f"| {name} | {one['peak'] / 1e9:.2f} GB | {one['versions']} |" for name, one in memory.items()]
    return "\n".join(lines)


def ratio(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str:
    """Formats their seconds over ours for the same sentences, turn by turn."""
    ratios = sorted(one["seconds"] / other["seconds"] for one, other in zip(theirs, ours, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


class Worker:
    """A contestant in its own process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch

        torch.set_num_threads(arguments.threads)
        name, self.precision = arguments.worker.split("-")
        self.device = arguments.device
        lines = (line.strip() for line in read_lines(arguments.source))
        self.lines = list(islice(filter(None, lines), arguments.lines))
        if len(self.lines) < arguments.lines:
            raise SystemExit(f"{arguments.source} has {len(self.lines):,} lines of text: give fewer as --lines.")
        work = Path(arguments.work)
        engines: dict[str, Any] = {"ours": OurEngine, "marian": MarianEngine, "ctranslate2": CTranslate2Engine}
        self.engine = engines[name](arguments.model, work, self.precision, arguments.device, arguments.threads)
        self.rows = [self.engine.tokenizer(line)["input_ids"] for line in self.lines]
        if arguments.early_stopping and name != "ctranslate2":
            self.engine.settings["early_stopping"] = True

    def serve(self) -> None:
        """Answers each line on standard input with one on standard output."""
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            question = json.loads(line)
            if not question:
                print(json.dumps({"peak": self._peak(), "versions": self.engine.versions()}), flush=True)
                return
            print(json.dumps(self._measure(Case(**question))), flush=True)

    def _measure(self, case: Case) -> dict[str, Any]:
        if not case.sentences:
            start = time.perf_counter()
            tokens = self.engine.translate(self.lines)
            seconds = time.perf_counter() - start
            return {"seconds": seconds, "tokens": tokens, "call": seconds}
        calls, tokens = [], 0
        for call in range(case.calls):
            rows = self.rows[call * case.sentences : (call + 1) * case.sentences]
            start = time.perf_counter()
            tokens += self.engine.decode(rows, case.beam, case.forced)
            calls.append(time.perf_counter() - start)
        return {"seconds": sum(calls), "tokens": tokens, "call": statistics.median(calls)}

    def _peak(self) -> int:
        import torch

        if self.device.startswith("cuda"):
            return torch.cuda.max_memory_allocated()
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["VmHWM"].split()[0]) * 1024


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

        from vanilla_transformer.translation import load_model

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
        from vanilla_transformer.translation import translate_lines

        self._check_way()
        found = translate_lines(self.model, self.tokenizer, lines, batch_tokens=FILE_BATCH_TOKENS, **self.settings)
        return sum(translation.hypotheses[0].tokens for translation in found)


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
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
