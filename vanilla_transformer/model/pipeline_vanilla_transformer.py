"""What a repository carries beside its model: pipelines, and its classes by their names in files.

`pipeline("translation")` is text in, text out, as before transformers 5.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from transformers import Pipeline, PreTrainedConfig, PreTrainedModel, TokenClassificationPipeline
from transformers.utils import ModelOutput, logging

logger = logging.get_logger(__name__)


class VanillaTransformerTranslationPipeline(Pipeline):
    """Translates text with an encoder-decoder model: `[{"translation_text": ...}]`."""

    _pipeline_calls_generate = True
    _load_tokenizer = True  # type: ignore[assignment]
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False  # type: ignore

    # The library's declarations lack the methods called here.
    model: Any
    tokenizer: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model.eval()

    def __call__(self, inputs: object, *args: object, **kwargs: object) -> Any:
        """Translates one text, several, or a stream of them.

        Args:
            inputs: A string; a list, a column of a dataset or another sequence of strings; or a generator or a
                `KeyDataset`, which is read as the results are taken.
            kwargs: `batch_size` and `num_workers`; `truncation=False` to pass on texts longer than the model's limit;
                everything else goes to `model.generate`.

        Returns:
            For a string, a list with one dictionary for each of `num_return_sequences`, best first. For a sequence, a
            list of such lists, or a flat one if there is one result per text. For a stream, an iterator of such lists.
            A text of only white space gives an empty one.
        """
        if isinstance(inputs, str) or not isinstance(inputs, Sequence):
            return super().__call__(inputs, *args, **kwargs)
        if not inputs:
            return []
        results = super().__call__(list(inputs), *args, **kwargs)
        if all(len(records) == 1 for records in results):
            return [records[0] for records in results]
        return results

    def _sanitize_parameters(
        self, truncation: bool | None = None, **generate_kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {} if truncation is None else {"truncation": truncation}, generate_kwargs, {}

    def preprocess(self, input_: str, truncation: bool = True) -> dict[str, Any]:  # type: ignore[override]
        """Returns the token ids of one text, cut to the model's limit if it has one, (1, source length)."""
        if not isinstance(input_, str):
            raise ValueError(f"{type(self).__name__} takes strings, not {type(input_).__name__}.")
        input_.encode()  # Names half of a surrogate pair, of which the tokenizer says nothing.
        text = input_.removesuffix("\n").removesuffix("\r") if input_.strip() else ""
        inputs = self.tokenizer(text, return_tensors="pt")
        length, limit = inputs["input_ids"].shape[1], self.tokenizer.model_max_length
        if getattr(self.model.config, "positional_encoding", None) == "learned":
            limit = min(limit, self.model.config.max_position_embeddings)
        if truncation and length > limit:
            logger.warning(
                f"A text of {length} tokens is longer than the model's {limit}: only its beginning is used."
            )
            inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=limit)
        return inputs

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> Any:
        """Returns the output of `model.generate`, (batch, sequences, target length); only padding for empty texts."""
        is_empty = input_tensors["attention_mask"].sum(dim=1) <= self.tokenizer.num_special_tokens_to_add()
        found = self.model.generate(**input_tensors, **self._prepare_generate_kwargs(generate_kwargs))
        sequences = found["sequences"] if isinstance(found, ModelOutput) else found
        output_ids = sequences.unflatten(0, (len(is_empty), -1))
        output_ids[is_empty] = self.tokenizer.pad_token_id
        return {"output_ids": output_ids}

    def postprocess(self, model_outputs: Any) -> list[dict[str, Any]]:  # type: ignore[override]
        """Returns a dictionary for each translation of one text."""
        texts = self.tokenizer.batch_decode(model_outputs["output_ids"][0], skip_special_tokens=True)
        return [{"translation_text": text} for text in texts]


class VanillaTransformerTokenClassificationPipeline(TokenClassificationPipeline):
    """Tags words, and gives a group of them as it stands in the text: joined from tokens, it would lack spaces."""

    def postprocess(self, model_outputs: Any, **parameters: Any) -> list[dict[str, Any]]:  # type: ignore[override]
        """Returns a dictionary for each token or group."""
        found: list[dict[str, Any]] = super().postprocess(model_outputs, **parameters)
        # Asked by an attribute, because the code of a repository may be loaded twice, with a class each.
        for group in found if hasattr(self.model, "hub_classes") else ():
            if "entity_group" in group and group["start"] is not None:
                group["word"] = model_outputs[0]["sentence"][group["start"] : group["end"]]
        return found


# The entry of a saved configuration by which `pipeline` finds this file beside a model, for each Auto class.
CUSTOM_PIPELINES: dict[str, dict[str, dict[str, object]]] = {
    auto_class: {task: {"impl": f"{__name__.rpartition('.')[2]}.{kind.__name__}", "pt": [auto_class], "type": "text"}}
    for auto_class, task, kind in (
        ("AutoModelForSeq2SeqLM", "translation", VanillaTransformerTranslationPipeline),
        ("AutoModelForTokenClassification", "token-classification", VanillaTransformerTokenClassificationPipeline),
    )
}


class HubModel(PreTrainedModel):
    """A model that is saved with the code of its family.

    Attributes:
        hub_classes: The class for each Auto class, by its file.
        before_loading: Called before a model is loaded. The package checks the version of transformers there; the code
            that is saved with a model does nothing.
    """

    hub_classes: ClassVar[dict[str, str]] = {}
    before_loading: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does."""
        cls.before_loading()
        return super().from_pretrained(*args, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does, with the files of the classes registered for the Auto classes.

        The library names only one Auto class per model; the others and the pipeline are named here.
        """
        if self.hub_classes:
            self.config.auto_map = {**(getattr(self.config, "auto_map", None) or {}), **self.hub_classes}
        if "AutoModelForSeq2SeqLM" in self.hub_classes:
            self.config.custom_pipelines = CUSTOM_PIPELINES["AutoModelForSeq2SeqLM"]
        elif "ForTokenClassification" in type(self).__name__:
            self.config.custom_pipelines = CUSTOM_PIPELINES["AutoModelForTokenClassification"]
        if not self.config.tie_word_embeddings:
            # The library leaves out names that share a weight, even where it will not tie them again.
            weights = self.state_dict() if kwargs.get("state_dict") is None else kwargs["state_dict"]
            kwargs["state_dict"] = {name: weight.clone() for name, weight in weights.items()}
        super().save_pretrained(save_directory, *args, **kwargs)
        config = Path(save_directory, "config.json")
        if config.is_file():
            # A search in ONNX that points into the weights would read others from the same places.
            config.with_name("translate.onnx").unlink(missing_ok=True)
            # Whatever the umask, only their owner can read safetensors' files. Shared disks may refuse to change that.
            for weights in config.parent.glob("*.safetensors"):
                with suppress(OSError):
                    shutil.copymode(config, weights)


# The configuration of each family, and its model for each Auto class.
AutoModels = dict[type[PreTrainedConfig], dict[str, type[HubModel]]]


def name_hub_classes(families: AutoModels) -> None:
    """Makes the models of each family name its classes for the Auto classes when they are saved."""
    for family, models in families.items():
        kinds = {"AutoConfig": family, **models}
        hub_classes = {name: f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}" for name, kind in kinds.items()}
        for auto_class, model in models.items():
            model.hub_classes = hub_classes
            model.register_for_auto_class(auto_class)
