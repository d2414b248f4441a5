"""Reference implementation of model and search in NumPy, from the files of a model directory, without the package."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Array = NDArray[Any]
TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
PATIENCE, MOST_BEAMS = 5.0, 1000
# Defaults of section 6.1, if there is no generation_config.json.
PAPER = {
    "num_beams": 4,
    "length_penalty": 0.6,
    "max_length_beyond_source": 50,
    "early_stopping": "never",
    "length_penalty_type": "google",
}
# The library's defaults for settings that a generation_config.json leaves out.
LIBRARY = {
    "num_beams": 1,
    "length_penalty": 1.0,
    "max_length_beyond_source": None,
    "early_stopping": False,
    "length_penalty_type": "huggingface",
}

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "tanh": np.tanh,
}


class Unusable(Exception):
    """Files that define no model: every loader must refuse them."""


class TooLong(Exception):
    """A search that takes NumPy more than `PATIENCE` seconds, or has more than `MOST_BEAMS` hypotheses."""


class Found(NamedTuple):
    """A finished hypothesis: its score, divided by the length penalty, and its tokens."""

    score: float
    tokens: tuple[int, ...]


def read_safetensors(file: Path) -> dict[str, Array]:
    """Reads all tensors of a file by its layout.

    Raises:
        Unusable: The file is no safetensors file.
    """
    try:
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        body, tensors, end = data[8 + size :], {}, 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, stop = entry["data_offsets"]
            raw = body[start:stop]
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw, TYPES[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
            end = max(end, stop)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise Unusable(f"{file.name}: {error}") from error
    if end != len(body):
        raise Unusable(f"{file.name} has another length than its header says")
    return tensors


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Unusable(f"{file.name}: {error}") from error
    if not isinstance(value, dict):
        raise Unusable(f"{file.name} is no object")
    return value


def _layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def _softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Reference:
    """A model as its files define it."""

    config: dict[str, Any]
    weights: dict[str, Array]
    settings: dict[str, Any]
    tokenizer: Tokenizer

    @classmethod
    def load(cls, directory: Path) -> "Reference":
        """Loads a model directory.

        Raises:
            Unusable: The files contradict each other, or one is missing or damaged.
        """
        config = _read_json(directory / "config.json")
        settings = dict(PAPER)
        if (directory / "generation_config.json").exists():
            given = _read_json(directory / "generation_config.json")
            settings = LIBRARY | {name: value for name, value in given.items() if value is not None}
        try:
            tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        except BaseException as error:
            raise Unusable(f"tokenizer.json: {error}") from error
        model = cls(config, read_safetensors(directory / "model.safetensors"), settings, tokenizer)
        try:
            model._check()
        except (TypeError, ValueError, KeyError) as error:  # Values of the wrong type.
            raise Unusable(f"config.json: {error}") from error
        return model

    def _check(self) -> None:
        """Checks that weights, sizes and vocabulary fit together."""
        for name, kind in (("attention_bias", False), ("output_bias", False), ("tie_word_embeddings", True)):
            if self.config.get(name, kind) is not kind:
                raise Unusable(f"config.json: {name} wants weights that are not there")
        if self.config.get("positional_encoding", "sinusoidal") != "sinusoidal":
            raise Unusable("config.json: positional_encoding wants weights that are not there")
        if self.config.get("activation_function", "relu") not in ACTIVATIONS:
            raise Unusable("config.json: activation_function")
        if self.config.get("model_type") != "vanilla_transformer":
            raise Unusable("config.json: model_type")
        expected = self._shapes()
        for name, shape in expected.items():
            if name not in self.weights:
                raise Unusable(f"there is no {name}")
            if self.weights[name].shape != shape:
                raise Unusable(f"{name} has the shape {self.weights[name].shape}, not {shape}")
        left = self.weights.keys() - expected.keys()
        if left:
            raise Unusable(f"{sorted(left)[0]} is left over")
        for name, weight in self.weights.items():
            if not np.isfinite(weight).all():
                raise Unusable(f"{name} is not finite")
        if self.tokenizer.get_vocab_size() > self.config["vocab_size"]:
            raise Unusable("the vocabulary is larger than the embedding")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the weights that the configuration requires."""
        c = self.config
        try:
            d, ff, heads, v = (int(c[name]) for name in ("d_model", "d_ff", "num_heads", "vocab_size"))
            d_k, d_v = (int(c.get(name) or d // heads) for name in ("d_k", "d_v"))
            layers = {"encoder": int(c["encoder_layers"]), "decoder": int(c["decoder_layers"])}
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise Unusable(f"config.json: {error}") from error
        if max(d, ff, heads * d_k, heads * d_v, v, *layers.values()) > 1 << 20 or min(d, ff, heads, v) < 1:
            raise Unusable("config.json: sizes that no model has")
        shapes: dict[str, tuple[int, ...]] = {self._embedding: (v, d)}
        for stack, number in layers.items():
            for layer in range(number):
                for kind in ("self", "cross")[: 1 + (stack == "decoder")]:
                    at = f"model.{stack}.layers.{layer}.{kind}_attention"
                    shapes |= {f"{at}.q_proj.weight": (heads * d_k, d), f"{at}.k_proj.weight": (heads * d_k, d)}
                    shapes |= {f"{at}.v_proj.weight": (heads * d_v, d), f"{at}.out_proj.weight": (d, heads * d_v)}
                    shapes |= {f"{at}_norm.weight": (d,), f"{at}_norm.bias": (d,)}
                at = f"model.{stack}.layers.{layer}.feed_forward"
                shapes |= {f"{at}.w_1.weight": (ff, d), f"{at}.w_1.bias": (ff,)}
                shapes |= {f"{at}.w_2.weight": (d, ff), f"{at}.w_2.bias": (d,)}
                shapes |= {f"{at}_norm.weight": (d,), f"{at}_norm.bias": (d,)}
        return shapes

    @property
    def _embedding(self) -> str:
        names = ("model.shared.weight", "model.encoder.embed_tokens.weight")
        return next((name for name in names if name in self.weights), names[0])

    @cached_property
    def parameters(self) -> int:
        """Counts the model's parameters, tied ones once."""
        return sum(weight.size for weight in self.weights.values())

    def _embed(self, tokens: Sequence[Sequence[int]]) -> Array:
        """Sections 3.4 and 3.5: adds sines and cosines to embeddings times √d_model."""
        d = self.config["d_model"]
        ids = np.asarray(tokens)
        if ids.max() >= self.config["vocab_size"]:
            raise Unusable("a token is outside of the vocabulary")
        angles = np.arange(ids.shape[1])[:, None] / 10000.0 ** (np.arange(0, d, 2) / d)
        positions = np.stack((np.sin(angles), np.cos(angles)), -1).reshape(ids.shape[1], d)
        return self.weights[self._embedding][ids] * math.sqrt(d) + positions

    def _attend(self, at: str, queries: Array, states: Array, *, causal: bool = False) -> Array:
        """Section 3.2: multi-head attention with its residual connection and norm."""
        w, heads = self.weights, self.config["num_heads"]

        def split(x: Array) -> Array:
            return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3)

        q, k = (split(x @ w[f"{at}.{name}_proj.weight"].T) for x, name in ((queries, "q"), (states, "k")))
        v = split(states @ w[f"{at}.v_proj.weight"].T)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores + np.triu(np.full(scores.shape[-2:], -np.inf), 1)
        joined = (_softmax(scores) @ v).swapaxes(-2, -3)
        attended = joined.reshape(*joined.shape[:-2], -1) @ w[f"{at}.out_proj.weight"].T
        return self._norm(f"{at}_norm", queries + attended)

    def _norm(self, at: str, x: Array) -> Array:
        eps = self.config.get("layer_norm_eps", 1e-6)
        return _layer_norm(x, self.weights[f"{at}.weight"], self.weights[f"{at}.bias"], eps)

    def _feed_forward(self, at: str, x: Array) -> Array:
        w = self.weights
        hidden = ACTIVATIONS[self.config.get("activation_function", "relu")](
            x @ w[f"{at}.w_1.weight"].T + w[f"{at}.w_1.bias"]
        )
        return self._norm(f"{at}_norm", x + hidden @ w[f"{at}.w_2.weight"].T + w[f"{at}.w_2.bias"])

    def _id(self, name: str) -> Any:
        """Returns a special token's id: from the search settings, or else from the configuration."""
        usual = {"decoder_start_token_id": 1, "eos_token_id": 2}
        return self.settings.get(name, self.config.get(name, usual[name]))

    def encode(self, source: Sequence[int]) -> Array:
        """Returns the encoder's output for one sentence, (1, source, d_model)."""
        x = self._embed([source])
        for layer in range(self.config["encoder_layers"]):
            at = f"model.encoder.layers.{layer}"
            x = self._attend(f"{at}.self_attention", x, x)
            x = self._feed_forward(f"{at}.feed_forward", x)
        return x

    def log_probabilities(self, memory: Array, targets: Sequence[Sequence[int]]) -> Array:
        """Returns log-probabilities of the token after each row of targets, (rows, vocabulary)."""
        x = self._embed(targets)
        for layer in range(self.config["decoder_layers"]):
            at = f"model.decoder.layers.{layer}"
            x = self._attend(f"{at}.self_attention", x, x, causal=True)
            x = self._attend(f"{at}.cross_attention", x, memory)
            x = self._feed_forward(f"{at}.feed_forward", x)
        logits = x[:, -1] @ self.weights[self._embedding].T
        shifted = logits - logits.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

    def search(self, source: Sequence[int], **settings: Any) -> list[Found]:
        """Section 6.1: runs beam search to its very end, best first; greedy with a beam of one.

        Raises:
            Unusable: A score is not finite.
            TooLong: There are too many hypotheses or tokens.
        """
        deadline = time.monotonic() + PATIENCE
        chosen = {**self.settings, **settings}
        beams, exponent = chosen["num_beams"], chosen["length_penalty"]
        limit, returned = len(source) + chosen["max_length_beyond_source"], chosen.get("returned", 1)
        start, ends = (self._id(name) for name in ("decoder_start_token_id", "eos_token_id"))
        ends = set(ends) if isinstance(ends, list) else {ends}
        memory = self.encode(source)
        running: list[tuple[float, tuple[int, ...]]] = [(0.0, (start,))]
        ended: list[Found] = []
        for length in range(1, limit + 1):
            if time.monotonic() > deadline or beams > MOST_BEAMS:
                raise TooLong(f"{beams} hypotheses, {length} tokens")
            log_p = self.log_probabilities(memory, [tokens for _, tokens in running])
            if not np.isfinite(log_p).all():
                raise Unusable("probabilities are not finite")
            totals = (np.array([score for score, _ in running])[:, None] + log_p).ravel()
            best = np.argsort(-totals, kind="stable")[: 2 * beams if beams > 1 else 1]
            going: list[tuple[float, tuple[int, ...]]] = []
            penalty = ((5 + length) / 6) ** exponent if beams > 1 else 1.0
            for rank, place in enumerate(best):
                row, token = divmod(int(place), log_p.shape[1])
                tokens = (*running[row][1], token)
                if token in ends or length == limit:
                    if rank < beams:
                        ended.append(Found(float(totals[place]) / penalty, tokens[1:]))
                elif len(going) < beams:
                    going.append((float(totals[place]), tokens))
            ended = sorted(ended, key=lambda found: -found.score)[: max(beams, 1)]
            running = going
            if not running or (beams == 1 and ended):
                break
            horizon = ((5 + limit) / 6) ** exponent if exponent > 0 else penalty
            if len(ended) >= beams and running[0][0] / horizon <= ended[returned - 1].score:
                break
        return ended

    def encode_text(self, line: str) -> list[int]:
        """Returns the tokens of a line, with `</s>` at the end."""
        return list(self.tokenizer.encode(line).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, on one line."""
        return " ".join(self.tokenizer.decode(list(tokens), skip_special_tokens=True).splitlines())

    def score(self, line: str, text: str, **settings: Any) -> float:
        """Returns the search's score for a given translation, with `</s>` at the end where there is room for it."""
        chosen, source = {**self.settings, **settings}, self.encode_text(line)
        tokens = self.encode_text(text)[: len(source) + chosen["max_length_beyond_source"]]
        memory, start = self.encode(source), self._id("decoder_start_token_id")
        steps = [self.log_probabilities(memory, [[start, *tokens[:place]]])[0] for place in range(len(tokens))]
        total = sum(float(log_p[token]) for log_p, token in zip(steps, tokens, strict=True))
        return total / ((5 + len(tokens)) / 6) ** chosen["length_penalty"] if chosen["num_beams"] > 1 else total

    def translations(self, line: str, **settings: Any) -> list[tuple[str, float]]:
        """Returns the hypotheses of a line as text, best first, each with its score."""
        if not line.strip():
            return [("", 0.0)]
        return [(self.decode(found.tokens), found.score) for found in self.search(self.encode_text(line), **settings)]
