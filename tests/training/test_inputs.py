import json

import numpy as np
import pytest
from refusals import refused
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.errors import CorpusError, RecipeError
from vanilla_transformer.recipe.schema import Recipe
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


def test_a_small_corpus_comes_again_until_it_has_its_weight(files, gather):
    gathered, said = gather([*files[:2], "weight=0.6", *files[2:], "weight=0.4", *COLUMNS])
    found = texts(gathered, gathered.train)
    assert set(found) == set(NEWS + LAW)
    assert len(found) == 20 and sum(pair in NEWS for pair in found) == 12
    assert gathered.languages == ("en", "de")
    assert said[-2].startswith("An epoch of 20 pairs has 12 of ") and said[-2].endswith("news.de, 60.0%: each once.")
    assert said[-1].endswith("law.jsonl, 40.0%: each 2 times.")
    again, _ = gather([*files[:2], "weight=0.6", *files[2:], "weight=0.4", *COLUMNS])
    assert np.array_equal(again.train.lengths["source"], gathered.train.lengths["source"])


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


def test_columns_named_for_all_are_those_of_the_tables(files, gather):
    gathered, _ = gather(files, source_column="de", target_column="en", dev=tuple(files[:2]))
    assert texts(gathered, gathered.train) == NEWS + [(target, source) for source, target in LAW]
    assert texts(gathered, gathered.dev) == NEWS


def test_a_tokenizer_that_ends_no_sentence_as_the_model_does_is_refused(tmp_path, files, gather):
    inner = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4}, unk_token="[UNK]"))
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    theirs = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", eos_token="[SEP]", bos_token="[CLS]")
    theirs.save_pretrained(tmp_path / "theirs")
    with refused(RecipeError, "0, 1, 2", "0, 2, 3"):
        gather(files[:2], tokenizer=str(tmp_path / "theirs"))


def test_rows_to_be_scored_on_that_are_also_learned_are_counted(files, gather, tmp_path):
    rows = [*LAW[:3], ("x", "y")]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps({"de": t, "en": s}) + "\n" for s, t in rows))
    (tmp_path / "test.jsonl").write_text(json.dumps({"de": "same", "en": "same"}) + "\n")
    held_out = {name: (str(tmp_path / f"{name}.jsonl"), *COLUMNS) for name in ("dev", "test")}
    _, said = gather([*files, *COLUMNS], **held_out)
    copied, known = [sentence for sentence in said if "Attention" in sentence]
    assert "test" in copied and "3 of the 4" in known and "dev" in known


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


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"train": ["a.tsv", "wieght=1"]}, "'wieght' 'weight'"),
        ({"train": ["a.tsv", "weight=-1"]}, "train a.tsv weight"),
        ({"train": ["a.tsv", "weight=1", "+", "b.tsv"]}, "train b.tsv weight"),
        ({"dev": ["a.tsv", "+", "b.tsv"]}, "dev mixed"),
        ({"test": {"a.tsv": 1}}, "test"),
    ],
)
def test_a_recipe_that_names_its_corpora_wrongly_is_refused_at_once(fields, named):
    with refused(RecipeError, *named.split()):
        Recipe.of(**fields)
