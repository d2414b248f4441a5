"""The folder that `explore` writes: what is in it, what it replays, and what it declines."""

import json
import re
from pathlib import Path

from exploring import run_of
from refusals import refused
from torch import nn

from vanilla_transformer.cli import main
from vanilla_transformer.errors import ModelError
from vanilla_transformer.explore.computable import family
from vanilla_transformer.explore.static_site import write_page


def about(folder: Path) -> dict:
    return json.loads((folder / "model" / "model.json").read_text(encoding="utf-8"))


def test_the_command_writes_a_folder_that_names_no_other_host_and_has_each_weight_once(
    saved, explored, tmp_path, capsys
):
    output = tmp_path / "page"
    assert main(["explore", str(saved), "--output", str(output), "--documentation", "../"]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    assert (output / "vendor" / "LICENSE-d3").is_file() and (output / "vendor" / "LICENSE-tokenizers").is_file()
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src data:; "
    # Where a static Space keeps its large files.
    hosts = "https://*.hf.co https://*.huggingface.co"
    assert policy + f"connect-src 'self' {hosts};" in (output / "index.html").read_text(encoding="utf-8")
    own = [path for path in output.glob("*") if path.suffix in (".js", ".html", ".css")]
    assert len(own) > 10
    for path in own:
        text = path.read_text(encoding="utf-8").replace("http://localhost:8000", "").replace(hosts, "")
        assert "http://" not in text and "https://" not in text, path.name
    assert about(output)["examples"] == ["a dog"] and about(output)["training"] is None
    assert (output / "model" / "weights.bin").stat().st_size == 4 * explored("plain").model.num_parameters()


def test_the_page_asks_for_all_its_modules_and_for_the_model_at_once(explored):
    folder = explored("plain").folder
    asked = re.findall(r'<link rel="(?:module)?preload".* href="([^"]+)"', (folder / "index.html").read_text("utf-8"))
    modules = [path.relative_to(folder).as_posix() for path in (*folder.glob("*.js"), *folder.glob("vendor/*js"))]
    assert sorted(asked) == sorted([*modules, "model/model.json", "model/weights.bin"])


def test_replay_takes_as_many_checkpoints_as_fit(explored, tmp_path, monkeypatch):
    one = explored("plain")
    monkeypatch.setattr(one.model.generation_config, "return_dict_in_generate", True)
    run = run_of(one.model, tmp_path / "run", [10, 20, 30, 40, 50, 60])
    write_page(one.model, one.tokenizer, tmp_path / "all", name="all", examples=["a"], run=run)
    training = about(tmp_path / "all")["training"]
    assert training["steps"] == [10, 20, 30, 40, 50, 60]
    assert training["curve"] == [{"step": 10, "loss": 2.5}, {"step": 10, "dev_loss": 2.25}]
    folder = tmp_path / "all" / "model"
    size = sum(path.stat().st_size for path in folder.glob("step-*.bin")) / 6
    exact = (folder / "weights.bin").stat().st_size
    assert size < exact / 2.5
    monkeypatch.setattr("vanilla_transformer.explore.static_site.MAX_BYTES", int(exact + 3.2 * size))
    one.model.train()  # Without dropout all the same.
    write_page(one.model, one.tokenizer, tmp_path / "some", name="some", examples=["a"], run=run)
    one.model.eval()
    assert about(tmp_path / "some")["check"] == about(tmp_path / "all")["check"]
    some = about(tmp_path / "some")["training"]["steps"]
    assert len(some) == 3 and {10, 60} <= set(some)
    files = (tmp_path / "some" / "model").glob("*.bin")
    assert sum(path.stat().st_size for path in files) <= exact + 3.2 * size


def test_models_that_the_page_does_not_compute_are_declined(explored, tmp_path, monkeypatch):
    one = explored("classifier")
    for name, value in (("activation_function", "mish"), ("problem_type", "regression")):
        with monkeypatch.context() as patch:
            patch.setattr(one.model.config, name, value)
            with refused(ModelError, value):
                family(one.model)
    one.model.classifier.lora = nn.Linear(2, 2)
    try:
        with refused(ModelError, "classifier.lora"):
            write_page(one.model, one.tokenizer, tmp_path / "page", name="page")
    finally:
        del one.model.classifier.lora
    assert not (tmp_path / "page").exists()
