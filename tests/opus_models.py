"""Tiny OPUS-MT models as they are downloaded: two sentencepiece models, `vocab.json`, random weights."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

END, PAD = 0, 41
ENGLISH = ["the cat sat on the mat", "a dog runs in the park", "two men walk", "hello world this is a test"] * 20
GERMAN = ["die katze sass auf der matte", "ein hund läuft im park", "zwei männer gehen", "hallo welt"] * 20


def opus(**changes: Any) -> MarianConfig:
    """The configuration of the OPUS-MT models, smaller."""
    sizes = {
        "vocab_size": 60,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 64,
    }
    settings = {
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "bos_token_id": END,
        "forced_eos_token_id": END,
        "decoder_start_token_id": PAD,
    }
    return MarianConfig(**sizes | settings | changes)


def random_marian(config: MarianConfig, seed: int = 0) -> MarianMTModel:
    """Nothing in it is zero or one, so that nothing can be forgotten unseen."""
    torch.manual_seed(seed)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.final_logits_bias.normal_()
    return model


def write_opus(directory: Path, *, separate: bool = False, languages: tuple[str, ...] = ()) -> Path:
    """Writes a model with random weights; `separate` vocabularies, or tokens of target languages, if asked for."""
    vocabularies = []
    for name, lines in (("source", ENGLISH), ("target", GERMAN)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(directory / name),
            vocab_size=30,
            model_type="unigram",
            minloglevel=2,
        )
        (directory / f"{name}.model").rename(directory / f"{name}.spm")
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{name}.spm"))
        vocabularies.append([pieces.id_to_piece(index) for index in range(3, pieces.get_piece_size())])
    groups = vocabularies if separate else [[*vocabularies[0], *vocabularies[1], *languages]]
    for group, file in zip(groups, ("vocab.json", "target_vocab.json"), strict=False):
        entries = ["</s>", "<unk>", "<pad>", *group] if separate else ["</s>", "<unk>", *group, "<pad>"]
        ids = {piece: number for number, piece in enumerate(dict.fromkeys(entries))}
        (directory / file).write_text(json.dumps(ids))
    size, sizes = len(json.loads((directory / "vocab.json").read_text())), {}
    pad = 2 if separate else size - 1
    if separate:
        sizes = {"decoder_vocab_size": len(ids), "share_encoder_decoder_embeddings": False}
        sizes["tie_word_embeddings"] = False
    # Its output depends on the source with this seed, whatever sizes a version of sentencepiece gives; with most, it
    # hardly does.
    config = opus(vocab_size=size, pad_token_id=pad, decoder_start_token_id=pad, **sizes)
    model = random_marian(config, seed=18)
    model.final_logits_bias[0, 0] += 1
    model.generation_config = GenerationConfig(
        num_beams=4,
        max_length=20,
        bad_words_ids=[[pad]],
        renormalize_logits=True,
        pad_token_id=pad,
        bos_token_id=0,
        eos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=pad,
    )
    files = [str(directory / name) for name in ("source.spm", "target.spm", "vocab.json")]
    more = {"target_vocab_file": str(directory / "target_vocab.json"), "separate_vocabs": True} if separate else {}
    MarianTokenizer(*files, source_lang="en", target_lang="de", **more).save_pretrained(directory)
    model.save_pretrained(directory)
    return directory
