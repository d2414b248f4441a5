import dataclasses
import re

import pytest
import torch
from hypothesis import given, strategies as st
from refusals import refused

from vanilla_transformer import RecurrentEncoderDecoderConfig, VanillaTransformerConfig
from vanilla_transformer.errors import SettingError
from vanilla_transformer.machine import has_bfloat16_products
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.tasks.sizes import SIZES_FOR_PAIRS
from vanilla_transformer.training.choices import (
    CPU_HOURS,
    MIN_WARMUP,
    Choices,
    CorpusFacts,
    DeviceFacts,
    check_sizes,
    choose_vocab_size,
    device_facts,
    resolve,
    tokens_in_one_batch,
)
from vanilla_transformer.training.optimizer import paper_learning_rate

TASK = get_task("translation")

LAPTOP = DeviceFacts("cpu", cores=2, memory=16 * 10**9, bfloat16=True)
GPU = DeviceFacts("cuda", cores=8, memory=80 * 10**9, bfloat16=True)
MAY_STAY_OPEN = {
    "cell",
    "attention",
    "attention_window",
    "classifier_pooling",
    "from_model",
    "learning_rate",
    "tokenizer",
    "source_column",
    "target_column",
    "text_column",
    "text_pair_column",
    "label_column",
    "labels",
    "max_grad_norm",
    "max_minutes",
    "patience",
    # The starting model's, or else those of the paper.
    *("tokenizer_algorithm", "tokenizer_sides"),
    *("num_beams", "length_penalty", "length_penalty_type", "max_length_beyond_source"),
}


def chosen(pairs, device, **options):
    recipe = Recipe.of(**{"output": "model", **options})
    vocab_size, _ = choose_vocab_size(recipe, TASK, pairs)
    choices = resolve(recipe, TASK, CorpusFacts(pairs, (pairs * 14, pairs * 13), vocab_size), device)
    assert Choices.of(choices.recipe, choices.reasons) == choices
    return choices.recipe, choices.reasons


@pytest.mark.parametrize("device", [LAPTOP, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("pairs", [1, 100, 29_000, 164_000, 4_500_000, 40_000_000])
def test_a_completed_recipe_leaves_nothing_open(pairs, device):
    recipe, sentences = chosen(pairs, device)
    assert recipe.open_settings <= MAY_STAY_OPEN
    assert all(sentence.endswith(".") for sentence in sentences)
    assert not re.search(r"\de\+\d|loss on dev", " ".join(sentences))  # 1,200 epochs, and not 1.2e+03; no dev.
    TASK.config(recipe)


def test_a_resolved_recipe_is_not_changed_and_needs_no_words():
    recipe, _ = chosen(29_000, LAPTOP)
    facts = CorpusFacts(10**7, (10**8, 10**8), recipe.tokenizer.vocab_size)
    assert resolve(recipe, TASK, facts, GPU) == Choices.of(recipe)


def test_given_settings_are_kept_and_dropout_outside_the_paper_is_off_by_default():
    given = {"vocab_size": 500, "d_model": 64, "max_steps": 7, "dropout": 0.0, "precision": "float32", "save_steps": 3}
    given |= {"attention_dropout": 0.2, "activation_dropout": 0.3}
    recipe, _ = chosen(29_000, GPU, **given)
    assert {name: recipe[name] for name in given} == given
    config = TASK.config(recipe)
    assert (config.attention_dropout, config.activation_dropout) == (0.2, 0.3)
    model = chosen(29_000, GPU)[0].model
    assert (model.attention_dropout, model.activation_dropout) == (0, 0)


def test_millions_of_pairs_on_an_accelerator_get_the_papers_base_model():
    recipe, _ = chosen(4_500_000, GPU)
    paper = {"preset": "base", "vocab_size": 37_000, "d_model": 512, "encoder_layers": 6, "dropout": 0.1}
    paper |= {"batch_tokens": 25_000, "max_steps": 100_000, "warmup_steps": 4_000, "average_checkpoints": 5}
    assert {name: recipe[name] for name in paper} == paper


def test_more_pairs_never_get_a_smaller_model():
    sizes = [TASK.config(chosen(pairs, GPU)[0]).d_model for pairs in (10**5, 10**6, 10**7)]
    assert sizes == sorted(sizes) and sizes[-1] < 1024


def test_a_translator_that_reads_few_tokens_is_shallow_unless_sizes_are_given():
    def layers(pairs, device=LAPTOP, **given):
        model = chosen(pairs, device, **given)[0].model
        return model.encoder_layers, model.decoder_layers, model.dropout

    assert layers(50_000, max_minutes=10) == layers(50_000, GPU, max_steps=300) == (2, 2, 0.1)
    one_core = dataclasses.replace(LAPTOP, cores=1)
    assert layers(20_000, one_core, max_minutes=10) == layers(100_000, one_core, max_minutes=90) == (2, 2, 0.1)
    assert layers(20_000, one_core, max_minutes=30) == layers(5_000, one_core, max_minutes=10) == (2, 2, 0.2)
    assert layers(50_000) == layers(50_000, max_minutes=300) == layers(50_000, GPU) == (4, 4, 0.3)
    assert layers(3_000, GPU) == (2, 2, 0.3)  # A hundred epochs of little text: few tokens, many times.
    assert layers(50_000, max_minutes=10, dropout=0.2) == (2, 2, 0.2)
    assert layers(50_000, max_minutes=10, preset="tiny") == layers(50_000, max_minutes=10, d_model=64) == (4, 4, 0.3)
    assert layers(50_000, max_minutes=10, decoder_layers=1) == (4, 1, 0.3)
    assert "2+2 layers" in chosen(50_000, LAPTOP, max_minutes=10)[1][0]
    assert any("about 1 epoch (" in one for one in chosen(2_000, GPU, batch_tokens=35_000, max_steps=1)[1])


def test_few_minutes_of_a_core_have_small_steps_unless_their_size_is_given():
    one_core = dataclasses.replace(LAPTOP, cores=1)

    def step(pairs, minutes, device=one_core, **given):
        found = chosen(pairs, device, max_minutes=minutes, **given)[0].optimization
        return found.batch_tokens, found.batches_per_step

    assert step(20_000, 5) == step(20_000, 30) == step(100_000, 30) == (1_024, 1)
    assert chosen(20_000, one_core, max_minutes=30, max_steps=5_000)[0].optimization.warmup_steps == 600
    several = dataclasses.replace(one_core, processes=2)
    assert (
        step(20_000, 60)
        == step(5_000, 30)
        == step(20_000, 5, several)
        == step(20_000, None, max_steps=300)
        == step(20_000, 5, GPU)
        == (2_048, 4)
    )
    assert step(20_000, 5, batch_tokens=4_096) == (4_096, 4) and step(20_000, 5, preset="tiny") == (2_048, 4)


def test_paper_presets_fix_dropout_and_ours_follow_the_data():
    assert chosen(29_000, GPU, preset="big")[0].model.dropout == 0.3
    assert chosen(29_000, GPU, preset="table3-D-dropout0.2")[0].model.dropout == 0.2
    assert chosen(29_000, GPU, preset="tiny")[0].model.dropout == SIZES_FOR_PAIRS[1].dropout


def test_a_run_on_a_cpu_is_not_expected_to_take_longer_than_the_limit():
    short, sentences = chosen(164_000, LAPTOP)
    longer, _ = chosen(164_000, dataclasses.replace(LAPTOP, cores=64))
    assert short.optimization.max_steps < longer.optimization.max_steps
    stated = re.search(r"roughly (\d+) min on 2 CPU cores", " ".join(sentences))
    assert int(stated[1]) <= 60 * CPU_HOURS


def test_every_process_has_a_batch_and_a_batch_fits_into_memory():
    def batches(pairs, **device):
        return chosen(pairs, dataclasses.replace(GPU, **device))[0].optimization.batches_per_step

    assert batches(29_000, processes=8) >= 8
    assert batches(4_500_000, memory=2 * 10**9) > batches(4_500_000)


@pytest.mark.processor
def test_precision_is_what_the_device_multiplies_fast():
    facts = device_facts(torch.device("cpu"), 1)
    assert facts.bfloat16 == has_bfloat16_products()
    for device, precision in ((GPU, "float16"), (LAPTOP, "float32")):
        assert chosen(4_500_000, device)[0].optimization.precision == "bfloat16"
        assert chosen(4_500_000, dataclasses.replace(device, bfloat16=False))[0].optimization.precision == precision


def test_a_run_on_a_cpu_may_be_asked_for_float16():
    recipe, _ = chosen(29_000, LAPTOP, precision="float16")
    assert recipe.optimization.precision == "float16" and recipe.optimization.max_steps > 0


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"preset": "base", "num_heads": 5}, "d_model 512 num_heads 5"),
        ({"d_model": 7, "d_k": 2, "d_v": 2}, "d_model 7"),
        ({"preset": "bsae"}, "'bsae'"),
    ],
)
def test_sizes_that_make_no_model_are_refused(given, named):
    with refused(ValueError, *named.split()):
        check_sizes(Recipe.of(**given), TASK)
    check_sizes(Recipe.of(d_model=12), TASK)  # Which suits one preset of those that may be chosen.


@given(steps=st.integers(1, 100_000))
def test_short_runs_warm_up_for_a_part_without_a_higher_peak(steps):
    found = chosen(3_000, LAPTOP, max_steps=steps)[0].optimization
    assert found.warmup_steps <= max(1, steps * (2 / 3 if steps <= 600 else 1 / 3))
    peak = found.learning_rate_scale * paper_learning_rate(found.warmup_steps, 128, found.warmup_steps)
    assert peak <= 1.03 * paper_learning_rate(MIN_WARMUP, 128, MIN_WARMUP)
    assert found.learning_rate_scale == 1 or found.warmup_steps < MIN_WARMUP


@pytest.mark.parametrize(("warmup", "warned"), [(100, False), (299, False), (300, True), (2_000, True)])
def test_a_warm_up_that_is_given_has_the_papers_rate_and_is_warned_of_if_the_run_is_no_longer(warmup, warned):
    recipe, sentences = chosen(3_000, LAPTOP, max_steps=300, warmup_steps=warmup)
    assert (recipe.optimization.warmup_steps, recipe.optimization.learning_rate_scale) == (warmup, 1.0)
    assert any("Warning" in one and "--warmup-steps" in one for one in sentences) == warned
    assert chosen(3_000, LAPTOP, max_steps=300, learning_rate_scale=2.0)[0].optimization.learning_rate_scale == 2.0
    with refused(SettingError, "learning_rate", "must be 0<"):  # Nor is a factor of 0 taken for one not given.
        chosen(3_000, LAPTOP, from_model="model", learning_rate_scale=0.0)


@pytest.mark.parametrize(
    ("steps", "dev_pairs"), [(10, 10**6), (60, 1_014), (300, 1_014), (10_000, 100), (10_000, 10**5)]
)
def test_the_loss_on_dev_takes_a_small_share_of_the_time(steps, dev_pairs):
    corpus = CorpusFacts(3_000, (42_000, 39_000), 4_000, (dev_pairs * 14, dev_pairs * 13))
    recipe = resolve(Recipe.of(output="model", max_steps=steps), TASK, corpus, LAPTOP).recipe
    evaluations = steps // recipe.evaluation.eval_steps
    assert 1 <= evaluations <= 50
    forward = evaluations * dev_pairs * 14 / 3
    assert evaluations == 1 or forward <= 0.11 * steps * recipe.optimization.batch_tokens


def test_the_length_of_a_mixture_counts_passes_by_shares():
    def steps_of(*parts):
        rows = sum(repeated for _, repeated in parts)
        facts = CorpusFacts(rows, (rows * 14, rows * 13), 4_000, parts=parts)
        return resolve(Recipe.of(output="model", batch_tokens=500), TASK, facts, GPU).recipe.optimization.max_steps

    alone = steps_of((7_000, 7_000))
    assert steps_of((1_000, 1_000), (6_000, 6_000)) == alone
    # 70% of the first: an epoch repeats it 14 times, but the run does not pass it 1,400 times.
    epochs = steps_of((1_000, 14_000), (6_000, 6_000)) / (alone * 20 / 7)
    assert epochs * (14 * 0.7 + 1 * 0.3) == pytest.approx(1, rel=0.1)


def test_a_step_is_one_batch_on_an_accelerator_that_has_the_memory():
    base = VanillaTransformerConfig.from_preset("base", vocab_size=37_000)
    lstm = RecurrentEncoderDecoderConfig(vocab_size=37_000, num_layers=2)
    a_step = 2 * 25_000 * 1.3  # Both sides, with padding.
    small = dataclasses.replace(GPU, memory=16 * 10**9)
    assert tokens_in_one_batch(base, small) < a_step < tokens_in_one_batch(base, GPU)
    # What attention over a long source keeps is not in the estimate, so more memory changes nothing.
    assert tokens_in_one_batch(lstm, small) == tokens_in_one_batch(lstm, GPU) < a_step
    assert tokens_in_one_batch(base, LAPTOP) == 0
    recipe, sentences = chosen(29_000, GPU)
    most = tokens_in_one_batch(TASK.config(recipe), GPU)
    assert any(sentence.endswith(f", or one of up to {most:,} tokens with padding.") for sentence in sentences)
    assert not any("or one of" in sentence for sentence in chosen(29_000, LAPTOP)[1])
