"""What our search is held against: the library's own, with either length penalty."""

from transformers import GenerationMixin

from vanilla_transformer import VanillaTransformerDecoderForCausalLM, VanillaTransformerForConditionalGeneration


class LibrarySearch(VanillaTransformerForConditionalGeneration):
    """Our model with encoding and searches as the library has them."""

    _maybe_prepare_encoder_kwargs_for_generation = GenerationMixin._maybe_prepare_encoder_kwargs_for_generation
    _beam_search = GenerationMixin._beam_search
    _sample = GenerationMixin._sample


class CausalLibrarySearch(VanillaTransformerDecoderForCausalLM):
    """Our language model with searches as the library has them."""

    _beam_search = GenerationMixin._beam_search
    _sample = GenerationMixin._sample


class Google(float):
    """A power that makes the library's search divide by ((5 + length) / 6)^α."""

    def __rpow__(self, length: float, modulo: None = None) -> float:
        return ((5.0 + length) / 6.0) ** float(self)
