"""Adds a task: the answer to a question is the span of a context where it stands (Rajpurkar et al. 2016).

    python examples/extend/question_answering.py train.tsv my-model --dev dev.tsv

The tables have the columns `context`, `question` and `answer`, which occurs in its context. Registered, the task is
trained, resumed and scored like any other. A process that loads such a model has to import this file first.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForQuestionAnswering, PreTrainedConfig, PreTrainedTokenizerFast

from vanilla_transformer import (
    Recipe,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForTokenClassification,
    train,
)
from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.preparation import RowEncoder, Rows, Texts
from vanilla_transformer.data.sources import Column, Row, TextForm
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.evaluation.metrics import Metric
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text
from vanilla_transformer.registration import register_family
from vanilla_transformer.tasks import Batch, Prediction, Predictor, RowRandom, register_task
from vanilla_transformer.tasks.encoders import EncoderTask

LONGEST_ANSWER = 30
QUESTIONS = TextForm(
    (
        Column("context", "text_column", ("context",)),
        Column("question", "text_pair_column", ("question",)),
        Column("answer", "label_column", ("answer",)),
    ),
    "questions",
)


class QuestionAnsweringConfig(VanillaTransformerEncoderConfig):
    """The sizes of the encoder."""

    model_type = "question_answering_encoder"


class EncoderForQuestionAnswering(VanillaTransformerEncoderForTokenClassification):
    """An encoder with two logits for each token: that the answer begins there, and that it ends there."""

    config_class = QuestionAnsweringConfig
    _auto_class = None  # Whoever loads it imports this file: its code is not saved beside it.

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any = None, num_items_in_batch: Any = 1, **kwargs):
        """Maps token ids (batch, length) to logits (batch, length, 2); `labels` are the two places (batch, 2)."""
        outputs = super().forward(input_ids, attention_mask, **kwargs)
        outputs.logits = outputs.logits.float().masked_fill(attention_mask[..., None] == 0, -1e9)
        if labels is not None:
            losses = torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")
            outputs.loss = losses / num_items_in_batch
        return outputs


register_family(QuestionAnsweringConfig, {AutoModelForQuestionAnswering: EncoderForQuestionAnswering})


def exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """The percentage of questions with the right answer, and how it was computed."""
    right = sum(answer in accepted for answer, accepted in zip(predictions, references, strict=True))
    return 100 * right / len(predictions), f"count:equal-answers|items:{len(predictions)}"


class AnswerFinder(Predictor):
    """Gives each question the likeliest span of its context."""

    nothing = Prediction("", "", {"answer": None})

    def read(self, line: str) -> Row:
        """Returns the context and the question of a line, which a tab separates."""
        context, _, question = line.partition("\t")
        return context, question

    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterator[tuple[int, Prediction]]:
        """Finds the answer to each question; a context that is too long is read up to the model's limit."""
        encoded = plain_text(self.tokenizer)([question for _, question in rows], [context for context, _ in rows])
        ids = encoded["input_ids"]
        for batch, logits in self.logits([self.cut(row) for row in ids]):
            for place, logs in zip(batch, logits.log_softmax(1).cpu().numpy(), strict=True):
                inside = [at for at, part in enumerate(encoded.sequence_ids(place)[: len(logs)]) if part == 1]
                spans = [
                    (logs[a, 0] + logs[b, 1], a, b) for a in inside for b in inside if a <= b < a + LONGEST_ANSWER
                ]
                if spans:
                    log, first, last = max(spans)
                    start, end = encoded.token_to_chars(place, first).start, encoded.token_to_chars(place, last).end
                    answer = rows[place][0][start:end].strip()
                    values = {"answer": answer, "score": round(float(np.exp(log)), 6)}
                    yield place, Prediction(answer, answer, values, truncated=len(ids[place]) > self.longest)
            progress(len(batch))


class QuestionAnswering(EncoderTask):
    """Each question is an item of the loss: the cross-entropy of the two places where its answer begins and ends."""

    name = "question-answering"
    form, columns = QUESTIONS, ("span", "text")
    auto_class = "AutoModelForQuestionAnswering"
    config_class, model_class, predictor_class = QuestionAnsweringConfig, EncoderForQuestionAnswering, AnswerFinder
    metrics = {"exact_match": Metric(exact_match, by_default=True)}

    def head(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the two outputs: the beginning and the end."""
        return {"num_labels": 2}

    def encoder(self, recipe: Recipe) -> RowEncoder:
        """Returns the encoder of question and context, and the places of the answer's first and last token."""
        return RowEncoder(self.name, self.form, self.columns, self._encode)

    def _encode(self, texts: Texts, tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
        encoded = plain_text(tokenizer)(list(texts["question"]), list(texts["context"]))
        spans = []
        for row, (context, answer) in enumerate(zip(texts["context"], texts["answer"], strict=True)):
            start = context.find(answer)
            if start < 0:
                raise CorpusError(f"the answer {answer!r} does not occur in its context")
            spans.append([encoded.char_to_token(row, at, 1) for at in (start, start + len(answer) - 1)])
        return {"text": encoded["input_ids"], "span": spans}

    def items(self, *lengths: Lengths) -> Lengths:
        """Counts each question once."""
        return np.ones_like(lengths[0])

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads texts to `input_ids` and `attention_mask`; `labels` are the two places, (questions, 2), or none."""
        input_ids, attention_mask = pad(rows["text"], config.pad_token_id)
        labels = torch.tensor([[int(at) for at in span] for span in rows["span"]] or [[LABEL_PADDING] * 2])
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def references(self, corpus: Dataset, predictor: Predictor) -> list[str]:
        """Returns the answers."""
        return [answer.strip() for answer in corpus["answer"]]


register_task(QuestionAnswering())


def main(argv: Sequence[str] | None = None) -> None:
    """Trains a model for the task and prints its scores on `dev`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("output")
    parser.add_argument("--dev", required=True)
    parser.add_argument("--max-steps", type=int)
    arguments = parser.parse_args(argv)
    recipe = Recipe.of(
        task=QuestionAnswering.name,
        train=arguments.train,
        dev=arguments.dev,
        max_steps=arguments.max_steps,
        output=arguments.output,
    )
    for score in train(recipe).scores["dev"].values():
        print(f"{score.name} = {score.value:.2f}")


if __name__ == "__main__":
    main()
