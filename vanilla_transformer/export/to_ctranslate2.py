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

# CTranslate2 stores positional encodings instead of computing them, so their number is limited. This number is enough
# for the longest source that `vanilla-transformer translate` accepts, and for its translation.
_POSITIONS = 2048
# Settings of `generate` that the example in the exported README follows or describes as different.
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

{cpus}
"""

_IN_8_BITS = """The weights are in int8 and use 7 bits. So translations are correct on any x86 CPU, with and without
VNNI, both as loaded above and with `compute_type="auto"`. This was not tested on Arm."""
_NOT_IN_8_BITS = """As loaded above, translations are correct on any CPU. `compute_type="auto"` and `"int8"` quantize
weights to 8 bits when the model is loaded. On CPUs without VNNI (most CPUs before 2020), CTranslate2 then computes
wrong results without a warning. Do not use these types on such CPUs, or export with `--quantization int8`, which is
correct on all of them."""

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
        raise ModelError(f"CTranslate2 ends texts only at {tokenizer.eos_token}, not at eos_token_id={settings.ends}.")
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
    has_file = (output / "tokenizer.json").is_file()
    (output / "README.md").write_text(_readme(settings, tokenizer, target, has_file, quantization), encoding="utf-8")


def _vocabularies(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[list[str], list[str]]:
    """Returns source and target vocabulary in the order of the ids; unused ids get a placeholder."""
    source = {index: token for token, index in tokenizer.get_vocab().items()}
    target = dict(source)
    # A Marian tokenizer may have its own target vocabulary, under this name.
    target.update(getattr(tokenizer, "decoder", None) or {} if not tokenizer.is_fast else {})
    if max(target) >= vocab_size:
        raise ModelError(f"Token {max(target)} of the tokenizer and the model's {vocab_size} tokens do not match.")
    in_order = [[side.get(index, f"<unused-{index}>") for index in range(vocab_size)] for side in (source, target)]
    return in_order[0], in_order[1]


def _readme(
    settings: Settings,
    tokenizer: PreTrainedTokenizerBase,
    target: list[str],
    has_file: bool,
    quantization: str,
) -> str:
    """Returns a README that explains how to run the export with the model's own settings."""
    options = f"beam_size={settings.num_beams}, length_penalty={settings.length_penalty:g}"
    # By default, CTranslate2 cuts sources after 1024 tokens and translations after 256.
    limit = min(_POSITIONS, settings.max_new_tokens or _POSITIONS)
    limit -= settings.forced_end is not None  # The last token is then the end token.
    options += f", max_input_length={_POSITIONS}, max_decoding_length={limit}"
    if settings.suppressed:
        options += f", suppress_sequences={[[target[index]] for index in settings.suppressed]}"
    example = (_WITH_TOKENIZERS if has_file else _WITH_TRANSFORMERS).format(
        options=options,
        # On a CPU without support for int16, CTranslate2 would use int8 instead.
        compute_type=_INT16_OR_FLOAT32 if quantization == "int16" else "",
        split_special_tokens=tokenizer.split_special_tokens,
        tokenizer_class=type(tokenizer).__name__,
    )
    return _README.format(
        packages="tokenizers" if has_file else "transformers sentencepiece sacremoses",
        example=example,
        positions=_POSITIONS,
        cpus=_IN_8_BITS if quantization.startswith("int8") else _NOT_IN_8_BITS,
    )


def _specification(model: VanillaTransformerForConditionalGeneration) -> transformer_spec.TransformerSpec:
    """Returns the model as CTranslate2 describes a Marian model, with `_POSITIONS` positional encodings."""
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
    """Shares equal weights and quantizes them as CTranslate2 does, but to 7 bits instead of 8.

    On CPUs without VNNI, CTranslate2 adds pairs of products in 16 bits, which can represent 2 · 255 · 64 but not
    2 · 255 · 127.
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
