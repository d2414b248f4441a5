"""A model goes to the Hub and comes back: where the package is installed, and where it is not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hub_server import HubServer, card_problems
from opus_models import write_opus
from safetensors.torch import load_file
from small_models import NOT_INSTALLED, random_model
from transformers import AutoTokenizer, MarianMTModel, pipeline

from vanilla_transformer.cli import main

TEXTS = ["the cat on </s>", "Matte?"]

COMMON = """
import json, sys
def answers(config, base, model, tokenizer, translate):
    import torch
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    ids = model.generate(**inputs)
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=ids[:, :-1]).logits
        hidden = base(**inputs, decoder_input_ids=ids[:, :-1]).last_hidden_state
    defaults = model.generation_config
    return {
        "sizes": [config.d_model, config.num_heads, config.vocab_size],
        "ids": inputs["input_ids"].tolist(),
        "logits": logits.tolist(),
        "hidden": hidden.tolist(),
        "generated": ids.tolist(),
        "back": tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True),
        "translations": translate(TEXTS, max_new_tokens=9),
        "defaults": [defaults.num_beams, defaults.length_penalty, defaults.length_penalty_type,
                     defaults.max_length_beyond_source, defaults.early_stopping],
    }
def load(name, **settings):
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
    return (
        AutoConfig.from_pretrained(name, **settings),
        AutoModel.from_pretrained(name, **settings),
        AutoModelForSeq2SeqLM.from_pretrained(name, **settings),
        AutoTokenizer.from_pretrained(name, **settings),
        pipeline("translation", model=name, **settings),
    )
def output_weights(name, **settings):
    from transformers import AutoModelForSeq2SeqLM
    return AutoModelForSeq2SeqLM.from_pretrained(name, **settings).lm_head.weight.tolist()
def modules(*objects):
    return [type(thing).__module__.partition(".")[0] for thing in objects]
"""

INSTALLED = """
import socket, transformers, vanilla_transformer
reach, socket.socket.connect = socket.socket.connect, None  # Nothing leaves the machine unless it is asked to.
config, base, model, tokenizer, translate = load(SAVED)
results = {"directory": answers(config, base, model, tokenizer, translate)}
socket.socket.connect = reach

model.push_to_hub("ann/parts")
tokenizer.push_to_hub("ann/parts")
translate.push_to_hub("ann/whole", private=True)
with __import__("torch").no_grad():
    model.lm_head.weight.mul_(-1)
model.push_to_hub("ann/parts", revision="negative")
results["negative"] = output_weights("ann/parts", revision="negative")
results["parts"] = answers(*load("ann/parts"))
results["whole"] = answers(*load("ann/whole"))
print(json.dumps(results))
"""

ELSEWHERE = """
results = {}
for name in ("parts", "pushed", "opus"):
    loaded = load(f"ann/{name}", trust_remote_code=True)
    assert modules(*loaded) == ["transformers_modules"] * 3 + ["transformers", "transformers_modules"]
    if name == "opus":
        results[name] = loaded[4](TEXTS)
    else:
        results[name] = answers(*loaded)
        config, base, model, tokenizer, *_ = loaded
results["negative"] = output_weights("ann/parts", revision="negative", trust_remote_code=True)
model.save_pretrained(SAVED + "-by-its-code")
tokenizer.save_pretrained(SAVED + "-by-its-code")
results["saved again"] = answers(*load(SAVED + "-by-its-code", trust_remote_code=True))
assert not [name for name in sys.modules if name.partition(".")[0] == "vanilla_transformer"]
print(json.dumps(results))
"""


# A directory of this process hides the installed package with another version.
OTHER_VERSION = """
import sys
sys.path.insert(0, OTHER)
"""
BESIDE_ANOTHER_VERSION = """
import copy
from transformers import pipelines
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
def registries():
    tasks = {name: dict(task) for name, task in pipelines.PIPELINE_REGISTRY.supported_tasks.items()}
    return tasks, dict(pipelines.REMOVED_TASKS), dict(MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES)
before = copy.deepcopy(registries())
results = [pipelines.pipeline("translation", model=SAVED, trust_remote_code=True)(TEXTS, max_new_tokens=9)]
results.append(pipelines.pipeline("token-classification", model=TAGGER, trust_remote_code=True)(TEXTS[0]))
assert registries() == before
assert "vanilla_transformer" not in sys.modules
print(json.dumps(results, default=float))
"""


def run(script: str, saved: Path, hub: HubServer, home: Path) -> dict[str, Any]:
    """The JSON that the script prints in a process of its own, which knows no other Hub than this."""
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": "token-of-ann", "OMP_NUM_THREADS": "1"}
    settings = f"SAVED, TEXTS = {str(saved)!r}, {TEXTS!r}\n"
    command = [sys.executable, "-c", COMMON + settings + script]
    result = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_a_repositorys_code_works_next_to_another_version_and_registers_nothing(saved: Path, tmp_path: Path):
    other = tmp_path / "other" / "vanilla_transformer"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise RuntimeError('another version was imported')")
    tagger = tmp_path / "tagger"
    model = random_model("tagger", vocab_size=300)
    model.save_pretrained(tagger)
    AutoTokenizer.from_pretrained(saved).save_pretrained(tagger)
    paths = f"OTHER, TAGGER, SAVED, TEXTS = {str(other.parent)!r}, {str(tagger)!r}, {str(saved)!r}, {TEXTS!r}\n"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", paths + OTHER_VERSION + "import json\n" + BESIDE_ANOTHER_VERSION]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    translations, tags = json.loads(result.stdout.splitlines()[-1])
    expected = pipeline("translation", model=str(saved))(TEXTS, max_new_tokens=9)
    assert translations == expected
    own = pipeline("token-classification", model=str(tagger))(TEXTS[0])
    assert [tag["word"] for tag in tags] == [tag["word"] for tag in own]


def test_a_model_comes_back_from_the_hub_with_and_without_the_package(ann: HubServer, saved: Path, tmp_path: Path):
    installed = run(INSTALLED, saved, ann, tmp_path / "installed")
    expected = installed["directory"]
    assert expected["defaults"] == [4, 0.6, "google", 50, "never"]
    assert expected["back"] == ["the cat on ", "Matte?"]
    assert [list(record) for record in expected["translations"]] == [["translation_text"]] * len(TEXTS)
    for name in ("parts", "whole"):
        assert installed[name] == expected, name
    assert ann.repositories["ann/whole"].private
    for repository in ann.repositories.values():
        assert card_problems(repository.files()["README.md"].decode()) == []

    pushed = shutil.copytree(saved, tmp_path / "pushed")
    assert main(["push", str(pushed), "ann/pushed"]) == 0
    # A Marian model is pushed as one of this package.
    opus = write_opus(tmp_path)
    assert main(["push", str(opus), "ann/opus"]) == 1
    assert (
        main(["convert", str(opus), str(tmp_path / "ours")]) == main(["push", str(tmp_path / "ours"), "ann/opus"]) == 0
    )

    elsewhere = run(NOT_INSTALLED + ELSEWHERE, pushed, ann, tmp_path / "not-installed")
    for name in ("parts", "pushed", "saved again"):
        assert elsewhere[name] == expected, name
    own = load_file(saved / "model.safetensors")["model.shared.weight"]
    assert elsewhere["negative"] == installed["negative"] == (-own).tolist()
    tokenizer, theirs = AutoTokenizer.from_pretrained(opus), MarianMTModel.from_pretrained(opus).eval()
    ids = [theirs.generate(**tokenizer([text], return_tensors="pt"))[0] for text in TEXTS]
    translations = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [record["translation_text"] for record in elsewhere["opus"]] == translations
