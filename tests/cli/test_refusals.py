"""What a command refuses: in one sentence, before a file is made or changed."""

from pathlib import Path

import pytest
from small_models import random_model, save, save_translator

from vanilla_transformer.tokenizer import train_tokenizer

OUTPUTS = ["out", "out.gz", "long"]
REFUSED = [
    ("translate none in", "There is no model directory none"),
    ("translate lm in", "give it to `generate`"),
    ("translate model modle in", "modle is not a model directory, and translate reads one file"),
    ("translate model in --device nowhere", "--device nowhere"),
    ("translate model in --output out --nbest 9", "--num-beams 9"),
    ("translate model in --nbest 1 --num-beams 1", "--num-beams 2"),
    ("translate model in --mbr chrf --num-beams 1", "--num-beams 2"),
    ("translate model in --alignment", "No alignment heads have been chosen"),
    ("translate model model in --alignment", "--alignment reads the attention of one model"),
    ("translate model in --resume", "--resume continues from an input file"),
    ("translate model in --output /dev/null --resume", "--resume continues from an input file"),
    ("translate model in --output long --resume", "long has more lines"),
    ("translate model in --output out.gz --resume", "not compressed"),
    ("translate model nowhere --output out", "nowhere: No such file"),
    ("predict lm model --output out", "model: Is a directory"),
    ("translate model in --output link", "link: No such file"),
    ("translate model in --output in", "in cannot be both input and output"),
    ("translate model in --output model/model.safetensors", "model.safetensors cannot be both input and output"),
    ("evaluate model --data in in --metrics blue", "sacrebleu"),
    ("evaluate model --data", "give one corpus"),
    ("evaluate model --data pairs.tsv + pairs.tsv", "one corpus"),
    ("evaluate lm --data in --mbr chrf", "--mbr and ensembles are for models that translate"),
    ("evaluate model model --data in in --card", "the directory of a single model"),
    ("predict lm in --text-column text", "are for tables"),
    ("predict model in", "give the model to `translate`"),
    *((words, "to `evaluate`") for words in ("translate mlm in", "predict mlm in", "generate mlm")),
    ("generate model", "give it to `translate`"),
    ("train --seed 1 nonsense", "must come before all options"),
    ("average model --output model", "not empty"),
    ("average run --output mean", "summary.json is damaged"),
    ("average lm --last 2 --output mean", "no run in lm"),
    ("average begun --output mean", "no checkpoint in begun"),
    ("tokenizer in --output new", "vocab_size is missing"),
    ("tokenizer in --vocab-size 300 --output model", "not empty"),
    ("align model in one", "in has 3 lines and one has 1: they must match"),
    ("align model in in --output in", "in cannot be both input and output"),
    ("align model in in --choose-heads --output new", "without --output"),
    ("align org/name in in --choose-heads", "a model on this machine"),
    ("attend model A --output out", "out exists"),
    ("attend model A --output new/page.html", "new/page.html: No such file"),
    ("export model s3://b/m --to onnx", "s3:/b/m"),
    ("info bsae", "There is no preset 'bsae'"),
    ("export lm new --to onnx", "`generate`"),
]
WRONG_WORDS = [
    ("train --max-stops 3", "--max-steps"),
    ("translte model", "translate"),
    ("translate model --length-penalty nan", "--length-penalty: must be"),
    (f"evaluate model --data x --max-length-beyond-source {1 << 63}", "--max-length-beyond-source: must be"),
    ("train --train a.en a.de weight=x", "'x'"),
    ("train --dev a.tsv + b.tsv", "--dev"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with models, texts and files of yesterday, which nothing changes."""
    place = tmp_path_factory.mktemp("place")
    save_translator(place / "model")
    tokenizer = train_tokenizer(["a b"], 260, begins=True, ends=False)
    for name, kind in (("lm", "language-model"), ("mlm", "masked-language-model")):
        save(random_model(kind, vocab_size=260), tokenizer, place / name)
    (place / "run" / "checkpoints").mkdir(parents=True)
    (place / "run" / "recipe.yaml").write_text("seed: 1\n")
    (place / "run" / "summary.json").write_text("{")
    (place / "begun").mkdir()
    (place / "begun" / "recipe.yaml").write_text("seed: 1\n")
    (place / "in").write_text("a b\n\nc\n")
    (place / "one").write_text("a\n")
    (place / "pairs.tsv").write_text("a b\tx\n")
    (place / "link").symlink_to("nowhere/out")
    for name in OUTPUTS:
        (place / name).write_text("of yesterday\n" * 9)
    return place


def files_in(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("words", "part"), REFUSED)
def test_a_refusal_is_one_sentence_and_changes_no_file(run_command, place, monkeypatch, words, part):
    monkeypatch.chdir(place)
    before = files_in(place)
    code, out, err = run_command(*words.split(), stdin=b"a\n")
    assert code in (1, 2) and out == ""
    [line] = err.splitlines()
    assert line.startswith("vanilla-transformer: error: ") and line.endswith(".") and part in line
    assert files_in(place) == before


@pytest.mark.parametrize(("words", "meant"), WRONG_WORDS)
def test_a_wrong_word_is_told_with_what_was_meant(run_command, words, meant):
    code, out, err = run_command(*words.split())
    assert (code, out) == (2, "") and meant in err and "Traceback" not in err
