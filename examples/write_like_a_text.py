"""A tiny language model: learn how a text goes on, character by character, and write more of it.

    python examples/write_like_a_text.py shakespeare.txt my-model --continue "ROMEO:" --characters 300

The text is one file; its last tenth is held out and scored, in bits a character. A million characters take about two
minutes on one core. If interrupted, run it again.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformers import pipeline, set_seed

from vanilla_transformer import load_recipe, train


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, and prints how each beginning goes on."""
    parser = argparse.ArgumentParser(description="Learn how a text goes on, and write more of it.")
    parser.add_argument("text", type=Path, help="UTF-8 text, of some hundred thousand characters or more")
    parser.add_argument("output", type=Path, help="directory for the model")
    parser.add_argument("--max-steps", type=int, default=1000, help="length of training")
    parser.add_argument("--continue", dest="beginnings", nargs="+", default=(), metavar="TEXT")
    parser.add_argument("--characters", type=int, default=50, help="how many to write")
    options = parser.parse_args(argv)

    text = options.text.read_text(encoding="utf-8")
    cut = len(text) * 9 // 10
    options.output.mkdir(parents=True, exist_ok=True)
    parts = {name: options.output / f"{name}.txt" for name in ("train", "dev")}
    parts["train"].write_text(text[:cut], encoding="utf-8")
    parts["dev"].write_text(text[cut:], encoding="utf-8")

    recipe = load_recipe("tinyshakespeare-char").with_options(
        vocab_size=None,  # As many as the text has characters.
        train=(str(parts["train"]),),
        dev=(str(parts["dev"]),),
        output=str(options.output / "model"),
        max_steps=options.max_steps,
        warmup_steps=max(1, options.max_steps // 5),
    )
    write = pipeline("text-generation", model=str(train(recipe)))
    for beginning in options.beginnings:
        set_seed(1)
        [found] = write(beginning, do_sample=True, temperature=0.8, max_new_tokens=options.characters)
        print(found["generated_text"], end="\n\n")


if __name__ == "__main__":
    main()
