"""One search step of a recurrent decoder: hypotheses share their sentence's source."""

from typing import Any

import torch


class RecurrentDecoding:
    """A `Decoding` of a recurrent model, by the model's own steps on its live weights."""

    def __init__(self, model: Any, encoded: Any, mask_NS: torch.Tensor | None) -> None:
        self.model, self.decoder, self.values_NSD = model, model.model.decoder, encoded.last_hidden_state
        if mask_NS is None:
            mask_NS = self.values_NSD.new_ones(self.values_NSD.shape[:2])
        self.mask_NS, self.state = mask_NS.bool(), self.decoder.start(encoded)

    def read(self, tokens_NP: torch.Tensor) -> None:
        """Reads all tokens of each sentence's prompt but the last."""
        embedded_NPD = self.decoder.embedding(tokens_NP)
        _, _, self.state = self.decoder.advance(embedded_NPD, self.state, self.values_NSD, self.mask_NS)

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        """Maps the newest token of each hypothesis to logits of the next, (sentences · hypotheses, vocabulary)."""
        if tokens_NW.numel() > len(self.state.fed):
            self.reorder(torch.zeros_like(tokens_NW))
        embedded_B1D = self.decoder.embedding(tokens_NW.reshape(-1, 1))
        hidden_B1D, _, self.state = self.decoder.advance(embedded_B1D, self.state, self.values_NSD, self.mask_NS)
        return self.model._project(hidden_B1D[:, -1]).float()

    def reorder(self, parents_NW: torch.Tensor) -> None:
        """Makes each hypothesis continue the given one of its sentence, before the next step."""
        self.state.reorder_cache((self._first_rows()[:, None] + parents_NW).flatten())

    def select(self, sentences: torch.Tensor) -> None:
        """Continues with the given sentences only."""
        width = len(self.state.fed) // len(self.mask_NS)
        rows = self._first_rows()[sentences, None] + torch.arange(width, device=sentences.device)
        self.state.reorder_cache(rows.flatten())
        if self.state.keys is not None:
            self.state.keys = self.state.keys[sentences]
        self.values_NSD, self.mask_NS = self.values_NSD[sentences], self.mask_NS[sentences]

    def _first_rows(self) -> torch.Tensor:
        sentences = len(self.mask_NS)
        return torch.arange(sentences, device=self.mask_NS.device) * (len(self.state.fed) // sentences)
