"""The recipe: one flat list of settings that decides a training run, read from YAML or the command line."""

import dataclasses
import importlib.resources
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import yaml
from tyro.constructors import PrimitiveConstructorSpec

from vanilla_transformer.data.columns import COLUMN_SETTINGS
from vanilla_transformer.data.lines import CorpusError
from vanilla_transformer.data.locations import may_have_columns
from vanilla_transformer.data.sources import (
    Corpora,
    CorpusSpec,
    corpora_from_values,
    only_corpus,
    parse_corpora,
    to_words,
)
from vanilla_transformer.suggestions import did_you_mean


class RecipeError(Exception):
    """An invalid recipe, said in one sentence.

    Not a ValueError: the command-line parser takes those for its own and wraps them in its internal names.
    """


CorporaOption = typing.Annotated[
    Corpora,
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="[STR [STR ...]]",
        instance_from_str=tuple,  # The recipe makes corpora of words, and knows for which field.
        is_instance=lambda value: isinstance(value, tuple) and all(isinstance(one, CorpusSpec) for one in value),
        str_from_instance=to_words,
    ),
]


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run as given; what is left out is chosen from the data and the device, and printed."""

    # Corpora may be given as words, as mappings like those of YAML, or as `CorpusSpec`s, which they are from then on.
    task: str = "translation"
    """Task to train for."""
    train: CorporaOption = ()
    """Training data: two line-aligned files, a table (TSV, CSV, JSONL, Parquet), trees (.mrg), a Hub id,
    `cmudict:train`, or `prepared:DIR` made by `prepare`. Separate several corpora by `+`; `weight=0.7` after a corpus
    sets its share of an epoch, oversampling small ones; `tag=BT` puts the piece `<BT>` before each of its sources, to
    tell synthetic ones from others. Each may be followed by `source_column=en target_column=de`, and by
    `streaming=true`, which keeps no copy of the text."""
    dev: CorporaOption = ()
    """Held-out data for the loss during training, in any form accepted by `train`."""
    test: CorporaOption = ()
    """Test data, scored once at the end."""
    source_column: str | None = None
    """Source column, or language of a `translation` column; by default the first."""
    target_column: str | None = None
    """Target column, or language of a `translation` column; by default the second."""
    text_column: str | None = None
    """Column of the text or, in CoNLL files, of the words; its number, from 1, where a file names no columns."""
    text_pair_column: str | None = None
    """Column of the second of two texts."""
    label_column: str | None = None
    """Column of the label or, in CoNLL files, of the tags."""
    labels: tuple[str, ...] | None = None
    """Labels in the order of their ids; by default those of `train`, sorted."""
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = None
    """What the label of a text is, in the library's words: one label (the default), several with commas between them
    (or none), or a number."""
    classifier_pooling: Literal["mean", "first"] | None = None
    """What a text classifier reads: the mean of all tokens (the default), or the first, `<s>`."""
    part_pairs: int = 40_000_000
    """Most pairs planned together where a prepared corpus comes in several shards: bounds the memory of planning."""
    max_length: int = 256
    """Skip pairs, or other rows, with more tokens than this on either side; their number is reported."""

    documents: Literal["lines", "packed"] = "lines"
    """What a language model learns from: a text a line (or a row of a table), or packed: plain text files as they
    stand, each one text with its line ends, cut into blocks of max_length tokens so that none is lost."""

    tokenizer: str | None = None
    """Model directory or Hub id of a tokenizer to use; by default one is trained on `train`."""
    tokenizer_algorithm: Literal["bpe", "wordpiece", "unigram", "character", "presplit"] = "bpe"
    """Sub-word algorithm (section 5.1: byte-pair encoding); presplit expects text already segmented with `@@ `."""
    tokenizer_sides: Literal["both", "source", "target"] = "both"
    """Sides of `train` to train the tokenizer on."""
    tokenizer_lowercase: bool = False
    """Lower-case what the model reads, so that Hello is read as hello, through a normalizer of the tokenizer; what a
    translation model writes keeps its case. By default any text comes back as it was."""
    vocab_size: int | None = None
    """Size of the shared vocabulary; by default chosen from the number of pairs."""
    bpe_dropout: float | None = None
    """Split the words of `train` anew for each epoch by BPE-dropout: the probability that a pair of pieces is not
    joined, 0.1 in its paper (Provilkov et al. 2020); off by default and at 0. Dev and test are never sampled."""
    unigram_alpha: float | None = None
    """The same with a unigram tokenizer: each way to split a word is drawn by its probability to this power, 0.1 to
    0.5 in its paper (Kudo 2018); off by default."""
    sampled_sides: Literal["both", "source", "target"] = "both"
    """Sides of pairs of `train` that `bpe_dropout` or `unigram_alpha` splits."""

    from_model: str | None = None
    """Start from the weights and the tokenizer of this model, a directory or a Hub id: to train it further or on other
    text, or to take the encoder of a masked language model for a classifier. Its learning rate rises to a constant one
    (`learning_rate`), as the peak of Eq. 3 is for random weights and would undo what these have learned."""
    from_fingerprint: str | None = None
    """What tells the model of `--from` from any other; by default that of its files, and a changed one is refused."""
    lora_rank: int | None = None
    """Learn nothing of the model of `--from` but matrices of this rank beside its projections (LoRA, through PEFT),
    which are added to them at the end: the output is a model like any other."""
    lora_alpha: float | None = None
    """What the matrices count for, times their rank; by default twice the rank."""
    lora_targets: tuple[str, ...] | None = None
    """Projections that get matrices: some of q_proj, k_proj, v_proj, out_proj, w_1, w_2; by default q_proj, v_proj."""
    distil_from: str | None = None
    """Learn from what a teacher says of each target token, too: a directory that `soft-targets` has made of this very
    text, whose tokenizer is taken (word-level distillation; Kim and Rush 2016)."""
    distillation_weight: float = 0.5
    """Share of the loss that is the teacher's; the rest is that of the text, with its label smoothing."""
    preset: str | None = None
    """Model size: tiny, small, base, big or a row of Table 3; by default chosen from the data and the device."""
    d_model: int | None = None
    """Width of the layers (section 3.1); by default the preset's."""
    d_ff: int | None = None
    """Inner width of the feed-forward layers (section 3.3); by default the preset's."""
    num_heads: int | None = None
    """Number of attention heads (section 3.2.2); by default the preset's."""
    d_k: int | None = None
    """Width of the queries and keys of a head; by default d_model / num_heads."""
    d_v: int | None = None
    """Width of the values of a head; by default d_model / num_heads."""
    encoder_layers: int | None = None
    """Number of encoder layers; by default the preset's."""
    decoder_layers: int | None = None
    """Number of decoder layers; by default the preset's."""
    dropout: float | None = None
    """Residual dropout (section 5.4); by default chosen from the number of pairs."""
    attention_dropout: float | None = None
    """Dropout of attention weights; off by default, as in the paper."""
    activation_dropout: float | None = None
    """Dropout inside the feed-forward layers; off by default, as in the paper."""
    label_smoothing: float | None = None
    """Label smoothing (section 5.4); by default the preset's."""
    positional_encoding: Literal["sinusoidal", "learned"] | None = None
    """Positional encoding as in section 3.5, or learned (Table 3, row E); by default the preset's."""

    target_direction: Literal["left-to-right", "right-to-left"] = "left-to-right"
    """Order in which the model writes its target. One that writes from right to left sees ends better than
    beginnings: `translate --rescore` lets it choose among the translations of another."""

    architecture: Literal["transformer", "recurrent"] = "transformer"
    """The paper's model, or a recurrent one of those that it replaced (2014 and 2015)."""
    cell: Literal["lstm", "gru"] | None = None
    """Cells of a recurrent model; lstm by default."""
    attention: Literal["none", "bahdanau", "luong-dot", "luong-general", "luong-concat"] | None = None
    """Attention of a recurrent model over the source; luong-general by default."""
    attention_window: int | None = None
    """How far Luong's local attention looks from the position it predicts; by default everywhere."""

    batch_tokens: int | None = None
    """Maximum tokens per side and step, padding included, over all devices (section 5.1); by default chosen from the
    number of pairs."""
    batches_per_step: int | None = None
    """Batches per step, for gradient accumulation and over all devices; by default chosen from the device's memory."""
    max_steps: int | None = None
    """Number of training steps (section 5.2); by default chosen from the data and the device."""
    warmup_steps: int | None = None
    """Learning rate warm-up steps (Eq. 3); by default chosen from the number of steps."""
    learning_rate_scale: float | None = None
    """Factor on the learning rate of Eq. 3; by default 1, and less for a run so short that its warm-up, chosen from
    the number of steps, would raise the rate further than small models bear."""
    learning_rate: float | None = None
    """Learning rate that stays as it is after the warm-up, instead of Eq. 3; recurrent models have 0.001, and
    what starts `--from` a model the rate that Eq. 3 falls to in the paper's 100,000 steps."""
    adam_beta1: float = 0.9
    """Adam's beta1 (section 5.3)."""
    adam_beta2: float = 0.98
    """Adam's beta2 (section 5.3)."""
    adam_epsilon: float = 1e-9
    """Adam's epsilon (section 5.3)."""
    max_grad_norm: float | None = None
    """Clip gradients to this norm; 0 for never, the default but of recurrent models, which have 5."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; auto uses bfloat16 where the device supports it. Weights stay float32."""
    seed: int = 1
    """Random seed."""

    eval_steps: int | None = None
    """Steps between evaluations of the loss on `dev`."""
    patience: int | None = None
    """Stop after this many evaluations without a lower loss on `dev` (off by default)."""
    metrics: tuple[str, ...] | None = None
    """Metrics for `dev` and `test`; by default the task's. Translation: sacrebleu and chrf, or ter, tokenized_bleu,
    paper_bleu (also paper_bleu:fr), wer, per, bracketing (of trees)."""
    examples: tuple[str, ...] = ()
    """Texts to ask the model about at the end: the answers are printed, and stand in its card."""
    description: str | None = None
    """Purpose of the model, a sentence or two for its card; by default what the task is for."""
    license: str | None = None
    """Licence of the model for its card, by its name on the Hub, such as apache-2.0."""

    save_steps: int | None = None
    """Steps between checkpoints."""
    average_checkpoints: int = 5
    """Average the last N checkpoints for the final model (section 6.1: 5 for base, 20 for big)."""
    keep_checkpoints: Literal["averaged", "doubling"] = "averaged"
    """Which checkpoints stay: those that are averaged, or also those after 1, 2, 4, 8, ... times save_steps, of which
    `explore` replays how the model learned."""
    log_steps: int = 50
    """Steps between log lines and records in metrics.jsonl."""

    num_beams: int = 4
    """Beam size in the model's generation config (section 6.1); 1 for greedy search, without length penalty."""
    length_penalty: float = 0.6
    """Length penalty in the model's generation config (section 6.1)."""
    length_penalty_type: Literal["google", "huggingface"] = "google"
    """Length penalty formula: google divides by ((5 + length) / 6)^penalty (section 6.1), huggingface by
    length^penalty."""
    max_length_beyond_source: int = 50
    """Tokens that an output may have beyond its source's (section 6.1; 300 for trees, section 6.3)."""

    output: str | None = None
    """Output directory, which becomes the model; an unfinished run of the same recipe in it is resumed."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers supported by accelerate: tensorboard, wandb, trackio, mlflow, ..."""
    processes: int | None = None
    """Processes that share the cores of a CPU; by default two for a run of at least 1,000 steps on two cores or more,
    and a run that goes on has as many as before. torchrun and other launchers start theirs themselves."""
    process_timeout: float = 120.0
    """Seconds that a process waits for the others within a step before the run is aborted."""

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            check = _checked_corpora if one.type is CorporaOption else _checked_type
            object.__setattr__(self, one.name, check(one.name, getattr(self, one.name), one.type))
        for field, (least, below) in _RANGES.items():
            value = getattr(self, field)
            if value is not None and (not least <= value < below or (field in _POSITIVE and not value)):
                finite = "" if math.isfinite(value) else "finite, "
                limit = "greater than 0" if field in _POSITIVE else f"at least {least}"
                limit += f" and below {below}" if below < math.inf else ""
                raise RecipeError(f"{field} must be {finite}{limit}, not {value}.")

    def corpora(self, field: str) -> Corpora:
        """The corpora of `train`, `dev` or `test`; columns named for all are those of the tables that name none."""
        tables = any(map(may_have_columns, (*self.train, *self.dev, *self.test)))
        named = {name: getattr(self, name) for name in COLUMN_SETTINGS}
        return tuple(
            corpus
            if any(corpus.columns) or (tables and not may_have_columns(corpus))
            else dataclasses.replace(corpus, **named)
            for corpus in getattr(self, field)
        )

    def given(self) -> dict[str, Any]:
        """The fields that are not left to be chosen, of plain types as YAML has them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in values.items() if value is not None}

    def to_yaml(self) -> str:
        """The recipe as YAML that `load_recipe` reads back; fields that are None are left to be chosen."""
        plain = self.given()
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000)
        # YAML as it is read takes some rare characters, U+0085 among them, for line breaks unless they are escaped.
        return text if yaml.safe_load(text) == plain else yaml.safe_dump(plain, sort_keys=False, width=1000)


_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers"), (1, math.inf)),
    **dict.fromkeys(("max_length", "part_pairs", "batch_tokens", "batches_per_step", "warmup_steps"), (1, math.inf)),
    "max_steps": (1, 10**15),  # Python counts no further than a machine's word, and no run so far.
    **dict.fromkeys(("eval_steps", "patience", "save_steps", "average_checkpoints", "log_steps"), (1, math.inf)),
    "attention_window": (1, math.inf),
    "num_beams": (1, 10_001),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "label_smoothing", "bpe_dropout"), (0, 1)),
    **dict.fromkeys(("unigram_alpha", "lora_alpha"), (0, math.inf)),
    "lora_rank": (1, math.inf),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), (0, 1)),
    **dict.fromkeys(("learning_rate_scale", "learning_rate", "adam_epsilon", "max_grad_norm"), (0, math.inf)),
    "processes": (1, 1025),
    "process_timeout": (1, 1e6),
    # Beyond that the penalty of a long sentence is infinite in float32.
    "length_penalty": (0, 10),
    "max_length_beyond_source": (0, 1_000_001),
    "seed": (0, 2**31),
}
# At 0 nothing would be learned, or be divided by it.
_POSITIVE = ("learning_rate", "adam_epsilon", "lora_alpha")


@dataclass(frozen=True, kw_only=True)
class ResolvedRecipe(Recipe):
    """Settings of a training run with nothing left to choose, as `resolve` makes it of a recipe.

    A field that may still be None is one that is off then: no tokenizer to take, no limit to a gradient, no patience.
    The sizes of the model are those that its task has; `Task.config` gives them with their types.
    """

    output: str
    vocab_size: int
    preset: str
    batch_tokens: int
    batches_per_step: int
    max_steps: int
    warmup_steps: int
    learning_rate_scale: float
    eval_steps: int
    save_steps: int
    precision: Literal["float32", "bfloat16"]
    metrics: tuple[str, ...]

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> "ResolvedRecipe":
        """The same settings, where nothing is left open, as in the recipe.yaml of a run that has begun.

        Raises:
            RecipeError: Something is open.
        """
        open_fields = [name for name, value in vars(recipe).items() if value == "auto" or _is_open(cls, name, value)]
        if open_fields:
            raise RecipeError(f"The recipe leaves {', '.join(open_fields)} open: give a run's own recipe.yaml.")
        return cls(**vars(recipe))


def _is_open(recipe_type: type[Recipe], field: str, value: Any) -> bool:
    hint = recipe_type.__dataclass_fields__[field].type
    return value is None and types.NoneType not in typing.get_args(hint)


def load_recipe(name_or_path: str | Path) -> Recipe:
    """The recipe of that name that comes with the package, or the one in that YAML file."""
    shipped = shipped_recipes()
    path = Path(name_or_path)
    file: Traversable = shipped.get(str(name_or_path), path)
    if str(name_or_path) not in shipped and not path.is_file():
        hint = did_you_mean(str(name_or_path), shipped) or "."
        raise RecipeError(
            f"There is no recipe and no file {str(name_or_path)!r}{hint} "
            f"Recipes that come with the package: {', '.join(sorted(shipped)) or 'none'}."
        )
    try:
        return with_fields(Recipe(), _read_yaml(file))
    except RecipeError as error:
        raise RecipeError(f"{file}: {error}") from None


def with_fields(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with these fields in place of its own.

    Raises:
        RecipeError: There is no such field, or it cannot have that value.
    """
    fields = [field.name for field in dataclasses.fields(Recipe)]
    for name in values:
        if name not in fields:
            hint = did_you_mean(str(name), fields) or "."
            raise RecipeError(f"{str(name)!r} is no field of a recipe{hint}")
    return dataclasses.replace(recipe, **values)


def named_recipe(name_or_path: str | Path, values: Mapping[str, Any]) -> Recipe:
    """The recipe of that name to train by, with these fields in place of its own.

    Its settings for data or a tokenizer that these replace are left out; the model goes to a directory of its name
    unless they name another.

    Raises:
        RecipeError: There is none, it cannot have these fields, or it comes without data and gets none.
    """
    named = load_recipe(name_or_path)
    recipe = with_fields(named, values)
    shipped = shipped_recipes().get(str(name_or_path))
    if shipped is not None and not recipe.train:
        raise RecipeError(
            f"The recipe {name_or_path} comes without data: give it with --train; the comment at the top of {shipped} "
            "says where to get it."
        )
    replaced: dict[str, Any] = {}
    corpora = (*recipe.train, *recipe.dev, *recipe.test)
    if recipe.train != named.train and not any(map(may_have_columns, corpora)):
        replaced |= {name: None for name in COLUMN_SETTINGS if getattr(recipe, name) == getattr(named, name)}
    if recipe.tokenizer != named.tokenizer and recipe.vocab_size == named.vocab_size:
        replaced["vocab_size"] = None
    fewer = recipe.max_steps != named.max_steps and (recipe.max_steps or math.inf) <= (named.warmup_steps or 0)
    if fewer and recipe.warmup_steps == named.warmup_steps:
        # Of so few steps the recipe's would be all warm-up.
        replaced["warmup_steps"] = None
        if recipe.learning_rate_scale == named.learning_rate_scale:
            replaced["learning_rate_scale"] = None
    if recipe.output is None:
        replaced["output"] = Path(name_or_path).stem
    return dataclasses.replace(recipe, **replaced)


def shipped_recipes() -> dict[str, Traversable]:
    """The recipes that come with the package, by name."""
    folder = importlib.resources.files("vanilla_transformer") / "recipes"
    if not folder.is_dir():
        return {}
    return {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}


class _RecipeLoader(yaml.SafeLoader):
    """Reads plain values, each once: aliases of aliases grow without end, and of two values one would be lost."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuses an alias."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.MarkedYAMLError(
                problem=f"an alias, *{event.anchor}, is not for recipes: write out what it stands for",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that stands twice."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(file: Traversable) -> dict[str, Any]:
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), _RecipeLoader)
    except OSError as error:
        raise RecipeError(f"{file} cannot be read: {error.strerror}.") from None
    # Some numbers and dates that are none make the reader stumble in its own ways.
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
        raise RecipeError(f"{file} is not YAML that can be read: {' '.join(str(error).split())}.") from None
    if not isinstance(values, dict):
        raise RecipeError(f"{file} must hold lines of the form `field: value`.")
    return values


def in_words(value: Any) -> str:
    """The value of a field as on the command line."""
    plain = _plain(value)
    return " ".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def _plain(value: Any) -> Any:
    """A value as YAML has it; corpora as words, or as mappings where words would be read otherwise."""
    if not isinstance(value, tuple):
        return value
    if not value or not isinstance(value[0], CorpusSpec):
        return list(value)
    words = to_words(value)
    try:
        return words if parse_corpora(words) == value else [corpus.to_mapping() for corpus in value]
    except CorpusError:
        return [corpus.to_mapping() for corpus in value]


def _checked_type(field: str, value: Any, hint: Any) -> Any:
    """`value` as the type that the field wants: YAML reads 1e-9 as text, and gives lists for tuples."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if value is None and types.NoneType in options:
        return None
    for option in options:
        if option is bool and isinstance(value, bool):
            return value
        if typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
        elif typing.get_origin(option) is tuple:
            items = (value,) if isinstance(value, str) else value
            if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
                return tuple(items)
        elif option is float and not isinstance(value, bool):
            try:
                return float(value)
            except (TypeError, ValueError, OverflowError):
                continue
        elif isinstance(value, option) and not isinstance(value, bool):
            return value
    raise RecipeError(f"{field} must be {_describe(options)}, not {value!r}.")


def _checked_corpora(field: str, value: Any, _: Any) -> Corpora:
    """Corpora however they are given: several to learn from, one that is held out."""
    try:
        corpora = corpora_from_values(value)
        if corpora and field != "train":
            only_corpus(corpora)
    except CorpusError as error:
        raise RecipeError(f"{field}: {error}.") from None
    if corpora is None:
        raise RecipeError(f"{field} must be text or a list of texts, not {value!r}.")
    return corpora


def _describe(options: tuple[Any, ...]) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    for option in options:
        if typing.get_origin(option) is Literal:
            return f"one of {', '.join(typing.get_args(option))}"
        if typing.get_origin(option) is tuple:
            return "text or a list of texts"
        if option in words:
            return words[option]
    raise AssertionError(options)
