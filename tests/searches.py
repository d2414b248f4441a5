"""Models and sources for tests of decoding, with predictions that differ clearly."""

import torch
from hypothesis import strategies as st
from transformers import CompileConfig, GenerationConfig, GenerationMixin, LogitsProcessor, WatermarkingConfig

from vanilla_transformer import VanillaTransformerForConditionalGeneration

PAD, START, END, WORDS = 0, 1, 2, 150


class LibraryModel(VanillaTransformerForConditionalGeneration):
    """Our model with all of transformers' own decoding, in which each hypothesis has a copy of its source."""

    generate = GenerationMixin.generate
    prepare_inputs_for_generation = GenerationMixin.prepare_inputs_for_generation
    _expand_inputs_for_generation = GenerationMixin._expand_inputs_for_generation

    def _reorder_cache(self, cache, beam_idx: torch.Tensor):
        cache.reorder_cache(beam_idx)
        return cache


class Google(float):
    """A power that makes the library's search divide by ((5 + length) / 6)^α."""

    def __rpow__(self, length: float, modulo: None = None) -> float:
        return ((5.0 + length) / 6.0) ** float(self)


def sharp(seed: int, cls=VanillaTransformerForConditionalGeneration, **fields):
    """A random model that is sure of itself, so that sentences end and hypotheses differ."""
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = cls(cls.config_class(**{"vocab_size": WORDS, **sizes, **fields})).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(2.5)
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.3)
    return model


def sentences(seed: int, lengths: list[int], side: str) -> dict[str, torch.Tensor]:
    """Random sources, padded on a side, `</s>` at each one's end."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(source, lengths, strict=True):
        place = slice(None, length) if side == "right" else slice(-length, None)
        row[place] = torch.cat((torch.randint(3, WORDS, (length - 1,), generator=generator), torch.tensor([END])))
    return {"input_ids": source, "attention_mask": (source != PAD).long()}


ARCHITECTURES = st.sampled_from(
    [
        {},
        {"d_k": 5, "d_v": 11},
        {"positional_encoding": "learned", "max_position_embeddings": 64},
        {"attention_bias": True, "output_bias": True, "activation_function": "gelu"},
        {"tie_word_embeddings": False, "num_heads": 1},
        {"vocab_size": 64 * 3},
    ]
)


class Never(LogitsProcessor):
    """Forbids a token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor([5]), -float("inf"))


INPUTS = sentences(0, [5, 3, 2], "right")

# Another value of each setting of transformers.
CHANGED = {name: 3 for name in sorted(vars(GenerationConfig())) if name[0] != "_"} | {
    "assistant_ensemble_weight": 0.5,
    "bad_words_ids": [[5]],
    "begin_suppress_tokens": [5],
    "cache_implementation": "static",
    "compile_config": CompileConfig(),
    "do_sample": True,
    "early_stopping": True,
    "eos_token_id": [2, 7],
    "epsilon_cutoff": 0.5,
    "eta_cutoff": 0.5,
    "exponential_decay_length_penalty": [2, 1.5],
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "sequence_bias": [[[5], 1.0]],
    "stop_strings": ["a"],
    "suppress_tokens": [5],
    "top_p": 0.5,
    "typical_p": 0.5,
    "use_cache": False,
    "watermarking_config": WatermarkingConfig(),
}
