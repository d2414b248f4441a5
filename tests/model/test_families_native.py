"""Encoder-only and decoder-only models where the library, PEFT and torch meet them."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from refusals import refused
from torch._dynamo.testing import CompileCounter
from torch.export import Dim
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    ContinuousBatchingConfig,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    GenerationConfig,
    TextStreamer,
    Trainer,
    TrainingArguments,
    pipeline,
)

from vanilla_transformer import (
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
    VanillaTransformerTokenizer,
)

TEXTS = ["the cat sat on the mat", "a dog ran", "the dog sat on a cat", "cats and dogs"] * 4
IDS = torch.tensor([[5, 9, 7, 8, 6, 30], [11, 4, 12, 0, 0, 0]])
MASK = (IDS != 0).long()
SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 64, "num_heads": 4, "dropout": 0.0}
CLASSES = {
    AutoModelForMaskedLM: VanillaTransformerEncoderForMaskedLM,
    AutoModelForSequenceClassification: VanillaTransformerEncoderForSequenceClassification,
    AutoModelForTokenClassification: VanillaTransformerEncoderForTokenClassification,
    AutoModelForCausalLM: VanillaTransformerDecoderForCausalLM,
}
HEADS = list(CLASSES.values())
peft = pytest.importorskip("peft", reason="PEFT is not installed.")


def build(kind: type, vocab_size: int = 48, **fields: Any) -> Any:
    torch.manual_seed(0)
    layers = {"decoder_layers": 2} if "Decoder" in kind.__name__ else {"encoder_layers": 2}
    return kind(kind.config_class(vocab_size=vocab_size, **{**SIZES, **layers, **fields})).eval()


def labels_of(kind: type) -> torch.Tensor:
    if kind is VanillaTransformerEncoderForSequenceClassification:
        return torch.tensor([1, 0])
    labels = IDS.masked_fill(MASK == 0, -100)
    return labels.clamp(max=1) if kind is VanillaTransformerEncoderForTokenClassification else labels


def inputs_of(kind: type) -> dict[str, torch.Tensor]:
    return {"input_ids": IDS, "attention_mask": MASK, "labels": labels_of(kind)}


@pytest.fixture(scope="module")
def tokenizer() -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.train(TEXTS, 284, begins=True, mask_token=True)


@pytest.fixture(scope="module")
def prompts() -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.train(TEXTS, 283, begins=True, ends=False)


@pytest.mark.parametrize(("auto_class", "kind"), CLASSES.items())
def test_auto_classes_load_what_was_saved(auto_class: Any, kind: type, tmp_path: Path):
    model = build(kind)
    model.save_pretrained(tmp_path)
    loaded, report = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is kind and not any(report.values())
    assert torch.equal(loaded(IDS, MASK).logits, model(IDS, MASK).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(base(IDS, MASK).last_hidden_state, model.model(IDS, MASK).last_hidden_state)
    assert type(auto_class.from_config(model.config)) is kind
    half = auto_class.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half(IDS, MASK).logits.dtype == torch.bfloat16


def test_a_classifier_begins_with_the_encoder_of_a_masked_language_model(tmp_path: Path):
    masked = build(VanillaTransformerEncoderForMaskedLM)
    masked.save_pretrained(tmp_path)
    kind = VanillaTransformerEncoderForSequenceClassification
    model, report = kind.from_pretrained(tmp_path, num_labels=5, output_loading_info=True)
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
    kind = directory.rpartition("/")[2]
    model = getattr(transformers, kind).from_pretrained(directory, trust_remote_code=True)
    base = transformers.AutoModel.from_pretrained(directory, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    ids = torch.tensor([[5, 9, 7, 8, 6, 30]])
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)
    found[kind] = model(ids).logits.tolist()
    if kind in ("AutoModelForMaskedLM", "AutoModelForCausalLM"):
        task, text = {"M": ("fill-mask", "the <mask> sat"), "C": ("text-generation", "the cat")}[kind[12]]
        pipe = pipeline(task, model=directory, trust_remote_code=True)
        settings = {} if kind[12] == "M" else {"do_sample": False, "max_new_tokens": 4}
        found[task] = pipe(text, **settings)
# As docs/guides/hugging-face.md says: the code in the root.
root, _, folder = directory.rpartition("/")
within = getattr(transformers, kind).from_pretrained(root, subfolder=folder, trust_remote_code=True)
assert within(ids).logits.tolist() == found[kind]
print(json.dumps(found))
"""


def test_models_load_and_run_where_the_package_is_not_installed(tokenizer, prompts, tmp_path: Path):
    expected, directories = {}, []
    for auto_class, kind in CLASSES.items():
        directory = tmp_path / auto_class.__name__
        model = build(kind, 284)
        model.save_pretrained(directory)
        words = prompts if auto_class is AutoModelForCausalLM else tokenizer
        words.save_pretrained(directory)
        expected[auto_class.__name__] = model(IDS[:1]).logits.tolist()
        if auto_class is AutoModelForMaskedLM:
            expected["fill-mask"] = pipeline("fill-mask", model=str(directory))("the <mask> sat")
        if auto_class is AutoModelForCausalLM:
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


GENERATIONS: list[dict[str, Any]] = [
    {"num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True, "no_repeat_ngram_size": 2},
    {"do_sample": True, "top_k": 5, "temperature": 0.7},
    {"do_sample": True, "num_beams": 2, "top_p": 0.9},
    {"repetition_penalty": 1.3, "min_new_tokens": 4},
    {"prompt_lookup_num_tokens": 2},
    {"use_cache": False},
    {"cache_implementation": "static"},
    {"num_beams": 3, "cache_implementation": "static"},
    {"cache_implementation": "offloaded"},
    {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True},
    {"prefix_allowed_tokens_fn": lambda batch, ids: [7, 8, 9]},
]


@pytest.mark.parametrize("settings", GENERATIONS, ids=lambda settings: "-".join(settings))
def test_every_mode_of_generate_runs_and_takes_no_account_of_padding(settings: dict[str, Any]):
    model = build(VanillaTransformerDecoderForCausalLM, eos_token_id=None)
    model.set_attn_implementation("eager" if "output_attentions" in settings else "sdpa")
    offloaded = settings.get("cache_implementation") == "offloaded"
    if offloaded and not torch.cuda.is_available():
        pytest.skip("A cache can be taken off an accelerator alone.")
    ids, mask = IDS.flip(1), MASK.flip(1)
    only = "prompt_lookup_num_tokens" in settings
    prompts = [(ids[:1], mask[:1])] if only else [(ids, mask), (ids[1:, 3:], mask[1:, 3:])]
    found = []
    for tokens, where in prompts:
        torch.manual_seed(3)
        outputs = model.generate(tokens, attention_mask=where, max_new_tokens=6, **settings)
        outputs = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
        count = settings.get("num_return_sequences", 1)
        assert outputs.shape == (len(tokens) * count, tokens.shape[1] + 6)
        found.append(outputs[-count:, -6:])
    if not only and not settings.get("do_sample"):
        assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("settings", [{"use_cache": False}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_greedy_search_is_the_same_whatever_is_cached(settings: dict[str, Any], positions: str):
    model = build(VanillaTransformerDecoderForCausalLM, eos_token_id=None, positional_encoding=positions)
    inputs = {"input_ids": IDS.flip(1), "attention_mask": MASK.flip(1), "max_new_tokens": 8}
    assert torch.equal(model.generate(**inputs, **settings), model.generate(**inputs))


def test_generation_continues_from_embeddings_cache_and_assistant():
    model = build(VanillaTransformerDecoderForCausalLM, eos_token_id=None)
    expected = model.generate(IDS[:1], max_new_tokens=6)
    embeddings = model.get_input_embeddings()(IDS[:1])
    assert torch.equal(model.generate(inputs_embeds=embeddings, max_new_tokens=6), expected[:, 6:])
    begun = model.generate(IDS[:1], max_new_tokens=2, return_dict_in_generate=True)
    rest = model.generate(begun.sequences, past_key_values=begun.past_key_values, max_new_tokens=4)
    assert torch.equal(rest, expected)
    assistant = build(VanillaTransformerDecoderForCausalLM, eos_token_id=None, decoder_layers=1)
    assert torch.equal(model.generate(IDS[:1], max_new_tokens=6, assistant_model=assistant), expected)


def test_continuous_batching_gives_what_each_prompt_gives_alone():
    """Prompts of all lengths stand in one row there: their positions say where each begins."""
    model = build(VanillaTransformerDecoderForCausalLM, eos_token_id=None)
    prompts = [[5, 9, 7, 8, 6, 30], [11, 4, 12]]
    alone = [model.generate(torch.tensor([prompt]), max_new_tokens=5)[0, len(prompt) :].tolist() for prompt in prompts]
    settings = GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # Left to itself it takes most of the memory that is free.
    small = ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=64)
    found = model.generate_batch(prompts, settings, small, progress_bar=False)
    assert [found[name].generated_tokens for name in sorted(found)] == alone


@pytest.mark.parametrize("kind", HEADS)
def test_embeddings_and_tuples_are_as_ids_and_dictionaries(kind: type):
    model = build(kind)
    outputs = model(**inputs_of(kind))
    embedded = {**inputs_of(kind), "input_ids": None, "inputs_embeds": model.get_input_embeddings()(IDS)}
    torch.testing.assert_close(model(**embedded).logits, outputs.logits)
    loss, logits = model(**inputs_of(kind), return_dict=False)[:2]
    assert torch.equal(loss, outputs.loss) and torch.equal(logits, outputs.logits)
    assert torch.equal(copy.deepcopy(model)(**inputs_of(kind)).logits, outputs.logits)


def test_generation_is_streamed(prompts, capsys):
    model = build(VanillaTransformerDecoderForCausalLM, 284)
    inputs = prompts("the cat", return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=4, streamer=TextStreamer(prompts))
    assert capsys.readouterr().out.strip() == prompts.decode(ids[0]).strip()


def test_generation_ends_where_learned_positions_do():
    model = build(VanillaTransformerDecoderForCausalLM, positional_encoding="learned", max_position_embeddings=8)
    assert model.generate(IDS[:1], max_new_tokens=3, min_new_tokens=3).shape == (1, 9)
    with refused(ValueError, "9", "8"):
        model.generate(IDS[:1], max_new_tokens=6, min_new_tokens=6)


def test_pipelines_of_the_library_take_the_models(tokenizer, prompts):
    fill = pipeline("fill-mask", model=build(VanillaTransformerEncoderForMaskedLM, 284), tokenizer=tokenizer)
    found = fill("the <mask> sat", top_k=3)
    ids = tokenizer("the <mask> sat", return_tensors="pt")
    place = ids["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    expected = fill.model(**ids).logits[0, place].softmax(-1).topk(3)
    assert [record["token"] for record in found] == expected.indices.tolist()

    names = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    classifier = build(VanillaTransformerEncoderForSequenceClassification, 284, **names)
    classify = pipeline("text-classification", model=classifier, tokenizer=tokenizer)
    texts = ["a dog ran", "the cat sat on the mat and the dog"]
    alone, together = [classify(text)[0] for text in texts], classify(texts, batch_size=2)
    for one, other in zip(alone, together, strict=True):
        assert one["label"] == other["label"] and one["score"] == pytest.approx(other["score"], abs=1e-5)
    assert {record["label"] for record in classify(texts[0], top_k=None)} == {"bad", "good"}
    assert classify({"text": "a dog", "text_pair": "ran"})["label"] in ("bad", "good")

    tagger = build(VanillaTransformerEncoderForTokenClassification, 284, id2label={0: "B-X", 1: "I-X"})
    tag = pipeline("token-classification", model=tagger, tokenizer=tokenizer, aggregation_strategy="first")
    text = "the cat sat"
    words = tag(text)
    assert "".join(text[record["start"] : record["end"]] for record in words).replace(" ", "") == "thecatsat"

    model = build(VanillaTransformerDecoderForCausalLM, 284)
    generate = pipeline("text-generation", model=model, tokenizer=prompts)
    texts = ["the cat", "the dog sat on"]
    settings = {"do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4}
    alone = [generate(text, **settings) for text in texts]
    assert generate(texts, batch_size=2, **settings) == alone
    assert alone[0][0]["generated_text"].startswith("the cat")


def trained(model: Any, rows: Dataset, collator: Any, directory: Path, **arguments: Any) -> torch.Tensor:
    settings = {"max_steps": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "save_strategy": "no"}
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(directory, **{**settings, **quiet, **arguments}),
        train_dataset=rows,
        data_collator=collator,
    )
    trainer.train()
    assert trainer.evaluate(rows)["eval_loss"] > 0
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def task_of(kind: type, tokenizer: Any) -> tuple[Dataset, Any]:
    """Rows and the library's collator for a head."""
    rows = [dict(tokenizer(text)) for text in TEXTS]
    if kind is VanillaTransformerEncoderForSequenceClassification:
        return Dataset.from_list([{**row, "labels": i % 2} for i, row in enumerate(rows)]), DataCollatorWithPadding(
            tokenizer
        )
    if kind is VanillaTransformerEncoderForTokenClassification:
        rows = [{**row, "labels": [i % 2 for i in range(len(row["input_ids"]))]} for row in rows]
        return Dataset.from_list(rows), DataCollatorForTokenClassification(tokenizer)
    if kind is VanillaTransformerEncoderForMaskedLM:
        rows = [{**row, "labels": row["input_ids"]} for row in rows]  # All of them: nothing is drawn.
        return Dataset.from_list(rows), DataCollatorForTokenClassification(tokenizer)
    return Dataset.from_list(rows), DataCollatorForLanguageModeling(tokenizer, mlm=False)


@pytest.mark.parametrize("kind", HEADS)
def test_accumulated_steps_of_trainer_give_the_weights_of_one_batch(kind: type, tokenizer, tmp_path: Path):
    rows, collator = task_of(kind, tokenizer)
    whole = trained(build(kind, 284).double(), rows, collator, tmp_path)
    parts = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    torch.testing.assert_close(
        trained(build(kind, 284).double(), rows, collator, tmp_path, **parts), whole, atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("kind", HEADS)
def test_label_smoothing_is_the_same_of_the_model_and_of_trainer(kind: type, tokenizer, tmp_path: Path):
    """Trainer has to know whose labels it shifts."""
    rows, collator = task_of(kind, tokenizer)
    ours = trained(build(kind, 284, label_smoothing=0.1).double(), rows, collator, tmp_path)
    theirs = trained(build(kind, 284).double(), rows, collator, tmp_path, label_smoothing_factor=0.1)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_adapters_are_trained_merged_and_saved(kind: type, tmp_path: Path):
    task = {"MaskedLM": None, "CausalLM": "CAUSAL_LM", "SequenceClassification": "SEQ_CLS"}
    task_type = task.get(kind.__name__.partition("For")[2], "TOKEN_CLS")
    base = build(kind)
    model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(task_type=task_type, r=4))
    assert any("q_proj.lora_A" in name for name, p in model.named_parameters() if p.requires_grad)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    for _ in range(3):
        model.train()(**inputs_of(kind)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    logits = model.eval()(**inputs_of(kind)).logits
    assert (logits - base(**inputs_of(kind)).logits).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    torch.testing.assert_close(loaded(**inputs_of(kind)).logits, logits, atol=1e-5, rtol=0)
    merged = model.merge_and_unload()
    assert type(merged) is kind
    torch.testing.assert_close(merged(**inputs_of(kind)).logits, logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [VanillaTransformerEncoderForMaskedLM, VanillaTransformerDecoderForCausalLM])
def test_lora_on_the_embedding_adapts_the_tied_output(kind: type):
    model = peft.get_peft_model(build(kind), peft.LoraConfig(r=4, target_modules=["embed_tokens"]))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    for skip_logits in (True, False) * 3:
        model(**inputs_of(kind), skip_logits=skip_logits).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    logits = model(**inputs_of(kind)).logits
    torch.testing.assert_close(model.merge_and_unload()(**inputs_of(kind)).logits, logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_a_training_step_is_one_graph(kind: type):
    torch.compiler.reset()
    model, counter = build(kind, dropout=0.1).train(), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    compiled(**inputs_of(kind)).loss.backward()
    assert counter.frame_count == 1
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.compiler.reset()


@pytest.mark.parametrize("kind", HEADS)
def test_an_exported_model_serves_every_shape(kind: type):
    model = build(kind)
    batch, length = Dim("batch", min=2), Dim("length", min=2)
    cached = {"use_cache": False} if kind is VanillaTransformerDecoderForCausalLM else {}
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    shapes = {**dict.fromkeys(inputs, {0: batch, 1: length}), **dict.fromkeys(cached)}
    program = torch.export.export(model, (), {**inputs, **cached}, dynamic_shapes=shapes)
    ids = torch.randint(3, 48, (3, 9))
    others = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **cached}
    torch.testing.assert_close(program.module()(**others).logits, model(**others).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention"])
@pytest.mark.parametrize("kind", HEADS)
def test_attention_implementations_give_the_same_logits(kind: type, implementation: str):
    model = build(kind)
    model.set_attn_implementation("eager")
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = model(IDS, MASK).logits
        model.set_attn_implementation(implementation)
        found = model(IDS, MASK).logits
        where = slice(None) if expected.dim() == 2 else MASK.bool()
        torch.testing.assert_close(found[where], expected[where], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_the_tensor_parallel_plan_names_modules_that_are_there(kind: type):
    model = build(kind)
    modules = {name.replace(".0.", ".*.") for name, _ in model.named_modules()}
    assert model.tp_plan and set(model.tp_plan) <= modules
    assert not [name for name in model.tp_plan if "embed" in name]


def test_settings_that_belong_to_another_family_are_of_no_effect_in_none():
    for config in (VanillaTransformerEncoderConfig(), VanillaTransformerDecoderConfig()):
        assert not config.is_encoder_decoder and not hasattr(config, "decoder_start_token_id")
        with refused(ValueError, "num_heads", "1"):
            type(config)(num_heads=0)
