"""Trains a Marian model with transformers' `Seq2SeqTrainer`: one to start from, and the other way to fine-tune it.

    python -m scripts.experiments.pretrained general.de general.en --output opus
    python -m scripts.experiments.pretrained law.de law.en --start opus --minutes 10 --output theirs

The first command makes what a download of OPUS-MT is: two sentencepiece models, `vocab.json`, swish, `<pad>` as the
first token. The second is the contestant of `vanilla-transformer train --from opus`.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import sentencepiece
import tyro
from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)
from tyro.conf import Positional

MAX_TOKENS = 100


@dataclass(frozen=True)
class Pretrained:
    """Train a Marian model on two line-aligned files."""

    source: Positional[Path]
    target: Positional[Path]
    output: Path
    start: Annotated[Path | None, tyro.conf.arg(help="a Marian model; a new one if not given")] = None
    max_steps: int = 1400
    minutes: Annotated[float, tyro.conf.arg(help="of training at most")] = float("inf")
    learning_rate: float = 2e-3
    warmup_steps: int = 300
    batch_size: int = 96
    languages: tuple[str, str] = ("de", "en")

    def run(self) -> None:
        """Trains and saves the model; prints its steps and minutes."""
        set_seed(0)
        sides = [path.read_text(encoding="utf-8").splitlines() for path in (self.source, self.target)]
        self.output.mkdir(parents=True, exist_ok=True)
        if self.start is None:
            tokenizer = self.learn_tokenizer(sides)
            model = new_model(tokenizer)
        else:
            tokenizer, model = MarianTokenizer.from_pretrained(self.start), MarianMTModel.from_pretrained(self.start)
        rows = Dataset.from_dict({"source": sides[0], "target": sides[1]}).map(
            lambda pair: tokenizer(pair["source"], text_target=pair["target"], max_length=MAX_TOKENS, truncation=True),
            batched=True,
            remove_columns=["source", "target"],
        )
        arguments = Seq2SeqTrainingArguments(
            str(self.output / "trainer"),
            max_steps=self.max_steps,
            per_device_train_batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            label_smoothing_factor=0.1,
            adam_beta2=0.98,
            train_sampling_strategy="group_by_length",
            logging_steps=100,
            save_strategy="no",
            report_to=[],
            seed=0,
        )
        trainer = Seq2SeqTrainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            processing_class=tokenizer,
            callbacks=[TimeLimit(self.minutes)],
        )
        begun = time.perf_counter()
        trainer.train()
        print(f"{trainer.state.global_step} steps in {(time.perf_counter() - begun) / 60:.2f} minutes")
        model.save_pretrained(self.output)
        tokenizer.save_pretrained(self.output)

    def learn_tokenizer(self, sides: list[list[str]]) -> MarianTokenizer:
        """Returns a tokenizer of two sentencepiece models of 4,000 pieces with one vocabulary for both."""
        pieces = []
        for name, lines in zip(("source", "target"), sides, strict=True):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_prefix=str(self.output / name),
                vocab_size=4000,
                num_threads=1,  # With more, the pieces depend on their number.
                minloglevel=2,
            )
            model = (self.output / f"{name}.model").rename(self.output / f"{name}.spm")
            learned = sentencepiece.SentencePieceProcessor(model_file=str(model))
            pieces += [learned.id_to_piece(index) for index in range(3, learned.get_piece_size())]
        ids = {piece: index for index, piece in enumerate(dict.fromkeys(["</s>", "<unk>", *pieces, "<pad>"]))}
        (self.output / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
        files = [str(self.output / name) for name in ("source.spm", "target.spm", "vocab.json")]
        source_lang, target_lang = self.languages
        return MarianTokenizer(*files, source_lang=source_lang, target_lang=target_lang)  # type: ignore[misc, arg-type]


class TimeLimit(TrainerCallback):
    """Ends training after some minutes."""

    def __init__(self, minutes: float) -> None:
        self.end = time.perf_counter() + 60 * minutes

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends training if the time is over."""
        if time.perf_counter() > self.end:
            control.should_training_stop = True


def new_model(tokenizer: MarianTokenizer) -> MarianMTModel:
    """Returns a model of three layers of width 128 with the settings of OPUS-MT models."""
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    special = {
        "pad_token_id": pad,
        "eos_token_id": end,
        "bos_token_id": end,
        "forced_eos_token_id": end,
        "decoder_start_token_id": pad,
    }
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_position_embeddings=256,
        activation_function="swish",
        scale_embedding=True,
        **special,
    )
    model = MarianMTModel(config)
    model.generation_config = GenerationConfig(
        num_beams=4, max_length=128, bad_words_ids=[[pad]], renormalize_logits=True, **special
    )
    return model


if __name__ == "__main__":
    tyro.cli(Pretrained).run()
