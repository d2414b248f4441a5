"""Translates with ONNX Runtime alone, greedily: `python decode.py < in.txt > out.txt` in the export's directory.

It needs numpy, onnxruntime and tokenizers, and the files beside it.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


class GreedyDecoder:
    """An exported model: the likeliest token, again and again, until the sentence ends."""

    def __init__(self, directory: Path) -> None:
        settings: dict[str, Any] = {}
        for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
            settings |= json.loads((directory / name).read_text(encoding="utf-8"))
        self.settings = settings
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        # Text that spells a special token is only text.
        self.tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens"))
        if settings["positional_encoding"] == "learned":
            self.tokenizer.enable_truncation(settings["max_position_embeddings"])  # Still ended by its </s>.
        self.tokenizer.enable_padding(pad_id=settings["pad_token_id"], pad_token=settings["pad_token"])
        self.encoder, self.decoder, self.decoder_with_past = (
            onnxruntime.InferenceSession(directory / f"{name}.onnx", providers=onnxruntime.get_available_providers())
            for name in ("encoder_model", "decoder_model", "decoder_with_past_model")
        )

    def translate(self, texts: list[str]) -> list[str]:
        """The translations of a batch of texts; those of white space alone come back empty."""
        full = [text for text in texts if text.strip()]
        translations = iter(self._translate(full) if full else [])
        return [next(translations) if text.strip() else "" for text in texts]

    def _translate(self, texts: list[str]) -> list[str]:
        encoded = self.tokenizer.encode_batch(texts)
        for text, tokens in zip(texts, encoded, strict=True):
            if tokens.overflowing:
                print(f"warning: too long for the model, and cut: {text[:60]}...", file=sys.stderr)
        source = np.array([text.ids for text in encoded], dtype=np.int64)
        mask = np.array([text.attention_mask for text in encoded], dtype=np.int64)
        return self.tokenizer.decode_batch(self.generate(source, mask).tolist())

    def generate(self, source: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Target tokens, (batch, target length), without the one that starts the decoder."""
        settings = self.settings
        ends = np.atleast_1d(settings["eos_token_id"])
        limits = self._limits(mask)
        (states,) = self.encoder.run(None, {"input_ids": source, "attention_mask": mask})
        tokens = np.full((len(source), 1), settings["decoder_start_token_id"], dtype=np.int64)
        finished = np.zeros(len(source), dtype=bool)
        past: dict[str, np.ndarray] = {}
        while not finished.all():
            inputs = {"input_ids": tokens[:, -1:], "encoder_attention_mask": mask, **past}
            if not past:
                inputs["encoder_hidden_states"] = states
            session = self.decoder_with_past if past else self.decoder
            names = [output.name for output in session.get_outputs()]
            outputs = dict(zip(names, session.run(None, inputs), strict=True))
            past |= {name.replace("present", "past_key_values", 1): outputs[name] for name in names[1:]}
            following = self._likeliest(outputs["logits"][:, -1], np.equal(tokens.shape[1], limits))
            following[finished] = settings["pad_token_id"]
            tokens = np.concatenate((tokens, following[:, None]), axis=1)
            finished |= np.isin(following, ends) | (tokens.shape[1] - 1 >= limits)
        return tokens[:, 1:]

    def _likeliest(self, logits: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The next tokens; some models never write certain tokens, or end a sentence at its limit."""
        for words in self.settings.get("bad_words_ids") or ():
            if len(words) == 1:
                logits[:, words[0]] = -np.inf
        likeliest = logits.argmax(axis=-1)
        forced = self.settings.get("forced_eos_token_id")
        if forced is not None:
            likeliest[last] = np.atleast_1d(forced)[0]
        return likeliest

    def _limits(self, mask: np.ndarray) -> np.ndarray:
        """How many tokens each translation may have."""
        settings = self.settings
        longest, length = settings.get("max_new_tokens"), settings.get("max_length")
        beyond = settings.get("max_length_beyond_source")
        if longest is None and beyond is not None and length in (None, 20):  # 20 is what trainers write there unasked.
            limits = mask.sum(axis=1) + beyond
        else:
            limits = np.full(len(mask), longest or (length or 21) - 1)
        if settings["positional_encoding"] == "learned":
            limits = np.minimum(limits, settings["max_position_embeddings"])
        return limits


def batches(lines: Iterable[str], size: int = 32) -> Iterator[list[str]]:
    """So many lines together, without their ends."""
    batch: list[str] = []
    for line in lines:
        batch.append(line.rstrip("\n"))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> None:
    """Standard input to standard output, line by line."""
    decoder = GreedyDecoder(Path(__file__).parent)
    with (
        open(sys.stdin.fileno(), encoding="utf-8", newline="\n", closefd=False) as lines,
        open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as output,
    ):
        for batch in batches(lines):
            for translation in decoder.translate(batch):
                print(" ".join(translation.splitlines()), file=output)


if __name__ == "__main__":
    main()
