"""What the package relies on in transformers: a cache changes no token, and no argument is dropped silently."""

import ast
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from searches import END, PAD, sharp
from small_models import HEADS, inputs_of, random_model
from transformers import EncoderDecoderCache
from transformers.utils import generic

import vanilla_transformer
from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerForConditionalGeneration,
    registration,
)
from vanilla_transformer.model.modeling_vanilla_transformer import ACCEPTED_KEYWORDS, CACHE_FIELD
from vanilla_transformer.translation.ensemble import EnsembleForConditionalGeneration

PACKAGE = Path(vanilla_transformer.__file__).parent
SOURCES = torch.tensor([[5, 9, 7, 8, END], [11, 4, END, PAD, PAD], [3, 12, 6, END, PAD]])
NEW_TOKENS = 8


@pytest.fixture(autouse=True)
def no_deprecated_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the messages of transformers about the old names of a cache into errors."""
    monkeypatch.setattr(generic.logger, "warning_once", lambda message, *args: pytest.fail(message))


def recurrent(attention: str = "luong-general") -> RecurrentEncoderDecoderForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"vocab_size": 150, "d_model": 16, "num_layers": 2, "dropout": 0.0, "initializer_range": 0.6}
    return RecurrentEncoderDecoderForConditionalGeneration(
        RecurrentEncoderDecoderConfig(attention=attention, **sizes)
    ).eval()


GENERATING = {
    "encoder-decoder": lambda: sharp(0, VanillaTransformerForConditionalGeneration),
    "decoder": lambda: sharp(0, VanillaTransformerDecoderForCausalLM),
    "recurrent": recurrent,
    "recurrent without attention": lambda: recurrent("none"),
}


def asked(model: Any) -> tuple[dict[str, torch.Tensor], str]:
    """The inputs of a call of `generate`, and the name under which `forward` takes what was written."""
    is_pair = model.config.is_encoder_decoder
    # Prompts of a decoder are padded on the left.
    ids = SOURCES if is_pair else torch.stack([row.roll(int((row == PAD).sum())) for row in SOURCES])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}, "decoder_input_ids" if is_pair else "input_ids"


def logits_of(model: Any, written: torch.Tensor, inputs: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Logits after each token of whole sequences, without a cache."""
    mask = inputs["attention_mask"]
    if name == "input_ids":
        mask = torch.cat((mask, torch.ones(len(written), written.shape[1] - mask.shape[1], dtype=torch.long)), 1)
    return model(**{**inputs, name: written, "attention_mask": mask}, use_cache=False).logits


@pytest.mark.parametrize("kind", GENERATING)
@torch.no_grad()
def test_each_token_is_the_best_after_the_whole_prefix(kind: str):
    """The library's search passes one token at a time and a cache; `forward` reads all tokens at once."""
    model = GENERATING[kind]()
    inputs, name = asked(model)
    read: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, given: read.append(given[name].shape[1]), with_kwargs=True
    )
    settings = {"num_beams": 1, "do_sample": False, "max_new_tokens": NEW_TOKENS}
    found = model.generate(**inputs, **settings, return_dict_in_generate=True, output_scores=True, output_logits=True)
    hook.remove()
    assert read[1:] == [1] * (len(found.scores) - 1) and len(found.scores) > 3
    start = found.sequences.shape[1] - len(found.scores)
    logits = logits_of(model, found.sequences, inputs, name)
    for place, step in enumerate(found.logits, start):
        unfinished = ~(found.sequences[:, start:place] == END).any(1)
        expected = logits[unfinished, place - 1]
        torch.testing.assert_close(step[unfinished], expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(found.sequences[unfinished, place], expected.argmax(-1))
    assert found[CACHE_FIELD].get_seq_length() == found.sequences.shape[1] - 1
    assert torch.equal(model.generate(**inputs, **settings), found.sequences)


@pytest.mark.parametrize("kind", GENERATING)
@torch.no_grad()
def test_a_score_of_a_beam_is_that_of_the_whole_sequence(kind: str):
    model = GENERATING[kind]()
    inputs, name = asked(model)
    settings = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": NEW_TOKENS, "length_penalty": 1.0}
    if model.config.is_encoder_decoder:
        settings["length_penalty_type"] = "huggingface"
    found = model.generate(**inputs, **settings, return_dict_in_generate=True, output_scores=True)
    repeated = {name: part.repeat_interleave(3, 0) for name, part in inputs.items()}
    new = found.beam_indices.shape[1]
    start = found.sequences.shape[1] - new
    log_p = logits_of(model, found.sequences, repeated, name)[:, start - 1 : -1].log_softmax(-1)
    of_tokens = log_p.gather(2, found.sequences[:, start:, None])[..., 0]
    is_written = found.beam_indices >= 0
    expected = (of_tokens * is_written).sum(1) / is_written.sum(1)
    torch.testing.assert_close(found.sequences_scores, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", GENERATING)
def test_an_argument_that_transformers_renames_tomorrow_is_an_error(kind: str, monkeypatch):
    """Ignoring a renamed cache silently gave other tokens."""
    model = GENERATING[kind]()
    prepare = type(model).prepare_inputs_for_generation

    def renamed(self, *args, **kwargs):
        inputs = prepare(self, *args, **kwargs)
        return {"kv_store" if name in ("cache", "past_key_values") else name: part for name, part in inputs.items()}

    monkeypatch.setattr(type(model), "prepare_inputs_for_generation", renamed)
    with pytest.raises(TypeError, match=r"does not use the argument kv_store.* transformers \d"):
        model.generate(**asked(model)[0], num_beams=1, max_new_tokens=3, return_dict_in_generate=True)


def test_every_forward_rejects_an_argument_that_it_does_not_use_and_takes_one_without_a_value():
    models = {**{kind: random_model(kind) for kind in HEADS}, "recurrent": recurrent()}
    for kind, model in models.items():
        inputs = inputs_of("translator" if kind == "recurrent" else kind)
        base = {name: part for name, part in inputs.items() if name != "labels"}
        if model.config.is_encoder_decoder:
            base["decoder_input_ids"] = inputs["labels"].clamp(min=0)
        for module, given in ((model, inputs), (model.model, base)):
            module(**given, from_the_future=None, token_type_ids=torch.zeros_like(inputs["input_ids"]))
            with pytest.raises(TypeError, match="does not use the argument from_the_future"):
                module(**given, from_the_future=False)
    encoder = models["translator"].get_encoder()
    with pytest.raises(TypeError, match="does not use the argument past_key_values"):
        encoder(inputs_of("translator")["input_ids"], past_key_values=EncoderDecoderCache)
    ensemble = EnsembleForConditionalGeneration([models["translator"]])
    with pytest.raises(TypeError, match="does not use the argument inputs_embeds"):
        ensemble(torch.ones(1, 2), inputs_embeds=torch.ones(1, 2, 16))


def test_a_model_of_one_text_per_row_rejects_arguments_for_packed_rows():
    for kind in ("translator", "tagger"):
        with pytest.raises(TypeError, match="does not use the argument is_causal"):
            random_model(kind)(**inputs_of(kind), is_causal=True)


@pytest.mark.parametrize("wrong", [((torch.ones(1), torch.ones(1)),), {"keys": 1}, True, "static"])
def test_a_cache_of_another_kind_is_an_error(wrong: Any):
    for model in (random_model("translator"), random_model("language-model"), recurrent()):
        inputs, name = asked(model)
        with pytest.raises(TypeError, match=f"cache must be a .*, not a {type(wrong).__name__}"):
            model(**{**inputs, name: SOURCES}, cache=wrong)


def test_a_cache_has_two_names_and_one_value():
    for model in (random_model("translator"), random_model("language-model"), recurrent()):
        inputs, name = asked(model)
        first, then = {**inputs, name: SOURCES[:, :3]}, {name: SOURCES[:, 3:4]}
        if model.config.is_encoder_decoder:
            then |= inputs
        else:
            first.pop("attention_mask")
        steps = []
        for given_as in ("cache", "past_key_values"):
            cache = model(**first, use_cache=True)[CACHE_FIELD]
            is_old = given_as != "cache" and CACHE_FIELD == "cache"
            with pytest.warns(FutureWarning, match="`past_key_values` is deprecated") if is_old else nullcontext():
                steps.append(model(**then, **{given_as: cache}).logits)
        assert torch.equal(*steps)
        with pytest.raises(ValueError, match="two names of one argument"):
            model(**then, cache=cache, past_key_values=cache)


# Functions that take keywords and use none of them: an attention function, for which the model has checked them, and
# losses, which are called with the arguments of the losses of transformers.
WITHOUT_USE = {"scaled_dot_product_attention", "own_loss"}


def test_keywords_are_passed_on_or_checked():
    for path in sorted(PACKAGE.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef) or function.args.kwarg is None:
                continue
            if "NoReturn" in ast.unparse(function) or "abstractmethod" in ast.unparse(function):
                continue
            name = function.args.kwarg.arg
            uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
            place = f"{path.relative_to(PACKAGE)}, line {function.lineno}: {function.name}(**{name})"
            assert bool(uses) != (function.name in WITHOUT_USE), place


# The accepted keywords that transformers reads itself.
READ = {"output_attentions", "output_hidden_states", "return_dict", "use_cache"}


@pytest.mark.parametrize("name", sorted(ACCEPTED_KEYWORDS - READ))
def test_a_keyword_that_is_accepted_without_use_changes_no_states(name: str):
    for kind in HEADS:
        model, inputs = random_model(kind).model, inputs_of(kind)
        if kind == "translator":
            inputs["decoder_input_ids"] = inputs["labels"].clamp(min=0)
        inputs.pop("labels")
        value = torch.ones_like(inputs["input_ids"])
        assert torch.equal(model(**inputs, **{name: value})[0], model(**inputs)[0])


def test_the_pages_name_the_lowest_and_the_newest_version_that_was_tested():
    root = PACKAGE.parent
    allowed = re.search(r'"transformers>=([\d.]+)', (root / "pyproject.toml").read_text("utf-8"))
    assert f"transformers=={registration.NEWEST_TESTED}\n" in (root / "constraints.txt").read_text("utf-8")
    for page in ("README.md", "CONTRIBUTING.md", "docs/start/install.md", "docs/guides/hugging-face.md"):
        text = (root / page).read_text("utf-8")
        assert f"{allowed[1]}.0" in text and registration.NEWEST_TESTED in text, page


@pytest.mark.parametrize(
    ("version", "warns"), [("5.23.0", False), ("5.24.7", False), ("5.99.0", True), ("6.0.0", True)]
)
def test_a_transformers_newer_than_tested_is_named_once(version: str, warns: bool, tmp_path, monkeypatch, caplog):
    random_model("translator").save_pretrained(tmp_path)
    registration.warn_of_untested_transformers.cache_clear()
    monkeypatch.setattr(registration.transformers, "__version__", version)
    with caplog.at_level("WARNING", registration.__name__):
        for _ in range(2):
            VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    registration.warn_of_untested_transformers.cache_clear()
    messages = [record.message for record in caplog.records if record.name == registration.__name__]
    assert len(messages) == warns
    assert all(f"transformers {version} is newer than {registration.NEWEST_TESTED}" in message for message in messages)
