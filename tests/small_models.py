"""Small random models of each kind and small texts, shared by the tests of commands, pages and runs."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import models
from transformers.utils import ModelOutput

from vanilla_transformer import (
    Recipe,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.training.choices import Choices
from vanilla_transformer.training.summary import Summary

SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
# Of pages, where a label is only text.
LABELS = ["animal", "plant", "<b>stone</b>"]
ENCODERS = {
    "classifier": VanillaTransformerEncoderForSequenceClassification,
    "tagger": VanillaTransformerEncoderForTokenClassification,
    "masked-language-model": VanillaTransformerEncoderForMaskedLM,
}
# Each head, by what it does.
HEADS = {
    "translator": VanillaTransformerForConditionalGeneration,
    **ENCODERS,
    "language-model": VanillaTransformerDecoderForCausalLM,
}
IDS = torch.tensor([[5, 9, 7, 8, 2, 30], [11, 4, 2, 0, 0, 0]])
MASK = (IDS != 0).long()
# At the beginning of a program that runs as where the package is not installed.
NOT_INSTALLED = """
import json, sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vanilla_transformer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
"""
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_SMALL = {"vocab_size": 50, "d_model": 32, "d_ff": 48, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 3}
# Sizes for which parameters and operations are counted.
CONFIGS = {
    "own d_k and d_v": VanillaTransformerConfig(**_SMALL, d_k=8, d_v=24),
    "learned positions": VanillaTransformerConfig(**_SMALL, positional_encoding="learned", max_position_embeddings=16),
    "three embeddings": VanillaTransformerConfig(**_SMALL, tie_word_embeddings=False),
    "base": VanillaTransformerConfig.from_preset("base"),
    "big": VanillaTransformerConfig.from_preset("big"),
    "one head": VanillaTransformerConfig.from_preset("table3-A-h1"),
    "narrow keys": VanillaTransformerConfig.from_preset("table3-B-dk16"),
}


class CopyingModel(VanillaTransformerForConditionalGeneration):
    """Translates each source of bytes into itself; remembers each batch, and the settings of the last search."""

    def __init__(self) -> None:
        super().__init__(VanillaTransformerConfig(vocab_size=260, **SIZES))
        self.batches: list[torch.Tensor] = []
        self.search: dict[str, Any] = {}

    def generate(self, input_ids, attention_mask, return_dict_in_generate=False, **settings):
        self.batches.append(input_ids)
        self.search = settings
        start = input_ids.new_full((input_ids.shape[0], 1), self.config.decoder_start_token_id)
        is_written = input_ids != self.config.pad_token_id
        return ModelOutput(sequences=torch.cat((start, input_ids), dim=1), beam_indices=is_written.long() - 1)


def random_model(kind: str, **fields: Any) -> Any:
    """Makes a random model of two layers a stack, in evaluation mode; nothing is random in training mode either."""
    torch.manual_seed(0)
    stacks = {"translator": ("encoder", "decoder"), "language-model": ("decoder",)}.get(kind, ("encoder",))
    sizes = {"vocab_size": 48, "d_model": 32, "d_ff": 64, "num_heads": 4, "dropout": 0.0, "label_smoothing": 0.0}
    layers = {f"{stack}_layers": 2 for stack in stacks}
    return HEADS[kind](HEADS[kind].config_class(**{**sizes, **layers, **fields})).eval()


def inputs_of(kind: str) -> dict[str, torch.Tensor]:
    """Two rows, the second padded, with labels for a head."""
    labels = IDS.masked_fill(MASK == 0, -100)
    if kind == "classifier":
        labels = torch.tensor([1, 0])
    elif kind == "tagger":
        labels = labels.clamp(max=1)
    elif kind == "translator":
        labels = torch.tensor([[6, 3, 12, 30, 2], [9, 7, 2, -100, -100]])
    return {"input_ids": IDS, "attention_mask": MASK, "labels": labels}


def on_meta(config: VanillaTransformerConfig) -> VanillaTransformerForConditionalGeneration:
    """Makes a model that has shapes and no data, with attention whose products torch can count."""
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return VanillaTransformerForConditionalGeneration(config)


def save(model: Any, tokenizer: VanillaTransformerTokenizer, directory: Path) -> str:
    """Saves a model with its tokenizer; returns the directory."""
    model.eval().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def save_translator(directory: Path, seed: int = 0, **fields: Any) -> Path:
    """Saves a random model that translates bytes to bytes."""
    torch.manual_seed(seed)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=260, **{**SIZES, **fields}))
    save(model, train_tokenizer(["a b"], vocab_size=260), directory)
    return directory


def single_stack(kind: str, texts: Sequence[str], **fields: Any) -> tuple[Any, VanillaTransformerTokenizer]:
    """Makes a random language model, or an encoder of a kind, of two layers, with a tokenizer of 300 entries."""
    if kind == "language-model":
        tokenizer = train_tokenizer(texts, 300, begins=True, ends=False)
        decoder = VanillaTransformerDecoderConfig(vocab_size=len(tokenizer), decoder_layers=2, **fields)
        return VanillaTransformerDecoderForCausalLM(decoder), tokenizer
    tokenizer = train_tokenizer(texts, 300, begins=True, mask_token=True)
    labels = {} if kind == "masked-language-model" else {"id2label": dict(enumerate(LABELS))}
    encoder = VanillaTransformerEncoderConfig(vocab_size=len(tokenizer), encoder_layers=2, **labels, **fields)
    return ENCODERS[kind](encoder), tokenizer


def write_summary(run: Path, **facts: Any) -> Summary:
    """Writes the summary of a run that is finished, and returns it."""
    summary = Summary(
        **{
            "steps": 2000,
            "epochs": 3.5,
            "averaged_steps": [1900, 2000],
            "parameters": 15104,
            "pairs": 29000,
            "target_tokens": 1234567,
            "flops": 2.5e15,
            "seconds": 600.0,
            "best_dev_loss": 1.25,
            "best_dev_step": 1900,
            "last_dev_loss": 1.3,
            "peak_memory_bytes": 1,
            "device": "2 CPU threads",
            "processes": 1,
            "precision": "bfloat16",
            "scores": {},
            "languages": [],
            **facts,
        }
    )
    summary.write(run / "summary.json")
    return summary


def figures(run: Path) -> list[dict[str, float]]:
    """All that the metrics.jsonl of a run says, but for the time that it took."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    timed = ("seconds", "tokens_per")
    return [{name: value for name, value in one.items() if not name.startswith(timed)} for one in records]


def write_reversed(
    directory: Path, name: str, number: int, seed: int, words: Sequence[str] = NUMBERS, longest: int = 6
) -> tuple[str, str]:
    """Writes sentences of random words, and the same in the other order; returns the two files."""
    draw = random.Random(seed)
    sentences = [[draw.choice(words) for _ in range(draw.randint(1, longest))] for _ in range(number)]
    paths = (directory / f"{name}.en", directory / f"{name}.de")
    for path, step in zip(paths, (1, -1), strict=True):
        path.write_text("".join(" ".join(sentence[::step]) + "\n" for sentence in sentences))
    return str(paths[0]), str(paths[1])


def small_recipe(directory: Path, **changes: Any) -> Recipe:
    """A recipe of four steps for a tiny model that says numbers in the other order, from a text beside it."""
    settings = {
        "train": write_reversed(directory, "train", 120, seed=0),
        "dev": write_reversed(directory, "dev", 10, seed=1),
        "vocab_size": 275,
        **SIZES,
        "batch_tokens": 180,
        "batches_per_step": 2,
        "max_steps": 4,
        "warmup_steps": 4,
        "save_steps": 2,
        "metrics": (),
    }
    return Recipe.of(**{**settings, **changes})


def unigram_tokenizer(texts: Sequence[str], vocab_size: int) -> VanillaTransformerTokenizer:
    """A tokenizer that splits words into their likeliest pieces, as those of many other models do."""
    tokenizer = train_tokenizer(texts, vocab_size)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    scores = [(piece, -math.log(number + 1)) for piece, number in by_id]
    tokenizer.backend_tokenizer.model = models.Unigram(scores, unk_id=tokenizer.unk_token_id)
    return tokenizer


def choices_of(recipe: Recipe) -> Choices:
    """Returns choices for a recipe, with small numbers for all that it leaves open."""
    small = dict.fromkeys(("batch_tokens", "batches_per_step", "warmup_steps", "eval_steps", "save_steps"), 1)
    small |= {"precision": "float32", "learning_rate_scale": 1.0, "metrics": ()}
    return Choices.of(recipe.with_options(**{name: small[name] for name in small.keys() & recipe.open_settings}))
