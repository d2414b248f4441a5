"""The same metrics by `evaluate.load`: without network, by the same code, and where a Trainer wants them."""

import evaluate
import pytest
import torch
from datasets import Dataset
from refusals import refused
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from vanilla_transformer.evaluation import METRICS, MetricError, score
from vanilla_transformer.evaluation.loadable import metric_path
from vanilla_transformer.evaluation.loadable.paper_bleu import PaperBleu

PREDICTIONS = ["Der Nord-Ostsee-Kanal ist sehr lang.", "B AE T"]
REFERENCES = [["Der Nord-Ostsee-Kanal ist lang.", "Ein Kanal ist sehr lang."], ["K AE T"]]
NAMES = [name for name in METRICS if ":" not in name]


@pytest.fixture
def load(tmp_path, hosts):
    """`evaluate.load` on a machine without network."""
    yield lambda *arguments: evaluate.load(*arguments, cache_dir=str(tmp_path))
    assert not hosts


@pytest.mark.parametrize("name", NAMES)
def test_each_metric_loads_from_the_package_and_counts_as_the_command_does(load, name):
    metric = load(metric_path(name))
    [expected] = score([name], PREDICTIONS, REFERENCES)
    assert metric.name == name
    assert metric.compute(predictions=PREDICTIONS, references=REFERENCES) == {
        name: expected.value,
        "signature": expected.signature,
    }


def test_one_reference_needs_no_list(load):
    metric = load(metric_path("wer"))
    assert metric.compute(predictions=["A B", "C"], references=["A B", "D"])["wer"] == 50


def test_batches_count_as_one_corpus(load):
    metric = load(metric_path("sacrebleu"))
    for prediction, references in zip(PREDICTIONS, REFERENCES, strict=True):
        metric.add_batch(predictions=[prediction], references=[references])
    assert metric.compute()["sacrebleu"] == score(["sacrebleu"], PREDICTIONS, REFERENCES)[0].value


def test_language_of_paper_bleu_is_its_configuration(load, tmp_path):
    [expected] = score(["paper_bleu:fr"], ["l'eau de l'art"], [["l'eau de l'air"]])
    texts = {"predictions": ["l'eau de l'art"], "references": ["l'eau de l'air"]}
    for metric in (load(metric_path("paper_bleu"), "fr"), PaperBleu("fr", cache_dir=str(tmp_path))):
        assert metric.compute(**texts) == {"paper_bleu:fr": expected.value, "signature": expected.signature}
    with refused(MetricError, "paper_bleu"):
        load(metric_path("paper_bleu"), "xx")


def test_path_of_what_is_no_metric_is_an_error():
    with refused(MetricError, "'sacrebleu'"):
        metric_path("sacrebleau")
    with refused(MetricError, "'paper_bleu'", "'fr'"):
        metric_path("paper_bleu:fr")


def test_metric_counts_within_a_trainer(load, tiny_model, tiny_config, tmp_path):
    metric = load(metric_path("per"))
    pairs = Dataset.from_dict({"input_ids": [[5, 6, 2], [7, 2]], "labels": [[8, 2], [9, 9, 2]]})

    def as_text(rows):
        return [" ".join(str(token) for token in row if token > 2) for row in rows]

    def compute_metrics(prediction):
        # What is not there, a label or the end of a short prediction, is below zero.
        return metric.compute(predictions=as_text(prediction.predictions), references=as_text(prediction.label_ids))

    arguments = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path / "out"),
        predict_with_generate=True,
        generation_max_length=6,
        report_to=[],
        use_cpu=True,
    )

    def collate(rows):
        padded = {
            name: torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=padding
            )
            for name, padding in (("input_ids", tiny_config.pad_token_id), ("labels", -100))
        }
        return {**padded, "attention_mask": (padded["input_ids"] != tiny_config.pad_token_id).long()}

    trainer = Seq2SeqTrainer(
        tiny_model, arguments, data_collator=collate, eval_dataset=pairs, compute_metrics=compute_metrics
    )
    figures = trainer.evaluate()
    assert figures["eval_per"] > 0
    assert figures["eval_signature"].startswith("count:edits")
