"""Export of our models to CTranslate2, a fast C++ decoder for CPUs and GPUs."""

from pathlib import Path

import torch
from ctranslate2.converters.transformers import _SUPPORTED_ACTIVATIONS, BartLoader
from ctranslate2.specs import model_spec, transformer_spec
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.refusals import exportable, refuse_settings
from vanilla_transformer.graph.settings import Settings, words
from vanilla_transformer.loading.marian import to_marian
from vanilla_transformer.model.generation_vanilla_transformer import savable
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text

# CTranslate2 computes no positions, it stores them. Ours have no limit; this many suffice for the longest source that
# `vanilla-transformer translate` takes, and for its translation.
_POSITIONS = 2048
# Settings of `generate` that its README's example follows, or names as different.
_FOLLOWED = words(
    "bad_words_ids decoder_start_token_id early_stopping forced_eos_token_id length_penalty length_penalty_type "
    "max_length max_length_beyond_source max_new_tokens num_beams num_return_sequences pad_token_id "
    "renormalize_logits suppress_tokens"
)

_README = """# For CTranslate2

`pip install ctranslate2 {packages}`, then in this directory:

```python
import ctranslate2
{example}
```

CTranslate2 divides a hypothesis's score by its length to the power of `length_penalty`. With 0 there is
no penalty, and in float32 the translations are those of the original model with `length_penalty=0,
length_penalty_type="huggingface"`. Sources and translations are limited to {positions} tokens.

{processors}
"""

_IN_8_BITS = """Its weights are in int8 on 7 bits, so that it is right on any x86 processor, with VNNI and without,
as it is loaded above and with `compute_type="auto"`. Arm has not been tried."""
_NOT_IN_8_BITS = """As it is loaded above it is right on any processor. `compute_type="auto"` and `"int8"` make 8 bits
of its weights when they load them, and without VNNI (most processors before 2020) CTranslate2's sums of such products
are wrong, without a word: leave them out there, or export with `--quantization int8`, which is right on both."""

_INT16_OR_FLOAT32 = (
    ', compute_type="int16" if "int16" in ctranslate2.get_supported_compute_types("cpu") else "float32"'
)
_WITH_TOKENIZERS = """from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.encode_special_tokens = {split_special_tokens}  # text that spells a special token is only text
translator = ctranslate2.Translator("."{compute_type})

tokens = tokenizer.encode("A dog runs.").tokens
results = translator.translate_batch([tokens], {options})
print(tokenizer.decode([tokenizer.token_to_id(token) for token in results[0].hypotheses[0]]))"""

_WITH_TRANSFORMERS = """from transformers import {tokenizer_class}

tokenizer = {tokenizer_class}.from_pretrained(".")
translator = ctranslate2.Translator("."{compute_type})

tokens = tokenizer.convert_ids_to_tokens(tokenizer("A dog runs.").input_ids)
results = translator.translate_batch([tokens], {options})
print(tokenizer.convert_tokens_to_string(results[0].hypotheses[0]))"""


def export_ctranslate2(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: Path, quantization: str = "float32"
) -> None:
    """Writes a directory that `ctranslate2.Translator` loads, with the tokenizer and a README.

    Args:
        quantization: A type of CTranslate2: float32, float16, bfloat16, int16, int8, int8_float32 and so on.
    """
    model = exportable(model, _SUPPORTED_ACTIVATIONS, output)
    refuse_settings(model, _FOLLOWED)
    settings = Settings.of(model.config.to_dict(), model.generation_config.to_diff_dict())
    with torch.no_grad():
        spec = _specification(model)
    tokenizer = plain_text(tokenizer)
    source, target = _vocabularies(tokenizer, model.config.vocab_size)
    if settings.ends != (tokenizer.eos_token_id,):
        raise ModelError(
            f"CTranslate2 ends texts at {tokenizer.eos_token} alone, not at eos_token_id={settings.ends}."
        )
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token = tokenizer.bos_token or tokenizer.eos_token
    spec.config.eos_token = tokenizer.eos_token
    spec.config.unk_token = tokenizer.unk_token
    spec.config.decoder_start_token = target[settings.start]
    spec.validate()
    optimize(spec, quantization)
    output.mkdir(parents=True, exist_ok=True)
    spec.save(str(output))
    savable(model.generation_config).save_pretrained(output)
    tokenizer.save_pretrained(output)
    alone = (output / "tokenizer.json").is_file()
    (output / "README.md").write_text(_readme(settings, tokenizer, target, alone, quantization), encoding="utf-8")


def _vocabularies(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[list[str], list[str]]:
    """Returns source and target vocabulary in the order of the ids; unused ids get a placeholder."""
    source = {index: token for token, index in tokenizer.get_vocab().items()}
    target = dict(source)
    # A Marian tokenizer may have a target vocabulary of its own, under this name.
    target.update(getattr(tokenizer, "decoder", None) or {} if not tokenizer.is_fast else {})
    if max(target) >= vocab_size:
        raise ModelError(f"The tokenizer has entry {max(target)}, the model {vocab_size} entries: they do not match.")
    in_order = [[side.get(index, f"<unused-{index}>") for index in range(vocab_size)] for side in (source, target)]
    return in_order[0], in_order[1]


def _readme(
    settings: Settings,
    tokenizer: PreTrainedTokenizerBase,
    target: list[str],
    alone: bool,
    quantization: str,
) -> str:
    """Explains how to run the export, with the settings with which the model decodes."""
    options = f"beam_size={settings.num_beams}, length_penalty={settings.length_penalty:g}"
    # Without these limits CTranslate2 cuts sources after 1024 tokens and translations after 256.
    limit = min(_POSITIONS, settings.max_new_tokens or _POSITIONS)
    limit -= settings.forced_end is not None  # The last token is then the end.
    options += f", max_input_length={_POSITIONS}, max_decoding_length={limit}"
    if settings.suppressed:
        options += f", suppress_sequences={[[target[index]] for index in settings.suppressed]}"
    example = (_WITH_TOKENIZERS if alone else _WITH_TRANSFORMERS).format(
        options=options,
        # Where CTranslate2 has no int16 it would use int8 instead.
        compute_type=_INT16_OR_FLOAT32 if quantization == "int16" else "",
        split_special_tokens=tokenizer.split_special_tokens,
        tokenizer_class=type(tokenizer).__name__,
    )
    return _README.format(
        packages="tokenizers" if alone else "transformers sentencepiece sacremoses",
        example=example,
        positions=_POSITIONS,
        processors=_IN_8_BITS if quantization.startswith("int8") else _NOT_IN_8_BITS,
    )


def _specification(model: VanillaTransformerForConditionalGeneration) -> transformer_spec.TransformerSpec:
    """Returns the model in CTranslate2's terms, as those of a Marian model, with as many positions as are stored."""
    marian = to_marian(model)
    marian.config.normalize_before = marian.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(marian)
    for stack in (spec.encoder, spec.decoder):
        # Marian's order: first all sines, then all cosines.
        stack.position_encodings.encodings = (
            model.model.encoder.positional_encoding(_POSITIONS).unflatten(1, (-1, 2)).mT.flatten(1)
        )
    return spec


def optimize(spec: transformer_spec.TransformerSpec, quantization: str) -> None:
    """Shares equal weights and rounds them as CTranslate2 does, but to 7 bits instead of 8.

    Without VNNI it adds pairs of products in 16 bits, which hold 2 · 255 · 64 but not 2 · 255 · 127.
    """
    weights = {
        name: variable.tensor.detach().clone()  # CTranslate2 scales in place.
        for name, variable in spec.variables().items()
        if isinstance(variable, model_spec.PyTorchVariable)
    }
    spec.optimize(quantization)
    rounded = spec.variables()
    for name, variable in rounded.items():
        if f"{name}_scale" in rounded and getattr(variable, "dtype", None) == "int8":
            weight = weights[name].float()
            scales = 64 / weight.abs().amax(1).clamp(min=1e-30)
            variable.array = (weight * scales[:, None]).round().to(torch.int8).numpy()
            rounded[f"{name}_scale"].array = scales.numpy()
