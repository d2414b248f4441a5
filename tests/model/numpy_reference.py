"""Reference implementation in NumPy of the three families, their loss and the search, from a model directory's files.

It uses nothing of the package; names are those of the saved weights.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Array = NDArray[Any]
IGNORED_LABEL = -100
TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
# Section 6.1, if there is no generation_config.json; else what that leaves out is the library's default.
PAPER = {"num_beams": 4, "length_penalty": 0.6, "max_length_beyond_source": 50}
LIBRARY = {"num_beams": 1, "length_penalty": 1.0, "max_length_beyond_source": None}
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "tanh": np.tanh,
}
# The stacks of each family, with the prefix of their weights and the field of their depth.
STACKS = {
    "vanilla_transformer": {"encoder": "model.encoder.", "decoder": "model.decoder."},
    "vanilla_transformer_encoder": {"encoder": "model."},
    "vanilla_transformer_decoder": {"decoder": "model."},
}


class UnusableError(Exception):
    """Files that define no model: every loader must refuse them."""


def read_safetensors(file: Path) -> dict[str, Array]:
    """Reads all tensors of a file by its layout, as float64."""
    try:
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            values = np.frombuffer(body[slice(*entry["data_offsets"])], TYPES[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise UnusableError(f"{file.name}: {error}") from error
    if end != len(body):
        raise UnusableError(f"{file.name} has another length than its header says")
    return tensors


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableError(f"{file.name}: {error}") from error
    if not isinstance(value, dict):
        raise UnusableError(f"{file.name} is no object")
    return value


def log_softmax(x: Array) -> Array:
    """Logarithms of probabilities over the last axis."""
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def label_smoothed_loss(logits: Array, labels: Array, label_smoothing: float = 0.0) -> float:
    """Section 5.4: mean cross-entropy against 1 - ε on the label and ε / V on every type."""
    log_p, counts = log_softmax(logits), labels != IGNORED_LABEL
    by_label = np.take_along_axis(log_p, np.where(counts, labels, 0)[..., None], -1)[..., 0]
    smoothed = (1 - label_smoothing) * by_label + label_smoothing * log_p.mean(-1)
    return float(-smoothed[counts].mean())


class Reference:
    """A model as its files define it."""

    def __init__(self, directory: Path) -> None:
        """Reads a model directory.

        Raises:
            UnusableError: A file is missing or damaged, or the files contradict each other.
        """
        self.config, self.weights = (
            read_json(directory / "config.json"),
            read_safetensors(directory / "model.safetensors"),
        )
        self.settings: dict[str, Any] = dict(PAPER)
        if (directory / "generation_config.json").exists():
            given = read_json(directory / "generation_config.json")
            self.settings = LIBRARY | {name: value for name, value in given.items() if value is not None}
        try:
            self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        except BaseException as error:  # Of Rust, too.
            raise UnusableError(f"tokenizer.json: {error}") from error
        try:
            self._check()
        except (TypeError, ValueError, KeyError, ArithmeticError) as error:  # Values of the wrong type.
            raise UnusableError(f"config.json: {error}") from error

    def _check(self) -> None:
        """Checks that weights, sizes and vocabulary fit together."""
        self.stacks = STACKS[self.config["model_type"]]
        activation, positions = self.config.get("activation_function", "relu"), self.config.get("positional_encoding")
        if activation not in ACTIVATIONS or positions not in (None, "sinusoidal"):
            raise UnusableError("config.json: activation_function or positional_encoding")
        if (
            self.config.get("attention_bias")
            or self.config.get("output_bias")
            or not self.config["tie_word_embeddings"]
        ):
            raise UnusableError("config.json asks for weights that are not there")
        expected = self._shapes()
        if others := expected.keys() ^ self.weights.keys():
            raise UnusableError(f"{min(others)} is missing or left over")
        for name, weight in self.weights.items():
            if weight.shape != expected[name] or not np.isfinite(weight).all():
                raise UnusableError(f"{name} has another shape than {expected[name]}, or is not finite")
        if self.tokenizer.get_vocab_size() > self.config["vocab_size"]:
            raise UnusableError("the vocabulary is larger than the embedding")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the weights that the configuration requires."""
        c = self.config
        d, ff, heads, v = (int(c[name]) for name in ("d_model", "d_ff", "num_heads", "vocab_size"))
        d_k, d_v = (int(c.get(name) or d // heads) for name in ("d_k", "d_v"))
        if max(d, ff, heads * d_k, heads * d_v, v) > 1 << 20 or min(d, ff, heads, v) < 1:
            raise UnusableError("config.json: sizes that no model has")
        self.embedding = "model.shared.weight" if len(self.stacks) == 2 else "model.embed_tokens.weight"
        shapes: dict[str, tuple[int, ...]] = {self.embedding: (v, d)}
        for stack, prefix in self.stacks.items():
            for layer in range(min(int(c[f"{stack}_layers"]), 1 << 10)):
                for kind in ("self", "cross")[: 1 + (stack == "decoder" and len(self.stacks) == 2)]:
                    at = f"{prefix}layers.{layer}.{kind}_attention"
                    shapes |= {f"{at}.q_proj.weight": (heads * d_k, d), f"{at}.k_proj.weight": (heads * d_k, d)}
                    shapes |= {f"{at}.v_proj.weight": (heads * d_v, d), f"{at}.out_proj.weight": (d, heads * d_v)}
                    shapes |= {f"{at}_norm.weight": (d,), f"{at}_norm.bias": (d,)}
                at = f"{prefix}layers.{layer}.feed_forward"
                shapes |= {f"{at}.w_1.weight": (ff, d), f"{at}.w_1.bias": (ff,)}
                shapes |= {f"{at}.w_2.weight": (d, ff), f"{at}.w_2.bias": (d,)}
                shapes |= {f"{at}_norm.weight": (d,), f"{at}_norm.bias": (d,)}
        return shapes

    def _embed(self, ids: Array) -> Array:
        """Sections 3.4 and 3.5: adds sines and cosines to embeddings times √d_model."""
        d = self.config["d_model"]
        angles = np.arange(ids.shape[1])[:, None] / 10000.0 ** (np.arange(0, d, 2) / d)
        positions = np.stack((np.sin(angles), np.cos(angles)), -1).reshape(ids.shape[1], d)
        return self.weights[self.embedding][ids] * math.sqrt(d) + positions

    def _attend(self, at: str, queries: Array, states: Array, may_attend: Array) -> Array:
        """Section 3.2: multi-head attention with its residual connection and norm."""
        w, heads = self.weights, self.config["num_heads"]

        def split(x: Array) -> Array:
            return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3)

        q, k = (split(x @ w[f"{at}.{name}_proj.weight"].T) for x, name in ((queries, "q"), (states, "k")))
        v = split(states @ w[f"{at}.v_proj.weight"].T)
        scores = np.where(may_attend, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -1e9)
        joined = (np.exp(log_softmax(scores)) @ v).swapaxes(-2, -3)
        attended = joined.reshape(*joined.shape[:-2], -1) @ w[f"{at}.out_proj.weight"].T
        return self._norm(f"{at}_norm", queries + attended)

    def _norm(self, at: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.get("layer_norm_eps", 1e-6))
        return centred / scale * self.weights[f"{at}.weight"] + self.weights[f"{at}.bias"]

    def _feed_forward(self, at: str, x: Array) -> Array:
        w, activation = self.weights, ACTIVATIONS[self.config.get("activation_function", "relu")]
        hidden = activation(x @ w[f"{at}.w_1.weight"].T + w[f"{at}.w_1.bias"])
        return self._norm(f"{at}_norm", x + hidden @ w[f"{at}.w_2.weight"].T + w[f"{at}.w_2.bias"])

    def states(self, stack: str, ids: Any, memory: Array | None = None, memory_mask: Any = True) -> Array:
        """Section 3.1: returns a stack's last states, (batch, tokens, d_model); padding is on the right."""
        tokens = np.asarray(ids)
        x, length = self._embed(tokens), tokens.shape[1]
        may_attend = np.tri(length, dtype=bool) if stack == "decoder" else self.mask(tokens)
        for layer in range(self.config[f"{stack}_layers"]):
            at = f"{self.stacks[stack]}layers.{layer}"
            x = self._attend(f"{at}.self_attention", x, x, may_attend)
            if memory is not None:
                x = self._attend(f"{at}.cross_attention", x, memory, np.asarray(memory_mask))
            x = self._feed_forward(f"{at}.feed_forward", x)
        return x

    def mask(self, ids: Any) -> Array:
        """Returns where tokens may be attended to, for every head and query."""
        return (np.asarray(ids) != self.config.get("pad_token_id", 0))[:, None, None]

    def logits(self, *ids: Sequence[Sequence[int]]) -> Array:
        """Returns logits (batch, tokens, vocabulary) of the last stack's tokens, given those of each stack."""
        if len(self.stacks) == 2:
            x = self.states("decoder", ids[1], self.states("encoder", ids[0]), self.mask(ids[0]))
        else:
            x = self.states(*self.stacks, *ids)
        return x @ self.weights[self.embedding].T

    def search(self, source: Sequence[int], **settings: Any) -> list[tuple[float, tuple[int, ...]]]:
        """Section 6.1: beam search, greedy with a beam of one; returns scores and tokens, best first."""
        chosen = {**self.settings, **settings}
        beams, exponent = chosen["num_beams"], chosen["length_penalty"]
        limit = len(source) + chosen["max_length_beyond_source"]
        start, end = chosen.get("decoder_start_token_id", 1), chosen.get("eos_token_id", 2)
        ends, memory = {end} if isinstance(end, int) else set(end), self.states("encoder", [source])
        running: list[tuple[float, tuple[int, ...]]] = [(0.0, (start,))]
        ended: list[tuple[float, tuple[int, ...]]] = []
        for length in range(1, limit + 1):
            x = self.states("decoder", [tokens for _, tokens in running], memory)
            log_p = log_softmax(x[:, -1] @ self.weights[self.embedding].T)
            totals = (np.array([score for score, _ in running])[:, None] + log_p).ravel()
            best = np.argsort(-totals, kind="stable")[: 2 * beams if beams > 1 else 1]
            going: list[tuple[float, tuple[int, ...]]] = []
            penalty = ((5 + length) / 6) ** exponent if beams > 1 else 1.0
            for rank, place in enumerate(best):
                row, token = divmod(int(place), log_p.shape[1])
                tokens = (*running[row][1], token)
                if token in ends or length == limit:
                    if rank < beams:
                        ended.append((float(totals[place]) / penalty, tokens[1:]))
                elif len(going) < beams:
                    going.append((float(totals[place]), tokens))
            ended, running = sorted(ended, key=lambda found: -found[0])[:beams], going
            horizon = ((5 + limit) / 6) ** exponent if exponent > 0 else penalty
            if not running or (beams == 1 and ended):
                break
            if len(ended) >= beams and running[0][0] / horizon <= ended[0][0]:
                break
        return ended

    def translate(self, line: str, **settings: Any) -> str:
        """Returns the best translation of a line."""
        if not line.strip():
            return ""
        _, tokens = self.search(self.tokenizer.encode(line).ids, **settings)[0]
        return " ".join(self.tokenizer.decode(list(tokens), skip_special_tokens=True).splitlines())
