"""A repository of the Hub, with tokens added to its tokenizer, says the same where the package is not installed."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import FAMILIES

pytest.importorskip("peft", reason="PEFT is not installed.")

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
from hub_server import HubServer  # noqa: E402  the stand-in for the Hub lies beside its own tests

AUTO = {"encoder": "AutoModelForMaskedLM", "decoder": "AutoModelForCausalLM"}
SAY = """
import json, sys
import peft, torch, transformers
family, auto, name, without = sys.argv[1:]
if without == "yes":
    class Nowhere:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "vanilla_transformer":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Nowhere())
else:
    import vanilla_transformer
trusted = {"trust_remote_code": True} if without == "yes" else {}
tokenizer = transformers.AutoTokenizer.from_pretrained(name, **trusted)
model = getattr(transformers, auto).from_pretrained(name, **trusted).eval()
texts = ["the <ctrl> cat </s>", "Hello kingdomcome"]
inputs = tokenizer(texts, return_tensors="pt", padding=True)
two_sides = {"decoder_input_ids": inputs["input_ids"]} if model.config.is_encoder_decoder else {}
with torch.no_grad():
    logits = model(**inputs, **two_sides).logits
# PEFT knows by the package what it adapts; without it, the modules are named.
named = ["query_proj", "key_proj", "readout"] if family == "recurrent" else ["q_proj", "v_proj"]
lora = peft.LoraConfig(target_modules=named if without == "yes" else None)
print(json.dumps({
    "home": type(model).__module__.partition(".")[0],
    "ids": inputs["input_ids"].tolist(),
    "text": tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True),
    "whole": tokenizer.batch_decode(inputs["input_ids"]),
    "logits": logits.tolist(),
    "adapted": [name for name, one in peft.get_peft_model(model, lora).named_parameters() if one.requires_grad],
}))
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def run(*words: str, hub: HubServer, home: Path) -> str:
    """Returns the output of a process that knows no other Hub."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": "token-of-ann", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], env=environment, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_repository_says_the_same_without_the_package(
    family: str, directories: dict[str, Path], hub: HubServer, tmp_path: Path
):
    from transformers import AutoTokenizer

    model_class = FAMILIES[family][0]
    tokenizer = AutoTokenizer.from_pretrained(directories[family])
    model = model_class.from_pretrained(directories[family])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<ctrl>"]})
    tokenizer.add_tokens(["kingdomcome"])
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    name = f"ann/{family}"
    run("-m", "vanilla_transformer", "push", str(tmp_path / "model"), name, hub=hub, home=tmp_path)
    auto = AUTO.get(family, "AutoModelForSeq2SeqLM")
    said: list[dict[str, Any]] = [
        json.loads(run("-c", SAY, family, auto, name, without, hub=hub, home=tmp_path)) for without in ("no", "yes")
    ]
    assert [one.pop("home") for one in said] == ["vanilla_transformer", "transformers_modules"]
    assert said[0] == said[1]
    added = [tokenizer.convert_tokens_to_ids(token) for token in ("<ctrl>", "kingdomcome")]
    assert added[0] in said[0]["ids"][0] and added[1] in said[0]["ids"][1]
    assert "kingdomcome" in said[0]["text"][1] and "<ctrl>" not in said[0]["text"][0]
