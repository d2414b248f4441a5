"""Times one call of `generate`: by the library's search, by the engine on live weights, and inside `frozen`.

    python -m scripts.benchmarks.live --preset base --turns 3

The model has random weights; the three take turns in one process. Prints medians in milliseconds, of CPU with `--cpu`,
and how many times as fast as the library's search live weights are.
"""

import argparse
import statistics
import time
from unittest import mock

import torch

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.model import generation

CASES = {"1 sentence, greedy": (1, 1), "1 sentence, beam 4": (1, 4), "32 sentences, beam 4": (32, 4)}


def main(arguments: list[str] | None = None) -> None:
    """Times each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", default="base")
    parser.add_argument("--tokens", type=int, default=20, help="tokens of each source, and of each target")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--cpu", action="store_true", help="time of the processor, in place of time that passes")
    given = parser.parse_args(arguments)
    clock = time.process_time if given.cpu else time.perf_counter
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig.from_preset(given.preset)).eval()
    for case in given.cases:
        sentences, beams = CASES[case]
        ids = torch.randint(4, model.config.vocab_size, (sentences, given.tokens))
        lengths = {"min_new_tokens": given.tokens, "max_new_tokens": given.tokens}

        def milliseconds(ids: torch.Tensor = ids, beams: int = beams, lengths: dict[str, int] = lengths) -> float:
            start = clock()
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=beams, **lengths)
            return 1000 * (clock() - start)

        times: dict[str, list[float]] = {"library": [], "live": [], "frozen": []}
        for _ in range(given.turns + 1):
            with mock.patch.object(generation, "engine", None):
                times["library"].append(milliseconds())
            times["live"].append(milliseconds())
            with model.frozen():
                milliseconds()  # Packs.
                times["frozen"].append(milliseconds())
        medians = {way: statistics.median(found[1:]) for way, found in times.items()}
        shown = ", ".join(f"{way} {found:.0f}" for way, found in medians.items())
        print(f"{case}: {shown}, library over live {medians['library'] / medians['live']:.2f}", flush=True)


if __name__ == "__main__":
    main()
