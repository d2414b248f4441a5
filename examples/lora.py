"""Fine-tune a trained model through small matrices beside its attention (LoRA), with PEFT and the Trainer.

    python examples/lora.py my-model domain.tsv my-domain-model

Each line of the file is a source sentence, a tab and its translation. The matrices are merged into the weights at the
end, so the output is a model like any other.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import vanilla_transformer  # noqa: F401  registers the Auto classes


def main(argv: Sequence[str] | None = None) -> None:
    """Fine-tunes, merges and saves."""
    parser = argparse.ArgumentParser(description="Fine-tune a translation model on your own pairs with LoRA.")
    parser.add_argument("model", help="model directory or Hub id")
    parser.add_argument("pairs", type=Path, help="TSV file: source, tab, target")
    parser.add_argument("output", help="directory for the fine-tuned model")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="ten times that for all weights is usual")
    options = parser.parse_args(argv)

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rows = [line.split("\t") for line in options.pairs.read_text(encoding="utf-8").splitlines() if line.strip()]
    pairs = Dataset.from_list([dict(tokenizer(source, text_target=target)) for source, target in rows])
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model)
    targets = ["q_proj", "v_proj"]
    lora = LoraConfig("SEQ_2_SEQ_LM", r=options.rank, lora_alpha=2 * options.rank, target_modules=targets)
    adapted = get_peft_model(model, lora)
    adapted.print_trainable_parameters()
    settings = Seq2SeqTrainingArguments(
        options.output,
        max_steps=options.max_steps,
        learning_rate=options.learning_rate,
        save_strategy="no",
        report_to=[],
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    Seq2SeqTrainer(model=adapted, args=settings, train_dataset=pairs, data_collator=collator).train()
    adapted.merge_and_unload().save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
