"""The folder for the browser: what is in it, that its graphs are the model, and what cannot be exported."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from browser import open_browser, serve

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.cli import main
from vanilla_transformer.export import to_web, web_page
from vanilla_transformer.export.errors import ConversionError
from vanilla_transformer.model.tokenization_vanilla_transformer import ALGORITHMS
from vanilla_transformer.translation import load_model, translate_lines
from vanilla_transformer.translation.lines import one_line
from vanilla_transformer.translation.onnx_decode import Decoder

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


class Web:
    """Greedy search as transformers.js does it: one graph for all steps, and caches that begin without positions."""

    def __init__(self, folder: Path, ending: str = "") -> None:
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / "onnx" / f"{name}{ending}.onnx")
            for name in ("encoder_model", "decoder_model_merged")
        )
        self.names = [output.name for output in self.decoder.get_outputs()]

    def first(self, source: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        """What the decoder is given before its first token."""
        (states,) = self.encoder.run(None, {"input_ids": source, "attention_mask": mask})
        shapes = {
            one.name: [
                {"batch_size": len(source)}.get(size, 0) if isinstance(size, str) else size for size in one.shape
            ]
            for one in self.decoder.get_inputs()
            if one.name.startswith("past_key_values")
        }
        empty = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        return {**empty, "encoder_hidden_states": states, "encoder_attention_mask": mask}

    def step(self, feeds: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
        """Logits of the next token; the feeds become those of the next step."""
        outputs = dict(zip(self.names, self.decoder.run(None, {**feeds, "input_ids": tokens}), strict=True))
        first = feeds["past_key_values.0.encoder.key"].shape[2] == 0
        for name in self.names[1:]:
            if first or ".encoder." not in name:  # It keeps those of the source as they were.
                feeds[name.replace("present", "past_key_values")] = outputs[name]
        return outputs["logits"][:, -1]

    def translate(self, tokenizer: Any, line: str, most: int = 60) -> str:
        ids = np.array([tokenizer(line)["input_ids"]])
        feeds, tokens = self.first(ids, np.ones_like(ids)), [tokenizer.bos_token_id]
        while len(tokens) <= most and tokens[-1] != tokenizer.eos_token_id:
            tokens.append(int(self.step(feeds, np.array([tokens[-1:]])).argmax()))
        return one_line(tokenizer.decode(tokens, skip_special_tokens=True))


def content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def greedy(model: Any, tokenizer: Any, lines: list[str]) -> list[str]:
    return [line.text for line in translate_lines(model, tokenizer, lines, num_beams=1)]


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with three files in the place of the programs, whose checksums are taken for theirs."""
    stand_ins = {}
    for key, program in web_page.PROGRAMS.items():
        path = folder / "node_modules" / program.package / program.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {key}")
        stand_ins[key] = web_page.Program(
            program.package, program.version, program.file, web_page.checksum(path), path.stat().st_size
        )
    (folder / "node_modules" / "@huggingface" / "transformers" / "LICENSE").write_text("Apache")
    monkeypatch.setattr(web_page, "PROGRAMS", stand_ins)
    return folder


@pytest.fixture
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are not traced, which takes seconds."""

    def write(model: Any, output: Path) -> None:
        output.mkdir(parents=True)
        for name in ("encoder_model", "decoder_model_merged"):
            (output / f"{name}.onnx").write_bytes(b"0" * 300)
            (output / f"{name}_quantized.onnx").write_bytes(b"0" * 100)

    monkeypatch.setattr(to_web, "_export_graphs", write)


def test_the_folder_has_what_a_host_serves_and_what_transformers_js_asks_for(web_export):
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
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx"),
        *("onnx/encoder_model_quantized.onnx", "onnx/decoder_model_merged_quantized.onnx"),
    }
    assert content(web_export / "config.json")["architectures"] == ["MarianMTModel"]
    assert content(web_export / "generation_config.json")["num_beams"] == 1  # It has no beam search.
    settings = content(web_export / "settings.json")
    assert settings["limits"] == {"longest": 1024, "beyond": 50, "most": None}
    graphs = {path.name: path.stat().st_size for path in (web_export / "onnx").iterdir()}
    assert settings["weights"]["fp32"] == sum(size for name, size in graphs.items() if "quantized" not in name)
    assert sum(settings["weights"].values()) == sum(graphs.values())
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
        assert re.fullmatch(rf"{CDN}/npm/(@huggingface/transformers|onnxruntime-web)@\d[^/]+/dist/\S+", program["url"])
        assert re.fullmatch(r"sha384-[\w+/]{64}", program["integrity"])


def test_the_page_can_be_used_without_seeing_it(web_export):
    elements = Page(web_export / "index.html").elements
    assert ("html", {"lang": "en"}) in elements
    labelled = {attributes["for"] for tag, attributes in elements if tag == "label"}
    assert {attributes["id"] for tag, attributes in elements if tag in ("textarea", "select")} == labelled
    assert any(attributes.get("role") == "status" for _, attributes in elements)
    assert any("width=device-width" in (attributes.get("content") or "") for _, attributes in elements)


def test_one_decoder_graph_without_a_branch_gives_the_models_numbers_at_every_step(web_export, spelled_backwards):
    model, _ = load_model(spelled_backwards, device="cpu")
    web = Web(web_export)
    graph = onnx.load(web_export / "onnx" / "decoder_model_merged.onnx").graph
    assert "If" not in {node.op_type for node in graph.node}
    for batch, length in ((1, 1), (3, 9)):
        source = torch.randint(4, 260, (batch, length))
        mask = torch.ones_like(source)
        mask[-1, max(1, length // 2) :] = 0
        target = torch.randint(4, 260, (batch, 5))
        with torch.no_grad():
            expected = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits.numpy()
        feeds = web.first(source.numpy(), mask.numpy())
        for step in range(5):
            logits = web.step(feeds, target[:, step : step + 1].numpy())
            np.testing.assert_allclose(logits, expected[:, step], atol=1e-4, rtol=1e-4)


@pytest.mark.processor
def test_float32_translates_the_same_and_8_bits_almost(web_export, spelled_backwards, words):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    expected = greedy(model, tokenizer, words)
    assert [Web(web_export).translate(tokenizer, word) for word in words] == expected
    rounded = Web(web_export, "_quantized")
    same = sum(rounded.translate(tokenizer, w) == e for w, e in zip(words, expected, strict=True))
    assert same >= 0.8 * len(words)


def test_an_embedding_that_is_the_output_projection_is_there_once(web_export):
    graph = onnx.load(web_export / "onnx" / "decoder_model_merged_quantized.onnx").graph
    vocabulary = max(max(weight.dims, default=0) for weight in graph.initializer)
    large = [weight for weight in graph.initializer if vocabulary in weight.dims and len(weight.dims) == 2]
    assert [weight.data_type for weight in large] == [onnx.TensorProto.INT8]


def test_other_models_are_exported_too(tmp_path, spelled_backwards, words, monkeypatch):
    """Learned positions, biases, keys and values of other widths, an embedding of the target's own."""
    monkeypatch.setattr(to_web, "quantize_graph", lambda source, target: target.write_bytes(b""))
    _, tokenizer = load_model(spelled_backwards, device="cpu")
    torch.manual_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=16, d_ff=32, num_heads=2, d_k=6, d_v=10, encoder_layers=1, decoder_layers=1,
        positional_encoding="learned", max_position_embeddings=12, attention_bias=True, output_bias=True,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = VanillaTransformerForConditionalGeneration(config).eval()
    to_web.export_web(model, tokenizer, tmp_path / "web")
    expected = greedy(model, tokenizer, words[:5])
    assert [Web(tmp_path / "web").translate(tokenizer, word, most=12) for word in words[:5]] == expected
    assert content(tmp_path / "web" / "settings.json")["limits"] == {"longest": 12, "beyond": 50, "most": 12}
    # transformers.js counts the token that starts the decoder.
    assert content(tmp_path / "web" / "config.json")["max_position_embeddings"] == 13


@pytest.mark.parametrize(
    "own",
    [
        {"max_new_tokens": 3},
        {"max_length": 4},
        {"max_length": 20},
        {"max_new_tokens": 2, "max_length": 9},
        {"max_length_beyond_source": 0},
        {"max_length_beyond_source": None},
        {"max_length_beyond_source": None, "max_length": 6},
    ],
    ids=str,
)
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_lengths_are_those_of_generate(own: dict, positions: str):
    settings = {"max_length_beyond_source": 50, **own}
    config = SimpleNamespace(positional_encoding=positions, max_position_embeddings=8)
    limits = to_web._limits(config, settings)
    decoder = SimpleNamespace(settings={**vars(config), **settings})
    for length in (1, 5, 30):
        beyond = float("inf") if limits["beyond"] is None else length + limits["beyond"]
        most = float("inf") if limits["most"] is None else limits["most"]
        assert [max(1, min(beyond, most))] == Decoder.limits(decoder, [length], {})  # type: ignore[arg-type]


def test_a_vendored_folder_asks_no_other_host(tmp_path, spelled_backwards, monkeypatch, no_graphs):
    packages = programs(tmp_path / "npm", monkeypatch)
    for number, folder in enumerate((packages, packages / "node_modules")):
        output = tmp_path / f"web{number}"
        assert main(["export", str(spelled_backwards), str(output), "--to", "web", "--vendor", str(folder)]) == 0
        assert "connect-src 'self';" in Page(output / "index.html").policy
        for key, program in content(output / "settings.json")["programs"].items():
            assert (output / program["url"]).read_text() == f"// {key}"
            assert web_page.checksum(output / program["url"]) == program["integrity"]
        assert (output / "vendor" / "LICENSE-transformers.js").read_text() == "Apache"
        assert not any(CDN in path.read_text(encoding="utf-8") for path in output.glob("*.*"))


def test_programs_that_are_missing_or_others_are_refused(tmp_path, spelled_backwards, monkeypatch, no_graphs, capsys):
    export = ["export", str(spelled_backwards), str(tmp_path / "web"), "--to", "web", "--vendor"]
    assert main([*export, str(tmp_path)]) == 1
    assert re.search(
        r"transformers.min.js is missing: run `npm install @hugg\S+@\d\S+` and give", capsys.readouterr().err
    )
    packages = programs(tmp_path / "npm", monkeypatch)
    (packages / "node_modules" / "onnxruntime-web" / "dist" / "ort-wasm-simd-threaded.wasm").write_text("other")
    assert main([*export, str(packages)]) == 1
    assert "wasm is not that of onnxruntime-web" in capsys.readouterr().err
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
    assert f"is a model of the type {config.model_type}, not vanilla_transformer" in capsys.readouterr().err
    assert not (tmp_path / "web").exists()


def test_a_folder_that_exists_is_refused(spelled_backwards, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["export", str(spelled_backwards), str(tmp_path), "--to", "web"]) == 2
    assert f"{tmp_path} is not empty: name another directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_settings_that_transformers_js_does_not_follow_are_refused(spelled_backwards, tmp_path, no_graphs):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    model.generation_config.repetition_penalty = 1.2
    with pytest.raises(ValueError, match="repetition_penalty=1.2 .* is not to be had with an exported model"):
        to_web.export_web(model, tokenizer, tmp_path / "web")


def test_tokenizers_that_transformers_js_does_not_read_are_refused(
    spelled_backwards, tmp_path, no_graphs, monkeypatch
):
    from tokenizers import normalizers

    model, tokenizer = load_model(spelled_backwards, device="cpu")
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt()])
    with pytest.raises(ConversionError, match="The tokenizer has the normalizer Nmt, which transformers.js 4"):
        to_web.export_web(model, tokenizer, tmp_path / "web")
    monkeypatch.setattr(to_web, "save_tokenizer", lambda tokenizer, output: False)
    with pytest.raises(ConversionError, match="without a tokenizer.json, the one form that transformers.js reads"):
        to_web.export_web(model, tokenizer, tmp_path / "web")


def test_a_name_is_only_text_on_the_page(spelled_backwards, tmp_path, no_graphs):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    model.name_or_path = 'models/<b>"Ä"'
    to_web.export_web(model, tokenizer, tmp_path / "web")
    assert "b" not in {tag for tag, _ in Page(tmp_path / "web" / "index.html").elements}
    head = yaml.safe_load((tmp_path / "web" / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert head["title"] == '<b>"Ä"'


def run_node(*arguments: str, lines: str = "") -> str:
    if shutil.which("node") is None:
        pytest.skip("no node: the package nodejs is not installed")
    process = subprocess.run(["node", *arguments], input=lines, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_node_translates_as_the_model_does(web_export, spelled_backwards, words, npm_packages, tmp_path):
    folder = Path(shutil.copytree(web_export, tmp_path / "web"))
    (folder / "node_modules").symlink_to(npm_packages)
    lines = [*words, *(line for line in ODD if "\u2028" not in line)]
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    text = run_node(str(folder / "translate.mjs"), "--dtype", "fp32", lines="".join(f"{line}\n" for line in lines))
    assert text.split("\n") == [*greedy(model, tokenizer, lines), ""]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_tokenizer_of_the_package_splits_and_joins_as_in_python(npm_packages, tmp_path, algorithm: str):
    texts = [
        "the cat's 12 mats, and naïve Ærø",
        "die Katze auf der Matte </s> ist <b>alt</b>",
        "猫は マットの上 に",
    ] * 3
    size = {"character": 271, "presplit": None}.get(algorithm, 300)
    tokenizer = VanillaTransformerTokenizer.train(texts, size, algorithm)
    parts = to_web._tokenizer_parts(tokenizer)
    web_page.write_json(tmp_path / "tokenizer.json", parts)
    web_page.write_json(tmp_path / "tokenizer_config.json", to_web._tokenizer_config(tokenizer, parts))
    lines = [*texts[:3], *ODD, "<s> <pad><unk></s>", "😀e\u0301\u200dx\ufeffy", "CATS\tand\u3000ﬂ ²½ Ⅻ ١٢"]
    script = tmp_path / "split.mjs"
    script.write_text("""
import { readFileSync } from "node:fs";
import { AutoTokenizer, env } from "@huggingface/transformers";
env.allowRemoteModels = false;
const tokenizer = await AutoTokenizer.from_pretrained(process.argv[2]);
const rows = JSON.parse(readFileSync(0, "utf-8")).map((text) => {
  const ids = tokenizer.encode(text);
  return [ids, tokenizer.decode([1, ...ids, 0], { skip_special_tokens: true })];
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
    page.wait_for_selector("#translate:enabled", timeout=60_000)
    return page.text_content("#target")


def test_the_page_translates_in_a_browser_and_asks_nobody_else(
    web_export, spelled_backwards, words, npm_packages, tmp_path
):
    folder = Path(shutil.copytree(web_export, tmp_path / "web"))
    checked = web_page.check_programs(npm_packages)
    settings = content(folder / "settings.json")
    web_page.write_page(folder, "backwards", settings["weights"], settings["limits"], checked)
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    with open_browser() as browser, serve(folder) as address:
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        lines = [*words[:10], *(line for line in ODD if "\u2028" not in line)]
        assert translated(page, "\n".join(lines)) == "\n".join(greedy(model, tokenizer, lines))
        assert "tokens in" in page.text_content("#status")
        assert page.query_selector("#target b") is None
        assert translated(page, "  \n ") == "" and "nothing to translate" in page.text_content("#status")
        assert len(translated(page, words[0], "q8")) > 0
        assert {url.removeprefix("blob:").startswith(address) for url in asked} == {True}
        long = translated(page, "abcdefgh" * 200)
        assert "Too long for the model, and cut: line 1" in page.text_content("#status") and long
        page.fill("#source", "\n".join(words * 50))
        page.click("#translate")
        page.click("#stop")
        page.wait_for_selector("#translate:enabled")
        assert page.text_content("#status").startswith("Stopped. ")
        assert len(page.text_content("#target").split("\n")) < 50 * len(words)


def test_programs_of_the_network_are_run_only_if_their_checksums_fit(
    web_export, words, npm_packages, tmp_path, monkeypatch
):
    folder = Path(shutil.copytree(web_export, tmp_path / "web"))
    settings = content(folder / "settings.json")
    with open_browser() as browser, serve(folder) as address, serve(tmp_path / "cdn") as cdn:
        monkeypatch.setattr(web_page, "_CDN", cdn)
        web_page.write_page(folder, "backwards", settings["weights"], settings["limits"], {})
        for program in web_page.PROGRAMS.values():
            path = tmp_path / "cdn" / program.address.removeprefix(f"{cdn}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(program.check(npm_packages), path)
            if program.name.endswith(".mjs"):
                whole, content_of_it = path, path.read_bytes()
                whole.write_bytes(content_of_it + b"\n")
        page = browser.new_page()
        page.goto(address)
        assert translated(page, words[0]) == ""
        assert "It failed: Failed to fetch" in page.text_content("#status")
        whole.write_bytes(content_of_it)
        assert translated(page, words[0])  # The same page tries again.
