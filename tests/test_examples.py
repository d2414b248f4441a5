"""The programs in examples/ run on a little text, from beginning to end."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vanilla_transformer import (
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerForConditionalGeneration,
    evaluate,
)
from vanilla_transformer.cli import main
from vanilla_transformer.evaluation.metrics import METRICS
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.run import train

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS = {"one": "1", "two": "2", "three": "3", "four": "4"}
SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 270}


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small(monkeypatch):
    """Makes an example one of a small model: these settings stand before its own, and others after them."""

    def small(name, before=SIZES, **after):
        program = example(name)
        of = Recipe.of
        monkeypatch.setattr(program, "Recipe", SimpleNamespace(of=lambda **own: of(**{**before, **own, **after})))
        return program

    return small


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Line-aligned files of number words and digits, a table of the same pairs, and a model that has seen them."""
    directory, draw = tmp_path_factory.mktemp("text"), random.Random(0)
    rows = [draw.choices(list(DIGITS), k=draw.randint(1, 5)) for _ in range(40)]
    pairs = [(" ".join(words), " ".join(DIGITS[word] for word in words)) for words in rows]
    (directory / "text.words").write_text("".join(f"{source}\n" for source, _ in pairs))
    (directory / "text.digits").write_text("".join(f"{target}\n" for _, target in pairs))
    (directory / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    files = (str(directory / "text.words"), str(directory / "text.digits"))
    settings = {"max_steps": 2, "max_length_beyond_source": 3, **SIZES}
    train(Recipe.of(train=files, output=str(directory / "model"), **settings))
    return directory


@pytest.fixture
def files(text):
    return [str(text / "text.words"), str(text / "text.digits")]


def test_a_model_is_trained_for_ones_own_language_pair(files, tmp_path, small, capsys):
    program = small("train_your_language_pair", metrics=("chrf",))
    program.main(
        [*files, str(tmp_path / "model"), "--dev", *files, "--max-steps", "3", "--translate", "one two", "three"]
    )
    assert capsys.readouterr().out.count("\n") == 2
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_model_is_fine_tuned_with_the_trainer_of_transformers(text, tmp_path, capsys):
    arguments = [str(text / "model"), str(text / "pairs.tsv"), str(tmp_path / "tuned"), "--max-steps", "20"]
    example("fine_tune_with_trainer").main([*arguments, "--learning-rate", "0.01"])
    words = capsys.readouterr().out.splitlines()[-1].split()
    before, after = float(words[4]), float(words[6])
    assert after < before and (tmp_path / "tuned" / "model.safetensors").is_file()


def test_a_model_is_fine_tuned_with_lora_and_the_output_is_a_plain_model(text, tmp_path, capsys):
    pytest.importorskip("peft", reason="PEFT is not installed.")
    arguments = [str(text / "model"), str(text / "pairs.tsv"), str(tmp_path / "tuned"), "--max-steps", "20"]
    example("lora").main([*arguments, "--rank", "2", "--learning-rate", "0.01"])
    assert "trainable params: 384 " in capsys.readouterr().out  # 2 * (16 + 16) beside each of 6 projections.
    before, after = (load_file(place / "model.safetensors") for place in (text / "model", tmp_path / "tuned"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert after.keys() == before.keys()
    assert changed == {name for name in before if name.endswith((".q_proj.weight", ".v_proj.weight"))}
    assert len(list(Translator(tmp_path / "tuned")(["one two"]))) == 1


def test_requests_that_arrive_together_are_translated_together_over_http(text, capsys, monkeypatch):
    program, made, batches = example("service"), [], []
    serve = program.server

    class Counting(Translator):
        def __call__(self, lines):
            batches.append(lines)
            if "four" in lines:
                raise OverflowError("too much of it")
            return super().__call__(lines)

    monkeypatch.setattr(program, "Gathering", partial(program.Gathering, wait=60, max_lines=4))
    monkeypatch.setattr(program, "Translator", Counting)
    monkeypatch.setattr(program, "server", lambda *given: made.append(serve(*given)) or made[0])
    serving = threading.Thread(target=program.main, args=([str(text / "model"), "--port", "0", "--num-beams", "2"],))
    serving.start()
    while not made:
        serving.join(0.01)

    def ask(body):
        with urlopen(f"http://127.0.0.1:{made[0].server_port}", body.encode()) as answer:
            return answer.read().decode()

    requests = ["one two\n\n", "three", "two"]
    with ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(ask, requests))
        with refused(HTTPError, "500", "OverflowError"):
            ask("four\n" * 4)
    made[0].shutdown()
    serving.join()
    assert [len(batch) for batch in batches] == [4, 4]
    translator = Translator(text / "model", num_beams=2)
    expected = [[one.text for one in translator(request.splitlines())] for request in requests]
    assert [answer.split("\n")[:-1] for answer in answers] == expected
    assert capsys.readouterr().out.endswith(f"http://localhost:{made[0].server_port}\n")


@pytest.mark.parametrize("options", [[], ["--sample"]])
def test_pairs_are_written_by_a_model(text, files, tmp_path, options):
    program = example("back_translation") if options else example("distillation")
    program.main([str(text / "model"), files[0], str(tmp_path / "one"), str(tmp_path / "other"), *options])
    one, other = ((tmp_path / part).read_text().splitlines() for part in ("one", "other"))
    assert len(one) == len(other) and set(other if options else one) <= set(Path(files[0]).read_text().splitlines())


def test_a_text_is_translated_in_parts_by_two_processes_of_which_one_is_killed(text, files, tmp_path):
    pytest.importorskip("datatrove", reason="datatrove is not installed.")
    program = example("many_machines")
    words = [str(text / "model"), files[0], str(tmp_path / "parts"), "--tasks", "5"]

    def begin(first, count):
        command = [sys.executable, EXAMPLES / "many_machines.py", *words, "--first", first, "--count", count]
        return subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL, start_new_session=True)

    killed, other = begin(0, 3), begin(3, 2)
    while killed.poll() is None and not program.part_of(tmp_path / "parts", 0, 5).exists():
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)  # With the workers that it has.
    assert killed.wait() == -signal.SIGKILL and other.wait() == 0
    with refused(SystemExit, "missing"):
        program.main([*words, "--join", str(tmp_path / "joined")])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").glob("part-*.txt")}
    program.main(words)
    program.main([*words, "--join", str(tmp_path / "joined")])
    assert before == {path: path.stat().st_mtime_ns for path in before}
    whole = Translator(text / "model")((text / "text.words").read_text().splitlines())
    assert (tmp_path / "joined").read_text().splitlines() == [translation.text for translation in whole]


def test_a_language_is_pronounced_and_no_word_is_both_learned_and_scored(tmp_path, small, capsys):
    draw = random.Random(0)
    words = ["".join(draw.choices("abcé", k=draw.randint(2, 6))) for _ in range(200)]
    lexicon = tmp_path / "lexicon.tsv"
    lexicon.write_text("".join(f"{word}\t{' '.join(word.upper())}\n" for word in words))
    program = small("pronounce_a_language", vocab_size=262)
    program.main([str(lexicon), str(tmp_path / "model"), "--max-steps", "2", "--pronounce", "cab", "bé"])
    assert capsys.readouterr().out.count("\n") == 2
    learned, kept = (
        {line.split("\t")[0] for line in (tmp_path / "model-text" / f"{name}.tsv").open()} for name in ("train", "dev")
    )
    assert learned | kept == set(words) and not learned & kept and kept
    lexicon.write_text("no phonemes\n")
    with refused(SystemExit, "line 1"):
        program.main([str(lexicon), str(tmp_path / "other")])


def test_spelling_is_corrected_from_correct_text_alone(tmp_path, small, capsys):
    draw = random.Random(0)
    sentences = [" ".join(draw.choices(["house", "river", "small", "green"], k=4)) for _ in range(150)]
    (tmp_path / "text").write_text("".join(f"{sentence}\n" for sentence in sentences))
    program = small("correct_spelling")
    program.main([str(tmp_path / "text"), str(tmp_path / "model"), "--max-steps", "2", "--correct", "smal huose"])
    assert capsys.readouterr().out.count("\n") == 1
    spoiled, right = (
        (tmp_path / "model-text" / f"train.{side}").read_text().splitlines() for side in ("spoiled", "right")
    )
    assert right == [sentence for sentence in sentences[:-1] for _ in range(3)]
    differing = sum(one != other for one, other in zip(spoiled, right, strict=True))
    assert 0.4 < differing / len(right) < 0.95


def test_texts_are_classified(tmp_path, small, capsys):
    rows = [("a good film", "good"), ("a bad film", "bad")] * 20
    table = tmp_path / "reviews.tsv"
    table.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    program = small("classify_texts", {name: value for name, value in SIZES.items() if name != "decoder_layers"})
    words = [str(table), str(tmp_path / "model"), "--dev", str(table), "--max-steps", "3", "--classify", "a good film"]
    program.main(words)
    label, probability = capsys.readouterr().out.splitlines()[-1].split("\t")
    assert label in ("good", "bad") and 0 < float(probability) <= 1


def test_a_text_is_written_on_and_its_end_is_held_out(tmp_path, capsys):
    text = "one two three four\n" * 200
    (tmp_path / "text.txt").write_text(text)
    words = [str(tmp_path / "text.txt"), str(tmp_path / "out"), "--max-steps", "5", "--continue", "one", "two t"]
    example("write_like_a_text").main([*words, "--characters", "9"])
    printed = capsys.readouterr().out
    assert printed.startswith("one") and "\n\ntwo t" in printed
    # Nine characters each, and an empty line; some may be the halves of one.
    assert len(printed) <= len("one") + len("two t") + 2 * 9 + 2 * 2
    assert (tmp_path / "out" / "train.txt").read_text() + (tmp_path / "out" / "dev.txt").read_text() == text
    written = (tmp_path / "out" / "model" / "summary.json").read_text()
    assert "bits_per_character" in written


def test_an_option_of_attention_is_computed_by_forward_alone(text, tmp_path, capsys):
    program = example("extend/attention_option")
    program.main([str(tmp_path / "model"), "--steps", "2"])
    first = capsys.readouterr().out.splitlines()[0]
    assert "decoded by forward: " in first and "None" not in first
    model = program.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([[5, 6, 7]])
    with_norm = model(ids, decoder_input_ids=ids).logits
    sizes = {name: getattr(model.config, name) for name in SIZES}
    plain = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**sizes))
    plain.load_state_dict(model.state_dict())
    assert not torch.allclose(with_norm, plain.eval()(ids, decoder_input_ids=ids).logits, atol=0.01)
    assert (
        main(["translate", str(tmp_path / "model"), str(text / "text.words"), "--output", str(tmp_path / "out")]) == 0
    )
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "export"), "--to", "ctranslate2"]) == 1
    assert "NormalisedTransformer" in capsys.readouterr().err


def test_a_metric_from_outside_scores_a_model_and_its_run(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(METRICS, "caseless_match", None)  # Gone after the test.
    program = example("extend/metric")
    assert program.caseless_match(["A b", "c"], [["x", "a B"], ["d"]])[0] == 50
    settings = {**SIZES, "metrics": ("caseless_match",), "dev": tuple(files), "max_steps": 2}
    run = train(Recipe.of(train=tuple(files), output=str(tmp_path / "model"), **settings))
    assert "caseless_match" in (run.directory / "README.md").read_text()
    program.main([str(run.directory), *files])
    assert "caseless_match = " in capsys.readouterr().out


def test_a_task_from_outside_is_trained_and_resumed(files, tmp_path, small):
    program = small("extend/task", save_steps=1, warmup_steps=2)  # The default follows from max_steps.
    for name, steps in (("whole", (4,)), ("parts", (2, 4))):
        for count in steps:
            program.main([*files, str(tmp_path / name), "--max-steps", str(count)])
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]
    train(Recipe.of(**SIZES, train=tuple(files), max_steps=4, save_steps=1, output=str(tmp_path / "plain")))
    assert (tmp_path / "plain" / "model.safetensors").read_bytes() != weights[0]


def test_a_model_family_from_outside_is_trained_saved_loaded_and_decoded(files, tmp_path, small, capsys):
    program = small("extend/model_family", save_steps=2, warmup_steps=2, batch_tokens=300)
    program.main([*files, str(tmp_path / "model"), "--max-steps", "2"])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    assert type(model) is program.PreNormTransformer and model.config.model_type == "pre_norm_transformer"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    sources = Path(files[0]).read_text().splitlines()
    greedy = {"num_beams": 1, "do_sample": False, "max_new_tokens": 9}
    ids = tokenizer(sources[0], return_tensors="pt")
    with_cache, without = (model.generate(**ids, **greedy, use_cache=kept) for kept in (True, False))
    assert torch.equal(with_cache, without)
    assert evaluate(tmp_path / "model", files, metrics=("wer",)).scores["wer"].name == "wer"
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "export"), "--to", "ctranslate2"]) == 1
    assert "PreNorm" in capsys.readouterr().err


def test_an_export_computes_the_same_and_refuses_what_it_does_not_know(tmp_path, capsys):
    sizes = {"vocab_size": 50, "d_model": 16, "d_ff": 32, "num_heads": 2, "decoder_layers": 2}
    torch.manual_seed(0)
    model = VanillaTransformerDecoderForCausalLM(VanillaTransformerDecoderConfig(**sizes)).eval()
    model.save_pretrained(tmp_path / "model")
    program = example("extend/export")
    program.main([str(tmp_path / "model"), str(tmp_path / "model.npz")])
    assert "bytes" in capsys.readouterr().out
    ids = [1, 5, 9, 30, 7]
    arrays = dict(np.load(tmp_path / "model.npz"))
    expected = model(torch.tensor([ids])).logits[0].detach().numpy()
    np.testing.assert_allclose(program.next_token_logits(arrays, ids), expected, atol=1e-5)
    model.model.layers[0].second_norm = torch.nn.LayerNorm(16)
    with refused(program.ExportError, "layers.0"):
        program.export(model, tmp_path / "other.npz")
    learned = VanillaTransformerDecoderConfig(**sizes, positional_encoding="learned")
    with refused(program.ExportError, "positional_encoding"):
        program.export(VanillaTransformerDecoderForCausalLM(learned), tmp_path / "other.npz")
    assert not (tmp_path / "other.npz").exists()


def test_a_task_of_another_kind_finds_answers_in_contexts(tmp_path, small, capsys):
    draw = random.Random(0)
    words = {"who": ["anna", "bert", "carla"], "where": ["paris", "new york", "rome"], "when": ["monday", "may"]}

    def table(name, count):
        rows = []
        for _ in range(count):
            found = {question: draw.choice(answers) for question, answers in words.items()}
            question = draw.choice(list(words))
            context = f"{found['who']} went to {found['where']} on {found['when']}"
            rows.append(f"{context}\t{question} ?\t{found[question]}\n")
        (tmp_path / name).write_text("context\tquestion\tanswer\n" + "".join(rows))
        return str(tmp_path / name)

    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "vocab_size": 300}
    program = small("extend/question_answering", sizes | {"warmup_steps": 2, "batch_tokens": 600, "save_steps": 2})
    train_table, dev_table = table("train.tsv", 60), table("dev.tsv", 20)
    program.main([train_table, str(tmp_path / "model"), "--dev", dev_table, "--max-steps", "2"])
    assert evaluate(tmp_path / "model", dev_table).scores["exact_match"].value == pytest.approx(
        float(capsys.readouterr().out.split()[-1]), abs=0.01
    )
    (tmp_path / "lines").write_text("dora went to berlin on friday\twho ?\n\n")
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "lines")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    (tmp_path / "wrong.tsv").write_text(Path(train_table).read_text() + "a b\twho ?\tc\n")
    with refused(ValueError, "'c'"):
        program.main([str(tmp_path / "wrong.tsv"), str(tmp_path / "other"), "--dev", dev_table, "--max-steps", "1"])
