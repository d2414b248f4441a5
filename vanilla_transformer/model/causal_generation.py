"""`generate` of language models: the library's, by this package's search wherever it does what is asked for."""

from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.utils import ModelOutput

from .fast_search import OWN_SETTINGS, Asked, FastSearchMixin, with_own_settings


class CausalGenerationMixin(FastSearchMixin):
    """`generate` of a decoder without a source, with two settings more than the library's."""

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        """The library's `generate`; see its documentation for all arguments.

        Prompts of several lengths are padded on the left. Two settings are this package's own: `quantization` (None,
        or "int8" to decode with 8-bit weights on a CPU), and `length_penalty_type` ("huggingface", or "google" for
        the penalty of section 6.1).
        """
        asked = Asked(kwargs, generation_config, with_own_settings(self.generation_config))
        asked.penalty_type()
        settings = {name: asked.effective(name) for name in OWN_SETTINGS}
        settings.update(self._without_hooks(asked, settings))
        generation_config, kwargs = self._with_settings(settings, generation_config, kwargs)
        return super().generate(  # type: ignore[misc]
            inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs
        )


__all__ = ["CausalGenerationMixin"]
