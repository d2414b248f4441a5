"""What holds for every task: its runs learn, resume, are averaged, scored and described by the same commands."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from refusals import refused
from small_models import choices_of
from torch.utils.flop_counter import FlopCounterMode
from transformers import pipeline

from vanilla_transformer.cli import main
from vanilla_transformer.cost import training_flops
from vanilla_transformer.data.batching import share
from vanilla_transformer.data.preparation import PreparedCorpus
from vanilla_transformer.errors import CorpusError, SettingError
from vanilla_transformer.evaluation.corpora import sample_texts
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import RowRandom, Task, get_task, task_for, task_of_model
from vanilla_transformer.tasks.translation import Translation
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.run import train
from vanilla_transformer.training.steps import local_steps, make_plan

# Of each corpus: the pipeline of its models, a text for it, and its metrics with limits of their values.
KINDS = {
    "labelled": ("text-classification", "the fig is the oak", {"accuracy": (90, 100), "macro_f1": (90, 100)}),
    "tagged": ("token-classification", "the cow sees the hen", {"seqeval": (90, 100), "token_accuracy": (90, 100)}),
    "lines": ("text-generation", "the dog sees", {"perplexity": (1, 6), "bits_per_character": (0, 2)}),
    "masked": ("fill-mask", "the dog <mask> the cat", {"masked_perplexity": (1, 150)}),
    "packed": ("text-generation", "A:", {"perplexity": (1, 6), "bits_per_character": (0, 3), "bits_per_byte": (0, 3)}),
}
NAMES = ["translation", "language-modeling", "masked-language-modeling", "text-classification", "token-classification"]


def small(name: str, **options) -> Recipe:
    return Recipe.of(task=name, preset="tiny", vocab_size=300, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_and_its_card_says_what_it_is(trained, recipes, kind, capsys):
    tag, text, limits = KINDS[kind]
    directory, recipe = trained(kind), recipes[kind]
    summary = json.loads((directory / "summary.json").read_text())
    found = {score["name"]: score["value"] for score in summary["scores"]["dev"]}
    assert list(found) == list(limits)
    assert all(low <= found[name] <= high for name, (low, high) in limits.items())
    head = ModelCard.load(directory / "README.md").data
    assert head.pipeline_tag == tag and head.metrics == sorted(limits)
    assert {result.task_type for result in head.eval_results} == {tag}
    assert all("count:" in result.metric_args["signature"] for result in head.eval_results)
    card = (directory / "README.md").read_text().partition("## Recipe")[0]
    assert recipe.data.train[0].parts[0].rpartition("/")[2] in card and "pairs" not in card
    assert task_of_model(directory).name == recipe.data.task
    data = ["--data", *recipe.data.dev[0].parts, "--batch-tokens", "30"]
    assert main(["evaluate", str(directory), *data, "--json"]) == 0
    again = {score["name"]: score["value"] for score in json.loads(capsys.readouterr().out)["scores"]}
    assert again == pytest.approx(found)
    assert pipeline(tag, model=str(directory))(text)


def test_a_killed_run_of_random_batches_goes_on_to_the_same_weights(trained, recipes, train_until, tmp_path):
    mine = recipes["masked"].with_options(output=str(tmp_path))
    train_until(mine, 30)
    weights = (trained("masked") / "model.safetensors").read_bytes()
    assert (train(mine) / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_of_a_runs_last_checkpoints_is_its_model(trained, kind, tmp_path):
    weights = (trained(kind) / "model.safetensors").read_bytes()
    assert main(["average", str(trained(kind)), "--last", "2", "--output", str(tmp_path / "mean")]) == 0
    assert (tmp_path / "mean/model.safetensors").read_bytes() == weights
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "mean", trained(kind)))
    assert ours == theirs and not (tmp_path / "mean/recipe.yaml").exists()
    assert task_of_model(tmp_path / "mean").form == task_of_model(trained(kind)).form


def test_a_task_that_lacks_a_member_is_refused_when_it_is_made():
    assert len(Task.__abstractmethods__) <= 12
    for lacking in ("build", "collate", "items", "config", "form"):
        unfinished = type("Unfinished", (Translation,), {lacking: getattr(Task, lacking)})
        with refused(TypeError, "Unfinished", lacking):
            unfinished()


def test_random_numbers_follow_rows_on_any_number_of_processes():
    lengths = np.random.default_rng(0).integers(3, 12, 40)
    corpus = PreparedCorpus({"text": [(np.repeat(np.arange(40) + 4, lengths), np.cumsum([0, *lengths]))]}, None)
    task = get_task("masked-language-modeling")
    recipe = small(task.name, batch_tokens=30, batches_per_step=3, seed=5)
    choices = choices_of(recipe)

    def rows_in_batches(processes, epoch):
        """Returns each row of an epoch as it is in its batch, by its number."""
        collate = partial(task.collate, config=task.config(recipe))
        found = {}
        for rank in range(processes):
            among = {"rank": rank, "processes": processes}
            steps = local_steps(corpus, task, choices, collate, Progress(epoch=epoch), **among)
            for step, planned in zip(steps, make_plan(corpus, task, choices).epoch(epoch), strict=False):
                for batch, rows in zip(step.batches, share(planned, rank, processes), strict=True):
                    for ids, row in zip(batch["input_ids"].tolist(), rows.tolist(), strict=False):
                        found[row] = [token for token in ids if token]
        return found

    assert len(rows_in_batches(1, epoch=1)) == 40
    assert rows_in_batches(3, epoch=1) == rows_in_batches(1, epoch=1) != rows_in_batches(1, epoch=0)


@pytest.mark.parametrize("name", [*NAMES, "none", "bahdanau", "luong-dot", "luong-general", "luong-concat"])
def test_a_batch_without_rows_gives_every_weight_a_gradient_of_zero(name):
    """Processes that exchange gradients wait for one of every weight."""
    recurrent = {"task": "translation", "architecture": "recurrent", "preset": "tiny", "attention": name}
    window = {"attention_window": 2} if name.startswith("luong") else {}
    recipe = small(name) if name in NAMES else Recipe.of(**recurrent, **window, vocab_size=300)
    task = task_for(recipe)
    model = task.build(recipe).train()
    batch = task.collate({column: [] for column in task.columns}, None, model.config)
    model(**batch, num_items_in_batch=3, skip_logits=True).loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert [name for name, gradient in gradients.items() if gradient is None or gradient.any()] == []


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_loss_and_operations_are_counted_as_they_are(name):
    task, recipe = get_task(name), small(name, labels=("A", "B") if "classification" in name else None)
    model = task.build(recipe).eval()
    model.set_attn_implementation("eager")
    rows = {
        "text-classification": {"label": [[1], [0]], "text": [[1, 7, 9, 8, 2], [1, 5, 2]]},
        "token-classification": {"tags": [[1, 0], [1]], "words": [[2, 15, 19, 16, 4], [2, 11, 4]]},
        "translation": {"source": [[7, 9, 8, 2], [5, 2]], "target": [[7, 2], [9, 8, 7, 2]]},
    }.get(name, {"text": [[1, 7, 9, 8, 2], [1, 5, 2]]})
    rows = {column: [np.array(ids) for ids in of] for column, of in rows.items()}
    losses = []
    for places in ([0], [1], [0, 1]):
        batch = task.collate(
            {column: [of[place] for place in places] for column, of in rows.items()},
            RowRandom(1, 0, np.array(places)),
            model.config,
        )
        lengths = [np.array([len(of[place]) for place in places]) for of in (rows[column] for column in task.columns)]
        with FlopCounterMode(display=False) as counter:
            losses.append(float(model(**batch, num_items_in_batch=1, skip_logits=True).loss))
        if len(places) == 1:
            expected = training_flops(model.config, *lengths) / 3
            assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)
            labels = batch["labels"][:, 1:] if name == "language-modeling" else batch["labels"]
            assert task.items(*lengths).tolist() == [(labels != -100).sum()]
    assert losses[2] == pytest.approx(losses[0] + losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("lines", {"metrics": ("accuracy",)}, "'accuracy'"),
        ("lines", {"encoder_layers": 2}, "encoder_layers"),
        ("lines", {"num_beams": 1}, "num_beams"),
        ("lines", {"max_length": 1}, "max_length 2"),
        ("tagged", {"architecture": "recurrent"}, "architecture"),
        ("tagged", {"classifier_pooling": "first"}, "classifier_pooling"),
        ("labelled", {"labels": ("animal",)}, "labels animal"),
        ("labelled", {"source_column": "text"}, "text_column"),
        ("packed", {"task": "translation"}, "documents"),
        ("packed", {"train": ("table.tsv",)}, "table.tsv packed"),
        ("packed", {"train": ("empty.txt",)}, "empty.txt"),
    ],
)
def test_settings_that_contradict_the_task_are_refused(recipes, kind, changes, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.tsv").write_text("text\nthe cat\n")
    (tmp_path / "empty.txt").write_text("")
    if changes.get("task") == "translation":
        changes = {**changes, "metrics": None, "decoder_layers": None}
    with refused((SettingError, CorpusError), *named.split()):
        train(recipes[kind].with_options(output=str(tmp_path / "model"), **changes))


def test_a_sample_of_pairs_is_evenly_spaced_with_all_targets_of_a_source():
    sources = [f"{number}" for number in range(10) for _ in range(2)]
    corpus = Dataset.from_dict({"source": sources, "target": [f"{row}" for row in range(20)]})
    sample = sample_texts(corpus, get_task("translation").form, 4)
    assert sample["source"] == ["0", "0", "2", "2", "5", "5", "7", "7"]
    assert sample["target"] == ["0", "1", "4", "5", "10", "11", "14", "15"]
