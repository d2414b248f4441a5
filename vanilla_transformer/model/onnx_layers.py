"""The layers of encoder and decoder as parts of a graph that reads their weights where they are.

No copy has to be compared before a run then, and the weights alone have to be near the processor. Products of one row
are as fast so; those of a few rows take up to twice as long as with weights in the order that ONNX Runtime likes best.

Shapes in names: R rows, which are the tokens of one sentence or one token of each hypothesis · S source · L tokens
before them · D d_model · H heads · K d_k.
"""

from typing import Any

import torch
from torch import nn

from .onnx_graphs import OWN_OPERATORS, Graph


class LayerGraph(Graph):
    """A graph of layers, whose inputs and outputs are (R, D).

    Args:
        config: Of a model whose keys and values are of the same width.
        around: The graph of which it is the body of a loop.
        copied: As of `Graph`.
    """

    def __init__(self, config: Any, around: Graph | None = None, copied: bool = False) -> None:
        super().__init__(config.num_heads, around, copied)
        self.config = config
        self._shapes: dict[tuple[int, ...], str] = {}

    def embed(self, tokens_R: str, embedding: nn.Embedding, encodings: str) -> str:
        """Sections 3.4 and 3.5."""
        embedded = self.node("Gather", self.in_place(embedding.weight), tokens_R)
        scale = self.constant(torch.tensor(self.config.d_model**0.5))
        return self.node("Add", self.node("Mul", embedded, scale), encodings)

    def self_attention(
        self, x: str, layer: Any, past: list[str] | None = None, bias: str = ""
    ) -> tuple[str, list[str]]:
        """A layer's first part; among all rows, and with keys and values before them, (1, H, L, K).

        Args:
            x: The rows.
            layer: The module.
            past: Keys and values, to which those of the rows are added.
            bias: Added to what each row attends with, (1, 1, R, L + R); without it each attends to all.

        Returns:
            The rows, and where there was a past keys and values with theirs.
        """
        own = layer.self_attention
        x_3d = self._reshape(x, 1, -1, self.config.d_model)
        inputs = [self._project(x_3d, module) for module in (own.q_proj, own.k_proj, own.v_proj)]
        if past is None:
            return self._sublayer(x, self.attend(*inputs), own.out_proj, layer.self_attention_norm), []
        attended, *present = self.node(
            "MultiHeadAttention", *inputs, "", "", bias, *past, outputs=3, domain=OWN_OPERATORS, num_heads=self.heads
        )
        return self._sublayer(x, attended, own.out_proj, layer.self_attention_norm), present

    def source_of(self, x: str, layer: Any) -> list[str]:
        """The encoder's output to a layer's keys and values of the source, (1, H, S, K)."""
        cross = layer.cross_attention
        by_head = 1, -1, self.config.num_heads, self.config.d_k
        split = [self._reshape(self._linear(x, module), *by_head) for module in (cross.k_proj, cross.v_proj)]
        return [self.node("Transpose", part, perm=[0, 2, 1, 3]) for part in split]

    def cross_attention(self, x: str, layer: Any, source: list[str]) -> str:
        """A layer's second part, of hypotheses of one sentence."""
        cross = layer.cross_attention
        query = self._reshape(self._linear(x, cross.q_proj), 1, -1, self.config.num_heads * self.config.d_k)
        return self._sublayer(x, self.attend(query, *source), cross.out_proj, layer.cross_attention_norm)

    def feed_forward(self, x: str, layer: Any) -> str:
        """A layer's last part."""
        first, second = layer.feed_forward.w_1, layer.feed_forward.w_2
        bias = [] if first.bias is None else [self.in_place(first.bias)]
        operator: dict[str, Any] = {"domain": OWN_OPERATORS, "activation": "Relu", "transB": 1}
        inner = self.node("FusedGemm", x, self.in_place(first.weight), *bias, **operator)
        return self._norm(self._linear(inner, second, x), layer.feed_forward_norm)

    def logits(self, x: str, lm_head: Any) -> str:
        """Section 3.4."""
        return self._linear(x, lm_head)

    def _reshape(self, x: str, *shape: int) -> str:
        if shape not in self._shapes:
            self._shapes[shape] = self.constant(torch.tensor(shape))
        return self.node("Reshape", x, self._shapes[shape])

    def _sublayer(self, x: str, attended: str, projection: Any, norm: nn.LayerNorm) -> str:
        attended = self._reshape(attended, -1, self.config.num_heads * self.config.d_k)
        return self._norm(self._linear(attended, projection, x), norm)

    def _norm(self, x: str, norm: nn.LayerNorm) -> str:
        return self.node(
            "LayerNormalization", x, self.in_place(norm.weight), self.in_place(norm.bias), epsilon=norm.eps
        )

    def _linear(self, x: str, module: Any, residual: str | None = None) -> str:
        """xWᵀ + b of rows, and a residual."""
        added = [] if residual is None else [residual]
        if residual is None and module.bias is not None:
            added = [self.in_place(module.bias)]
        outputs = self.node("Gemm", x, self.in_place(module.weight), *added, transB=1)
        if residual is None or module.bias is None:
            return outputs
        return self.node("Add", outputs, self.in_place(module.bias))

    def _project(self, x_3d: str, module: Any) -> str:
        """xWᵀ + b in three dimensions."""
        outputs = self.node("FusedMatMul", x_3d, self.in_place(module.weight), domain=OWN_OPERATORS, transB=1)
        return outputs if module.bias is None else self.node("Add", outputs, self.in_place(module.bias))


__all__ = ["LayerGraph"]
