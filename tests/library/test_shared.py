"""The library's own shared tests, on each family of this package and on its tokenizer.

They come with the library's source package, which `make test-library` fetches, but for the tests of exports and of
`generate`, which `tests/model` states for itself. By reading, not by a run, three of the library's own on `generate`
need `num_beams=1`, because our default is a beam of 4: going on from a cache, the shape of a static cache, and steps
that are compiled.
"""

import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask
from tests.test_tokenization_common import TokenizerTesterMixin

import vanilla_transformer as ours

BATCH, LENGTH, VOCABULARY, WIDTH, HEADS, LAYERS = 3, 7, 99, 32, 4, 2
OUR_SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_ff": 37, "num_heads": HEADS}
PAIR_LAYERS = {"encoder_layers": LAYERS, "decoder_layers": LAYERS}


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
        ids = ids_tensor([BATCH, LENGTH], VOCABULARY).clamp(3)
        inputs = {"input_ids": ids, "attention_mask": random_attention_mask([BATCH, LENGTH])}
        if self.parent.is_encoder_decoder:
            inputs["attention_mask"] = torch.ones_like(ids)
            inputs["decoder_input_ids"] = ids_tensor([BATCH, LENGTH], VOCABULARY).clamp(3)
            inputs["decoder_attention_mask"] = torch.ones_like(ids)
        return self.get_config(), inputs


class Shared(ModelTesterMixin):
    """Shared tests of a family of this package."""

    config_kind: Any
    fields: dict[str, Any]
    all_model_classes: tuple[Any, ...]

    def setUp(self) -> None:
        """Makes the tester that the mixin needs."""
        self.model_tester = Sizes(self)

    @contextmanager
    def _with_loss(self) -> Iterator[None]:
        """Leaves out the model without a head, which has no loss; the library excludes its own such models by name."""
        kept, self.all_model_classes = self.all_model_classes, self.all_model_classes[1:]
        yield
        self.all_model_classes = kept

    def _prepare_for_class(self, inputs_dict: Any, model_class: Any, return_labels: bool = False) -> Any:
        """Adds labels to the library's inputs, which the library does only for its own classes."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels:
            shape = (BATCH,) if "ForSequence" in model_class.__name__ else (BATCH, LENGTH)
            inputs["labels"] = torch.zeros(shape, dtype=torch.long)
        return inputs

    def test_training(self) -> None:
        """Runs the library's test on models with a loss."""
        with self._with_loss():
            super().test_training()

    def check_training_gradient_checkpointing(self, gradient_checkpointing_kwargs: Any = None) -> None:
        """Runs the library's test on models with a loss."""
        with self._with_loss():
            super().check_training_gradient_checkpointing(gradient_checkpointing_kwargs)

    @unittest.skip("the tests of generation are not in the source package")
    def test_generation_tester_mixin_inheritance(self) -> None:
        """Skipped."""


class TestEncoderDecoder(Shared, unittest.TestCase):
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


class TestDecoder(Shared, unittest.TestCase):
    """Tests of `vanilla_transformer_decoder`."""

    config_kind, fields = ours.VanillaTransformerDecoderConfig, {**OUR_SIZES, "decoder_layers": LAYERS}
    all_model_classes = (ours.VanillaTransformerDecoderModel, ours.VanillaTransformerDecoderForCausalLM)


class TestRecurrent(Shared, unittest.TestCase):
    """Tests of `recurrent_encoder_decoder`, which computes attention by equations of its own."""

    is_encoder_decoder, has_attentions = True, False
    config_kind = ours.RecurrentEncoderDecoderConfig
    fields = {"vocab_size": VOCABULARY, "d_model": WIDTH, "num_layers": LAYERS}
    all_model_classes = (ours.RecurrentEncoderDecoderModel, ours.RecurrentEncoderDecoderForConditionalGeneration)

    @unittest.skip("recurrent models refuse `output_hidden_states` in a sentence")
    def refused(self) -> None:
        """Skipped."""

    test_batching_equivalence = test_hidden_states_output = test_model_outputs_equivalence = refused
    test_retain_grad_hidden_states_attentions = refused


class TestTokenizer(TokenizerTesterMixin, unittest.TestCase):
    """Tests of a tokenizer trained on a few sentences."""

    tokenizer_class = rust_tokenizer_class = ours.VanillaTransformerTokenizer
    test_sentencepiece = test_slow_tokenizer = test_tokenizer_from_extractor = False

    @classmethod
    def setUpClass(cls) -> None:
        """Saves a tokenizer where the mixin looks for a downloaded one."""
        with tempfile.TemporaryDirectory() as directory:
            texts = ["This is a test of a tokenizer", "A second sentence, with others", "Hello there"] * 9
            ours.VanillaTransformerTokenizer.train(texts, vocab_size=300).save_pretrained(directory)
            cls.from_pretrained_id = directory
            super().setUpClass()
        cls.from_pretrained_id = [cls.tmpdirname]
        cls.tokenizers_list = [(cls.tokenizer_class, cls.tmpdirname, {})]
