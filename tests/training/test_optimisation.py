import pytest
import torch

from vanilla_transformer.recipe.learning_rate import paper_learning_rate
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.optimisation import make_optimizer, make_schedule


def test_the_rate_rises_in_a_line_and_falls_with_the_root_of_the_step():
    peak = paper_learning_rate(4000, 512, 4000)
    assert peak == pytest.approx((512 * 4000) ** -0.5)
    assert paper_learning_rate(1000, 512, 4000) == pytest.approx(peak / 4)
    assert paper_learning_rate(16000, 512, 4000) == pytest.approx(peak / 2)
    assert max(paper_learning_rate(step, 512, 4000) for step in range(1, 9000)) == peak


def test_the_first_update_uses_step_one_of_the_formula_and_not_step_zero():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = make_optimizer([weight], Recipe(), torch.device("cpu"))
    schedule = make_schedule(optimizer, d_model=512, warmup_steps=4000, scale=2.0)
    for step in range(1, 6):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(2 * paper_learning_rate(step, 512, 4000))
        before = weight.item()
        weight.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        # Adam moves by the rate itself while all gradients are the same.
        assert before - weight.item() == pytest.approx(2 * paper_learning_rate(step, 512, 4000), rel=1e-4)


def test_adam_has_the_papers_settings():
    optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(1))], Recipe(), torch.device("cpu"))
    assert optimizer.defaults["betas"] == (0.9, 0.98)
    assert optimizer.defaults["eps"] == 1e-9
    assert optimizer.defaults["weight_decay"] == 0
