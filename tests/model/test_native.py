"""Where the library meets the models: Auto classes, remote code, pipelines, and `generate` of a language model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from small_models import HEADS, IDS, MASK, inputs_of, random_model
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    ContinuousBatchingConfig,
    GenerationConfig,
    pipeline,
)

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.model.modeling_vanilla_transformer import PositionalEncoding

TEXTS = ["the cat sat on the mat", "a dog ran", "the dog sat on a cat", "cats and dogs"] * 4
AUTO: dict[str, Any] = {
    "translator": AutoModelForSeq2SeqLM,
    "masked-language-model": AutoModelForMaskedLM,
    "classifier": AutoModelForSequenceClassification,
    "tagger": AutoModelForTokenClassification,
    "language-model": AutoModelForCausalLM,
}


@pytest.fixture(scope="module")
def tokenizer() -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.train(TEXTS, 284, begins=True, mask_token=True)


@pytest.fixture(scope="module")
def prompts() -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.train(TEXTS, 283, begins=True, ends=False)


@pytest.mark.parametrize("kind", AUTO)
def test_auto_classes_load_what_was_saved(kind: str, tmp_path: Path):
    model, auto_class, inputs = random_model(kind), AUTO[kind], inputs_of(kind)
    model.save_pretrained(tmp_path)
    loaded, report = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is HEADS[kind] and not any(report.values())
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert all(torch.equal(*pair) for pair in zip(base.parameters(), model.model.parameters(), strict=True))
    assert type(auto_class.from_config(model.config)) is HEADS[kind]
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert not [name for name in file.keys() if "position" in name]  # noqa: SIM118
    rounded = auto_class.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert rounded(**inputs).logits.dtype == torch.bfloat16
    stack = rounded.model.encoder if kind == "translator" else rounded.model
    assert torch.equal(stack.positional_encoding(4000), PositionalEncoding(model.config)(4000))


def test_a_classifier_begins_with_the_encoder_of_a_masked_language_model(tmp_path: Path):
    masked = random_model("masked-language-model")
    masked.save_pretrained(tmp_path)
    model, report = HEADS["classifier"].from_pretrained(tmp_path, num_labels=5, output_loading_info=True)
    assert set(report["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert model(IDS, MASK).logits.shape == (2, 5)
    for ours, theirs in zip(model.model.parameters(), masked.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


NOT_INSTALLED = """
import json, sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vanilla_transformer":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nowhere())
import torch, transformers
from transformers import pipeline
found = {}
for directory in sys.argv[1:]:
    name = directory.rpartition("/")[2]
    kind = name.removesuffix("Recurrent")
    model = getattr(transformers, kind).from_pretrained(directory, trust_remote_code=True)
    base = transformers.AutoModel.from_pretrained(directory, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    ids = torch.tensor([[5, 9, 7, 8, 6, 30]])
    if kind == "AutoModelForSeq2SeqLM":
        found[name] = model.generate(ids).tolist()
        continue
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)
    found[kind] = model(ids).logits.tolist()
    if kind in ("AutoModelForMaskedLM", "AutoModelForCausalLM"):
        task, text = {"M": ("fill-mask", "the <mask> sat"), "C": ("text-generation", "the cat")}[kind[12]]
        pipe = pipeline(task, model=directory, trust_remote_code=True)
        settings = {} if kind[12] == "M" else {"do_sample": False, "max_new_tokens": 4}
        found[task] = pipe(text, **settings)
    if kind == "AutoModelForTokenClassification":
        pipe = pipeline("token-classification", model=directory, trust_remote_code=True, aggregation_strategy="first")
        found["words"] = [group["word"] for group in pipe("the cat sat on the mat")]
# As docs/guides/hugging-face.md says: the code in the root.
root, _, folder = directory.rpartition("/")
within = getattr(transformers, kind).from_pretrained(root, subfolder=folder, trust_remote_code=True)
assert within(ids).logits.tolist() == found[kind]
print(json.dumps(found))
"""


def test_models_load_and_run_where_the_package_is_not_installed(tokenizer, prompts, tmp_path: Path):
    ids = torch.tensor([[5, 9, 7, 8, 6, 30]])
    config = RecurrentEncoderDecoderConfig(vocab_size=284, d_model=16)
    recurrent = RecurrentEncoderDecoderForConditionalGeneration(config).eval()
    recurrent.save_pretrained(tmp_path / "AutoModelForSeq2SeqLMRecurrent")
    directories = [str(tmp_path / "AutoModelForSeq2SeqLMRecurrent")]
    expected = {"AutoModelForSeq2SeqLMRecurrent": recurrent.generate(ids).tolist()}
    for kind, auto_class in AUTO.items():
        directory = tmp_path / auto_class.__name__
        model = random_model(kind, vocab_size=284)
        model.save_pretrained(directory)
        (prompts if kind == "language-model" else tokenizer).save_pretrained(directory)
        result = model.generate(ids) if kind == "translator" else model(ids).logits
        expected[auto_class.__name__] = result.tolist()
        if kind == "masked-language-model":
            expected["fill-mask"] = pipeline("fill-mask", model=str(directory))("the <mask> sat")
        if kind == "tagger":
            tag = pipeline("token-classification", model=str(directory), aggregation_strategy="first")
            expected["words"] = [group["word"] for group in tag("the cat sat on the mat")]
            assert any(" " in word for word in expected["words"])
        if kind == "language-model":
            settings = {"do_sample": False, "max_new_tokens": 4}
            expected["text-generation"] = pipeline("text-generation", model=str(directory))("the cat", **settings)
        directories.append(str(directory))
    for code in directory.glob("*.py"):
        shutil.copy(code, tmp_path)
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", NOT_INSTALLED, *directories]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert json.loads(result.stdout.splitlines()[-1]) == json.loads(json.dumps(expected))


def test_classifying_pipelines_of_the_library_take_the_models(tokenizer):
    names = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    classifier = random_model("classifier", vocab_size=284, **names)
    classify = pipeline("text-classification", model=classifier, tokenizer=tokenizer)
    texts = ["a dog ran", "the cat sat on the mat and the dog"]
    alone, together = [classify(text)[0] for text in texts], classify(texts, batch_size=2)
    for one, other in zip(alone, together, strict=True):
        assert one["label"] == other["label"] and one["score"] == pytest.approx(other["score"], abs=1e-5)
    assert classify({"text": "a dog", "text_pair": "ran"})["label"] in ("bad", "good")

    tagger = random_model("tagger", vocab_size=284, id2label={0: "B-X", 1: "I-X"})
    tag = pipeline("token-classification", model=tagger, tokenizer=tokenizer, aggregation_strategy="first")
    text = "the cat sat"
    assert "".join(text[word["start"] : word["end"]] for word in tag(text)).replace(" ", "") == "thecatsat"
    torch.nn.init.zeros_(tagger.classifier.weight)
    tagger.classifier.bias.data = torch.tensor([0.0, 1.0])  # I-X for all, so that the words are one group.
    for strategy in ("simple", "first", "average", "max"):
        tag = pipeline("token-classification", model=tagger, tokenizer=tokenizer, aggregation_strategy=strategy)
        assert {group["word"] for group in tag("the cat sat")} == {"the cat sat"}


GREEDY: list[dict[str, Any]] = [
    {"use_cache": False},
    {"cache_implementation": "static"},
    {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True},
]
SEARCHES: list[dict[str, Any]] = [
    *({"num_beams": 3, "num_return_sequences": 2}, {"num_beams": 3, "cache_implementation": "static"}),
    *({"repetition_penalty": 1.3, "min_new_tokens": 4}, {"prefix_allowed_tokens_fn": lambda batch, ids: [7, 8, 9]}),
]


@pytest.mark.parametrize("settings", GREEDY + SEARCHES, ids=lambda settings: "-".join(settings))
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_every_mode_of_generate_takes_no_account_of_padding(settings: dict[str, Any], positions: str):
    model = random_model("language-model", eos_token_id=None, positional_encoding=positions)
    model.set_attn_implementation("eager" if "output_attentions" in settings else "sdpa")
    ids, mask, count = IDS.flip(1), MASK.flip(1), settings.get("num_return_sequences", 1)

    def last(tokens: torch.Tensor, where: torch.Tensor, **asked: Any) -> torch.Tensor:
        outputs = model.generate(tokens, attention_mask=where, max_new_tokens=6, **asked)
        return (outputs if isinstance(outputs, torch.Tensor) else outputs.sequences)[-count:, -6:]

    padded = last(ids, mask, **settings)
    assert torch.equal(padded, last(ids[1:, 3:], mask[1:, 3:], **settings))
    assert settings not in GREEDY or torch.equal(padded, last(ids, mask))


@pytest.mark.parametrize("kind", ["translator", "language-model"])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("beams", [1, 4])
def test_generate_returns_what_the_library_does_of_each_step(kind: str, sampled: bool, beams: int):
    model = random_model(kind, eos_token_id=None)
    model.set_attn_implementation("eager")
    config, found = model.config, []
    details = dict.fromkeys(("scores", "logits", "attentions", "hidden_states"), True)
    for use_cache in (True, False):
        torch.manual_seed(0)
        asked = {"do_sample": sampled, "num_beams": beams, "use_cache": use_cache, "return_dict_in_generate": True}
        asked |= {f"output_{name}": wanted for name, wanted in details.items()}
        outputs = model.generate(IDS.flip(1), attention_mask=MASK.flip(1), max_new_tokens=3, **asked)
        prefix = "decoder_" if kind == "translator" else ""
        rows, read = len(IDS) * beams, outputs.sequences.shape[1] - 1
        new = 1 if use_cache else read
        assert [scores.shape for scores in outputs.scores + outputs.logits] == [(rows, config.vocab_size)] * 6
        attention, states = outputs[f"{prefix}attentions"][-1], outputs[f"{prefix}hidden_states"][-1]
        shape = (rows, config.num_heads, new, read)
        assert [layer.shape for layer in attention] == [shape] * config.decoder_layers
        assert [layer.shape for layer in states] == [(rows, new, config.d_model)] * (config.decoder_layers + 1)
        found.append(outputs)
    assert torch.equal(found[0].sequences, found[1].sequences)
    torch.testing.assert_close(found[0].scores, found[1].scores)


def test_generation_continues_from_embeddings_and_with_an_assistant():
    model = random_model("language-model", eos_token_id=None)
    expected = model.generate(IDS[:1], max_new_tokens=6)
    embeddings = model.get_input_embeddings()(IDS[:1])
    assert torch.equal(model.generate(inputs_embeds=embeddings, max_new_tokens=6), expected[:, 6:])
    assistant = random_model("language-model", eos_token_id=None, decoder_layers=1)
    assert torch.equal(model.generate(IDS[:1], max_new_tokens=6, assistant_model=assistant), expected)
    assert torch.equal(model.generate(IDS[:1], max_new_tokens=6, prompt_lookup_num_tokens=2), expected)


def test_continuous_batching_gives_what_each_prompt_gives_alone():
    """Prompts of all lengths stand in one row there: their positions say where each begins."""
    model = random_model("language-model", eos_token_id=None)
    prompts = [[5, 9, 7, 8, 6, 30], [11, 4, 12]]
    alone = [model.generate(torch.tensor([prompt]), max_new_tokens=5)[0, len(prompt) :].tolist() for prompt in prompts]
    settings = GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # Left to itself it takes most of the memory that is free.
    small = ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=64)
    found = model.generate_batch(prompts, settings, small, progress_bar=False)
    assert [found[name].generated_tokens for name in sorted(found)] == alone
