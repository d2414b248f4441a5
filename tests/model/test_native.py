"""Where the library meets the models: Auto classes, remote code, pipelines, and `generate` of a language model."""

import inspect
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
from small_models import HEADS, IDS, MASK, NOT_INSTALLED, inputs_of, random_model
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
from vanilla_transformer.tokenizer import train_tokenizer

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
    return train_tokenizer(TEXTS, 284, begins=True, mask_token=True)


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


def computed(directories: list[str], trust: bool) -> dict[str, object]:
    """Logits or tokens of models by Auto classes, and what pipelines say; run in another process too."""
    import torch
    import transformers

    ids, found = torch.tensor([[5, 9, 7, 8, 6, 30]]), {}
    asked = {
        "AutoModelForSeq2SeqLM": ("translation", "the cat", {"max_new_tokens": 4}),
        "AutoModelForSeq2SeqLMRecurrent": ("translation", "the cat", {"max_new_tokens": 4}),
        "AutoModelForSequenceClassification": ("text-classification", "the cat", {}),
        "AutoModelForMaskedLM": ("fill-mask", "the <mask> sat", {}),
        "AutoModelForCausalLM": ("text-generation", "the cat", {"do_sample": False, "max_new_tokens": 4}),
        "AutoModelForTokenClassification": ("token-classification", "the cat sat on the mat", {}),
    }
    for directory in directories:
        kind = directory.rpartition("/")[2]
        auto_class = getattr(transformers, kind.removesuffix("Recurrent"))
        model = auto_class.from_pretrained(directory, trust_remote_code=trust)
        assert type(model).__module__.startswith("transformers_modules.") == trust
        found[kind] = (model.generate(ids) if "Seq2Seq" in kind else model(ids).logits).tolist()
        if "Seq2Seq" in kind or "Causal" in kind:
            searches = [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 1, "do_sample": True}]
            if "Recurrent" not in kind:  # The state of a recurrent model cannot be shortened or given a fixed size.
                searches += [{"num_beams": 1, "cache_implementation": "static"}]
                searches += [{"num_beams": 1, "prompt_lookup_num_tokens": 2}]
            if "Seq2Seq" in kind:
                searches += [{"decoder_input_ids": torch.tensor([[1, 7, 8]])}]
            for number, search in enumerate(searches):
                torch.manual_seed(0)
                found[f"{kind} {number}"] = model.generate(ids, **search, max_new_tokens=6).tolist()
        if kind in asked:
            task, text, settings = asked[kind]
            words = {"aggregation_strategy": "first"} if task == "token-classification" else {}
            pipe = transformers.pipeline(task, model=directory, trust_remote_code=trust, **words)
            answers = pipe(text, **settings)
            found[f"{kind} {task}"] = [answer["word"] for answer in answers] if words else answers
    # As docs/guides/hugging-face.md says: the code in the root.
    root, _, folder = directory.rpartition("/")
    within = auto_class.from_pretrained(root, subfolder=folder, trust_remote_code=trust)
    assert within(ids).logits.tolist() == found[kind]
    return found


def test_models_load_and_run_where_the_package_is_not_installed(tokenizer, tmp_path: Path):
    config = RecurrentEncoderDecoderConfig(vocab_size=284, d_model=16)
    models = {"AutoModelForSeq2SeqLMRecurrent": RecurrentEncoderDecoderForConditionalGeneration(config)}
    models |= {auto_class.__name__: random_model(kind, vocab_size=284) for kind, auto_class in AUTO.items()}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    train_tokenizer(TEXTS, 283, begins=True, ends=False).save_pretrained(tmp_path / name)
    for code in (tmp_path / name).glob("*.py"):
        shutil.copy(code, tmp_path)
    directories = [str(tmp_path / name) for name in models]
    script = f"{NOT_INSTALLED}{inspect.getsource(computed)}print(json.dumps(computed(sys.argv[1:], True)))"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, *directories]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert json.loads(result.stdout.splitlines()[-1]) == json.loads(json.dumps(computed(directories, False)))


def test_words_of_a_group_stay_apart_whatever_joins_them(tokenizer):
    tagger = random_model("tagger", vocab_size=284, id2label={0: "B-X", 1: "I-X"})
    torch.nn.init.zeros_(tagger.classifier.weight)
    tagger.classifier.bias.data = torch.tensor([0.0, 1.0])  # I-X for all, so that the words are one group.
    for strategy in ("simple", "first", "average", "max"):
        tag = pipeline("token-classification", model=tagger, tokenizer=tokenizer, aggregation_strategy=strategy)
        assert {group["word"] for group in tag("the cat sat")} == {"the cat sat"}


def test_generation_with_a_static_cache_takes_no_account_of_padding():
    model = random_model("language-model", eos_token_id=None)
    for beams in (1, 3):
        asked = {"max_new_tokens": 6, "num_beams": beams, "cache_implementation": "static"}
        padded = model.generate(IDS.flip(1), attention_mask=MASK.flip(1), **asked)
        assert torch.equal(padded[1:, -6:], model.generate(IDS[1:, :3].flip(1), **asked)[:, -6:])


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
