"""Plain `Seq2SeqTrainer` and `DataCollatorForSeq2Seq`: nothing of ours but the model and the tokenizer."""

import copy
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
DIGITS = {word: str(digit) for digit, word in enumerate(WORDS, start=1)}


@pytest.fixture(scope="module")
def tokenizer() -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.train([" ".join(WORDS), "1 2 3 4 5 6 7"] * 2, vocab_size=285)


@pytest.fixture(scope="module")
def pairs(tokenizer) -> Dataset:
    """Words to digits, of different lengths."""
    generator = random.Random(0)
    sources = [generator.choices(WORDS, k=generator.randint(1, 6)) for _ in range(64)]
    rows = [
        dict(tokenizer(" ".join(words), text_target=" ".join(DIGITS[word] for word in words))) for words in sources
    ]
    return Dataset.from_list(rows)


def build(dtype: torch.dtype = torch.float32, **fields: Any) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 64, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig(**{"vocab_size": 285, **sizes, **fields})
    ).to(dtype)


def trainer_of(model, tokenizer, pairs: Dataset, directory: Path, **arguments: Any) -> Seq2SeqTrainer:
    plain = {
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
    }
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(directory, **{**plain, **arguments}),
        train_dataset=pairs,
        eval_dataset=pairs.select(range(8)),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )


def weights_after(model, tokenizer, pairs: Dataset, directory: Path, **arguments: Any) -> torch.Tensor:
    trainer_of(model, tokenizer, pairs, directory, **arguments).train()
    return flat(model)


def flat(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_fine_tuning_a_trained_model_improves_on_the_new_pairs(tokenizer, pairs, tmp_path):
    model = build()
    schedule = {"max_steps": 140, "learning_rate": 5e-3, "per_device_train_batch_size": 16}
    trainer = trainer_of(model, tokenizer, pairs, tmp_path / "first", **schedule)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.5
    model.save_pretrained(tmp_path / "trained")

    # Now backwards: what was learned of the words is of use, their order is new.
    backwards = pairs.map(lambda row: {"labels": [*reversed(row["labels"][:-1]), tokenizer.eos_token_id]})
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "trained")
    schedule["max_steps"] = 50
    trainer = trainer_of(loaded, tokenizer, backwards, tmp_path / "second", **schedule)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.5 * before


@pytest.mark.parametrize("steps", [2, 4])
def test_accumulated_steps_give_the_weights_of_one_batch(tokenizer, pairs, tmp_path, steps: int):
    # In float64, so that nothing but a difference in the loss can make one in the weights.
    whole = weights_after(build(torch.float64), tokenizer, pairs, tmp_path)
    parts = {"per_device_train_batch_size": 8 // steps, "gradient_accumulation_steps": steps}
    torch.testing.assert_close(
        weights_after(build(torch.float64), tokenizer, pairs, tmp_path, **parts), whole, atol=1e-6, rtol=0
    )


def test_label_smoothing_is_applied_once_whoever_is_asked_for_it(tokenizer, pairs, tmp_path):
    def after(of_model: float, of_trainer: float) -> torch.Tensor:
        model = build(torch.float64, label_smoothing=of_model)
        return weights_after(model, tokenizer, pairs, tmp_path, label_smoothing_factor=of_trainer)

    ours = after(0.1, 0.0)
    torch.testing.assert_close(after(0.0, 0.1), ours, atol=1e-6, rtol=0)
    torch.testing.assert_close(after(0.1, 0.1), ours, atol=1e-6, rtol=0)
    assert (after(0.0, 0.0) - ours).abs().max() > 1e-4


def test_evaluation_loss_is_not_smoothed(tokenizer, pairs, tmp_path):
    model = build(label_smoothing=0.3)
    trainer = trainer_of(model, tokenizer, pairs, tmp_path)
    batch = trainer.data_collator([pairs[row] for row in range(8)])
    labels = batch["labels"]
    log_p = model.eval()(**batch).logits.log_softmax(-1)
    expected = -log_p.gather(-1, labels.clamp(min=0)[..., None])[labels[..., None] != -100].mean()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), abs=1e-5)


def test_prediction_and_checkpoints_keep_the_decoding_defaults(tokenizer, pairs, tmp_path):
    model = build()
    trainer = trainer_of(
        model, tokenizer, pairs, tmp_path, predict_with_generate=True, save_strategy="steps", save_steps=2, max_steps=2
    )
    trainer.train()
    inputs = tokenizer(["one two three", "seven"], return_tensors="pt", padding=True)
    before = model.generate(**inputs)
    predictions = trainer.predict(pairs.select(range(2))).predictions
    trainer.save_model(tmp_path / "after")
    assert torch.equal(model.generate(**inputs), before)
    for directory in (tmp_path / "checkpoint-2", tmp_path / "after"):
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(directory)
        chosen = loaded.generation_config
        assert (chosen.num_beams, chosen.length_penalty, chosen.length_penalty_type) == (4, 0.6, "google")
        assert chosen.max_length_beyond_source == 50
        assert torch.equal(loaded.generate(**inputs), before)
    expected = model.generate(torch.tensor([pairs[0]["input_ids"]]))[0]
    assert predictions[0][: len(expected)].tolist() == expected.tolist()


def test_decoding_settings_of_the_trainer_are_followed(tokenizer, pairs, tmp_path):
    model = build()
    own = copy.deepcopy(model.generation_config)
    own.update(max_new_tokens=25, num_beams=3)
    for asked, same in (
        ({"generation_max_length": 30, "generation_num_beams": 2}, {"max_length": 30, "num_beams": 2}),
        ({"generation_config": own}, {"max_new_tokens": 25, "num_beams": 3}),
    ):
        trainer = trainer_of(copy.deepcopy(model), tokenizer, pairs, tmp_path, predict_with_generate=True, **asked)
        found = trainer.predict(pairs.select([0])).predictions[0]
        expected = model.generate(torch.tensor([pairs[0]["input_ids"]]), **same)[0]
        assert [token for token in found.tolist() if token > 0] == [token for token in expected.tolist() if token > 0]


def test_resumed_run_ends_with_the_weights_of_one_that_was_not(tokenizer, pairs, tmp_path):
    dropped = {"dropout": 0.1}
    whole = trainer_of(build(**dropped), tokenizer, pairs, tmp_path, save_strategy="steps", save_steps=3, max_steps=6)
    whole.train()
    resumed = trainer_of(build(**dropped), tokenizer, pairs, tmp_path, max_steps=6)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert torch.equal(flat(resumed.model), flat(whole.model))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_weight(tokenizer, pairs, tmp_path, reentrant: bool):
    # With dropout: the second forward pass has to draw the same numbers.
    dropped = {"dropout": 0.1}
    torch.manual_seed(7)
    plain = weights_after(build(**dropped), tokenizer, pairs, tmp_path)
    torch.manual_seed(7)
    checkpointed = weights_after(
        build(**dropped),
        tokenizer,
        pairs,
        tmp_path,
        activation_checkpointing=True,
        activation_checkpointing_kwargs={"use_reentrant": reentrant},
    )
    torch.testing.assert_close(checkpointed, plain, atol=1e-6, rtol=0)


def test_compiled_training_gives_the_same_weights(tokenizer, pairs, tmp_path):
    # This backend takes the same graphs as the default one, and needs no C++ compiler.
    compiled = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    of_one_length = pairs.select([0] * 16)
    plain = weights_after(build(torch.float64), tokenizer, of_one_length, tmp_path, max_steps=2)
    torch.compiler.reset()
    weights = weights_after(build(torch.float64), tokenizer, of_one_length, tmp_path, max_steps=2, **compiled)
    torch.testing.assert_close(weights, plain, atol=1e-6, rtol=0)


def test_bfloat16_trains_float32_weights(tokenizer, pairs, tmp_path):
    trainer = trainer_of(build(), tokenizer, pairs, tmp_path, bf16=True, max_steps=25, learning_rate=1e-2)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
    assert trainer.evaluate()["eval_loss"] < 0.7 * before


@pytest.mark.parametrize("strategy", ["random", "sequential", "group_by_length", "batch_rebalance"])
def test_every_way_of_drawing_batches_trains(tokenizer, pairs, tmp_path, strategy: str):
    trainer = trainer_of(build(), tokenizer, pairs, tmp_path, train_sampling_strategy=strategy, max_steps=8)
    assert math.isfinite(trainer.train().training_loss)
    sizes = [batch["input_ids"].numel() for batch in trainer.get_train_dataloader()]
    if strategy == "group_by_length":
        together = [
            batch["input_ids"].numel()
            for batch in trainer_of(build(), tokenizer, pairs, tmp_path).get_train_dataloader()
        ]
        assert sum(sizes) < sum(together)
