"""The folder for the browser: what is in it, that it translates as the model does, and what cannot be exported."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from browser import PATIENCE, open_browser, serve
from refusals import refused

from vanilla_transformer import (
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerTokenizer,
    load_exported,
)
from vanilla_transformer.cli import main
from vanilla_transformer.extras.export import browser_tokenizer, to_web, web_page
from vanilla_transformer.extras.export.errors import ConversionError
from vanilla_transformer.tokenizer.learning import ALGORITHMS
from vanilla_transformer.translation import load_model, translate_lines

CDN = "https://cdn.jsdelivr.net"
# What is text and no more: a special token, markup, no words, letters of many scripts, breaks inside.
ODD = [
    "a </s> b",
    "<b>ab</b> & {c}",
    "   ",
    "",
    "naïve Ærø 日本 👩‍👩‍👧 ﬁ",
    "a\u2028b\x85c\u00a0d",
    " ab  c ",
    "x’s 1,234",
]


class Page(HTMLParser):
    """The elements of a page, each with its attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    @property
    def policy(self) -> str:
        (policy,) = [a["content"] for _, a in self.elements if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy is not None
        return policy


def content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def translations(model: Any, tokenizer: Any, lines: list[str]) -> list[str]:
    """Beam search with the model's own settings."""
    return [line.text for line in translate_lines(model, tokenizer, lines)]


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with three files instead of the programs, whose checksums are taken for theirs."""
    stand_ins = {}
    for key, program in web_page.PROGRAMS.items():
        path = folder / "node_modules" / program.package / program.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {key}")
        stand_ins[key] = web_page.Program(
            program.package, program.version, program.file, web_page.checksum(path), path.stat().st_size
        )
    (folder / "node_modules" / "@huggingface" / "tokenizers" / "LICENSE").write_text("Apache")
    monkeypatch.setattr(web_page, "PROGRAMS", stand_ins)
    return folder


def test_the_folder_has_what_a_host_serves(web_export):
    files = {str(path.relative_to(web_export)) for path in web_export.rglob("*") if path.is_file()}
    assert files == {
        *(
            "README.md",
            "index.html",
            "model.js",
            "page.js",
            "settings.json",
            "style.css",
            "translate.mjs",
            "worker.js",
        ),
        *("tokenizer.json", "tokenizer_config.json", "translate.onnx", "translate_int8.onnx"),
    }
    settings = content(web_export / "settings.json")
    assert settings["longest"] == 1024
    assert settings["weights"] == {dtype: (web_export / name).stat().st_size for dtype, name in to_web.GRAPHS.items()}
    head = yaml.safe_load((web_export / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert head == {
        "title": "backwards",
        "sdk": "static",
        "app_file": "index.html",
        "tags": ["vanilla_transformer"],
    }


def test_the_page_asks_no_host_but_the_pinned_one(web_export):
    page = Page(web_export / "index.html")
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "srcset"):
            assert "//" not in (attributes.get(name) or ""), tag
    assert f"connect-src 'self' {CDN};" in page.policy and "default-src 'none'" in page.policy
    for file in web_export.glob("*.[jc]s*"):
        if file.name not in ("tokenizer.json", "settings.json"):
            assert not re.search(r"https?://", file.read_text(encoding="utf-8")), file.name
    for program in content(web_export / "settings.json")["programs"].values():
        assert re.fullmatch(rf"{CDN}/npm/(@huggingface/tokenizers|onnxruntime-web)@\d[^/]+/dist/\S+", program["url"])
        assert re.fullmatch(r"sha384-[\w+/]{64}", program["integrity"])


def test_the_page_can_be_used_without_seeing_it(web_export):
    elements = Page(web_export / "index.html").elements
    assert ("html", {"lang": "en"}) in elements
    labelled = {attributes["for"] for tag, attributes in elements if tag == "label"}
    assert {attributes["id"] for tag, attributes in elements if tag in ("textarea", "select")} == labelled
    assert any(attributes.get("role") == "status" for _, attributes in elements)
    assert any("width=device-width" in (attributes.get("content") or "") for _, attributes in elements)


@pytest.mark.processor
def test_both_graphs_translate(web_export, spelled_backwards, words, tmp_path):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    expected = translations(model, tokenizer, words)
    for dtype, least in (("fp32", 1.0), ("q8", 0.8)):
        folder = Path(shutil.copytree(web_export, tmp_path / dtype))
        (folder / to_web.GRAPHS[dtype]).rename(folder / "translate.onnx")
        tokenizer.save_pretrained(folder)
        found = [line.text for line in translate_lines(load_exported(folder), None, words)]
        assert sum(a == b for a, b in zip(found, expected, strict=True)) >= least * len(words)


def test_a_vendored_folder_asks_no_other_host(tmp_path, spelled_backwards, monkeypatch):
    packages = programs(tmp_path / "npm", monkeypatch)
    for number, folder in enumerate((packages, packages / "node_modules")):
        output = tmp_path / f"web{number}"
        assert main(["export", str(spelled_backwards), str(output), "--to", "web", "--vendor", str(folder)]) == 0
        assert "connect-src 'self';" in Page(output / "index.html").policy
        for key, program in content(output / "settings.json")["programs"].items():
            assert (output / program["url"]).read_text() == f"// {key}"
            assert web_page.checksum(output / program["url"]) == program["integrity"]
        assert (output / "vendor" / "LICENSE-tokenizers.js").read_text() == "Apache"
        assert not any(CDN in path.read_text(encoding="utf-8") for path in output.glob("*.[!o]*"))


def test_programs_that_are_missing_or_others_are_refused(tmp_path, spelled_backwards, monkeypatch, capsys):
    export = ["export", str(spelled_backwards), str(tmp_path / "web"), "--to", "web", "--vendor"]
    assert main([*export, str(tmp_path)]) == 1
    assert re.search(
        r"tokenizers.min.mjs is missing: run `npm install @hugg\S+@\d\S+` and give", capsys.readouterr().err
    )
    packages = programs(tmp_path / "npm", monkeypatch)
    (packages / "node_modules" / "onnxruntime-web" / "dist" / "ort-wasm-simd-threaded.wasm").write_text("other")
    assert main([*export, str(packages)]) == 1
    assert "wasm is not the file of onnxruntime-web" in capsys.readouterr().err
    assert not (tmp_path / "web").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--to", "web", "--quantization", "int8"], "--quantization is not for web: the folder has the model in 8"),
        (["--to", "onnx", "--vendor", "packages"], "--vendor is for --to web, not for onnx"),
    ],
)
def test_options_that_do_not_apply_are_refused(spelled_backwards, tmp_path, capsys, options: list[str], sentence: str):
    assert main(["export", str(spelled_backwards), str(tmp_path / "web"), *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("kind", [VanillaTransformerDecoderForCausalLM, VanillaTransformerEncoderForMaskedLM])
def test_models_of_one_stack_are_refused(tmp_path, capsys, kind: type):
    layers = "decoder_layers" if kind is VanillaTransformerDecoderForCausalLM else "encoder_layers"
    config = kind.config_class(vocab_size=20, d_model=16, d_ff=32, num_heads=2, **{layers: 1})
    kind(config).save_pretrained(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "web"), "--to", "web"]) == 1
    assert f" {config.model_type}" in capsys.readouterr().err
    assert not (tmp_path / "web").exists()


def test_a_folder_that_exists_is_refused(spelled_backwards, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["export", str(spelled_backwards), str(tmp_path), "--to", "web"]) == 2
    assert f"{tmp_path} is not empty: name another directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_settings_that_the_graph_does_not_follow_are_refused(spelled_backwards, tmp_path):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    model.generation_config.repetition_penalty = 1.2
    with refused(ValueError, "repetition_penalty=1.2"):
        to_web.export_web(model, tokenizer, tmp_path / "web")


def test_tokenizers_that_tokenizers_js_does_not_read_are_refused(spelled_backwards, tmp_path, monkeypatch):
    from tokenizers import normalizers

    model, tokenizer = load_model(spelled_backwards, device="cpu")
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt()])
    with refused(ConversionError, "Nmt", "tokenizers.js"):
        to_web.export_web(model, tokenizer, tmp_path / "web")
    monkeypatch.setattr(browser_tokenizer, "save_tokenizer", lambda tokenizer, output: False)
    with refused(ConversionError, "tokenizer.json", "tokenizers.js"):
        to_web.export_web(model, tokenizer, tmp_path / "web")


def test_a_name_is_only_text_on_the_page(spelled_backwards, tmp_path):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    model.name_or_path = 'models/<b>"Ä"'
    to_web.export_web(model, tokenizer, tmp_path / "web")
    assert "b" not in {tag for tag, _ in Page(tmp_path / "web" / "index.html").elements}
    head = yaml.safe_load((tmp_path / "web" / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert head["title"] == '<b>"Ä"'


def run_node(*arguments: str, lines: str = "") -> str:
    if shutil.which("node") is None:
        pytest.skip("no node: the package nodejs is not installed")
    process = subprocess.run(["node", *arguments], input=lines, capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_node_translates_as_the_model_does(web_export, spelled_backwards, words, npm_packages, tmp_path):
    folder = Path(shutil.copytree(web_export, tmp_path / "web"))
    (folder / "node_modules").symlink_to(npm_packages)
    lines = [*words, *(line for line in ODD if "\u2028" not in line)]
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    text = run_node(str(folder / "translate.mjs"), "--dtype", "fp32", lines="".join(f"{line}\n" for line in lines))
    assert text.split("\n") == [*translations(model, tokenizer, lines), ""]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_tokenizer_of_the_package_splits_and_joins_as_in_python(npm_packages, tmp_path, algorithm: str):
    texts = [
        "the cat's 12 mats, and naïve Ærø",
        "die Katze auf der Matte </s> ist <b>alt</b>",
        "猫は マットの上 に",
    ] * 3
    size = {"character": 271, "presplit": None}.get(algorithm, 300)
    tokenizer = VanillaTransformerTokenizer.train(texts, size, algorithm)
    parts = browser_tokenizer.tokenizer_parts(tokenizer)
    web_page.write_json(tmp_path / "tokenizer.json", parts)
    web_page.write_json(tmp_path / "tokenizer_config.json", browser_tokenizer.tokenizer_config(tokenizer, parts))
    lines = [*texts[:3], *ODD, "<s> <pad><unk></s>", "😀e\u0301\u200dx\ufeffy", "CATS\tand\u3000ﬂ ²½ Ⅻ ١٢"]
    script = tmp_path / "split.mjs"
    script.write_text("""
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";
const parts = ["tokenizer", "tokenizer_config"].map((name) => readFileSync(`${process.argv[2]}/${name}.json`));
const tokenizer = new Tokenizer(...parts.map((part) => JSON.parse(part)));
const rows = JSON.parse(readFileSync(0, "utf-8")).map((text) => {
  const { ids } = tokenizer.encode(text);
  return [ids, tokenizer.decode([1, ...ids, 0], { skip_special_tokens: true, clean_up_tokenization_spaces: false })];
});
console.log(JSON.stringify(rows));
""")
    (tmp_path / "node_modules").symlink_to(npm_packages)
    rows = json.loads(run_node(str(script), str(tmp_path), lines=json.dumps(lines)))
    for line, (ids, text) in zip(lines, rows, strict=True):
        assert ids == tokenizer(line)["input_ids"], repr(line)
        assert text == tokenizer.decode(ids, skip_special_tokens=True), repr(line)


def translated(page: Any, text: str, dtype: str = "fp32") -> str:
    page.select_option("#dtype", dtype)
    page.fill("#source", text)
    page.click("#translate")
    page.wait_for_selector("#translate:enabled")
    return page.text_content("#target")


def test_the_page_translates_in_a_browser_and_asks_nobody_else(
    web_export, spelled_backwards, words, npm_packages, tmp_path
):
    folder = Path(shutil.copytree(web_export, tmp_path / "web"))
    checked = web_page.check_programs(npm_packages)
    settings = content(folder / "settings.json")
    web_page.write_page(folder, "backwards", settings["weights"], settings["longest"], checked)
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    with open_browser() as browser, serve(folder) as address:
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        lines = [*words[:10], *(line for line in ODD if "\u2028" not in line)]
        assert translated(page, "\n".join(lines)) == "\n".join(translations(model, tokenizer, lines))
        assert "tokens in" in page.text_content("#status")
        assert page.query_selector("#target b") is None
        assert translated(page, "  \n ") == "" and "nothing to translate" in page.text_content("#status")
        assert len(translated(page, words[0], "q8")) > 0
        assert {url.removeprefix("blob:").startswith(address) for url in asked} == {True}
        long = translated(page, "abcdefgh" * 200)
        assert "Too long for the model, and cut: line 1" in page.text_content("#status") and long
        page.fill("#source", "\n".join(words * 500))
        page.click("#translate")
        page.click("#stop")
        page.wait_for_selector("#translate:enabled")
        assert page.text_content("#status").startswith("Stopped. ")
        assert len(page.text_content("#target").split("\n")) < 500 * len(words)


def test_programs_of_the_network_are_run_only_if_their_checksums_fit(web_export, words, npm_packages, tmp_path):
    folder = Path(shutil.copytree(web_export, tmp_path / "web"))
    settings = content(folder / "settings.json")
    with open_browser() as browser, serve(folder) as address, serve(tmp_path / "cdn") as cdn:
        web_page.write_page(folder, "backwards", settings["weights"], settings["longest"], {}, [cdn])
        network = "https://cdn.jsdelivr.net"
        (folder / "settings.json").write_text((folder / "settings.json").read_text().replace(network, cdn))
        for program in web_page.PROGRAMS.values():
            path = tmp_path / "cdn" / program.address.removeprefix(f"{network}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(program.check(npm_packages), path)
            if program is web_page.PROGRAMS["runtime"]:
                whole, content_of_it = path, path.read_bytes()
                whole.write_bytes(content_of_it + b"\n")
        page = browser.new_page()
        page.goto(address)
        assert translated(page, words[0]) == ""
        assert "It failed: Failed to fetch" in page.text_content("#status")
        whole.write_bytes(content_of_it)
        assert translated(page, words[0])  # The same page tries again.
