"""Plain `Trainer` and PEFT: nothing of ours but the model and the tokenizer."""

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from datasets import Dataset
from refusals import refused
from small_models import HEADS, IDS, inputs_of, random_model
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    Translator,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.graph.session import Session
from vanilla_transformer.tokenizer import train_tokenizer

TEXTS = ["the cat sat on the mat", "a dog ran", "the dog sat on a cat", "cats and dogs"] * 4
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "out_proj"]


@pytest.fixture(scope="module")
def tokenizer() -> VanillaTransformerTokenizer:
    return train_tokenizer(TEXTS, 284, begins=True, mask_token=True)


def build(kind: str = "translator", **fields: Any) -> Any:
    return random_model(kind, vocab_size=284, **fields)


def task_of(kind: str, tokenizer: Any, model: Any) -> tuple[Dataset, Any]:
    """Rows and the library's collator for a head."""
    rows = [dict(tokenizer(text)) for text in TEXTS]
    if kind == "translator":
        rows = [dict(tokenizer(text, text_target=text[::-1])) for text in TEXTS]
        return Dataset.from_list(rows), DataCollatorForSeq2Seq(tokenizer, model=model)
    if kind == "classifier":
        rows = [{**row, "labels": number % 2} for number, row in enumerate(rows)]
        return Dataset.from_list(rows), DataCollatorWithPadding(tokenizer)
    if kind == "language-model":
        return Dataset.from_list(rows), DataCollatorForLanguageModeling(tokenizer, mlm=False)
    labels = (lambda ids: [place % 2 for place in range(len(ids))]) if kind == "tagger" else list
    rows = [{**row, "labels": labels(row["input_ids"])} for row in rows]
    return Dataset.from_list(rows), DataCollatorForTokenClassification(tokenizer)


def trainer_of(model: Any, tokenizer: Any, directory: Path, kind: str = "translator", **arguments: Any) -> Any:
    rows, collator = task_of(kind, tokenizer, model)
    plain = {"max_steps": 3, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "save_strategy": "no"}
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    settings = Seq2SeqTrainingArguments(directory, **{**plain, **quiet, **arguments})
    return Seq2SeqTrainer(
        model=model,
        args=settings,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collator,
        processing_class=tokenizer,
    )


def weights_after(model: Any, *given: Any, **arguments: Any) -> torch.Tensor:
    trainer_of(model, *given, **arguments).train()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("kind", HEADS)
def test_accumulated_steps_give_the_weights_of_one_batch(kind: str, tokenizer, tmp_path: Path):
    # In float64, so that nothing but a difference in the loss can make one in the weights.
    whole = weights_after(build(kind).double(), tokenizer, tmp_path, kind)
    parts = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    found = weights_after(build(kind).double(), tokenizer, tmp_path, kind, **parts)
    torch.testing.assert_close(found, whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_label_smoothing_is_applied_once_whoever_is_asked_for_it(kind: str, tokenizer, tmp_path: Path):
    """Trainer has to know whose labels it shifts."""

    def after(of_model: float, of_trainer: float) -> torch.Tensor:
        model = build(kind, label_smoothing=of_model).double()
        return weights_after(model, tokenizer, tmp_path, kind, label_smoothing_factor=of_trainer)

    ours = after(0.1, 0.0)
    torch.testing.assert_close(after(0.0, 0.1), ours, atol=2e-5, rtol=0)
    torch.testing.assert_close(after(0.1, 0.1), ours, atol=2e-5, rtol=0)
    assert (after(0.0, 0.0) - ours).abs().max() > 1e-4


def test_a_collator_without_the_model_under_label_smoothing_is_told_what_to_give(tokenizer, tmp_path):
    trainer = trainer_of(build(), tokenizer, tmp_path, label_smoothing_factor=0.1)
    trainer.data_collator = DataCollatorForSeq2Seq(tokenizer)
    with refused(ValueError, "label_smoothing_factor", "DataCollatorForSeq2Seq(tokenizer, model=model)"):
        trainer.train()


def test_prediction_and_checkpoints_keep_the_decoding_defaults(tokenizer, tmp_path):
    model = build()
    model.generation_config.max_length_beyond_source = 5
    every_step = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    trainer = trainer_of(model, tokenizer, tmp_path, predict_with_generate=True, **every_step)
    trainer.train()
    inputs = tokenizer(["the cat sat", "mat"], return_tensors="pt", padding=True)
    before = model.generate(**inputs)
    predictions = trainer.predict(trainer.eval_dataset.select(range(2))).predictions
    trainer.save_model(tmp_path / "after")
    assert torch.equal(model.generate(**inputs), before)
    for directory in (tmp_path / "checkpoint-2", tmp_path / "after"):
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(directory)
        chosen = loaded.generation_config
        assert (chosen.num_beams, chosen.length_penalty, chosen.length_penalty_type) == (4, 0.6, "google")
        assert torch.equal(loaded.generate(**inputs), before)
    expected = model.generate(torch.tensor([trainer.eval_dataset[0]["input_ids"]]))[0]
    assert predictions[0][: len(expected)].tolist() == expected.tolist()
    assert isinstance(Translator(tmp_path / "after").search, Session)


def test_a_recurrent_model_is_trained_and_predicts_what_generate_gives(tokenizer, tmp_path):
    sizes = {"vocab_size": 284, "d_model": 16, "num_layers": 1, "dropout": 0.0}
    model = RecurrentEncoderDecoderForConditionalGeneration(RecurrentEncoderDecoderConfig(**sizes))
    trainer = trainer_of(model, tokenizer, tmp_path, predict_with_generate=True, max_steps=20, learning_rate=0.05)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.7 * before
    rows = trainer.eval_dataset.select([0])
    [predicted] = trainer.predict(rows).predictions
    expected = model.generate(torch.tensor(rows["input_ids"]))[0].tolist()
    assert predicted[: len(expected)].tolist() == expected


def adapted(kind: str, model: Any, **settings: Any) -> Any:
    """Returns a model with adapters that have been trained for some steps, some of them without logits."""
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=PROJECTIONS, **settings)).train()
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=2e-2)
    for without in ({}, {} if kind in ("classifier", "tagger") else {"skip_logits": True}) * 3:
        model(**inputs_of(kind), **without).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("kind", HEADS)
def test_adapters_are_trained_merged_and_saved(kind: str, tmp_path: Path):
    inputs, base = inputs_of(kind), random_model(kind)
    model = adapted(kind, copy.deepcopy(base))
    learned = [name for name, one in model.named_parameters() if one.requires_grad]
    sublayers = 2 + 2 * 2 if kind == "translator" else 2
    assert len(learned) == sublayers * len(PROJECTIONS) * 2
    logits = model(**inputs).logits
    assert (logits - base(**inputs).logits).abs().max() > 1e-3
    model.save_pretrained(tmp_path / "adapter")
    base.save_pretrained(tmp_path / "base")
    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    assert type(merged) is HEADS[kind]
    by_itself = HEADS[kind].from_pretrained(tmp_path / "base")
    by_itself.load_adapter(tmp_path / "adapter")
    by_peft = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    for one in (merged, HEADS[kind].from_pretrained(tmp_path / "merged"), by_peft, by_itself):
        torch.testing.assert_close(one(**inputs).logits, logits, atol=1e-5, rtol=0)


def test_a_trained_prompt_is_read_by_generate():
    torch.manual_seed(0)
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    model, ids = peft.get_peft_model(random_model("language-model"), settings).eval(), IDS[:1]
    with torch.no_grad():
        for weight in model.prompt_encoder.parameters():
            weight.mul_(5)
    alone = random_model("language-model").generate(ids, max_new_tokens=1)[0, -1]
    expected = model(ids).logits[0, -1].argmax()
    assert model.generate(input_ids=ids, max_new_tokens=1)[0, -1] == expected != alone


@pytest.mark.parametrize("kind", ["translator", "language-model"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "some rows"])
def test_an_embedding_that_is_trained_beside_adapters_is_merged_and_saved(whole: bool, kind: str, tmp_path: Path):
    name = "shared" if kind == "translator" else "embed_tokens"
    settings = {"modules_to_save": [name]} if whole else {"trainable_token_indices": [5, 9, 6]}
    model, inputs = adapted(kind, random_model(kind), **settings), inputs_of(kind)
    logits, merged = model(**inputs).logits, model.merge_and_unload()
    merged.save_pretrained(tmp_path)
    for one in (merged, HEADS[kind].from_pretrained(tmp_path)):
        torch.testing.assert_close(one(**inputs).logits, logits, atol=1e-4, rtol=0)
