"""The blocks of a recipe: settings that belong together, each with its type, limits and option of the commands.

Corpora may be given as words, as mappings like those of YAML, or as `CorpusSpec`s, which they then become.
"""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from tyro.constructors import PrimitiveConstructorSpec

from vanilla_transformer.data.columns import COLUMN_SETTINGS
from vanilla_transformer.data.sources import (
    Corpora,
    CorpusSpec,
    corpora_from_values,
    may_have_columns,
    only_corpus,
    to_words,
)
from vanilla_transformer.errors import CorpusError, RecipeError

CorporaOption = typing.Annotated[
    Corpora,
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="[STR [STR ...]]",
        instance_from_str=tuple,  # The recipe turns words into corpora, and knows for which field.
        is_instance=lambda value: isinstance(value, tuple) and all(isinstance(one, CorpusSpec) for one in value),
        str_from_instance=to_words,
    ),
]


def setting(
    default: Any = None,
    *,
    option: str | None = None,
    metavar: str | None = None,
    least: float | None = None,
    below: float = math.inf,
    above: float | None = None,
) -> Any:
    """Declare a field of a block.

    Args:
        default: Its value if a recipe gives none; None for a value chosen later, or for off.
        option: Its name in flat recipes and on the command line; by default the field's name.
        metavar: Its value in the help; by default from its type.
        least, below, above: Limits of a number, which is at least `least`, or more than `above`.
    """
    limits = None if least is above is None else (least, below, above)
    return dataclasses.field(default=default, metadata={"option": option, "metavar": metavar, "limits": limits})


def option_of(field: "dataclasses.Field[Any]") -> str:
    """Return the name of a field in flat recipes and, with dashes, on the command line."""
    return field.metadata.get("option") or field.name


@dataclass(frozen=True)
class Block:
    """Settings that belong together, checked as they are made.

    Raises:
        RecipeError: A value has another type than its field, or exceeds its limits.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            option, value = option_of(field), getattr(self, field.name)
            check: Any = _checked_corpora if field.type is CorporaOption else checked_type
            value = check(option, value, field.type)
            if value is not None and (limits := field.metadata.get("limits")):
                _check_limits(option, value, *limits)
            object.__setattr__(self, field.name, value)

    @property
    def is_used(self) -> bool:
        """Tells whether any field differs from its default."""
        return any(getattr(self, field.name) != field.default for field in dataclasses.fields(self))


@dataclass(frozen=True)
class Data(Block):
    """The text."""

    train: CorporaOption = setting((), metavar="CORPUS ...")
    """Training data: two line-aligned files, a table (TSV, CSV, JSONL, Parquet), a Hub id, or `cmudict:train`.
    Separate several corpora with `+`. Each may be followed by `source_column=en target_column=de`, and by `weight=0.7`
    (its share of an epoch, which oversamples small corpora)."""
    dev: CorporaOption = setting((), metavar="CORPUS ...")
    """Held-out data for the loss during training, in any form that `train` accepts."""
    test: CorporaOption = setting((), metavar="CORPUS ...")
    """Test data, scored once at the end."""
    source_column: str | None = setting(metavar="COLUMN")
    """Source column, or source language of a `translation` column; by default the first."""
    target_column: str | None = setting(metavar="COLUMN")
    """Target column, or target language of a `translation` column; by default the second."""
    text_column: str | None = setting(metavar="COLUMN")
    """Text column or, in CoNLL files, the column of the words; a number, from 1, if the file has no column names."""
    text_pair_column: str | None = setting(metavar="COLUMN")
    """Column of the second text, for pairs of texts."""
    label_column: str | None = setting(metavar="COLUMN")
    """Column of the label or, in CoNLL files, of the tags."""
    max_length: int = setting(256, least=1)
    """Maximum number of tokens per side; longer pairs, or rows, are skipped, and their number is reported."""
    documents: Literal["lines", "packed"] = "lines"
    """Text that a language model learns from. With lines, each line, or row of a table, is one text. With packed, each
    plain text file is one text, line ends included, cut into blocks of max_length tokens so that nothing is lost."""

    def corpora(self, name: str) -> Corpora:
        """Return the corpora of `train`, `dev` or `test`; columns named for all apply to tables that name none."""
        tables = any(map(may_have_columns, (*self.train, *self.dev, *self.test)))
        named = {column: getattr(self, column) for column in COLUMN_SETTINGS}
        return tuple(
            corpus
            if any(corpus.columns) or (tables and not may_have_columns(corpus))
            else dataclasses.replace(corpus, **named)
            for corpus in getattr(self, name)
        )


@dataclass(frozen=True)
class Tokenizer(Block):
    """The pieces that text is split into."""

    name: str | None = setting(option="tokenizer", metavar="MODEL")
    """Model directory or Hub id whose tokenizer to use; by default one is trained on `train`."""
    algorithm: Literal["bpe", "wordpiece", "character", "presplit"] = setting("bpe", option="tokenizer_algorithm")
    """Sub-word algorithm (section 5.1: byte-pair encoding); presplit expects text already segmented with `@@ `."""
    sides: Literal["both", "source", "target"] = setting("both", option="tokenizer_sides")
    """Sides of `train` on which the tokenizer is trained."""
    lowercase: bool = setting(False, option="tokenizer_lowercase")
    """Lower-case what the model reads, so that Hello is read as hello; what a translation model writes keeps its case.
    By default decoding restores any text exactly."""
    vocab_size: int | None = None
    """Size of the shared vocabulary; by default chosen from the number of pairs."""


@dataclass(frozen=True)
class Start(Block):
    """A saved model to train further."""

    model: str | None = setting(option="from_model", metavar="MODEL")
    """Start from the weights and tokenizer of this model, a directory or a Hub id: to fine-tune it, or to use the
    encoder of a masked language model in a classifier. The learning rate then stays constant after the warm-up
    (`learning_rate`), because the peak of Eq. 3 suits random weights and would undo what these have learned."""


@dataclass(frozen=True)
class Model(Block):
    """The sizes of the model (sections 3 and 5.4)."""

    architecture: Literal["transformer", "recurrent"] = "transformer"
    """The paper's Transformer, or `recurrent` for a model of the kind it replaced (2014 and 2015)."""
    preset: str | None = setting(metavar="NAME")
    """Model size: tiny, small, base, big or a row of Table 3; by default chosen from the data and the device."""
    d_model: int | None = setting(least=1)
    """Width of the layers (section 3.1); by default the preset's."""
    d_ff: int | None = setting(least=1)
    """Inner width of the feed-forward layers (section 3.3); by default the preset's."""
    num_heads: int | None = setting(least=1)
    """Number of attention heads (section 3.2.2); by default the preset's."""
    d_k: int | None = setting(least=1)
    """Width of a head's queries and keys; by default d_model / num_heads."""
    d_v: int | None = setting(least=1)
    """Width of a head's values; by default d_model / num_heads."""
    encoder_layers: int | None = setting(least=1)
    """Number of encoder layers; by default the preset's."""
    decoder_layers: int | None = setting(least=1)
    """Number of decoder layers; by default the preset's."""
    dropout: float | None = setting(least=0, below=1)
    """Residual dropout (section 5.4); by default chosen from the number of pairs."""
    attention_dropout: float | None = setting(least=0, below=1)
    """Dropout of attention weights; off by default, as in the paper."""
    activation_dropout: float | None = setting(least=0, below=1)
    """Dropout inside the feed-forward layers; off by default, as in the paper."""
    label_smoothing: float | None = setting(least=0, below=1)
    """Label smoothing (section 5.4); by default the preset's."""
    positional_encoding: Literal["sinusoidal", "learned"] | None = None
    """Positional encoding: sinusoidal (section 3.5) or learned (Table 3, row E); by default the preset's."""


@dataclass(frozen=True)
class Recurrent(Block):
    """Settings of recurrent models only."""

    cell: Literal["lstm", "gru"] | None = None
    """Cells of a recurrent model; lstm by default."""
    attention: Literal["none", "bahdanau", "luong-dot", "luong-general", "luong-concat"] | None = None
    """Attention of a recurrent model over the source; luong-general by default."""
    attention_window: int | None = setting(least=1)
    """Window of Luong's local attention: positions on each side of the predicted one; by default all positions."""


@dataclass(frozen=True)
class Classification(Block):
    """The labels of a text or of its words."""

    labels: tuple[str, ...] | None = setting(metavar="LABEL ...")
    """Labels in the order of their ids; by default those in `train`, sorted."""
    pooling: Literal["mean", "first"] | None = setting(option="classifier_pooling")
    """Input of a text classifier: the mean over all tokens (the default), or the first token, `<s>`."""


@dataclass(frozen=True)
class Optimization(Block):
    """The training steps and their learning rate (section 5)."""

    batch_tokens: int | None = setting(least=1)
    """Maximum tokens per side and step over all devices, padding included (section 5.1); by default chosen from the
    number of pairs."""
    batches_per_step: int | None = setting(least=1)
    """Batches per step over all devices, for gradient accumulation; by default chosen from the device's memory."""
    # Python counts no further than a machine word, and no run has come that far.
    max_steps: int | None = setting(least=1, below=10**15)
    """Number of training steps (section 5.2); by default chosen from the data and the device."""
    warmup_steps: int | None = setting(least=1)
    """Warm-up steps of the learning rate (Eq. 3); by default chosen from the number of steps."""
    learning_rate_scale: float | None = setting(least=0)
    """Factor on the learning rate of Eq. 3; by default 1, or less for a short run, whose short warm-up would raise the
    rate higher than small models tolerate."""
    learning_rate: float | None = setting(above=0)
    """Constant learning rate after the warm-up, instead of Eq. 3; by default only for recurrent models (0.001) and
    with `--from` (the rate that Eq. 3 reaches after the paper's 100,000 steps)."""
    adam_beta1: float = setting(0.9, least=0, below=1)
    """Adam's beta1 (section 5.3)."""
    adam_beta2: float = setting(0.98, least=0, below=1)
    """Adam's beta2 (section 5.3)."""
    adam_epsilon: float = setting(1e-9, above=0)
    """Adam's epsilon (section 5.3)."""
    max_grad_norm: float | None = setting(least=0)
    """Clip gradients to this norm; 0 turns clipping off. By default 5 for recurrent models, and 0 for others."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; auto uses bfloat16 where the device supports it. Parameters stay in float32."""
    seed: int = setting(1, least=0, below=2**31)
    """Random seed."""


@dataclass(frozen=True)
class Evaluation(Block):
    """The evaluation of a run."""

    eval_steps: int | None = setting(least=1)
    """Steps between evaluations of the loss on `dev`."""
    patience: int | None = setting(least=1)
    """Stop after this many evaluations without a lower loss on `dev`; off by default."""
    metrics: tuple[str, ...] | None = setting(metavar="METRIC ...")
    """Metrics for `dev` and `test`; by default the task's. For translation sacrebleu and chrf; also ter,
    tokenized_bleu, paper_bleu (or, for example, paper_bleu:fr), wer and per."""
    examples: tuple[str, ...] = setting((), metavar="TEXT ...")
    """Texts to give to the model at the end; the answers are printed and added to its model card."""


@dataclass(frozen=True)
class Decoding(Block):
    """Settings of the model's generation config (section 6.1)."""

    num_beams: int = setting(4, least=1, below=10_001)
    """Beam size in the generation config (section 6.1); 1 for greedy search, without length penalty."""
    # Beyond 10 the penalty of a long sentence is infinite in float32.
    length_penalty: float = setting(0.6, least=0, below=10)
    """Exponent of the length penalty in the generation config (section 6.1)."""
    length_penalty_type: Literal["google", "huggingface"] = "google"
    """Formula of the length penalty: google divides by ((5 + length) / 6)^penalty (section 6.1), huggingface by
    length^penalty."""
    max_length_beyond_source: int = setting(50, least=0, below=1_000_001)
    """Maximum tokens an output may have beyond its source (section 6.1; 300 for trees, section 6.3)."""


@dataclass(frozen=True)
class Run(Block):
    """The output of a run, its place, and the number of processes."""

    output: str | None = setting(metavar="DIR")
    """Output directory, which becomes the model; an unfinished run of the same recipe there is resumed."""
    save_steps: int | None = setting(least=1)
    """Steps between checkpoints."""
    average_checkpoints: int = setting(5, least=1)
    """Average the last N checkpoints for the final model (section 6.1: 5 for base, 20 for big)."""
    keep_checkpoints: Literal["averaged", "doubling"] = "averaged"
    """Checkpoints to keep: those to be averaged, or with doubling also those after 1, 2, 4, 8, ... times save_steps,
    from which `explore` replays the training."""
    log_steps: int = setting(50, least=1)
    """Steps between log lines and records in metrics.jsonl."""
    trackers: tuple[str, ...] = setting((), metavar="NAME ...")
    """Experiment trackers supported by accelerate: tensorboard, wandb, trackio, mlflow and others."""
    processes: int | None = setting(least=1, below=1025)
    """Processes that share the cores of a CPU; by default two for a run of at least 1,000 steps on two or more cores.
    A resumed run keeps its number. Not for torchrun and other launchers, which start their own processes."""
    process_timeout: float = setting(120.0, least=1, below=1e6)
    """Seconds that a process waits for the others within a step before the run is aborted."""


def _check_limits(option: str, value: float, least: float | None, below: float, above: float | None) -> None:
    if math.isfinite(value) and value < below and (value > above if least is None else value >= least):  # type: ignore[operator]
        return
    finite = "" if math.isfinite(value) else "finite, "
    limit = f"greater than {above}" if least is None else f"at least {least}"
    limit += f" and below {below}" if below < math.inf else ""
    raise RecipeError(f"{option} must be {finite}{limit}, not {value}.")


def checked_type(option: str, value: Any, hint: Any) -> Any:
    """Return `value` in the type of the field: YAML reads 1e-9 as text, and gives lists for tuples."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if value is None and types.NoneType in kinds:
        return None
    for kind in kinds:
        if kind is bool and isinstance(value, bool):
            return value
        if typing.get_origin(kind) is Literal:
            if value in typing.get_args(kind):
                return value
        elif typing.get_origin(kind) is tuple:
            items = (value,) if isinstance(value, str) else value
            if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
                return tuple(items)
        elif kind is float and not isinstance(value, bool):
            try:
                return float(value)
            except (TypeError, ValueError, OverflowError):
                continue
        elif isinstance(value, kind) and not isinstance(value, bool):
            return value
    raise RecipeError(f"{option} must be {_describe(kinds)}, not {value!r}.")


def _checked_corpora(option: str, value: Any, _: Any) -> Corpora:
    """Return corpora in any notation as `CorpusSpec`s: several for training, one for held-out data."""
    try:
        corpora = corpora_from_values(value)
        if corpora and option != "train":
            only_corpus(corpora)
    except CorpusError as error:
        raise RecipeError(f"{option}: {error}.") from None
    if corpora is None:
        raise RecipeError(f"{option} must be text or a list of texts, not {value!r}.")
    return corpora


def _describe(kinds: tuple[Any, ...]) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            return f"one of {', '.join(typing.get_args(kind))}"
        if typing.get_origin(kind) is tuple:
            return "text or a list of texts"
        if kind in words:
            return words[kind]
    raise AssertionError(kinds)
