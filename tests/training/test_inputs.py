import json
from collections import Counter
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from refusals import refused
from small_models import choices_of, small_recipe
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from vanilla_transformer import Translator
from vanilla_transformer.errors import CorpusError, RunError, SettingError
from vanilla_transformer.loading.models import load_model
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.inputs import gather_inputs
from vanilla_transformer.training.run import train
from vanilla_transformer.training.run_directory import RunDirectory
from vanilla_transformer.training.steps import local_steps, make_plan, one_ahead

TASK = get_task("translation")
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


def test_a_step_of_few_tokens_is_one_batch_where_a_device_takes_many_as_fast(files, gather):
    gathered, _ = gather([*files, *COLUMNS], batch_tokens=50, batches_per_step=2)
    choices = choices_of(gathered.recipe)
    collate, plan = (
        partial(TASK.collate, config=TASK.config(gathered.recipe)),
        make_plan(gathered.train, TASK, choices),
    )
    steps = plan.epoch(0)
    together = [np.concatenate(step.batches) for step in steps]
    tokens = [plan.real_and_all_tokens(rows)[1] for rows in together]
    assert min(tokens) < max(tokens)
    found = one_ahead(local_steps(gathered.train, TASK, choices, collate, Progress(), joined_tokens=max(tokens) - 1))
    for fed, step, rows, size in zip(islice(found, len(steps)), steps, together, tokens, strict=True):
        for batch, expected in zip(fed.batches, step.batches if size == max(tokens) else [rows], strict=True):
            torch.testing.assert_close(batch, collate(gathered.train.rows(expected), None), rtol=0, atol=0)


@pytest.fixture
def redrawn(files):
    """Twelve pairs once and four 2.25 times."""
    return [*files[:2], "weight=12", *files[2:], "weight=9", *COLUMNS]


def test_fractional_repetitions_are_redrawn_in_each_epoch(redrawn, gather):
    mixed, _ = gather(redrawn)
    epochs = [Counter(texts(mixed, mixed.train.of_epoch(epoch))) for epoch in range(12)]
    # All come once, twice or three times, and in the course of the epochs each is among those that come again.
    assert all([epoch[pair] for pair in NEWS] == [1] * 12 for epoch in epochs)
    assert all(sorted(epoch[pair] for pair in LAW) == [2, 2, 2, 3] for epoch in epochs)
    assert all(any(epoch[pair] == 3 for epoch in epochs) for pair in LAW)


def test_rows_in_any_order_are_those_of_their_indices_and_lengths(redrawn, gather):
    mixed, _ = gather(redrawn)
    indices = np.random.default_rng(0).permutation(len(mixed.train))
    rows, everything = mixed.train.rows(indices), mixed.train.rows(range(len(mixed.train)))
    for name, lengths in mixed.train.lengths.items():
        assert [list(ids) for ids in rows[name]] == [list(everything[name][index]) for index in indices]
        assert list(map(len, rows[name])) == lengths[indices].tolist()


def test_a_run_with_more_steps_on_a_redrawn_share_ends_with_identical_weights(redrawn, tmp_path):
    # A step or two an epoch.
    recipe = small_recipe(tmp_path, train=tuple(redrawn), dev=(), batch_tokens=80, max_steps=7, save_steps=1)
    train(recipe.with_options(output=str(tmp_path / "once")))
    for limit in (3, 7):
        train(recipe.with_options(output=str(tmp_path / "often"), max_steps=limit))
    once, often = (tmp_path / name / "checkpoints" / "step-00000007" for name in ("once", "often"))
    assert (once / "model.safetensors").read_bytes() == (often / "model.safetensors").read_bytes()
    assert json.loads((once / "checkpoint.json").read_text())["progress"]["epoch"] >= 2


@pytest.mark.parametrize("weights", [(7, 1), (1, 2), (1, 300)])
def test_each_corpus_has_its_share_of_an_epoch_and_no_pair_is_left_out(files, gather, weights):
    gathered, _ = gather([*files[:2], f"weight={weights[0]}", *files[2:], f"weight={weights[1]}", *COLUMNS])
    there = Counter(texts(gathered, gathered.train))
    for pairs, weight in zip((NEWS, LAW), weights, strict=True):
        times = [there[pair] for pair in pairs]
        assert sum(times) == pytest.approx(there.total() * weight / sum(weights), abs=1.5)
        assert min(times) >= 1 and max(times) - min(times) <= 1


@pytest.mark.parametrize("weights", [(1e-8, 1), (0.001, 1000)])
def test_weights_that_would_fill_the_memory_are_refused(files, gather, weights):
    with refused(CorpusError, "1,000 times", "weight"):
        gather([*files[:2], f"weight={weights[0]}", *files[2:], f"weight={weights[1]}", *COLUMNS])


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
    with refused(SettingError, "0, 1, 2", "0, 2, 3"):
        gather(files[:2], tokenizer=str(tmp_path / "theirs"))


def test_a_try_before_any_checkpoint_may_name_the_tokenizer_of_the_one_before(files, gather, tmp_path):
    first, _ = gather(files[:2])
    again, _ = gather(files[:2], tokenizer=str(tmp_path / "run"))
    assert again.tokenizer.get_vocab() == first.tokenizer.get_vocab()


def test_rows_to_be_scored_on_that_are_also_learned_are_counted(files, gather, tmp_path):
    rows = [*LAW[:3], ("x", "y")]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps({"de": t, "en": s}) + "\n" for s, t in rows))
    (tmp_path / "test.jsonl").write_text(json.dumps({"de": "same", "en": "same"}) + "\n")
    held_out = {name: (str(tmp_path / f"{name}.jsonl"), *COLUMNS) for name in ("dev", "test")}
    _, said = gather([*files, *COLUMNS], **held_out)
    copied, known = [sentence for sentence in said if "Warning" in sentence]
    assert "test" in copied and "3 of 4" in known and "dev" in known


@pytest.mark.parametrize("fields", [{}, {"task": "language-modeling", "documents": "packed"}], ids=["pairs", "packed"])
def test_empty_rows_are_not_counted_as_learned(fields, gather, tmp_path):
    for name, text in {"a": "one\n\ntwo\n", "b": "eins\n\nzwei\n", "c": "three\n\n", "d": "drei\n\n"}.items():
        (tmp_path / name).write_text(text)
    train, dev = ([str(tmp_path / name) for name in names[: 1 if fields else 2]] for names in ("ab", "cd"))
    _, said = gather(train, dev=tuple(dev), **fields)
    assert said and not [sentence for sentence in said if "Warning" in sentence]


@pytest.mark.parametrize(
    ("fields", "train", "dev", "count"),
    [
        (
            {"task": "text-classification"},
            "text\tlabel\none\tA\ntwo\tB\n",
            "text\tlabel\none\tB\nsix\tA\n",
            "1 of 2 texts",
        ),
        ({"task": "token-classification"}, "one A\n\ntwo B\n", "one B\n\nsix A\n", "1 of 2 sentences"),
        ({"task": "language-modeling"}, "one\ntwo\n", "one\nsix\n", "1 of 2 texts"),
        (
            {"task": "language-modeling", "documents": "packed"},
            f"FIRST CITIZEN:\n{'We are accounted poor citizens, ' * 2}\n",
            f"FIRST CITIZEN:\n{'We are accounted poor citizens, ' * 2}\n{'Before we proceed any further, ' * 2}\n",
            "1 of 2 pieces of text",
        ),
    ],
    ids=["classes", "tags", "lines", "packed"],
)
def test_texts_of_every_task_that_also_occur_in_train_are_counted(fields, train, dev, count, gather, tmp_path):
    suffix = {"text-classification": ".tsv", "token-classification": ".conll"}.get(fields["task"], ".txt")
    for name, text in {"train": train, "dev": dev}.items():
        (tmp_path / f"{name}{suffix}").write_text(text)
    _, said = gather([str(tmp_path / f"train{suffix}")], dev=(str(tmp_path / f"dev{suffix}"),), **fields)
    [warning] = [sentence for sentence in said if "Warning" in sentence]
    assert f"{count} of dev also occur in train" in warning


def test_a_held_out_table_in_the_other_order_is_rejected(gather, tmp_path):
    tables = {
        "header.tsv": ("deutsch\tenglisch\na\tb\n", "englisch\tdeutsch\nc\td\n"),
        "names.csv": ("de,en\na,b\n", "en,de\nc,d\n"),
    }
    for name, (learned, held_out) in tables.items():
        (tmp_path / name).write_text(learned)
        (tmp_path / f"dev-{name}").write_text(held_out)
        with refused(CorpusError, f"dev-{name}", "other order"):
            gather([str(tmp_path / name)], dev=(str(tmp_path / f"dev-{name}"),))
    for name in ("train.en", "train.de", "dev.en", "dev.de"):
        (tmp_path / name).write_text(f"{name}\n")
    learned, held_out = ([str(tmp_path / f"{one}.{side}") for side in ("en", "de")] for one in ("train", "dev"))
    with refused(CorpusError, "dev.de", "other order"):
        gather(learned, dev=tuple(held_out[::-1]))
    _, said = gather([*learned, "+", *learned[::-1]], dev=tuple(held_out[::-1]))  # Trained in both directions.
    assert said


def test_cells_that_are_quoted_as_in_csv_are_counted(gather, tmp_path):
    (tmp_path / "a.tsv").write_text('"He said ""hi"""\t"Er sagte ""hi"""\n"quoted"\t"no doubled"\n')
    _, said = gather([str(tmp_path / "a.tsv")])
    [warning] = [sentence for sentence in said if "Warning" in sentence]
    assert "2 cells" in warning and "a.tsv" in warning and "CSV" in warning


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
        ({"train": ["a.tsv", "weight=-1"]}, "train a.tsv weight"),
        ({"dev": ["a.tsv", "+", "b.tsv"]}, "dev mixed"),
        ({"test": {"a.tsv": 1}}, "test"),
    ],
)
def test_a_recipe_that_names_its_corpora_wrongly_is_refused_at_once(fields, named):
    with refused(SettingError, *named.split()):
        Recipe.of(**fields)


def test_with_tokenizer_lowercase_a_word_is_read_alike_in_any_case_and_targets_keep_theirs(tmp_path):
    texts = {"small": "hello\tHH AH L OW\ncat\tK AE T\n", "large": "HELLO\tHH AH L OW\nCAT\tK AE T\n"}
    for name, text in texts.items():
        (tmp_path / name).with_suffix(".tsv").write_text(text)
    recipe = small_recipe(tmp_path, train=(str(tmp_path / "small.tsv"),), dev=(), vocab_size=262, max_steps=2)
    recipe = recipe.with_options(tokenizer_lowercase=True, output=str(tmp_path / "model"))
    run = train(recipe)
    model, tokenizer = load_model(run)
    first, second, third = Translator(model, tokenizer)(["hello", "Hello", "HELLO"])
    assert first.source_ids == second.source_ids == third.source_ids and first.text == third.text
    # Text that is lower-cased already, or not at all, teaches the same, to the last bit.
    for changes in ({"tokenizer_lowercase": False}, {"train": (str(tmp_path / "large.tsv"),)}):
        other = train(recipe, output=str(tmp_path / "-".join(changes)), **changes)
        assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    with refused(RunError, "tokenizer_lowercase"):
        train(recipe, tokenizer_lowercase=False, max_steps=3)
