"""Our models for the browser: a page that any host of files serves, on which transformers.js translates."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import RepoCard
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanilla_transformer.export.errors import ConversionError
from vanilla_transformer.export.onnx_quantization import quantize_graph
from vanilla_transformer.export.to_onnx import CACHE_PARTS, Encode, cache_tensors, export_graph, traceable
from vanilla_transformer.export.vocabulary import save_tokenizer
from vanilla_transformer.export.web_page import TRANSFORMERS_JS, check_programs, write_json, write_page
from vanilla_transformer.export.weights import refuse_right_to_left
from vanilla_transformer.hub import push_space
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.reporting.model_card import CARD
from vanilla_transformer.translation.onnx_decode import MAX_SOURCE_LENGTH, refuse_settings

# Where a Space may keep its large files.
SPACE_HOSTS = ("https://*.hf.co", "https://*.huggingface.co")
_ROUNDED = "_quantized"
# Only a dimension of this name is known to transformers.js; in a cache that begins, all others are 0.
_BATCH, _SOURCE, _PAST, _READ = "batch_size", "source", "past", "read"
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Settings of greedy search that transformers.js follows as `generate` does.
_SETTINGS = ("bad_words_ids", "suppress_tokens", "forced_eos_token_id")
# What transformers.js 4.3.1 makes of a tokenizer.json.
_TOKENIZER_PARTS = {
    "model": {"BPE", "Unigram", "WordPiece"},
    "normalizer": {
        *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Prepend", "Replace"),
        *("Sequence", "Strip", "StripAccents"),
    },
    "pre_tokenizer": {
        *("BertPreTokenizer", "ByteLevel", "Digits", "FixedLength", "Metaspace", "Punctuation", "Replace"),
        *("Sequence", "Split", "Whitespace", "WhitespaceSplit"),
    },
    "post_processor": {"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"},
    "decoder": {
        *("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace", "Sequence", "Strip"),
        "WordPiece",
    },
}


class Decode(nn.Module):
    """Target tokens after others to logits, with the keys and values of target and source, as one graph for all steps.

    The source's keys and values are made of those of its states that none were made of before: of all at the first
    step, of none at the others. So there is no branch for the first step, which transformers.js would have to choose.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past_key_values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """(batch, target length) token ids to logits, and the keys and values of all layers."""
        config = self.model.config
        cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
        for layer in range(config.decoder_layers):
            key, value, source_key, source_value = past_key_values[4 * layer : 4 * layer + 4]
            cache.self_attention_cache.update(key, value, layer)
            cache.cross_attention_cache.update(source_key, source_value, layer)
            cache.is_updated[layer] = False
        outputs = self.model(
            decoder_input_ids=input_ids,
            attention_mask=encoder_attention_mask,
            encoder_outputs=(encoder_hidden_states[:, source_key.shape[2] :],),
            past_key_values=cache,
            use_cache=True,
        )
        return outputs.logits, *cache_tensors(cache, CACHE_PARTS)


def export_web(
    model: Any, tokenizer: Any, output: Path, vendor: Path | None = None, hosts: Sequence[str] = ()
) -> list[str]:
    """Writes a folder with a page, the graphs in 8 bits and float32, and the tokenizer, for any host of static files.

    Args:
        vendor: A folder of npm packages with transformers.js; what the page needs of it is copied, so that it asks no
            other host. Without it the page loads it from a content delivery network, by version and checksum.
        hosts: What the page may be led on to besides, where its host keeps large files elsewhere.

    Returns:
        Remarks for the user.

    Raises:
        ConversionError: transformers.js cannot run the model or read its tokenizer, or `vendor` is not its folder.
        ValueError: The model decodes by settings that transformers.js does not follow.
    """
    refuse_right_to_left(model.config)
    settings = model.generation_config.to_diff_dict()
    refuse_settings(settings, Path(model.name_or_path))
    parts = _tokenizer_parts(tokenizer)
    programs = check_programs(vendor)
    with traceable(model):
        _export_graphs(model, output / "onnx")
    write_json(output / "tokenizer.json", parts)
    write_json(output / "tokenizer_config.json", _tokenizer_config(tokenizer, parts))
    write_json(output / "config.json", _config(model.config))
    write_json(output / "generation_config.json", _generation_config(model.config, settings))
    sizes = dict.fromkeys(("q8", "fp32"), 0)
    for path in (output / "onnx").iterdir():
        sizes["q8" if path.stem.endswith(_ROUNDED) else "fp32"] += path.stat().st_size
    name = Path(model.name_or_path).name or output.resolve().name
    write_page(output, name, sizes, _limits(model.config, settings), programs, hosts)
    if isinstance(tokenizer, VanillaTransformerTokenizer):
        return []
    return [
        f"The tokenizer is a {type(tokenizer).__name__}: that transformers.js splits as it does is known of this "
        "package's own alone, so compare some translations."
    ]


def push_web(folder: Path, model: Path, name: str, *, private: bool = False, message: str | None = None) -> str:
    """Makes an exported folder a static Space of the model's name, or replaces the one made before; returns its URL.

    Args:
        folder: What `export_web` has written.
        model: The model, as it was pushed.
        name: Its name on the Hub, ORG/NAME.

    Raises:
        PushError: There is another Space of that name, or the Hub refuses it.
    """
    card: Any = RepoCard.load(folder / CARD)
    card.data.title, card.data.models = name.rpartition("/")[2], [name]
    card.data.license = RepoCard.load(model / CARD, ignore_metadata_errors=True).data.get("license")
    card.save(folder / CARD)
    return push_space(folder, name, private=private, message=message)


def _export_graphs(model: Any, output: Path) -> None:
    """`encoder_model` and `decoder_model_merged`, whole and quantized."""
    output.mkdir(parents=True)
    config, layers = model.config, range(model.config.decoder_layers)
    source = torch.zeros(2, 5, dtype=torch.long)
    mask, ids = torch.ones_like(source), {0: _BATCH, 1: _SOURCE}
    encoder, decoder = output / "encoder_model.onnx", output / "decoder_model_merged.onnx"
    export_graph(
        Encode(model), (source, mask), (ids, ids), ["input_ids", "attention_mask"], ["last_hidden_state"], encoder
    )
    past = [
        torch.zeros(2, config.num_heads, length, width)
        for _ in layers
        for length in (3, 2)
        for width in (config.d_k, config.d_v)
    ]
    shapes = [{0: _BATCH, 2: _PAST}] * 2 + [{0: _BATCH, 2: _READ}] * 2
    names = [f"{layer}.{part}" for layer in layers for part in CACHE_PARTS]
    export_graph(
        Decode(model),
        (source[:, :1], mask, Encode(model)(source, mask), past),
        ({0: _BATCH}, ids, ids, shapes * len(layers)),
        [
            *("input_ids", "encoder_attention_mask", "encoder_hidden_states"),
            *(f"past_key_values.{name}" for name in names),
        ],
        ["logits", *(f"present.{name}" for name in names)],
        decoder,
    )
    for path in (encoder, decoder):
        quantize_graph(path, path.with_stem(path.stem + _ROUNDED))


def _tokenizer_parts(tokenizer: Any) -> dict[str, Any]:
    """The tokenizer.json as transformers.js has to have it.

    Raises:
        ConversionError: There is none, or it has what transformers.js does not read.
    """
    with TemporaryDirectory() as directory:
        if not save_tokenizer(tokenizer, Path(directory)):
            raise ConversionError(
                f"The tokenizer is a {type(tokenizer).__name__} without a tokenizer.json, the one form that "
                "transformers.js reads: export with --to onnx."
            )
        parts: dict[str, Any] = json.loads(Path(directory, "tokenizer.json").read_text(encoding="utf-8"))
    for part, known in _TOKENIZER_PARTS.items():
        for kind in _kinds(parts[part]):
            if kind not in known:
                raise ConversionError(
                    f"The tokenizer has the {part.replace('_', '-')} {kind}, which transformers.js {TRANSFORMERS_JS} "
                    f"does not read: it reads {', '.join(sorted(known - {'Sequence'}))}."
                )
    vocabulary = parts["model"]["vocab"]
    known_tokens = {entry[0] for entry in vocabulary} if isinstance(vocabulary, list) else vocabulary.keys()
    if tokenizer.split_special_tokens:
        # Text that spells a special token is only text. transformers.js would find those that are listed as added.
        special = [token for token in parts["added_tokens"] if token["special"] and token["content"] in known_tokens]
        parts["added_tokens"] = [token for token in parts["added_tokens"] if token not in special]
    return parts


def _kinds(part: dict[str, Any] | None) -> Iterator[str]:
    """The types of a part of a tokenizer and of what it is put together from."""
    if part is None:
        return
    behavior = part.get("behavior", "Isolated")
    yield part["type"] if behavior in ("Isolated", "Removed") else f"{part['type']} ({behavior})"
    for inner in ("normalizers", "pretokenizers", "processors", "decoders"):
        for one in part.get(inner, ()):
            yield from _kinds(one)


def _tokenizer_config(tokenizer: Any, parts: dict[str, Any]) -> dict[str, Any]:
    added = {token["content"] for token in parts["added_tokens"]}
    names = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return {
        "tokenizer_class": "PreTrainedTokenizer",
        **names,
        # What decoding leaves out.
        "additional_special_tokens": [token for token in tokenizer.all_special_tokens if token not in added],
        "model_max_length": MAX_SOURCE_LENGTH,
        "clean_up_tokenization_spaces": False,
    }


def _config(config: Any) -> dict[str, Any]:
    """As that of a Marian model, the type of translation models that transformers.js knows and asks least of."""
    known = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
    }
    for name in ("vocab_size", "d_model", "encoder_layers", "decoder_layers", *_IDS):
        known[name] = getattr(config, name)
    if config.positional_encoding == "learned":
        # It counts the token that starts the decoder; `generate` does not.
        known["max_position_embeddings"] = config.max_position_embeddings + 1
    return known


def _generation_config(config: Any, settings: dict[str, Any]) -> dict[str, Any]:
    ids = {name: settings.get(name, getattr(config, name)) for name in _IDS}
    return ids | {"num_beams": 1} | {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}


def _limits(config: Any, settings: dict[str, Any]) -> dict[str, int | None]:
    """Tokens of a source and of a translation, as `generate` counts them."""
    longest, length, beyond = (
        settings.get(name) for name in ("max_new_tokens", "max_length", "max_length_beyond_source")
    )
    if length == 20 and beyond is not None:
        length = None  # Trainers write that there unasked.
    most = longest or (length or 21) - 1 if longest or length or beyond is None else None
    positions = config.max_position_embeddings if config.positional_encoding == "learned" else None
    return {
        "longest": min(MAX_SOURCE_LENGTH, positions or MAX_SOURCE_LENGTH),
        "beyond": beyond if most is None else None,
        "most": min((limit for limit in (most, positions) if limit is not None), default=None),
    }
