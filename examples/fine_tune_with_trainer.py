"""Fine-tune a trained model on pairs from your own domain with the `Seq2SeqTrainer` of transformers.

    python examples/fine_tune_with_trainer.py my-model domain.tsv my-domain-model

Each line of the file is a source sentence, a tab and its translation. Nothing here is specific to this package but the
import, which registers its classes: any model of transformers is fine-tuned in the same way.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import vanilla_transformer  # noqa: F401  registers the Auto classes


def main(argv: Sequence[str] | None = None) -> None:
    """Fine-tunes on nine tenths of the pairs, saves the model and prints its loss on the others before and after."""
    parser = argparse.ArgumentParser(description="Fine-tune a translation model on your own pairs.")
    parser.add_argument("model", help="model directory or Hub id")
    parser.add_argument("pairs", type=Path, help="TSV file: source, tab, target")
    parser.add_argument("output", help="directory for the fine-tuned model")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    options = parser.parse_args(argv)

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model)
    rows = [line.split("\t") for line in options.pairs.read_text(encoding="utf-8").splitlines() if line.strip()]
    pairs = Dataset.from_list([dict(tokenizer(source, text_target=target)) for source, target in rows])
    parts = pairs.train_test_split(test_size=0.1, seed=0)

    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            options.output,
            max_steps=options.max_steps,
            learning_rate=options.learning_rate,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    trainer.save_model(options.output)
    print(f"loss on held-out pairs: {before:.4f} before, {after:.4f} after")


if __name__ == "__main__":
    main()
