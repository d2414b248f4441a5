"""The programs over the Python API do what the functions do."""

import subprocess
import sys
from pathlib import Path

from vanilla_transformer import evaluate

SCRIPTS = Path(__file__).parents[2] / "scripts"
RECIPE = """
model: {preset: tiny, d_model: 16, d_ff: 32, num_heads: 2, encoder_layers: 1, decoder_layers: 1}
optimization: {max_steps: 50, batch_tokens: 300}
"""


def run(program, *words):
    done = subprocess.run([sys.executable, SCRIPTS / program, *words], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_model_is_trained_and_scored(tmp_path, pairs):
    recipe, model, predictions = tmp_path / "small.yaml", tmp_path / "model", tmp_path / "predictions"
    recipe.write_text(RECIPE)
    _, source, target = pairs[0]
    data = f"train=[{source}, {target}]", f"dev=[{source}, {target}]"
    (line,) = run("train.py", recipe, f"output={model}", "max_steps=2", "vocab_size=270", *data)
    assert line.startswith(str(model))
    scores = run("score.py", model, source, target, "--predictions", predictions, "--num-beams", "1")
    expected = evaluate(model, (source, target), num_beams=1)
    assert scores == [str(score) for score in expected.scores.values()]
    assert predictions.read_text().split("\n")[:-1] == list(expected.predictions)
