"""The models that the paper replaced: recurrent encoder-decoders of 2014 and 2015, with and without attention.

Shapes in names: B batch · S source · T target · D d_model · N layers, or sentences · G gates of a cell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput
from transformers.utils import can_return_tuple

from vanilla_transformer.model.generation_vanilla_transformer import PaperGenerationMixin, paper_generation_config
from vanilla_transformer.model.modeling_vanilla_transformer import (
    EncoderDecoderHead,
    check_cache,
    check_mask,
    given_cache,
    in_outputs,
    reject_unused,
)
from vanilla_transformer.model.pipeline_vanilla_transformer import AutoModels, HubModel, name_hub_classes

from .configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig
from .recurrent_equations import SourceAttention, gru_step, lstm_step, maxout

State = tuple[torch.Tensor, ...]


@dataclass
class RecurrentEncoderOutput(BaseModelOutput):
    """The encoder's states, and the last of each layer, from which the decoder starts.

    Args:
        last_hidden_state: The states of the last layer, (batch, source length, d_model).
        hidden: Each layer's last hidden state, both directions side by side, (batch, layers, d_model).
        cell: Each layer's last LSTM cell, in the same shape; None with GRUs.
    """

    hidden: torch.Tensor | None = None
    cell: torch.Tensor | None = None


def named_outputs(outputs: tuple[torch.Tensor, ...]) -> RecurrentEncoderOutput:
    """Return the encoder's outputs, given as a tuple without the missing ones, under their names."""
    states, *last = outputs
    return RecurrentEncoderOutput(states, None, None, *last)


class RecurrentState:
    """The decoder's memory of the target so far; its size does not grow with the number of words.

    Args:
        layers: Each layer's state, one (batch, d_model) tensor each.
        fed: Luong's attentional state of the last step, (batch, d_model).
        keys: Attention keys, made once from the source.
        length: Target tokens read.
    """

    is_compileable = False
    # Read by transformers 5.24. A cache has one value per layer; False means that a step passes only new tokens.
    is_linear = (False,)
    is_croppable = False

    def __init__(self, layers: list[State], fed: torch.Tensor, keys: torch.Tensor | None, length: int = 0) -> None:
        self.layers, self.fed, self.keys, self.length = layers, fed, keys, length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of target tokens read so far."""
        return self.length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Makes each row continue the row named in `beam_idx`; the rows of a sentence share their keys."""
        self.layers = [tuple(part.index_select(0, beam_idx) for part in layer) for layer in self.layers]
        self.fed = self.fed.index_select(0, beam_idx)


class RecurrentPreTrainedModel(HubModel):
    """Initial weights, and the model's abilities as the library's tools know them."""

    config: RecurrentEncoderDecoderConfig
    base_model_prefix = "model"
    _no_split_modules = ["RecurrentEncoder", "RecurrentDecoder"]
    # A state is not a list of positions: none of the library's caches can hold it, and it cannot be cropped.
    _is_stateful = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Luong et al. 2015, section 4.1: uniform around zero."""
        if isinstance(module, nn.Linear | nn.Embedding | nn.LSTM | nn.GRU | SourceAttention):
            bound = self.config.initializer_range
            assert bound is not None
            for parameter in module.parameters(recurse=False):
                init.uniform_(parameter, -bound, bound)


def _recurrence(config: RecurrentEncoderDecoderConfig, input_width: int, directions: int = 1) -> nn.LSTM | nn.GRU:
    layers = nn.LSTM if config.cell == "lstm" else nn.GRU
    return layers(
        input_width,
        config.d_model // directions,
        config.num_layers,
        batch_first=True,
        bidirectional=directions == 2,
        dropout=config.dropout if config.num_layers > 1 else 0.0,
    )


class RecurrentEncoder(RecurrentPreTrainedModel):
    """Reads the source word by word, in one direction or in both (Schuster and Paliwal 1997)."""

    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.rnn = _recurrence(config, config.d_model, 2 if config.bidirectional else 1)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> RecurrentEncoderOutput:
        """Maps source tokens (batch, source length) to each token's states and the last state of each layer.

        The padding may be on either side.
        """
        reject_unused(kwargs)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        embedded_BSD = self.dropout(self.embedding(input_ids) if inputs_embeds is None else inputs_embeds)
        check_mask(attention_mask, embedded_BSD.shape[1])
        if attention_mask is None:
            states_BSD, last = self.rnn(embedded_BSD)
        else:
            states_BSD, last = self._without_padding(embedded_BSD, attention_mask.bool())
        hidden, cell = last if isinstance(last, tuple) else (last, None)
        return RecurrentEncoderOutput(
            last_hidden_state=states_BSD,
            hidden=self._side_by_side(hidden),
            cell=None if cell is None else self._side_by_side(cell),
        )

    def _without_padding(
        self, embedded_BSD: torch.Tensor, mask_BS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """Runs over the words of each row: moves padding behind them, leaves it out, and puts it back."""
        order_BS = mask_BS.long().argsort(dim=-1, descending=True, stable=True)
        lengths = mask_BS.sum(-1).clamp(min=1).cpu()
        packed = pack_padded_sequence(
            embedded_BSD.gather(1, order_BS[..., None].expand_as(embedded_BSD)),
            lengths,
            batch_first=True,
            enforce_sorted=False,
        )
        states, last = self.rnn(packed)
        in_front_BSD, _ = pad_packed_sequence(states, batch_first=True, total_length=mask_BS.shape[1])
        back_BSD = order_BS.argsort(dim=-1)[..., None].expand_as(in_front_BSD)
        return in_front_BSD.gather(1, back_BSD), last

    def _side_by_side(self, last: torch.Tensor) -> torch.Tensor:
        """Reshapes (layers · directions, batch, width) to (batch, layers, d_model)."""
        return last.unflatten(0, (self.config.num_layers, -1)).permute(2, 0, 1, 3).flatten(2)


class RecurrentDecoder(RecurrentPreTrainedModel):
    """Writes the target word by word from the encoder's last states and, with attention, from all its states."""

    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__(config)
        width = config.d_model
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.dropout = nn.Dropout(config.dropout)
        attends = config.attention != "none"
        self.is_bahdanau = config.attention == "bahdanau"
        self.feeds = self.is_bahdanau or (attends and config.input_feeding)
        self.rnn = _recurrence(config, 2 * width if self.feeds else width)
        if attends:
            self.attention = SourceAttention(config)
        if self.is_bahdanau:
            self.start_proj = nn.Linear(width // 2 if config.bidirectional else width, width)
            self.readout = nn.Linear(3 * width, 2 * width, bias=False)
        elif attends:
            self.readout = nn.Linear(2 * width, width, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_outputs: RecurrentEncoderOutput | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: RecurrentState | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None, RecurrentState]:
        """Maps shifted target tokens (batch, target length) to the input of the output projection.

        A source may have several adjacent rows of target tokens, such as the hypotheses of a beam. Padding leaves the
        state unchanged; `cache` is the state after the tokens already read.

        Returns:
            Attentional states (batch, target length, d_model), attention weights (batch, target length, source
            length) or None without attention, and the state after the last token.
        """
        reject_unused(kwargs)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either decoder_input_ids (or labels) or decoder_inputs_embeds.")
        assert encoder_outputs is not None
        embedded_BTD = self.dropout(self.embedding(input_ids) if inputs_embeds is None else inputs_embeds)
        values_BSD = encoder_outputs.last_hidden_state
        assert values_BSD is not None
        check_cache(cache, RecurrentState)
        state = cache or self.start(encoder_outputs)
        if len(state.fed) < len(embedded_BTD):  # The hypotheses of a sentence start from the same state.
            sources, hypotheses = len(state.fed), len(embedded_BTD) // len(state.fed)
            state.reorder_cache(torch.arange(sources, device=state.fed.device).repeat_interleave(hypotheses))
        check_mask(encoder_attention_mask, values_BSD.shape[1])
        mask_BS = (
            values_BSD.new_ones(values_BSD.shape[:2]) if encoder_attention_mask is None else encoder_attention_mask
        )
        reads_BT = None
        if attention_mask is not None:
            check_mask(attention_mask, state.length + embedded_BTD.shape[1])
            reads_BT = attention_mask[:, -embedded_BTD.shape[1] :].bool()
            if bool(reads_BT.all()):
                reads_BT = None
        if self.feeds or reads_BT is not None:
            return self._step_by_step(embedded_BTD, state, values_BSD, mask_BS.bool(), reads_BT)
        return self._all_at_once(embedded_BTD, state, values_BSD, mask_BS.bool())

    def start(self, encoded: RecurrentEncoderOutput) -> RecurrentState:
        """Starts from the encoder's last states; Bahdanau's attention from tanh(W h) of the backward one (A.2.2)."""
        hidden_BND, values_BSD = getattr(encoded, "hidden", None), encoded.last_hidden_state
        if hidden_BND is None or values_BSD is None:
            raise ValueError("encoder_outputs must be what this model's encoder returns, its last states included.")
        if self.is_bahdanau:
            hidden_BND = self.start_proj(hidden_BND[..., -self.start_proj.in_features :]).tanh()
        parts = [hidden_BND] if encoded.cell is None else [hidden_BND, encoded.cell]
        layers: list[State] = [tuple(layer) for layer in zip(*(part.unbind(1) for part in parts), strict=True)]
        keys = self.attention.keys(values_BSD) if self.config.attention != "none" else None
        return RecurrentState(layers, torch.zeros_like(layers[-1][0]), keys)

    def _all_at_once(
        self, embedded_BTD: torch.Tensor, state: RecurrentState, values_BSD: torch.Tensor, mask_BS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, RecurrentState]:
        """Runs torch's own recurrence: a step's only input from the step before is its state."""
        parts = tuple(torch.stack(part) for part in zip(*state.layers, strict=True))
        hidden_BTD, last = self.rnn(embedded_BTD, parts if len(parts) > 1 else parts[0])
        ends = last if isinstance(last, tuple) else (last,)
        layers: list[State] = [tuple(layer) for layer in zip(*(end.unbind(0) for end in ends), strict=True)]
        after = RecurrentState(layers, state.fed, state.keys, state.length + embedded_BTD.shape[1])
        if state.keys is None:
            return self.dropout(hidden_BTD), None, after
        context_BTD, weights_BTS = self._look(hidden_BTD, state, values_BSD, mask_BS)
        return self.dropout(self._attentional(context_BTD, hidden_BTD)), weights_BTS, after

    def _attentional(self, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Luong et al. 2015, Eq. 5: h̃ = tanh(W [c; h])."""
        return self.readout(torch.cat((context, hidden), -1)).tanh()

    def _step_by_step(
        self,
        embedded_BTD: torch.Tensor,
        state: RecurrentState,
        values_BSD: torch.Tensor,
        mask_BS: torch.Tensor,
        reads_BT: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, RecurrentState]:
        """Feeds the context of each step into the next step, or into its own output."""
        weight_GD = self._weight("weight_ih", 0)
        # The words' part of the first layer's gates is one product for all words.
        words_BTG = nn.functional.linear(embedded_BTD, weight_GD[:, : self.config.d_model], self._weight("bias_ih", 0))
        fed_weight_GD = weight_GD[:, self.config.d_model :]
        layers, fed_BD = state.layers, state.fed
        outputs: list[torch.Tensor] = []
        weights: list[torch.Tensor] = []
        for step in range(embedded_BTD.shape[1]):
            above_BD = layers[-1][0]
            if self.is_bahdanau:
                context_B1D, seen_B1S = self._look(above_BD[:, None], state, values_BSD, mask_BS)
                fed_BD = context_B1D[:, 0]
                weights.append(seen_B1S)
            gates_BG = words_BTG[:, step]
            if self.feeds:
                gates_BG = gates_BG + fed_BD @ fed_weight_GD.T
            new = self._through_layers(gates_BG, layers)
            if self.is_bahdanau:
                # Bahdanau et al. 2015, section A.2.2: the state before the word, the previous word and the context.
                output_BD = maxout(self.readout(torch.cat((above_BD, embedded_BTD[:, step], fed_BD), -1)))
            elif state.keys is not None:
                context_B1D, seen_B1S = self._look(new[-1][0][:, None], state, values_BSD, mask_BS)
                weights.append(seen_B1S)
                output_BD = self._attentional(context_B1D[:, 0], new[-1][0])
            else:
                output_BD = new[-1][0]
            if reads_BT is not None:
                reads_B1 = reads_BT[:, step, None]
                new = [
                    tuple(torch.where(reads_B1, part, old) for part, old in zip(layer, before, strict=True))
                    for layer, before in zip(new, layers, strict=True)
                ]
                fed_BD = torch.where(reads_B1, output_BD, fed_BD)
            else:
                fed_BD = output_BD
            layers = new
            outputs.append(output_BD)
        after = RecurrentState(layers, fed_BD, state.keys, state.length + embedded_BTD.shape[1])
        return self.dropout(torch.stack(outputs, 1)), torch.cat(weights, 1) if weights else None, after

    def _look(
        self, query_BTD: torch.Tensor, state: RecurrentState, values_NSD: torch.Tensor, mask_NS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns contexts and weights; rows that share a source count as more target positions of it."""
        batch, length = query_BTD.shape[:2]
        queries = query_BTD.reshape(len(values_NSD), -1, query_BTD.shape[-1])
        context, weights = self.attention(queries, state.keys, values_NSD, mask_NS)
        return context.reshape(batch, length, -1), weights.reshape(batch, length, -1)

    def _through_layers(self, gates_BG: torch.Tensor, layers: list[State]) -> list[State]:
        """Runs one step of every layer, with the weights of torch's own recurrence."""
        advance: Callable[..., State] = lstm_step if self.config.cell == "lstm" else gru_step
        new: list[State] = []
        for number, layer in enumerate(layers):
            if number:
                below_BD = nn.functional.dropout(new[-1][0], self.rnn.dropout, self.training)
                gates_BG = nn.functional.linear(
                    below_BD, self._weight("weight_ih", number), self._weight("bias_ih", number)
                )
            new.append(advance(gates_BG, layer, self._weight("weight_hh", number), self._weight("bias_hh", number)))
        return new

    def _weight(self, name: str, layer: int) -> torch.Tensor:
        return getattr(self.rnn, f"{name}_l{layer}")


class RecurrentEncoderDecoderModel(RecurrentPreTrainedModel):
    """Encoder and decoder, without the projection to the vocabulary."""

    _tied_weights_keys = {"decoder.embedding.weight": "encoder.embedding.weight"}

    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__(config)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Returns the embedding of the source, which is the target's too unless `tie_word_embeddings` is off."""
        return self.encoder.embedding

    def set_input_embeddings(self, value: Any) -> None:
        """Replaces the embedding of the source."""
        self.encoder.embedding = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: RecurrentEncoderOutput | tuple[torch.Tensor, ...] | None = None,
        past_key_values: RecurrentState | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        cache: RecurrentState | None = None,
        **kwargs: object,
    ) -> Seq2SeqModelOutput:
        """Maps source and shifted target to the decoder's last states, (batch, target length, d_model).

        Args:
            input_ids: Source tokens, (batch, source length).
            attention_mask: 1 on source tokens, 0 on padding, (batch, source length).
            decoder_input_ids: Target tokens shifted right, (batch, target length).
            decoder_attention_mask: 1 on target tokens, 0 on padding, (batch, target length so far).
            encoder_outputs: An earlier output of the encoder, instead of `input_ids`.
            past_key_values: The name of `cache` before transformers 5.24.
            inputs_embeds: Embeddings instead of `input_ids`.
            decoder_inputs_embeds: Embeddings instead of `decoder_input_ids`.
            use_cache: Whether to return the state.
            output_attentions: Whether to return the attention weights over the source as `cross_attentions`, (batch,
                1, target length, source length); there are none with the attention `none`.
            cache: The state after the target's earlier tokens.
        """
        reject_unused(kwargs)
        if kwargs.get("output_hidden_states", self.config.output_hidden_states):
            raise ValueError(
                "output_hidden_states is not for recurrent models, which give the states of the last layer: read "
                "encoder_last_hidden_state, and last_hidden_state of the model without its head."
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds)
        elif not isinstance(encoder_outputs, RecurrentEncoderOutput):
            encoder_outputs = named_outputs(encoder_outputs)
        assert isinstance(encoder_outputs, RecurrentEncoderOutput)
        hidden_BTD, weights_BTS, state = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            attention_mask,
            given_cache(cache, past_key_values),
            decoder_inputs_embeds,
        )
        shown = self.config.output_attentions if output_attentions is None else output_attentions
        return Seq2SeqModelOutput(
            last_hidden_state=hidden_BTD,
            cross_attentions=(weights_BTS[:, None],) if shown and weights_BTS is not None else None,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            **in_outputs(state if (self.config.use_cache if use_cache is None else use_cache) else None),
        )


class RecurrentEncoderDecoderForConditionalGeneration(
    EncoderDecoderHead, PaperGenerationMixin, RecurrentPreTrainedModel
):
    """A recurrent encoder-decoder with its output projection, trained and searched like the Transformer."""

    _tied_weights_keys = {
        "model.decoder.embedding.weight": "model.encoder.embedding.weight",
        "lm_head.weight": "model.encoder.embedding.weight",
    }

    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__(config)
        self.model = RecurrentEncoderDecoderModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()
        self.generation_config = paper_generation_config(config)

    def named_encoder_outputs(self, outputs: tuple[torch.Tensor, ...]) -> RecurrentEncoderOutput:
        """Return the encoder's outputs, given as a tuple, under their names."""
        return named_outputs(outputs)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # The first step makes a `RecurrentState`.


AUTO_MODELS: AutoModels = {
    RecurrentEncoderDecoderConfig: {
        "AutoModel": RecurrentEncoderDecoderModel,
        "AutoModelForSeq2SeqLM": RecurrentEncoderDecoderForConditionalGeneration,
    },
}
name_hub_classes(AUTO_MODELS)
