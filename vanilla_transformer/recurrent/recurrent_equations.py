"""Recurrent layers and attentions that the paper replaced, each equation named after its authors.

Shapes in names: B batch · S source · T target · D width · G gates of a cell, side by side.
"""

import torch
from torch import nn

from .configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig


def lstm_step(
    input_BG: torch.Tensor,
    state: tuple[torch.Tensor, torch.Tensor],
    weight_GD: torch.Tensor,
    bias_G: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of an LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    c_t = f ⊙ c_{t-1} + i ⊙ g and h_t = o ⊙ tanh(c_t), with the gates i, f, o by a sigmoid and the candidate g by tanh.

    Args:
        input_BG: The input's part of input gate, forget gate, candidate and output gate, (batch, 4 · width).
        state: h_{t-1} and c_{t-1}, (batch, width) each.
        weight_GD: Multiplies the hidden state, (4 · width, width).
        bias_G: Added to that product, (4 · width).

    Returns:
        h_t and c_t.
    """
    hidden_BD, cell_BD = state
    gates_BG = input_BG + nn.functional.linear(hidden_BD, weight_GD, bias_G)
    i, f, g, o = gates_BG.chunk(4, dim=-1)
    cell_BD = f.sigmoid() * cell_BD + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell_BD.tanh(), cell_BD


def gru_step(
    input_BG: torch.Tensor, state: tuple[torch.Tensor], weight_GD: torch.Tensor, bias_G: torch.Tensor
) -> tuple[torch.Tensor]:
    """One step of a GRU (Cho et al. 2014, Eq. 5 to 8): h_t = z ⊙ h_{t-1} + (1 - z) ⊙ n.

    Deviation: as in cuDNN and torch, the reset gate acts after the product with the hidden state instead of before it,
    so that all three products are one.

    Args:
        input_BG: The input's part of reset gate, update gate and candidate, (batch, 3 · width).
        state: h_{t-1}, (batch, width).
        weight_GD: Multiplies the hidden state, (3 · width, width).
        bias_G: Added to that product, (3 · width).

    Returns:
        h_t.
    """
    (hidden_BD,) = state
    r_x, z_x, n_x = input_BG.chunk(3, dim=-1)
    r_h, z_h, n_h = nn.functional.linear(hidden_BD, weight_GD, bias_G).chunk(3, dim=-1)
    z = (z_x + z_h).sigmoid()
    candidate_BD = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return ((1 - z) * candidate_BD + z * hidden_BD,)


def additive_score(query_BTD: torch.Tensor, key_BSD: torch.Tensor, v_D: torch.Tensor) -> torch.Tensor:
    """Bahdanau et al. 2015, section A.1.2: vᵀ tanh(W s + U h); Luong et al. 2015, Eq. 8, "concat", is the same sum.

    Args:
        query_BTD: W s, the projected decoder states, (batch, target, width).
        key_BSD: U h, the projected encoder states, (batch, source, width).
        v_D: The vector v, (width).

    Returns:
        Scores, (batch, target, source).
    """
    return (query_BTD[:, :, None] + key_BSD[:, None]).tanh() @ v_D


def multiplicative_score(query_BTD: torch.Tensor, key_BSD: torch.Tensor) -> torch.Tensor:
    """Luong et al. 2015, Eq. 8: hᵀ h̄, "dot"; with W h̄ as the key it is "general".

    Args:
        query_BTD: The decoder's states h, (batch, target, width).
        key_BSD: The encoder's states h̄, or W h̄, (batch, source, width).

    Returns:
        Scores, (batch, target, source).
    """
    return query_BTD @ key_BSD.mT


def local_window(center_BT: torch.Tensor, position_BS: torch.Tensor, half_width: int) -> torch.Tensor:
    """Luong et al. 2015, Eq. 10: exp(-(s - p)² / (2 σ²)) with σ = D / 2, and 0 where |s - p| > D.

    Args:
        center_BT: p, the source position that a target word looks at, (batch, target).
        position_BS: s, the positions of the source words, (batch, source).
        half_width: D.

    Returns:
        Factors of the attention weights, (batch, target, source).
    """
    distance_BTS = position_BS[:, None] - center_BT[..., None]
    return (-2 * (distance_BTS / half_width) ** 2).exp() * (distance_BTS.abs() <= half_width)


def maxout(hidden: torch.Tensor) -> torch.Tensor:
    """Goodfellow et al. 2013, as in Bahdanau et al. 2015, section A.2.2: the larger of each two neighbours."""
    return hidden.unflatten(-1, (-1, 2)).amax(-1)


class SourceAttention(nn.Module):
    """Attention from a target word to the source, after Bahdanau et al. 2015 and Luong et al. 2015."""

    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__()
        self.kind, self.half_width = config.attention, config.attention_window
        width = config.d_model
        if self.is_additive:
            self.query_proj = nn.Linear(width, width, bias=False)
            self.v = nn.Parameter(torch.empty(width))
        if self.kind != "luong-dot":
            self.key_proj = nn.Linear(width, width, bias=False)
        if self.half_width is not None:
            self.position_proj = nn.Linear(width, width, bias=False)
            self.position_v = nn.Parameter(torch.empty(width))

    @property
    def is_additive(self) -> bool:
        """Tells whether query and key are added instead of multiplied."""
        return self.kind in ("bahdanau", "luong-concat")

    def keys(self, encoder_BSD: torch.Tensor) -> torch.Tensor:
        """Returns the part of the scores that depends only on the source, (batch, source length, d_model)."""
        return encoder_BSD if self.kind == "luong-dot" else self.key_proj(encoder_BSD)

    def forward(
        self, query_BTD: torch.Tensor, key_BSD: torch.Tensor, value_BSD: torch.Tensor, mask_BS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns context vectors (batch, target, d_model) and the attention weights (batch, target, source).

        Args:
            query_BTD: The decoder's states.
            key_BSD: Keys that `keys` made from the encoder's states.
            value_BSD: The encoder's states.
            mask_BS: True on source tokens.
        """
        if self.is_additive:
            scores_BTS = additive_score(self.query_proj(query_BTD), key_BSD, self.v)
        else:
            scores_BTS = multiplicative_score(query_BTD, key_BSD)
        seen_BTS, window_BTS = mask_BS[:, None], None
        if self.half_width is not None:
            window_BTS = self._window(query_BTD, mask_BS)
            seen_BTS = seen_BTS & (window_BTS > 0)
        weights_BTS = scores_BTS.masked_fill(~seen_BTS, torch.finfo(scores_BTS.dtype).min).softmax(dim=-1)
        if window_BTS is not None:
            weights_BTS = weights_BTS * window_BTS
        return weights_BTS @ value_BSD, weights_BTS

    def _window(self, query_BTD: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
        """Luong et al. 2015, Eq. 9: p = S · sigmoid(vᵀ tanh(W h)), and the window around it."""
        assert self.half_width is not None
        share_BT = (self.position_proj(query_BTD).tanh() @ self.position_v).sigmoid()
        positions_BS = mask_BS.cumsum(-1) - 1
        return local_window(share_BT * mask_BS.sum(-1, keepdim=True), positions_BS, self.half_width)
