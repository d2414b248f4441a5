import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from refusals import refused

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.cli import main, program
from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.evaluation import Score
from vanilla_transformer.recipe.reading import load_recipe, recipe_from
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.reporting.model_card import (
    TABLE,
    CardError,
    add_scores,
    is_unmodified,
    set_hub_name,
    set_license,
    without_local_paths,
    write_model_card,
    write_plain_card,
)
from vanilla_transformer.reporting.summary import Summary

BLEU = Score("sacrebleu", 31.254, "nrefs:1|case:mixed|tok:13a")
RECIPE = Recipe.of(
    train=("org/pairs:en-de:train",), test=("org/pairs:en-de:test",), examples=('Say "cat".',), max_length=99
)
KNOWN = {
    "steps": 2000,
    "epochs": 3.5,
    "averaged_steps": [1900, 2000],
    "parameters": 15104,
    "pairs": 29000,
    "target_tokens": 1234567,
    "flops": 2.5e15,
    "seconds": 600.0,
    "last_loss": 1.5,
    "best_dev_loss": 1.25,
    "best_dev_step": 1900,
    "last_dev_loss": 1.3,
    "peak_memory_bytes": 1,
    "device": "2 CPU threads",
    "precision": "bfloat16",
    "processes": 1,
    "target_tokens_per_second": 2057.6,
    "peak_flops_per_second": 1e12,
    "peak_source": "measured",
    "share_of_peak": 0.04,
    "scores": {"test": [BLEU]},
}
SUMMARY = Summary(**{field.name: KNOWN.get(field.name) for field in fields(Summary)})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A random model whose card is still to be written."""
    tokenizer = VanillaTransformerTokenizer.train(["a cat", "eine Katze"], vocab_size=262)
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(tmp_path / "cat-en-de")
    tokenizer.save_pretrained(tmp_path / "cat-en-de")
    return tmp_path / "cat-en-de"


def card_of(directory: Path) -> ModelCard:
    return ModelCard.load(directory / "README.md")


def test_the_card_of_a_run_says_what_is_known(directory: Path) -> None:
    write_model_card(directory, RECIPE, SUMMARY, ("en", "deu_Latn"))
    card = card_of(directory)
    (result,) = card.data.eval_results
    assert (result.dataset_type, result.dataset_name, result.dataset_split) == (
        "org/pairs",
        "org/pairs:en-de:test",
        "test",
    )
    assert (result.metric_type, result.metric_value) == ("sacrebleu", 31.25)
    assert result.metric_args == {"signature": BLEU.signature}
    assert card.data.language == ["en", "deu"] and card.data.datasets == ["org/pairs"]
    assert card.data.get("license") is None
    weights = VanillaTransformerForConditionalGeneration.from_pretrained(directory).num_parameters()
    for words in (
        "for en to deu_Latn.",
        r'translate("Say \"cat\".")',
        'pipeline("translation", model="cat-en-de", trust_remote_code=True)',
        r"| org/pairs:en-de:test | sacrebleu | 31.25 | `nrefs:1\|case:mixed\|tok:13a` |",
        "29,000 pairs",
        "The weights are the mean of the checkpoints of steps 1,900, 2,000.",
        f"{weights:,} parameters: 1+2 layers with d_model 16, 2 heads, vocabulary size 262.",
        "2.50e+15 FLOPs, 4.0% of peak (1 TFLOP/s, measured with matrix products on 2 CPU threads in bfloat16)",
        "pairs of at most 99 tokens per side",
        "beam size 4, length penalty 0.6, at most 50 tokens more than the source",
        "max_length: 99",
    ):
        assert words in card.text, words
    assert "learning_curves.png" not in card.text  # There is no such file.
    assert not re.search(r"None|\n\n\n|[{}]{2}", card.text)
    add_scores(directory, CorpusSpec(("dev.en", "dev.de")), [BLEU], {})
    table = card_of(directory).text.partition(TABLE)[2].partition("\n\n")[0]
    assert [row.split(" | ")[0] for row in table.splitlines()[1:]] == ["| org/pairs:en-de:test", "| dev.en and dev.de"]
    assert is_unmodified((directory / "README.md").read_text())


def test_a_card_leaves_out_unknown_facts(directory: Path) -> None:
    (directory / "generation_config.json").unlink()
    write_model_card(directory, RECIPE.with_options(test=()), replace(SUMMARY, scores={}), (None, None))
    card = card_of(directory)
    assert card.data.to_dict().keys() == {"library_name", "pipeline_tag", "tags", "datasets"}
    assert "## Scores" not in card.text and "- No scores are given here." in card.text
    assert "decodes" not in card.text and " for " not in card.text.splitlines()[3]

    write_plain_card(directory, "ann/cat")
    card = card_of(directory)
    assert card.data.to_dict().keys() == {"library_name", "pipeline_tag", "tags"}
    assert re.findall(r"^## (.+)$", card.text, re.MULTILINE) == ["Use", "Model and training", "Limits"]
    assert "trained from scratch" not in card.text


def test_corpora_that_are_mixed_are_named_with_their_shares(directory: Path) -> None:
    (directory.parent / "web.tsv").write_text("a\tb\n")
    words = ("org/pairs:train", "weight=0.75", "+", str(directory.parent / "web.tsv"), "weight=0.25")
    write_model_card(directory, RECIPE.with_options(train=words), SUMMARY, (None, None))
    card = card_of(directory)
    assert "Trained on org/pairs:train (weight 0.75) + web.tsv (weight 0.25): 29,000 pairs" in card.text
    assert card.data.datasets == ["org/pairs"]
    assert str(directory.parent) not in card.text


def test_an_edited_card_survives_more_training(directory: Path) -> None:
    write_model_card(directory, RECIPE, SUMMARY, ("en", "de"))
    assert is_unmodified((directory / "README.md").read_text())
    write_model_card(directory, RECIPE, replace(SUMMARY, steps=3000), ("en", "de"))
    written = (directory / "README.md").read_text()
    assert "3,000 steps" in written
    (directory / "README.md").write_text(written.replace("## Limits", "## Its limits"))
    write_model_card(directory, RECIPE, replace(SUMMARY, steps=4000), ("en", "de"))
    assert "3,000 steps" in (directory / "README.md").read_text()
    assert "4,000 steps" in (directory / "model_card.md").read_text()


def test_evaluate_puts_its_scores_into_the_card(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = directory.parent / "test.tsv"
    corpus.write_text("a cat\teine Katze\ncat\tKatze\n")
    assert main(["evaluate", str(directory), "--data", str(corpus), "--metrics", "chrf", "ter"]) == 0
    assert not (directory / "README.md").exists()
    evaluate = ["evaluate", str(directory), "--data", str(corpus), "--card", "--metrics", "chrf"]
    assert main(evaluate) == main([*evaluate, "ter", "--num-beams", "1"]) == main(evaluate) == 0
    card = card_of(directory)
    results = [(result.metric_type, result.metric_args.get("num_beams")) for result in card.data.eval_results]
    assert sorted(results, key=str) == [("chrf", 1), ("chrf", None), ("ter", 1)]
    assert all(result.dataset_type == result.dataset_name == "test.tsv" for result in card.data.eval_results)
    assert card.data.metrics == ["chrf", "ter"]
    table = card.text.partition(TABLE)[2].partition("\n\n")[0]
    rows = re.findall(r"\n\| (test.*?) \| (\w+) \| [\d.]+ \| `.*version.*` \|", table)
    assert rows == [("test.tsv", "chrf"), ("test.tsv, num_beams 1", "chrf"), ("test.tsv, num_beams 1", "ter")]
    assert main([*evaluate, "--precision", "bfloat16"]) == 0
    names = [result.metric_args.get("precision") for result in card_of(directory).data.eval_results]
    assert names.count(None) == 3 and [name for name in names if name][0].startswith("bfloat16")
    assert "No score of it is given here" not in card.text
    assert is_unmodified((directory / "README.md").read_text())
    assert main(["evaluate", "org/name", "--data", str(corpus), "--card"]) == 2
    assert "--card requires a local model directory" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["scores", "licence", "name"])
def test_a_full_disk_leaves_the_card_as_it_is(directory: Path, change: str) -> None:
    resource = pytest.importorskip("resource")
    write_plain_card(directory, "my-model")
    before = (directory / "README.md").read_bytes()
    if change != "name":
        before += b"\nYears of work.\n"
        (directory / "README.md").write_bytes(before)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        with refused(OSError, "README.md", "File too large"):
            if change == "scores":
                add_scores(directory, CorpusSpec(("test.en", "test.de")), [BLEU], {})
            elif change == "licence":
                set_license(directory, "apache-2.0")
            else:
                set_hub_name(directory, "me/my-model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (directory / "README.md").read_bytes() == before
    assert not list(directory.glob(".partial-*"))


@pytest.mark.parametrize(
    ("train", "shown"),
    [
        (["/home/ann/train.en", "/home/ann/train.de"], "train.en train.de"),
        (["a/b.en", "a/b.de", "weight=2", "+", "../c.tsv", "weight=1"], "b.en b.de weight=2 + c.tsv weight=1"),
        (["data/b.jsonl.gz", "source_column=en", "target_column=de"], "b.jsonl.gz source_column=en target_column=de"),
        (["/home/ann/corpus:train"], "corpus:train"),
        (["org/corpus:de-en:train"], "org/corpus:de-en:train"),
        (["cmudict:train"], "cmudict:train"),
    ],
)
def test_no_place_on_this_machine_is_in_a_recipe_for_others(tmp_path: Path, train: list[str], shown: str) -> None:
    places = {"output": str(tmp_path), "tokenizer": str(tmp_path / "tokenizer"), "dev": str(tmp_path)}
    recipe = without_local_paths(Recipe.of(train=tuple(train), **places))
    assert in_words(recipe.data.train) == shown
    assert (recipe.run.output, recipe.tokenizer.name, recipe.data.dev) == (
        None,
        "tokenizer",
        (CorpusSpec((tmp_path.name,)),),
    )
    assert without_local_paths(Recipe.of(tokenizer="org/model")).tokenizer.name == "org/model"


def test_scores_of_other_columns_are_other_scores(directory: Path) -> None:
    corpus = directory.parent / "test.jsonl"
    corpus.write_text('{"en": "a cat", "de": "eine Katze", "fr": "un chat"}\n')
    evaluate = ["evaluate", str(directory), "--card", "--metrics", "chrf", "--data", str(corpus)]
    assert main([*evaluate, "source_column=en", "target_column=de"]) == 0
    assert main([*evaluate, "source_column=en", "target_column=fr"]) == 0
    names = [result.dataset_name for result in card_of(directory).data.eval_results]
    assert names == ["test.jsonl (en to de)", "test.jsonl (en to fr)"]
    recipe = RECIPE.with_options(train=(str(corpus),), test=(str(corpus),), source_column="en", target_column="fr")
    write_model_card(directory, recipe, replace(SUMMARY, scores={"test": [BLEU]}), ("en", "fr"))
    assert "Trained on test.jsonl (en to fr): " in card_of(directory).text
    assert main([*evaluate[:-3], "sacrebleu", *evaluate[-2:], "source_column=en", "target_column=fr"]) == 0
    (result,) = card_of(directory).data.eval_results
    assert result.dataset_name == "test.jsonl (en to fr)" and result.metric_value != round(BLEU.value, 2)


def test_a_card_that_cannot_be_read_is_told_before_the_search(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "README.md").write_text("---\ntags: [\n---\n")
    assert main(["evaluate", str(directory), "--card", "--data", "none.tsv"]) == 1
    assert "The metadata of the card" in capsys.readouterr().err


def test_whatever_others_have_put_into_a_card_stays(directory: Path) -> None:
    result = "{task: {type: t}, dataset: {type: d, name: d}, metrics: [{type: bleu, value: 1, args: [1]}]}"
    head = f"metrics: [bleu, {{name: x}}]\nmodel-index: [{{name: m, results: [{result}]}}]"
    (directory / "README.md").write_text(f"---\n{head}\n---\nText.\n")
    add_scores(directory, CorpusSpec(("test.en", "test.de")), [BLEU], {})
    card = card_of(directory)
    assert card.data.metrics == ["bleu", {"name": "x"}, "sacrebleu"]
    assert [result.metric_args for result in card.data.eval_results][0] == [1]
    assert len(card.data.eval_results) == 2


def test_added_scores_leave_the_rest_of_an_edited_card_alone(directory: Path) -> None:
    body = "\n# Our cat\n\nWritten by hand.\n\n## Data\n\nSecret.\n"
    (directory / "README.md").write_text(f"---\nlicense: mit\nmine: 1\nmetrics: bleu\n---\n{body}")
    add_scores(directory, CorpusSpec(("test.en", "test.de")), [BLEU], {})
    add_scores(directory, CorpusSpec(("test.en", "test.de")), [replace(BLEU, value=32.0)], {})
    card = card_of(directory)
    assert card.data.to_dict().items() >= {"license": "mit", "mine": 1, "metrics": ["bleu", "sacrebleu"]}.items()
    (result,) = card.data.eval_results
    assert (result.metric_value, result.dataset_type) == (32.0, "test.en-and-test.de")
    before, table, after = re.split(r"(## Scores.*\n\n)(?=## Data)", card.text, flags=re.DOTALL)
    assert before + after == body
    assert table.count("| test.en and test.de | sacrebleu | 32.00 |") == table.count("| sacrebleu |") == 1


def test_the_licence_is_put_into_the_head_and_nothing_else_changes(directory: Path) -> None:
    card = directory / "README.md"
    for text in ("---\r\ntags: [a]  # mine\r\n---\r\nText.\r\n", "No head.\n"):
        card.write_bytes(text.encode())
        set_license(directory, "cc-by-4.0")
        assert card_of(directory).data.license == "cc-by-4.0"
        assert card.read_bytes().decode().replace("license: cc-by-4.0\n", "").endswith(text)
    with refused(CardError, "cc-by-4.0"):
        set_license(directory, "mit")


def test_the_name_on_the_hub_is_put_where_the_model_is_loaded(directory: Path) -> None:
    write_model_card(directory, RECIPE, SUMMARY, ("en", "de"))
    for name in ("ann/cat", "bob/cat"):
        set_hub_name(directory, name)
        text = card_of(directory).text
        assert text.count(f'model="{name}"') == 2
        assert f"# {name}\n" in text and f"vanilla-transformer translate {name} <" in text
    edited = (directory / "README.md").read_text() + "Edited.\n"
    (directory / "README.md").write_text(edited)
    set_hub_name(directory, "ann/cat")
    assert (directory / "README.md").read_text() == edited


def test_the_card_shows_what_the_model_makes_of_the_examples(directory: Path) -> None:
    asked = RECIPE.with_options(examples=("a|b", "<c>"))
    write_model_card(directory, asked, SUMMARY, ("en", "de"), ["x", "two\nlines"])
    card = card_of(directory)
    assert [(one["text"], one["output"]["text"]) for one in card.data.widget] == [("a|b", "x"), ("<c>", "two\nlines")]
    assert "| a&#124;b | x |\n| &lt;c&gt; | two<br>lines |\n" in card.text


@pytest.mark.parametrize(("start", "base"), [("org/model", "org/model"), (".", None), (None, None)])
def test_card_names_the_base_model_if_it_is_on_the_hub(directory, start, base) -> None:
    write_model_card(directory, RECIPE.with_options(from_model=start), SUMMARY, ("en", "de"))
    assert card_of(directory).data.get("base_model") == base


def test_the_card_says_what_its_metrics_count_and_what_the_dictionary_is(directory: Path) -> None:
    scores = {"test": [Score("wer", 31.5, "s"), Score("per", 7.6, "s"), Score("unheard_of", 1.0, "s")]}
    recipe = RECIPE.with_options(train=("cmudict:train",), test=("cmudict:test",))
    write_model_card(directory, recipe, replace(SUMMARY, scores=scores), (None, None))
    text = card_of(directory).text
    assert "- wer: word error rate" in text and "- per: phoneme error rate" in text and "- unheard_of" not in text
    assert "CMU Pronouncing Dictionary" in text and "BSD" in text
    add_scores(directory, CorpusSpec(("more.tsv",)), [Score("per", 9.9, "s")], {})
    rows = card_of(directory).text.partition(TABLE)[2].partition("\n\n")[0]
    assert "more.tsv" in rows


def test_top_level_card_is_the_one_this_version_writes():
    """`make card` writes it; a changed recipe, template or option makes it stale."""
    root = Path(__file__).parents[2]
    text = (root / "model_card.md").read_text("utf-8")
    card = ModelCard(text)
    assert card.data.pipeline_tag == "translation" and card.data.library_name == "transformers"
    template = (root / "vanilla_transformer" / "reporting" / "model_card.md").read_text("utf-8")
    sections = re.findall(r"^## .+$", template, re.MULTILINE)
    if card.data.get("widget") is None:
        sections.remove("## Examples")
    assert re.findall(r"^## .+$", text, re.MULTILINE) == sections
    (root / re.search(r"!\[Learning curves\]\((.+)\)", text)[1]).read_bytes()
    recipe = recipe_from(yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1]))
    shipped = load_recipe("cmudict")
    left_to_choose = {name for name, value in shipped.options.items() if value is None}
    for name, value in shipped.options.items():
        if name not in left_to_choose | {"max_steps", "output", "precision"}:
            assert recipe[name] == value, name
    assert recipe.optimization.max_steps == 5500 and "--max-steps 5500" in (root / "Makefile").read_text("utf-8")
    scores = {result.metric_type: result for result in card.data.eval_results if result.dataset_split == "test"}
    assert f"{scores['wer'].metric_value:.1f}" in (root / "docs/measured.md").read_text("utf-8")
    [asked] = re.findall(r"`vanilla-transformer (.+?) <", text)
    assert program._parse(asked.split()) is not None


def test_a_card_of_an_unregistered_task_names_no_pipeline(directory: Path) -> None:
    text = RECIPE.to_yaml().replace("task: translation", "task: question-answering")
    (directory / "recipe.yaml").write_text(text)
    write_plain_card(directory, "ann/cat")
    add_scores(directory, CorpusSpec(("test.tsv",)), [BLEU], {})
    card = card_of(directory)
    assert card.data.get("pipeline_tag") is None and "pipeline(" not in card.text
    assert card.data.eval_results[0].task_type == "other"
