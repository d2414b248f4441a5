"""The programs of the guide, or of an export's README, that translate by the runtime's own client."""

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "deploy.md"


def guide_client(package: str, page: Path = GUIDE) -> str:
    """Returns a page's Python program for a runtime, of at most ten lines."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    (client,) = [block for block in blocks if f"import {package}\n" in block]
    assert len([line for line in client.splitlines() if line.strip()]) <= 10
    return client


def run_client(client: str, folder: Path) -> str:
    """Returns what a program prints in the folder of an export, without torch, transformers and this package."""
    without = "import sys\nsys.modules |= dict.fromkeys(['torch', 'transformers', 'vanilla_transformer'])\n"
    command = [sys.executable, "-c", without + client]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
