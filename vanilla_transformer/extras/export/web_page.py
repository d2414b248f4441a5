"""The page of a browser export, and the programs that run the model on it."""

import base64
import hashlib
import html
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from vanilla_transformer.extras.export.errors import ConversionError
from vanilla_transformer.links import refuse_links_out

TOKENIZERS_JS = "0.2.0"
RUNTIME = "1.30.0"
# Hosts on which a Space may keep its large files.
SPACE_HOSTS = ("https://*.hf.co", "https://*.huggingface.co")
_CDN = "https://cdn.jsdelivr.net"
_FILES = Path(__file__).parent / "web"
_DTYPES = {"q8": "8 bits", "fp32": "32 bits"}
_README = """---
title: {title}
sdk: static
app_file: index.html
tags: [vanilla_transformer]
---

# {name}, in the browser

Any host of static files serves this folder; on your own machine `python -m http.server` does, at
http://localhost:8000. The page translates in the browser of whoever opens it, and what they write stays there.
{programs}

`translate.onnx` holds the model with its whole search, and `translate_int8.onnx` the same in 8 bits. Without a
browser, line by line, in 8 bits or with `--dtype fp32`:

```bash
npm install onnxruntime-web@{runtime} @huggingface/tokenizers@{tokenizers}
node translate.mjs < in.txt > out.txt
```
"""
_PROGRAMS_ARE = "ONNX Runtime Web (MIT) and tokenizers.js (Apache-2.0) are"
_VENDORED = f"{_PROGRAMS_ARE} in `vendor`, and no other host is asked."
_LOADED = f"{_PROGRAMS_ARE} loaded from {_CDN}, by version and checksum."


@dataclass(frozen=True)
class Program:
    """A file of an npm package: its path in a folder of packages, and the checksum of npm's own copy."""

    package: str
    version: str
    file: str
    integrity: str
    size: int

    @property
    def name(self) -> str:
        """File name without its folders."""
        return Path(self.file).name

    @property
    def address(self) -> str:
        """URL on the content delivery network."""
        return f"{_CDN}/npm/{self.package}@{self.version}/{self.file}"

    def check(self, folder: Path) -> Path:
        """Returns the file's path in a folder of packages.

        Raises:
            ConversionError: The file is missing, or has another checksum.
        """
        path = folder / self.package / self.file
        if not path.is_file():
            raise ConversionError(
                f"{path} is missing: run `npm install {self.package}@{self.version}` and give its node_modules."
            )
        if checksum(path) != self.integrity:
            raise ConversionError(
                f"{path} is not the file of {self.package} {self.version}, as its checksum shows: run `npm "
                f"install {self.package}@{self.version}`."
            )
        return path


PROGRAMS = {
    "tokenizers": Program(
        "@huggingface/tokenizers",
        TOKENIZERS_JS,
        "dist/tokenizers.min.mjs",
        "sha384-Tl2lMbeE3RCGFLOUGQ7LhvaagysxiOw/9dulz2sD6jxNa1MckRJQBbYdVHhOoqEs",
        36_601,
    ),
    "runtime": Program(
        "onnxruntime-web",
        RUNTIME,
        "dist/ort.wasm.bundle.min.mjs",
        "sha384-PLWz+nHEVHpjwBsO0YVdvQj6n5814Iv8E3b8FG0Rp/uIAtjFMCKOpP66iPzedrIG",
        73_054,
    ),
    "wasm": Program(
        "onnxruntime-web",
        RUNTIME,
        "dist/ort-wasm-simd-threaded.wasm",
        "sha384-vjBJ1z7qrhkTyYsNqKeF6c7N+nOJSU94czEo+tvZcu8G75JparGq9kB+kTnEUNVM",
        14_239_897,
    ),
}


def write_page(
    output: Path,
    name: str,
    sizes: Mapping[str, int],
    longest: int,
    programs: Mapping[str, Path],
    hosts: Sequence[str] = (),
) -> None:
    """Writes the page, its settings with the addresses of its programs, and a README.

    Args:
        name: The page's heading.
        sizes: Bytes of the weights in 8 bits (q8) and 32 bits (fp32).
        longest: The length in tokens at which sources are cut.
        programs: Files to copy; without them the page loads them from a content delivery network.
        hosts: Other hosts to which the page may be redirected.
    """
    policy = {
        "default-src": ["'none'"],
        "script-src": ["'self'", "blob:", "'wasm-unsafe-eval'"],
        "worker-src": ["blob:"],
        "style-src": ["'self'"],
        "img-src": ["data:"],
        "connect-src": ["'self'", *([] if programs else [_CDN]), *hosts],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    words = {
        "name": html.escape(name),
        "policy": "; ".join(f"{key} {' '.join(values)}" for key, values in policy.items()),
        "choices": "".join(
            f'<option value="{dtype}">{bits}, {_megabytes(sizes[dtype])}</option>' for dtype, bits in _DTYPES.items()
        ),
        "fetched": _megabytes(sum(program.size for program in PROGRAMS.values())),
        "runtime": RUNTIME,
    }
    shutil.copytree(_FILES, output, dirs_exist_ok=True)
    page = Template((_FILES / "index.html").read_text(encoding="utf-8"))
    (output / "index.html").write_text(page.substitute(words), encoding="utf-8")
    write_json(
        output / "settings.json",
        {
            "programs": {
                key: {
                    "url": f"vendor/{program.name}" if programs else program.address,
                    "integrity": program.integrity,
                    "size": program.size,
                }
                for key, program in PROGRAMS.items()
            },
            "weights": dict(sizes),
            "longest": longest,
        },
    )
    if programs:
        (output / "vendor").mkdir()
        for file in programs.values():
            shutil.copyfile(file, output / "vendor" / file.name)
        licence = programs["tokenizers"].parents[1] / "LICENSE"
        refuse_links_out(licence.parent, [licence])
        shutil.copyfile(licence, output / "vendor" / "LICENSE-tokenizers.js")
    readme = _README.format(
        title=json.dumps(name, ensure_ascii=False),
        name=name,
        programs=_VENDORED if programs else _LOADED,
        runtime=RUNTIME,
        tokenizers=TOKENIZERS_JS,
    )
    (output / "README.md").write_text(readme, encoding="utf-8")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object as readable JSON."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def checksum(path: Path) -> str:
    """Returns a file's checksum as browsers compare it (Subresource Integrity)."""
    with path.open("rb") as file:
        return f"sha384-{base64.b64encode(hashlib.file_digest(file, 'sha384').digest()).decode()}"


def check_programs(packages: Path | None) -> dict[str, Path]:
    """Finds the programs in a folder of npm packages, or in the folder in which `npm install` was run.

    Raises:
        ConversionError: A file is missing, or has another checksum.
    """
    if packages is None:
        return {}
    inside = packages / "node_modules"
    return {key: program.check(inside if inside.is_dir() else packages) for key, program in PROGRAMS.items()}
