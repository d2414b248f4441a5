"""Runs the commands of the newcomers' pages, in a fresh clone on a little text, and compares the output they show.

`python -m scripts.stress.docs`, or with the names of pages, such as `start/your-text guides/clean`. Each page has its
own clone of the last commit. Every command line must succeed within `--seconds`; a training takes four steps, or 300
where a page trains on the translations of its model. Lines that a page shows as output must appear, with any numbers.
The exit code is 0 if all did.
"""

import argparse
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = "start", "guides"
BLOCK = re.compile(
    r"^```(\{code-cell\}|\w+)[^\n]*\n((?::[^\n]*\n)*)(.*?)^```$|((?:^    \S[^\n]*\n)+)", re.DOTALL | re.MULTILINE
)
# Words in commands or blocks that cannot run here, and the reasons.
NOT_HERE = {
    "make quickstart": "takes more than two minutes",
    "pip install": "needs a package index",
    "npm install": "needs a package index",
    "node my-model-web": "needs what npm installs",
    "http.server": "serves until it is stopped",
    "vanilla-transformer demo": "serves until it is stopped",
    "gradio_client": "needs a server",
    "org/name": "needs the Hub",
    "Helsinki-NLP": "needs the Hub",
    "sbatch": "needs Slurm",
    "kubectl": "needs Kubernetes",
    "MACHINES=": "needs several machines",
    "s3://": "needs an object store",
    "args=arguments": "is a part of a program",
}
SMALL = {"--max-steps": "4", "--vocab-size": "270"}
# With these a model learns the lines of `write_text` in seconds, where a page trains on its translations.
LEARNING = (
    "--max-steps 300 --batch-tokens 300 --dropout 0 --d-model 64 --d-ff 128 --encoder-layers 1 --decoder-layers 1"
)
# Words in Python code that runs in a model's directory.
INSIDE = {'InferenceSession("translate.onnx")': "my-model-onnx"}
PAIRS = "corpus", "dev", "test", "train", "real", "law", "law-dev", "general", "crawled"
TRANSLATORS = (
    "my-model",
    "teacher",
    "general-model",
    "seed1",
    "seed2",
    "seed3",
    "from-right",
    "models/cmudict-quickstart",
)
PRELUDE = """
import os, torch
from pathlib import Path
lines = ["A dog runs."]
if Path("my-model/config.json").exists():
    from vanilla_transformer.translation import load_model
    model, tokenizer = load_model("my-model", translates=False)
"""


@dataclass
class Block:
    """Commands or Python code of a page, and the lines that it shows as their output."""

    page: str
    language: str
    code: str
    shown: list[str] = field(default_factory=list)


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yields the blocks of a page in order."""
    last: Block | None = None
    for language, options, code, indented in BLOCK.findall(text):
        if language in ("text", "") and last is not None:
            last.shown += (code or indented).splitlines()
        elif language in ("bash", "sh", "python", "{code-cell}") and "remove" not in options:
            if last is not None:
                yield last
            last = Block(page, "python" if language in ("python", "{code-cell}") else "bash", code)
    if last is not None:
        yield last


def trained_by(line: str) -> str | None:
    """Returns the directory of the model that a command line trains, if it trains one; recipes name `my-model`."""
    trains = re.search(r"(vanilla-transformer|vanilla_transformer|\.sh) (train )?", line)
    if not trains or (trains[1] != ".sh" and not trains[2]):
        return None
    named = re.search(r"--output (\S+)", line)
    return named[1] if named else "my-model"


def made_small(line: str, teachers: Sequence[str] = ()) -> str:
    """Shrinks a command line for little text: a training takes four steps, and the vocabulary suits the text."""
    for option, value in SMALL.items():
        line = re.sub(rf"{option} \d+", f"{option} {value}", line)
    trained = trained_by(line)
    if trained and "--max-steps" not in line:
        steps = LEARNING if trained in teachers else f"--max-steps {SMALL['--max-steps']}"
        line = re.sub(r"(\s+#.*)?$", f" {steps}", line, count=1)
    return line


def teachers_of(text: str) -> list[str]:
    """Returns the models of a page whose translations it trains on."""
    return re.findall(r"(?:back_translation|distillation)\.py (\S+)", text)


def without_numbers(line: str) -> str:
    """Replaces the numbers of a line, for comparison."""
    return " ".join(re.sub(r"\d[\d,.]*", "#", line).split())


def write_text(directory: Path) -> None:
    """Writes the files that the pages mention, each of a few lines."""
    numbers = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
    words = [f"{a} {b} {c}" for a in numbers for b in numbers for c in ("dogs run", "cats see")]
    pairs = [(line, " ".join(numbers.get(word, word.title()) for word in line.split())) for line in words]
    for name in PAIRS:
        for suffix, side in ((".en", 0), (".de", 1)):
            (directory / f"{name}{suffix}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    broken = (
        b"\xff\xfe bytes\n\n\xc3\x83\xc2\xa9t\xc3\x83\xc2\xa9 gr\xc3\x83\xc2\xbcn \xc3\x83\xc2\xa4\none\none two\n"
    )
    for suffix in (".en", ".de"):
        clean = (directory / f"crawled{suffix}").read_bytes()
        (directory / f"crawled{suffix}").write_bytes(clean + broken + b"".join(clean.splitlines(keepends=True)[:2]))
        (directory / f"crawled{suffix}.gz").write_bytes(gzip.compress(clean))
    targets = [target for _, target in pairs]
    (directory / "mono.de").write_text("\n".join([*targets, "", *targets[:5], "eins " * 400]) + "\n")
    for name in ("in.txt", "new.txt", "sentences.txt", "train.txt", "dev.txt", "english.txt", "english-dev.txt"):
        (directory / name).write_text("".join(f"{line}\n" for line in words))
    for name in ("reviews", "reviews-dev", "train", "dev"):
        for suffix, tab in ((".csv", ","), (".tsv", "\t")):
            rows = [f"{line}{tab}{('good', 'bad')[place % 2]}\n" for place, line in enumerate(words)]
            (directory / f"{name}{suffix}").write_text(f"text{tab}label\n{''.join(rows)}")
    for name in ("pairs.tsv", "pairs-dev.tsv", "new.tsv"):
        rows = [f"{line}\t{line}\t{('same', 'other')[place % 2]}\n" for place, line in enumerate(words)]
        (directory / name).write_text(f"premise\thypothesis\tlabel\n{''.join(rows)}")
    for name in ("train.conll", "dev.conll"):
        tagged = ["".join(f"{word}\t{'NUM' if word in numbers else 'X'}\n" for word in line.split()) for line in words]
        (directory / name).write_text("\n".join(tagged))
    (directory / "my-recipe.yaml").write_text("train: [train.en, train.de]\ndev: [dev.en, dev.de]\noutput: my-model\n")


def write_models(directory: Path, text: str) -> None:
    """Writes the models that a page uses before it trains them, with random weights."""
    import vanilla_transformer as package

    sentences = [line for name in ("train.en", "train.de") for line in (directory / name).read_text().splitlines()]
    sizes = {"d_model": 32, "d_ff": 64, "num_heads": 2, "vocab_size": 300}
    for name in (*TRANSLATORS, "masked-model", "my-model-onnx"):
        used, made = (re.search(rf"{form}{re.escape(name)}\b", text) for form in ("", "--output "))
        if used is None or (made is not None and made.start() <= used.start()) or (directory / name).exists():
            continue
        config: Any
        model: Any
        if name == "masked-model":
            tokenizer = package.VanillaTransformerTokenizer.train(sentences, 300, begins=True, mask_token=True)
            config = package.VanillaTransformerEncoderConfig.from_preset("tiny", **sizes)
            model = package.VanillaTransformerEncoderForMaskedLM(config)
        else:
            tokenizer = package.VanillaTransformerTokenizer.train(sentences, 300)
            config = package.VanillaTransformerConfig.from_preset("tiny", **sizes)
            model = package.VanillaTransformerForConditionalGeneration(config)
        if name in teachers_of(text):
            train = f"vanilla-transformer train --train train.en train.de {LEARNING} --output {name}"
            subprocess.run(train.split(), cwd=directory, check=True, capture_output=True)
            continue
        place = directory / name.removesuffix("-onnx")
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        if name == "my-model-onnx":
            export = "vanilla-transformer export my-model --to onnx"
            subprocess.run(export.split(), cwd=directory, check=True, capture_output=True)


def run(
    block: Block, directory: Path, before: Sequence[str], most_seconds: int, teachers: Sequence[str] = ()
) -> tuple[str, float, str]:
    """Runs a block in a directory; returns the verdict, the seconds, and the output."""
    place = directory
    if block.language == "python":
        place = next((directory / name for words, name in INSIDE.items() if words in block.code), directory)
        program = "\n".join([PRELUDE, *(before if place == directory else ()), block.code])
        program = "".join(line for line in program.splitlines(keepends=True) if not line.startswith("%"))
        commands = [shlex.join([sys.executable, "-c", program])]
        skipped = next((why for words, why in NOT_HERE.items() if words in block.code), None)
    else:
        lines = block.code.replace("\\\n", " ").splitlines()
        left_out = {line: why for line in lines for words, why in NOT_HERE.items() if words in line}
        commands = [made_small(line, teachers) for line in lines if line not in left_out]
        skipped = "; ".join(dict.fromkeys(left_out.values())) or None
    output, start, verdict = "", time.perf_counter(), "ran" if commands else ""
    if block.language == "python" and skipped:
        commands, verdict = [], ""
    for command in commands:
        # Pages reuse names of models that earlier commands trained.
        trained = trained_by(command)
        if trained and block.language == "bash":
            shutil.rmtree(directory / trained, ignore_errors=True)
        try:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=most_seconds,
            )
        except subprocess.TimeoutExpired:
            verdict = f"FAILED: more than {most_seconds} s: {command[:70]}"
            break
        output += done.stdout
        if done.returncode:
            verdict = f"FAILED: {command[:70]}: {(done.stdout.strip().splitlines() or [''])[-1][:160]}"
            break
    seconds = time.perf_counter() - start
    if verdict == "ran" and skipped is None:
        printed = {without_numbers(line) for line in re.split(r"[\r\n]", output)}
        missing = [line for line in block.shown if without_numbers(line) not in printed | {""}]
        if missing:
            verdict = f"FAILED: did not print {missing[0].strip()[:100]}"
        elif block.shown:
            verdict = f"ran, printed the {len(block.shown)} lines that the page shows"
    return "; ".join(filter(None, (verdict, skipped and f"not run: {skipped}"))), seconds, output


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the pages and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", help="such as guides/clean (default: all of docs/start and docs/guides)")
    parser.add_argument("--seconds", type=int, default=120, help="most for a command line (more on a busy machine)")
    options = parser.parse_args(argv)
    pages = options.pages or [
        f"{folder}/{page.stem}" for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    ]
    failed = 0
    print("| page | block | seconds | |\n|---|---|---|---|")
    for page in pages:
        with tempfile.TemporaryDirectory() as temporary:
            clone = Path(temporary) / "clone"
            subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
            os.environ |= {
                "PYTHONPATH": str(clone),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "HF_HUB_OFFLINE": "1",
                "MPLBACKEND": "agg",
            }
            (clone / ".venv").symlink_to(sys.prefix)
            text = (clone / "docs" / f"{page}.md").read_text("utf-8")
            write_text(clone)
            write_models(clone, text)
            before: list[str] = []
            for block in blocks(page, text):
                verdict, seconds, output = run(block, clone, before, options.seconds, teachers_of(text))
                if block.language == "python" and "not run" not in verdict:
                    before.append(block.code)
                if "FAILED" in verdict:
                    failed += 1
                    print(output[-2000:], file=sys.stderr)
                first = block.code.strip().splitlines()[0][:60].replace("|", "\\|")
                print(f"| {page} | `{first}` | {seconds:.0f} | {verdict} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
