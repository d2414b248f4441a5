"""The tokenizer's files for the page: tokenizers.js splits and joins text as Python does, or the model is declined."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from browser import PATIENCE
from refusals import refused
from tokenizers import normalizers

from vanilla_transformer.errors import ModelError
from vanilla_transformer.explore import browser_tokenizer
from vanilla_transformer.tokenizer import ALGORITHMS, train_tokenizer

TOKENIZERS_JS = Path(browser_tokenizer.__file__).parent / "web" / "vendor" / "tokenizers.min.mjs"
TEXTS = ["the cat's 12 mats, and naïve Ærø", "die Katze auf der Matte </s> ist <b>alt</b>", "猫は マットの上 に"]
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
    "<s> <pad><unk></s>",
    "😀e\u0301\u200dx\ufeffy",
    "CATS\tand\u3000ﬂ ²½ Ⅻ ١٢",
]
SPLIT = """
import { readFileSync } from "node:fs";
const { Tokenizer } = await import(process.argv[1]);
const { parts, lines } = JSON.parse(readFileSync(0, "utf-8"));
const tokenizer = new Tokenizer(...parts);
const rows = lines.map((text) => {
  const { ids } = tokenizer.encode(text);
  return [ids, tokenizer.decode([1, ...ids, 0], { skip_special_tokens: true, clean_up_tokenization_spaces: false })];
});
console.log(JSON.stringify(rows));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node: the package nodejs is not installed")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_tokenizer_of_the_package_splits_and_joins_as_in_python(algorithm: str):
    size = {"character": 271, "presplit": None}.get(algorithm, 300)
    tokenizer = train_tokenizer(TEXTS * 3, size, algorithm)
    parts = browser_tokenizer.tokenizer_parts(tokenizer)
    lines = [*TEXTS, *ODD]
    given = {"parts": [parts, browser_tokenizer.tokenizer_config(tokenizer, parts)], "lines": lines}
    command = ["node", "--input-type=module", "--eval", SPLIT, TOKENIZERS_JS.as_uri()]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    for line, (ids, text) in zip(lines, json.loads(done.stdout), strict=True):
        assert ids == tokenizer(line)["input_ids"], repr(line)
        assert text == tokenizer.decode(ids, skip_special_tokens=True), repr(line)


def test_tokenizers_that_tokenizers_js_does_not_read_are_refused():
    tokenizer = train_tokenizer(TEXTS, 300)
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt()])
    with refused(ModelError, "Nmt", "tokenizers.js"):
        browser_tokenizer.tokenizer_parts(tokenizer)
