import dataclasses
import json
import shutil

import numpy as np
import pytest
from refusals import refused
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.errors import CorpusError, RecipeError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.training import inputs, vocabulary
from vanilla_transformer.training.inputs import gather_inputs
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.run_directory import RunDirectory

NEWS = [(f"news {number}", f"Neues {number}") for number in range(12)]
LAW = [(f"law {number}", f"Recht {number}") for number in range(4)]


@pytest.fixture
def files(tmp_path):
    """The words for two corpora: line-aligned files and a table with its columns in the other order."""
    for side, name in enumerate(("news.en", "news.de")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in NEWS))
    (tmp_path / "law.jsonl").write_text("".join(json.dumps({"de": t, "en": s, "id": 1}) + "\n" for s, t in LAW))
    return [str(tmp_path / "news.en"), str(tmp_path / "news.de"), "+", str(tmp_path / "law.jsonl")]


@pytest.fixture
def gather(tmp_path):
    """Gathers the inputs of a recipe for some words, and what is said meanwhile."""

    def call(words, **fields):
        run = RunDirectory(tmp_path / "run")
        run.path.mkdir(exist_ok=True)
        said = []
        gathered = gather_inputs(Recipe.of(train=tuple(words), vocab_size=264, **fields), run, said.append)
        return gathered, said

    return call


def texts(gathered, corpus):
    decode = gathered.tokenizer.decode
    pairs = zip(*corpus.rows(range(len(corpus))).values(), strict=True)
    return [tuple(decode(ids, skip_special_tokens=True) for ids in pair) for pair in pairs]


COLUMNS = ["source_column=en", "target_column=de"]


def test_corpora_without_weights_are_there_once(files, gather):
    gathered, said = gather([*files, *COLUMNS])
    assert texts(gathered, gathered.train) == NEWS + LAW
    assert gathered.languages == ("en", "de")
    assert said[-1].startswith("An epoch of 16 pairs has 4 of ")
    assert said[-1].endswith("law.jsonl, 25.0%: each once.")


def test_a_small_corpus_comes_again_until_it_has_its_weight(files, gather):
    gathered, said = gather([*files[:2], "weight=0.6", *files[2:], "weight=0.4", *COLUMNS])
    found = texts(gathered, gathered.train)
    assert set(found) == set(NEWS + LAW)
    assert len(found) == 20 and sum(pair in NEWS for pair in found) == 12
    assert said[-2].endswith("news.de, 60.0%: each once.")
    assert said[-1].endswith("law.jsonl, 40.0%: each 2 times.")
    again, _ = gather([*files[:2], "weight=0.6", *files[2:], "weight=0.4", *COLUMNS])
    assert np.array_equal(again.train.lengths["source"], gathered.train.lengths["source"])


def test_a_run_on_a_mixture_that_was_stopped_ends_as_if_it_had_not_been(files, tmp_path):
    words = (*files[:2], "weight=0.6", *files[2:], "weight=0.4", *COLUMNS)
    shape = {"d_model": 8, "d_ff": 8, "num_heads": 1, "encoder_layers": 1, "decoder_layers": 1}
    steps = {"batch_tokens": 40, "batches_per_step": 2, "warmup_steps": 4, "save_steps": 2}
    recipe = Recipe.of(train=words, vocab_size=264, preset="tiny", metrics=(), **shape, **steps)
    for name, limits in {"once": (8,), "twice": (4, 8)}.items():
        for limit in limits:
            train(recipe.with_options(max_steps=limit, output=str(tmp_path / name)))
    once, twice = (tmp_path / name / "checkpoints" / "step-00000008" for name in ("once", "twice"))
    assert (once / "model.safetensors").read_bytes() == (twice / "model.safetensors").read_bytes()
    summary = json.loads((tmp_path / "once" / "summary.json").read_text())
    assert summary["pairs"] == len(NEWS) + len(LAW)  # However often they come in an epoch.


def test_resumed_run_on_a_redrawn_share_ends_with_identical_weights(files, tmp_path):
    # Twelve pairs once and four 2.25 times: a step or two an epoch, and stops within one and between two.
    words = (*files[:2], "weight=12", *files[2:], "weight=9", *COLUMNS)
    shape = {"d_model": 8, "d_ff": 8, "num_heads": 1, "encoder_layers": 1, "decoder_layers": 1}
    steps = {"batch_tokens": 80, "batches_per_step": 2, "warmup_steps": 4, "save_steps": 1}
    recipe = Recipe.of(train=words, vocab_size=264, preset="tiny", metrics=(), **shape, **steps)
    for name, limits in {"once": (9,), "often": (2, 5, 9)}.items():
        for limit in limits:
            train(recipe.with_options(max_steps=limit, output=str(tmp_path / name)))
    once, often = (tmp_path / name / "checkpoints" / "step-00000009" for name in ("once", "often"))
    assert (once / "model.safetensors").read_bytes() == (often / "model.safetensors").read_bytes()
    progress = json.loads((once / "checkpoint.json").read_text())["progress"]
    assert progress["epoch"] >= 2


def test_another_weight_needs_no_new_tokens(files, gather, tmp_path):
    gather([*files, *COLUMNS])
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("tokens.arrow")}
    gathered, _ = gather([*files[:2], "weight=1", *files[2:], "weight=1", *COLUMNS])
    assert len(gathered.train) == 24
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("tokens.arrow")} != {}


def test_columns_named_for_all_are_those_of_the_tables(files, gather):
    gathered, _ = gather(files, source_column="de", target_column="en", dev=tuple(files[:2]))
    assert texts(gathered, gathered.train) == NEWS + [(target, source) for source, target in LAW]
    assert texts(gathered, gathered.dev) == NEWS


def test_named_columns_apply_to_a_dev_table_beside_plain_files(files, gather):
    gathered, _ = gather(files[:2], source_column="de", target_column="en", dev=(files[3],))
    assert texts(gathered, gathered.train) == NEWS
    assert texts(gathered, gathered.dev) == [(target, source) for source, target in LAW]


def test_a_tokenizer_that_ends_no_sentence_as_the_model_does_is_refused(tmp_path, files, gather):
    inner = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4}, unk_token="[UNK]"))
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    theirs = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", eos_token="[SEP]", bos_token="[CLS]")
    theirs.save_pretrained(tmp_path / "theirs")
    with refused(RecipeError, "0, 1, 2", "0, 2, 3"):
        gather(files[:2], tokenizer=str(tmp_path / "theirs"))


def test_columns_named_for_files_alone_are_refused(files, gather):
    with refused(CorpusError, "no named columns"):
        gather(files[:2], source_column="en", target_column="de")


def test_text_to_learn_from_is_read_twice_and_never_copied(tmp_path, files, gather, monkeypatch):
    opened = []
    original = inputs.open_corpus

    def counted(*arguments, **settings):
        stream = original(*arguments, **settings)
        return dataclasses.replace(stream, tables=lambda: opened.append(stream.name) or stream.tables())

    monkeypatch.setattr(inputs, "open_corpus", counted)
    gather(files[:2])
    assert len(opened) == 2
    gather(files[:2])
    assert len(opened) == 2
    assert not (tmp_path / "run" / "prepared" / "text").exists()


def test_a_large_corpus_gives_a_sample_for_the_vocabulary_and_that_is_said(files, gather, monkeypatch):
    monkeypatch.setattr(inputs, "MOST_ROWS_FOR_THE_VOCABULARY", 10)
    _, said = gather(files[:2])
    assert "The vocabulary is learned from 6 of the 12 pairs, sampled evenly." in said


def test_words_that_are_cut_for_learning_are_counted_and_told(tmp_path, files, gather):
    for name in files[:2]:
        with open(name, "a") as file:
            file.write("x" * 1001 + " word\n")
    _, said = gather(files[:2], tokenizer_sides="source")
    assert "1 word is longer than 1,000 characters, and split into parts of that length for training." in said


def test_a_tokenizer_for_which_there_is_no_room_is_said_in_one_sentence(files, gather):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        with refused(OSError, "run", "File too large", "limit"):
            gather(files[:2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_order_of_sentences_for_the_vocabulary_is_sources_then_targets():
    pairs = [(str(number), f"-{number}") for number in range(1500)]
    sentences = list(vocabulary._sentences(pairs, Recipe()))
    assert sentences[:2] == ["0", "1"] and sentences[1000] == "-0" and sentences[2000] == "1000"
    assert len(sentences) == 3000
    assert list(vocabulary._sentences(pairs, Recipe.of(tokenizer_sides="target"))) == [target for _, target in pairs]


def test_an_empty_or_missing_corpus_among_several_is_named(tmp_path, files, gather):
    with refused(CorpusError, "absent.tsv"):
        gather([*files[:2], "+", str(tmp_path / "absent.tsv")])
    (tmp_path / "empty.tsv").write_text("\t\n")
    with refused(CorpusError, "empty.tsv", "1 pairs"):
        gather([*files[:2], "+", str(tmp_path / "empty.tsv")])
    for name in ("source", "target"):
        (tmp_path / name).write_text("")
    with refused(CorpusError, "no pairs", "source", "target"):
        gather([*files[:2], "+", str(tmp_path / "source"), str(tmp_path / "target")])


def test_corpora_given_as_mappings_round_trip(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "train:\n"
        "- {corpus: [news.en, news.de], weight: 0.7}\n"
        "- {corpus: org/law:train, weight: 0.3, source_column: en, target_column: de}\n"
        "dev: {corpus: dev.jsonl, source_column: en, target_column: de}\n"
    )
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert in_words(recipe.data.train) == (
        "news.en news.de weight=0.7 + org/law:train weight=0.3 source_column=en target_column=de"
    )
    assert recipe.data.dev == (CorpusSpec(("dev.jsonl",), source_column="en", target_column="de"),)
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"train": ["a.tsv", "wieght=1"]}, "'wieght' 'weight'"),
        ({"train": [{"corpus": "a.tsv", "weight": -1}]}, "train a.tsv weight"),
        ({"train": [{"corpus": "a.tsv", "weight": 1}, {"corpus": "b.tsv"}]}, "train b.tsv weight"),
        ({"dev": ["a.tsv", "+", "b.tsv"]}, "dev mixed"),
        ({"test": 3}, "test"),
    ],
)
def test_a_recipe_that_names_its_corpora_wrongly_is_refused_at_once(fields, named):
    with refused(RecipeError, *named.split()):
        Recipe.of(**fields)


def test_named_tokenizer_replaces_one_left_by_an_earlier_run(files, gather, tmp_path):
    gathered, _ = gather([*files, *COLUMNS], tokenizer_algorithm="wordpiece")
    gathered.tokenizer.save_pretrained(tmp_path / "named")
    shutil.rmtree(tmp_path / "run")
    gather([*files, *COLUMNS])
    for _ in range(2):
        gather([*files, *COLUMNS], tokenizer=str(tmp_path / "named"))
    there = json.loads((tmp_path / "run" / "tokenizer.json").read_text())
    assert there == json.loads((tmp_path / "named" / "tokenizer.json").read_text())
