import gzip
import json
import math

import pytest
import torch

from scripts.experiments import gpt_loop

SIZES = ["--layers", "1", "--heads", "2", "--width", "16", "--block", "8", "--batch", "8", "--rate", "0.01"]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_text_that_repeats_itself_is_learned(norm, tmp_path, capsys):
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"abcd" * 200))
    words = ["--text", str(tmp_path / "text.gz"), "--norm", norm, "--steps", "60", "--warmup", "10"]
    gpt_loop.main([*words, *SIZES])
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 60 and 0 < result["dev_loss"] < 0.5 * math.log(4)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_no_character_sees_those_after_it(norm, tmp_path):
    model = gpt_loop.Gpt(gpt_loop.GptLoop(tmp_path, norm=norm, layers=2, width=16, block=8), 5)
    ids = torch.tensor([[0, 1, 2, 3, 4]])
    assert torch.allclose(model(ids)[:, :3], model(ids[:, :3]), atol=1e-6)


@torch.no_grad()
def test_the_loss_is_of_every_character_but_the_first(tmp_path):
    torch.manual_seed(0)
    model, ids = gpt_loop.Gpt(gpt_loop.GptLoop(tmp_path, layers=1, width=16, block=4), 5), torch.randint(5, (11,))
    blocks = [ids[0:5], ids[4:9], ids[8:11]]
    nats = sum(float(-model(block[None, :-1]).log_softmax(-1)[0].gather(1, block[1:, None]).sum()) for block in blocks)
    assert gpt_loop._loss(model, ids, 4) == pytest.approx(nats / 10, rel=1e-5)
