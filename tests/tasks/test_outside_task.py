"""The seam: a task of another kind, with one column and random numbers in its batches, trains as translation does."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from refusals import refused
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from vanilla_transformer.data.batching import LABEL_PADDING, StepPlan, pad, share
from vanilla_transformer.data.columns import TEXTS
from vanilla_transformer.data.preparation import token_ids
from vanilla_transformer.data.token_corpus import PreparedCorpus
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import Task, register_task
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.prefetch import local_steps


class BigramConfig(PreTrainedConfig):
    model_type = "bigram_of_a_test"
    vocab_size: int = 0
    d_model: int = 8


class BigramModel(PreTrainedModel):
    """Each token from the one before it."""

    config_class = BigramConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = torch.nn.Embedding(config.vocab_size, config.d_model)
        self.output = torch.nn.Linear(config.d_model, config.vocab_size)
        self.post_init()

    def _init_weights(self, module):
        torch.nn.init.normal_(module.weight, std=0.1)

    def forward(self, input_ids, labels, num_items_in_batch=None, skip_logits=False):
        logits = self.output(self.embedding(input_ids[:, :-1]))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        return MaskedLMOutput(loss=loss / num_items_in_batch)


class Bigrams(Task):
    """A language model of texts of one column, some of whose tokens are hidden, others in each epoch."""

    name, form, auto_class, metrics = "bigrams", TEXTS, "AutoModelForCausalLM", {}
    columns, settings = ("text",), ()

    def config(self, recipe):
        return BigramConfig(vocab_size=recipe.tokenizer.vocab_size or 8, d_model=8, pad_token_id=0)

    def build(self, recipe):
        return BigramModel(self.config(recipe))

    def encoder(self, recipe):
        return self

    def ids(self, tokenizer):
        return len(tokenizer)

    def encode(self, texts, tokenizer):
        return {"text": token_ids(texts["text"], tokenizer)}

    def items(self, *lengths):
        return lengths[0] - 1

    def collate(self, rows, rng, config):
        if not rows["text"]:
            return {"input_ids": torch.zeros((1, 2), dtype=torch.int64), "labels": torch.full((1, 2), LABEL_PADDING)}
        seen = [np.where(rng[place].random(len(ids)) < 0.2, 1, ids) for place, ids in enumerate(rows["text"])]
        return {"input_ids": pad(seen, config.pad_token_id)[0], "labels": pad(rows["text"], LABEL_PADDING)[0]}

    def evaluate(self, model, tokenizer, corpus, metrics, *, progress):
        raise AssertionError("nothing is scored")

    def answers(self, model, tokenizer, texts):
        return [text[::-1] for text in texts]


def test_a_task_that_lacks_a_member_is_refused_when_it_is_made():
    members = {name for name in vars(Task) if not name.startswith("_")}
    assert len(members) <= 12 and members - {"predictor"} == Task.__abstractmethods__
    for lacking in ("build", "collate", "items", "config", "form"):
        unfinished = type("Unfinished", (Bigrams,), {lacking: getattr(Task, lacking)})
        with refused(TypeError, "Unfinished", lacking):
            unfinished()


@pytest.fixture
def recipe(tmp_path):
    register_task(Bigrams())
    for name, count in (("train", 60), ("dev", 5)):
        numbers = (" ".join(str((start + step) % 7) for step in range(start % 5 + 3)) for start in range(count))
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in numbers))
    steps = {"batch_tokens": 60, "batches_per_step": 2, "warmup_steps": 4, "save_steps": 4, "eval_steps": 4}
    return Recipe.of(
        task="bigrams",
        train=(str(tmp_path / "train.txt"),),
        dev=(str(tmp_path / "dev.txt"),),
        vocab_size=264,
        learning_rate_scale=0.3,
        log_steps=1,
        precision="float32",
        examples=("1 2 3",),
        **steps,
    )


def test_a_task_from_outside_learns_and_resumes_to_the_same_weights(recipe, tmp_path, capsys):
    for name, limits in {"once": (12,), "twice": (5, 12)}.items():
        for limit in limits:
            train(recipe.with_options(max_steps=limit, output=str(tmp_path / name)))
    once, twice = (tmp_path / name / "checkpoints" / "step-00000012" for name in ("once", "twice"))
    assert (once / "model.safetensors").read_bytes() == (twice / "model.safetensors").read_bytes()
    records = [json.loads(line) for line in (tmp_path / "once" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < 0.8 * losses[0]
    assert load_recipe(tmp_path / "once" / "recipe.yaml").task == "bigrams"
    assert "1 2 3\t3 2 1\n" in capsys.readouterr().out
    saved = BigramModel.from_pretrained(tmp_path / "once")
    assert saved.config.vocab_size == len(saved.output.weight)


def test_every_token_but_the_first_of_a_row_counts_once_in_an_epoch(recipe, tmp_path):
    train(recipe.with_options(max_steps=2, output=str(tmp_path / "model")))
    records = (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()
    lengths = np.array([3, 4, 5, 6, 7, 3])
    plan = StepPlan(lengths, items=Bigrams().items, batch_tokens=14, batches_per_step=2, seed=1)
    for epoch in range(3):
        assert sum(step.items for step in plan.epoch(epoch)) == sum(lengths - 1)
    assert json.loads(records[0])["target_tokens"] > 0


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_random_numbers_follow_rows_on_any_number_of_processes(processes):
    class Corpus(PreparedCorpus):
        lengths = {"text": np.random.default_rng(0).integers(2, 9, 40).astype(np.int32)}

        def rows(self, indices):
            return {"text": [np.full(self.lengths["text"][index], index + 3) for index in indices.tolist()]}

    def batches(processes):
        """Returns each row of the second epoch as it is in its batch, by its number."""
        plan = StepPlan(Corpus.lengths["text"], items=Bigrams().items, batch_tokens=30, batches_per_step=3, seed=5)
        collate = partial(Bigrams().collate, config=BigramConfig(pad_token_id=0))
        found = {}
        for rank in range(processes):
            steps = local_steps(
                lambda rows: plan, Corpus(), collate, Progress(epoch=1), rank=rank, processes=processes
            )
            for step, planned in zip(steps, plan.epoch(1), strict=False):
                for batch, rows in zip(step.batches, share(planned, rank, processes), strict=True):
                    for ids, row in zip(batch["input_ids"].tolist(), rows.tolist(), strict=False):
                        found[row] = [token for token in ids if token]
        return found

    assert len(batches(1)) == 40
    assert batches(processes) == batches(1)
