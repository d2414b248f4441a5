"""The library's own shared tests, on each family of this package and on its tokenizer.

They come with the library's source package, which `make test-library` fetches, but for the tests of exports and of
`generate`, which `tests/model` states for itself. `make test-library TRANSFORMERS=path` takes the tests of a checkout
of the library's repository, and runs those of `generate` too. Two of them need `num_beams=1`, because our default is a
beam of 4, with which Marian fails them too: going on from a cache, and steps that the library compiles.
"""

import tempfile
import unittest
from functools import partialmethod
from typing import Any
from unittest.mock import patch

import torch
from tests.generation.test_utils import GenerationTesterMixin
from tests.test_modeling_common import ModelTesterMixin
from tests.test_tokenization_common import TokenizerTesterMixin
from transformers import set_seed

import vanilla_transformer as ours
from vanilla_transformer.model.generation_vanilla_transformer import PaperGenerationMixin
from vanilla_transformer.tokenizer import train_tokenizer

BATCH, LENGTH, VOCABULARY, WIDTH, HEADS, LAYERS = 3, 7, 99, 32, 4, 2
OUR_SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_ff": 37, "num_heads": HEADS}
PAIR_LAYERS = {"encoder_layers": LAYERS, "decoder_layers": LAYERS}
NEED_ONE_BEAM = ("test_generate_continue_from_past_key_values", "test_generate_compile_model_forward_fullgraph")


class Sizes:
    """A small model for the shared tests: its configuration, its inputs, and their sizes."""

    def __init__(self, parent: Any) -> None:
        self.parent, self.batch_size, self.seq_length = parent, BATCH, LENGTH
        self.hidden_size, self.num_hidden_layers, self.num_attention_heads = WIDTH, LAYERS, HEADS
        self.encoder_seq_length = self.decoder_seq_length = self.key_length = LENGTH
        self.is_training, self.num_labels = True, 3

    def get_config(self) -> Any:
        """Returns a new configuration."""
        return self.parent.config_kind(**self.parent.fields)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Returns a configuration and inputs for a model's `forward`."""
        ids, targets = torch.randint(3, VOCABULARY, (2, BATCH, LENGTH))
        mask = torch.randint(2, (BATCH, LENGTH))
        mask[:, 0] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self.parent.is_encoder_decoder:
            mask.fill_(1)
            inputs |= {"decoder_input_ids": targets, "decoder_attention_mask": mask.clone()}
        return self.get_config(), inputs


class Shared(ModelTesterMixin):
    """Shared tests of a family of this package."""

    config_kind: Any
    fields: dict[str, Any]
    all_model_classes: tuple[Any, ...]
    test_torch_exportable = False  # Exports are for `tests/model` and `tests/export` to state.

    def setUp(self) -> None:
        """Makes the tester that the mixins need, and what some tests need beside it."""
        set_seed(0)
        self.model_tester = Sizes(self)
        if self._testMethodName.startswith("test_training"):
            # The model without a head has no loss; the library excludes its own such models by name.
            self.all_model_classes = self.all_model_classes[1:]
        if self._testMethodName in NEED_ONE_BEAM:
            generate = partialmethod(PaperGenerationMixin.generate, num_beams=1)
            self.enterContext(patch.object(PaperGenerationMixin, "generate", generate))

    def _prepare_for_class(self, inputs_dict: Any, model_class: Any, return_labels: bool = False) -> Any:
        """Adds labels to the library's inputs, which the library does only for its own classes."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels:
            shape = (BATCH,) if "ForSequence" in model_class.__name__ else (BATCH, LENGTH)
            inputs["labels"] = torch.zeros(shape, dtype=torch.long)
        return inputs


class TestEncoderDecoder(Shared, GenerationTesterMixin, unittest.TestCase):
    """Tests of `vanilla_transformer`."""

    is_encoder_decoder = True
    config_kind, fields = ours.VanillaTransformerConfig, {**OUR_SIZES, **PAIR_LAYERS}
    all_model_classes = (ours.VanillaTransformerModel, ours.VanillaTransformerForConditionalGeneration)


class TestEncoder(Shared, unittest.TestCase):
    """Tests of `vanilla_transformer_encoder`."""

    config_kind, fields = ours.VanillaTransformerEncoderConfig, {**OUR_SIZES, "encoder_layers": LAYERS}
    all_model_classes = (
        ours.VanillaTransformerEncoderModel,
        ours.VanillaTransformerEncoderForMaskedLM,
        ours.VanillaTransformerEncoderForSequenceClassification,
        ours.VanillaTransformerEncoderForTokenClassification,
    )


class TestDecoder(Shared, GenerationTesterMixin, unittest.TestCase):
    """Tests of `vanilla_transformer_decoder`."""

    config_kind, fields = ours.VanillaTransformerDecoderConfig, {**OUR_SIZES, "decoder_layers": LAYERS}
    all_model_classes = (ours.VanillaTransformerDecoderModel, ours.VanillaTransformerDecoderForCausalLM)


class TestRecurrent(Shared, GenerationTesterMixin, unittest.TestCase):
    """Tests of `recurrent_encoder_decoder`, which computes attention by equations of its own."""

    is_encoder_decoder, has_attentions = True, False
    config_kind = ours.RecurrentEncoderDecoderConfig
    fields = {"vocab_size": VOCABULARY, "d_model": WIDTH, "num_layers": LAYERS}
    all_model_classes = (ours.RecurrentEncoderDecoderModel, ours.RecurrentEncoderDecoderForConditionalGeneration)

    def setUp(self) -> None:
        """Skips the tests that ask for hidden states."""
        super().setUp()
        asking = "hidden_states_", "dict_output", "test_batching_equivalence", "test_model_outputs_equivalence"
        if any(word in self._testMethodName for word in asking):
            self.skipTest("recurrent models refuse `output_hidden_states` in a sentence")

    def _check_past_key_values_for_generate(self, batch_size: int, state: Any, length: int, config: Any) -> None:
        """Checks a state, which the library's caches cannot hold."""
        self.assertEqual((len(state.fed), state.get_seq_length()), (batch_size, length))

    def _check_caches_are_equal(self, state: Any, other: Any) -> None:
        """Compares two states."""
        torch.testing.assert_close((state.layers, state.fed), (other.layers, other.fed))


class TestTokenizer(TokenizerTesterMixin, unittest.TestCase):
    """Tests of a tokenizer trained on a few sentences."""

    tokenizer_class = rust_tokenizer_class = ours.VanillaTransformerTokenizer
    test_sentencepiece = test_slow_tokenizer = test_tokenizer_from_extractor = False

    @classmethod
    def setUpClass(cls) -> None:
        """Saves a tokenizer where the mixin looks for a downloaded one."""
        with tempfile.TemporaryDirectory() as directory:
            texts = ["This is a test of a tokenizer", "A second sentence, with others", "Hello there"] * 9
            train_tokenizer(texts, vocab_size=300).save_pretrained(directory)
            cls.from_pretrained_id = directory
            super().setUpClass()
        cls.from_pretrained_id = [cls.tmpdirname]
        cls.tokenizers_list = [(cls.tokenizer_class, cls.tmpdirname, {})]
