"""Decodes with language models of one size: this package's, transformers' GPT-2 and CTranslate2's.

    python -m scripts.benchmarks.decode_causal

The weights are random and the length is fixed, so that all do the same work. Each contestant is a process of its own
that stays loaded; they take turns. Prints tokens per second, as the median of the turns with minimum and maximum, and
the speed of the best of ours relative to GPT-2, turn by turn.
"""

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

CONTESTANTS = ("ours-float32", "ours-bfloat16", "ours-int8", "gpt2-float32", "ctranslate2-int8")
# Decodes, given the number of sequences, the beam and the number of new tokens.
Decode = Callable[[int, int, int], None]


def main() -> None:
    """Starts the contestants, lets them take turns and prints a table."""
    arguments = _arguments()
    context = multiprocessing.get_context("spawn")
    lines: dict[str, Connection] = {}
    for name in arguments.contestants:
        here, there = context.Pipe()
        context.Process(target=serve, args=(name, arguments, there), daemon=True).start()
        there.close()
        lines[name] = here
        here.recv()
    names = list(lines)
    print(f"| sequences, beam | {' | '.join(names)} | best of ours to GPT-2 |")
    print("|---" * (2 + len(names)) + "|")
    for sequences, beam in itertools.product(arguments.sequences, arguments.beams):
        rates: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(arguments.repeats + 1):
            for name, line in lines.items():
                line.send((sequences, beam, arguments.tokens if turn else 4))
                seconds = line.recv()
                if turn:
                    rates[name].append(sequences * arguments.tokens / seconds)
        cells = [spread(rates[name], ",.0f") for name in names]
        print(f"| {sequences}, {beam} | {' | '.join(cells)} | {ratio(rates)} |", flush=True)
    for line in lines.values():
        line.send(None)


def ratio(rates: dict[str, list[float]]) -> str:
    """Formats the speed of the best of ours relative to GPT-2 in the same turn."""
    ours = [name for name in rates if name.startswith("ours")]
    if not ours or "gpt2-float32" not in rates:
        return ""
    best = max(ours, key=lambda name: statistics.median(rates[name]))
    return spread([own / other for own, other in zip(rates[best], rates["gpt2-float32"], strict=True)], ".2f")


def spread(values: list[float], form: str) -> str:
    """Formats the median, the minimum and the maximum."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def serve(name: str, arguments: argparse.Namespace, line: Connection) -> None:
    """Decodes on request, and answers with the seconds that it took."""
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    kind, precision = name.split("-")
    load = {"ours": load_ours, "gpt2": load_gpt2, "ctranslate2": load_ctranslate2}[kind]
    decode = load(arguments, precision)
    line.send("ready")
    while (question := line.recv()) is not None:
        start = time.perf_counter()
        decode(*question)
        line.send(time.perf_counter() - start)


def load_ours(arguments: argparse.Namespace, precision: str) -> Decode:
    """Loads this package's decoder."""
    import torch

    from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerDecoderForCausalLM

    config = VanillaTransformerDecoderConfig(
        vocab_size=arguments.vocabulary, d_model=arguments.width, d_ff=4 * arguments.width, eos_token_id=2
    )
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = VanillaTransformerDecoderForCausalLM(config).eval().to(dtype)
    return _by_generate(model, {"quantization": "int8"} if precision == "int8" else {})


def load_gpt2(arguments: argparse.Namespace, precision: str) -> Decode:
    """Loads the library's model with its own search."""
    return _by_generate(_gpt2(arguments), {})


def _by_generate(model: Any, settings: dict[str, Any]) -> Decode:
    import torch

    def decode(sequences: int, beam: int, tokens: int) -> None:
        prompts = torch.full((sequences, 1), 1)
        found = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            num_beams=beam,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
            **settings,
        )
        assert found.shape == (sequences, 1 + tokens)

    return decode


def _gpt2(arguments: argparse.Namespace) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=arguments.vocabulary,
        n_embd=arguments.width,
        n_layer=6,
        n_head=8,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config).eval()


def load_ctranslate2(arguments: argparse.Namespace, precision: str) -> Decode:
    """Loads CTranslate2 with the weights of a GPT-2, through CTranslate2's own converter."""
    import ctranslate2
    from ctranslate2.converters.transformers import GPT2Loader

    specification = GPT2Loader().get_model_spec(_gpt2(arguments))
    specification.register_vocabulary([f"t{number}" for number in range(arguments.vocabulary)])
    config = specification.config
    config.bos_token, config.eos_token, config.unk_token = "t1", "t2", "t0"
    directory = tempfile.mkdtemp()
    specification.validate()
    specification.optimize(quantization=precision)
    specification.save(directory)
    generator = ctranslate2.Generator(
        directory, compute_type=precision, inter_threads=1, intra_threads=arguments.threads
    )

    def decode(sequences: int, beam: int, tokens: int) -> None:
        results = generator.generate_batch(
            [["t1"]] * sequences,
            beam_size=beam,
            min_length=tokens,
            max_length=tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        assert all(len(result.sequences_ids[0]) == tokens for result in results)

    return decode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, metavar="NAME")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32], help="in a batch")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--width", type=int, default=512, help="of the 6 layers")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="entries")
    parser.add_argument("--tokens", type=int, default=128, help="new ones of each sequence")
    parser.add_argument("--repeats", type=int, default=3, help="turns after one that warms up")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
