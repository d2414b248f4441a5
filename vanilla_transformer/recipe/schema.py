"""The recipe: all settings of a training run, in blocks; each setting has one name, which no other block has."""

import dataclasses
import os
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Annotated, Any, Literal, Self

import yaml
from tyro.conf import arg
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from vanilla_transformer.data.sources import COLUMN_SETTINGS, Corpora, CorpusSpec, one_corpus, parse_corpora, to_words
from vanilla_transformer.errors import SettingError, did_you_mean
from vanilla_transformer.graph.settings import MAX_LENGTH_PENALTY
from vanilla_transformer.options import (
    HINT,
    Count,
    OptionalBeams,
    OptionalCount,
    OptionalLength,
    OptionalNumber,
    OptionalPlace,
    OptionalPositive,
    OptionalShare,
    OptionalText,
    OptionalTexts,
    Positive,
    Share,
    Texts,
    number,
    one_of,
)

Algorithm = Literal["bpe", "wordpiece", "character", "presplit"]
Sides = Literal["both", "source", "target"]
Positions = Literal["sinusoidal", "learned"]
Cell = Literal["lstm", "gru"]
Attention = Literal["none", "bahdanau", "luong-dot", "luong-general", "luong-concat"]
Pooling = Literal["mean", "first"]
PenaltyType = Literal["google", "huggingface"]


def _corpora(*, several: bool) -> PrimitiveConstructorSpec[Corpora]:
    def read(words: list[str]) -> Corpora:
        return parse_corpora(words) if several or not words else (one_corpus(words),)

    def is_instance(value: object) -> bool:
        if not isinstance(value, tuple) or not all(isinstance(corpus, CorpusSpec) for corpus in value):
            return False
        return several or (len(value) <= 1 and all(corpus.weight is None for corpus in value))

    return PrimitiveConstructorSpec("*", "[CORPUS [CORPUS ...]]", read, is_instance, to_words)


Mixture = Annotated[Corpora, _corpora(several=True), HINT]
HeldOut = Annotated[Corpora, _corpora(several=False), HINT]


@cache
def _spec(hint: Any) -> PrimitiveConstructorSpec[Any]:
    """Returns tyro's reading of a type."""
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(hint, set()))
    assert not isinstance(spec, UnsupportedTypeAnnotationError), hint
    return spec


def _converted(name: str, value: object, hint: object) -> Any:
    """Returns a value in the type of its setting: text and numbers are read as the words of a command line are."""
    spec = _spec(hint)
    if value is not None and spec.is_instance(value) is True:
        return value
    words = value if isinstance(value, list | tuple) and spec.nargs == "*" else [value]
    if all(isinstance(word, str | Real | os.PathLike) and not isinstance(word, bool) for word in words):
        given = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]
        if spec.choices is None or {*given} <= {*spec.choices}:
            try:
                return spec.instance_from_str(given)
            except ValueError as error:
                raise SettingError(f"{name}: {error}.") from None
    raise SettingError(f"{name} must be {spec.metavar}, not {value!r}.")


@dataclass(frozen=True)
class Block:
    """Settings that belong together, checked as they are made."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, _converted(field.name, value, field.type))


@dataclass(frozen=True)
class Data(Block):
    """The task and its text."""

    #: Task to train for: translation, language-modeling, masked-language-modeling, text-classification or
    #: token-classification; programs may register others.
    task: str = "translation"
    #: Training data: two line-aligned files, a table (TSV, CSV, JSONL, Parquet), a Hub id, or `cmudict:train`.
    #: Separate several corpora with `+`. Each may be followed by `source_column=en target_column=de`, and by
    #: `weight=0.7` (its share of an epoch, which oversamples small corpora).
    train: Mixture = ()
    #: Held-out data for the loss during training, in any form that `train` accepts.
    dev: HeldOut = ()
    #: Test data, scored once at the end.
    test: HeldOut = ()
    #: Source column, or source language of a `translation` column; by default the first.
    source_column: OptionalText = None
    #: Target column, or target language of a `translation` column; by default the second.
    target_column: OptionalText = None
    #: Text column or, in CoNLL files, the column of the words; a number, from 1, if the file has no column names.
    text_column: OptionalText = None
    #: Column of the second text, for pairs of texts.
    text_pair_column: OptionalText = None
    #: Column of the label or, in CoNLL files, of the tags.
    label_column: OptionalText = None
    #: Maximum number of tokens per side; longer pairs, or rows, are skipped, and their number is reported.
    max_length: Count = 256
    #: Text that a language model learns from. With lines, each line, or row of a table, is one text. With packed, each
    #: plain text file is one text, line ends included, cut into blocks of max_length tokens so that nothing is lost.
    documents: Literal["lines", "packed"] = "lines"

    def corpora(self, name: str) -> Corpora:
        """Returns the corpora of `train`, `dev` or `test`; columns named for all apply to tables that name none."""
        named = {setting: column for setting in COLUMN_SETTINGS if (column := getattr(self, setting)) is not None}
        return tuple(
            corpus
            if corpus.columns or corpus.is_built_in or len(corpus.parts) > 1
            else dataclasses.replace(corpus, columns=named)
            for corpus in getattr(self, name)
        )


@dataclass(frozen=True)
class Tokenizer(Block):
    """The pieces that text is split into."""

    #: Model directory or Hub id whose tokenizer to use; by default one is trained on `train`.
    tokenizer: OptionalPlace = None
    #: Sub-word algorithm; by default byte-pair encoding (section 5.1). presplit expects text already segmented with
    #: `@@ `.
    tokenizer_algorithm: Annotated[Algorithm | None, one_of(Algorithm)] = None
    #: Sides of `train` on which the tokenizer is trained; both by default.
    tokenizer_sides: Annotated[Sides | None, one_of(Sides)] = None
    #: Lower-case what the model reads, so that Hello is read as hello; what a translation model writes keeps its case.
    #: By default decoding restores any text exactly.
    tokenizer_lowercase: bool = False
    #: Size of the shared vocabulary; by default chosen from the number of pairs.
    vocab_size: OptionalCount = None


@dataclass(frozen=True)
class Start(Block):
    """A saved model to train further."""

    #: Start from the weights and tokenizer of this model, a directory or a Hub id: to fine-tune it, or to use the
    #: encoder of a masked language model in a classifier. The learning rate then stays constant after the warm-up
    #: (`learning_rate`), because the peak of Eq. 3 suits random weights and would undo what these have learned.
    from_model: Annotated[OptionalPlace, arg(aliases=["--from"])] = None


@dataclass(frozen=True)
class Model(Block):
    """The sizes of the model (sections 3 and 5.4)."""

    #: The paper's Transformer, or `recurrent` for a model of the kind it replaced (2014 and 2015).
    architecture: Literal["transformer", "recurrent"] = "transformer"
    #: Model size: tiny, small, base, big or a row of Table 3; by default chosen from the data and the device.
    preset: OptionalText = None
    #: Width of the layers (section 3.1); by default the preset's.
    d_model: OptionalCount = None
    #: Inner width of the feed-forward layers (section 3.3); by default the preset's.
    d_ff: OptionalCount = None
    #: Number of attention heads (section 3.2.2); by default the preset's.
    num_heads: OptionalCount = None
    #: Width of a head's queries and keys; by default d_model / num_heads.
    d_k: OptionalCount = None
    #: Width of a head's values; by default d_model / num_heads.
    d_v: OptionalCount = None
    #: Number of encoder layers; by default the preset's, or 2 in a translator that will read few tokens.
    encoder_layers: OptionalCount = None
    #: Number of decoder layers; by default the preset's, or 2 in a translator that will read few tokens.
    decoder_layers: OptionalCount = None
    #: Residual dropout (section 5.4); by default chosen from the number of pairs, and of passes over them.
    dropout: OptionalShare = None
    #: Dropout of attention weights; off by default, as in the paper.
    attention_dropout: OptionalShare = None
    #: Dropout inside the feed-forward layers; off by default, as in the paper.
    activation_dropout: OptionalShare = None
    #: Label smoothing (section 5.4); by default the preset's.
    label_smoothing: OptionalShare = None
    #: Positional encoding: sinusoidal (section 3.5) or learned (Table 3, row E); by default the preset's.
    positional_encoding: Annotated[Positions | None, one_of(Positions)] = None


@dataclass(frozen=True)
class Recurrent(Block):
    """Settings of recurrent models only."""

    #: Cells of a recurrent model; lstm by default.
    cell: Annotated[Cell | None, one_of(Cell)] = None
    #: Attention of a recurrent model over the source; luong-general by default.
    attention: Annotated[Attention | None, one_of(Attention)] = None
    #: Window of Luong's local attention: positions on each side of the predicted one; by default all positions.
    attention_window: OptionalCount = None


@dataclass(frozen=True)
class Classification(Block):
    """The labels of a text or of its words."""

    #: Labels in the order of their ids; by default those in `train`, sorted.
    labels: OptionalTexts = None
    #: Input of a text classifier: the mean over all tokens (the default), or the first token, `<s>`.
    classifier_pooling: Annotated[Pooling | None, one_of(Pooling)] = None


@dataclass(frozen=True)
class Optimization(Block):
    """The training steps and their learning rate (section 5)."""

    #: Maximum tokens per side and step over all devices, padding included (section 5.1); by default chosen from the
    #: number of pairs.
    batch_tokens: OptionalCount = None
    #: Batches per step over all devices, for gradient accumulation; by default chosen from the device's memory.
    batches_per_step: OptionalCount = None
    #: Number of training steps (section 5.2); by default chosen from the data and the device.
    max_steps: OptionalCount = None
    #: End within this many minutes, scores and model card included, with as many steps as fit. The speed of the first
    #: steps decides the warm-up. After an interruption, the minutes used up to its checkpoint count.
    max_minutes: OptionalPositive = None
    #: Warm-up steps of the learning rate (Eq. 3); by default chosen from the number of steps.
    warmup_steps: OptionalCount = None
    #: Factor on the learning rate of Eq. 3; by default 1, or less for a short run, whose short warm-up would raise the
    #: rate higher than small models tolerate.
    learning_rate_scale: OptionalNumber = None
    #: Constant learning rate after the warm-up, instead of Eq. 3; by default only for recurrent models (0.001) and
    #: with `from_model` (the rate that Eq. 3 reaches after the paper's 100,000 steps).
    learning_rate: OptionalPositive = None
    #: Adam's beta1 (section 5.3).
    adam_beta1: Share = 0.9
    #: Adam's beta2 (section 5.3).
    adam_beta2: Share = 0.98
    #: Adam's epsilon (section 5.3).
    adam_epsilon: Positive = 1e-9
    #: Clip gradients to this norm; 0 turns clipping off. By default 5 for recurrent models, and 0 for others.
    max_grad_norm: OptionalNumber = None
    #: Precision of matrix products; auto uses bfloat16 where the device supports it, float16 on NVIDIA GPUs that do
    #: not, and float32 elsewhere. Parameters stay in float32.
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    #: Whether products in float32 may round their factors to TF32, with 10 bits instead of 23, on NVIDIA GPUs.
    tf32: bool = True
    #: Compile a Transformer's layers, one code for all of a kind. Dropout draws other numbers than without.
    compile: bool = False
    #: Random seed.
    seed: Annotated[int, number(int, 0, 2**31)] = 1


@dataclass(frozen=True)
class Evaluation(Block):
    """The evaluation of a run."""

    #: Steps between evaluations of the loss on `dev`.
    eval_steps: OptionalCount = None
    #: Stop after this many evaluations without a lower loss on `dev`; off by default.
    patience: OptionalCount = None
    #: Metrics for `dev` and `test`; by default the task's. For translation sacrebleu and chrf; also ter,
    #: tokenized_bleu, paper_bleu (or paper_bleu:fr), wer and per.
    metrics: OptionalTexts = None
    #: Texts to give to the model at the end; the answers are printed and added to its model card.
    examples: Texts = ()


@dataclass(frozen=True)
class Decoding(Block):
    """Settings of the model's generation config (section 6.1), by default those of the model it starts from."""

    #: Beam size in the generation config; by default 4 (section 6.1). 1 is greedy search, without length penalty.
    num_beams: OptionalBeams = None
    #: Exponent of the length penalty in the generation config; by default 0.6 (section 6.1).
    length_penalty: Annotated[float | None, number(float, 0, MAX_LENGTH_PENALTY), HINT] = None
    #: Formula of the length penalty: google (the default) divides by ((5 + length) / 6)^penalty (section 6.1),
    #: huggingface by length^penalty.
    length_penalty_type: Annotated[PenaltyType | None, one_of(PenaltyType)] = None
    #: Maximum tokens an output may have beyond its source; by default 50 (section 6.1; 300 for trees, section 6.3).
    max_length_beyond_source: OptionalLength = None


@dataclass(frozen=True)
class Run(Block):
    """The output of a run, its place, and the number of processes."""

    #: Output directory, which becomes the model; an unfinished run of the same recipe there is resumed.
    output: OptionalPlace = None
    #: Steps between checkpoints.
    save_steps: OptionalCount = None
    #: Average the last N checkpoints for the final model (section 6.1: 5 for base, 20 for big).
    average_checkpoints: Count = 5
    #: Checkpoints to keep: those to be averaged, or with doubling also those after 1, 2, 4, 8, ... times save_steps,
    #: from which `explore` replays the training.
    keep_checkpoints: Literal["averaged", "doubling"] = "averaged"
    #: Steps between log lines and records in metrics.jsonl.
    log_steps: Count = 50
    #: Experiment trackers supported by accelerate: tensorboard, wandb, trackio, mlflow and others.
    trackers: Texts = ()
    #: Processes that share the machine; by default one for each accelerator, or on a CPU of two or more cores two for
    #: a run of at least 1,000 steps. A resumed run keeps its number. Other launchers start their own processes.
    processes: Annotated[int | None, number(int, 1, 1025), HINT] = None
    #: Seconds that a process waits for the others before the run is aborted: for a step, or a checkpoint on its disk.
    process_timeout: Annotated[float, number(float, 1, 1_000_000)] = 600.0


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run as given; the others are chosen from the data and the device, and printed.

    `Recipe.of(train=("a.en", "a.de"), max_steps=300)` takes them by name, as on the command line, and
    `recipe["max_steps"]` returns one.
    """

    data: Data = Data()
    tokenizer: Tokenizer = Tokenizer()
    start: Start = Start()
    model: Model = Model()
    recurrent: Recurrent = Recurrent()
    classification: Classification = Classification()
    optimization: Optimization = Optimization()
    evaluation: Evaluation = Evaluation()
    decoding: Decoding = Decoding()
    run: Run = Run()

    @classmethod
    def of(cls, **settings: object) -> Self:
        """Returns a recipe with these settings.

        Raises:
            SettingError: There is no such setting, or it cannot have that value.
        """
        return cls().with_options(**settings)

    def with_options(self, **settings: object) -> Self:
        """Returns the recipe overridden by these settings.

        Raises:
            SettingError: There is no such setting, or it cannot have that value.
        """
        changes: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            if name not in places():
                hint = did_you_mean(name, places()) or "."
                raise SettingError(f"{name!r} is not a setting of a recipe{hint}")
            changes.setdefault(places()[name], {})[name] = value
        blocks: dict[str, Any] = {
            block: dataclasses.replace(getattr(self, block), **changed) for block, changed in changes.items()
        }
        return dataclasses.replace(self, **blocks)

    @property
    def options(self) -> dict[str, Any]:
        """Returns all settings by name."""
        return {name: value for block in vars(self).values() for name, value in vars(block).items()}

    @property
    def open_settings(self) -> set[str]:
        """Returns the names of the settings that have no value, or that are to be chosen automatically."""
        return {name for name, value in self.options.items() if value is None or value == "auto"}

    def __getitem__(self, name: str) -> Any:
        """Returns the setting of that name."""
        return self.options[name]

    def used(self, *names: str) -> list[str]:
        """Returns the settings among these, or in blocks of these names, that differ from their defaults."""
        default = Recipe().options
        return [
            name
            for name, value in self.options.items()
            if (name in names or places()[name] in names) and value != default[name]
        ]

    def given(self) -> dict[str, Any]:
        """Returns the settings that are chosen, in plain YAML types."""
        default = Recipe().options
        return {
            name: _plain(value)
            for name, value in self.options.items()
            if value is not None and not (value == () == default[name])
        }

    def to_yaml(self) -> str:
        """Returns the recipe as YAML that `load_recipe` reads back, without what is still to be chosen."""
        plain: dict[str, dict[str, Any]] = {}
        for name, value in self.given().items():
            plain.setdefault(places()[name], {})[name] = value
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000)
        # Some rare characters, such as U+0085, are line breaks to the YAML reader unless they are escaped.
        return text if yaml.safe_load(text) == plain else yaml.safe_dump(plain, sort_keys=False, width=1000)


@cache
def places() -> dict[str, str]:
    """Returns the block of each setting."""
    return {name: block for block, settings in vars(Recipe()).items() for name in vars(settings)}


def in_words(value: object) -> str:
    """Returns the value of an option as written on the command line."""
    plain = _plain(value)
    return " ".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def _plain(value: object) -> Any:
    """Returns a value as YAML has it; corpora as words."""
    if not isinstance(value, tuple):
        return value
    return to_words(value) if value and isinstance(value[0], CorpusSpec) else list(value)
