"""Small seeded models."""

import os
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Of the processes that tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest
import torch
from transformers import GenerationMixin

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, engine

torch.set_num_threads(1)
# The same examples in every run, however busy the machine is.
hypothesis.settings.register_profile(
    "seeded", derandomize=True, deadline=None, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)
hypothesis.settings.load_profile("seeded")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Restores one thread after each test, because other numbers of threads round sums differently."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def tiny_config() -> VanillaTransformerConfig:
    """Two layers a side, with nothing random in training mode."""
    return VanillaTransformerConfig(
        vocab_size=48,
        d_model=32,
        d_ff=64,
        num_heads=4,
        encoder_layers=2,
        decoder_layers=2,
        dropout=0.0,
        label_smoothing=0.0,
    )


@pytest.fixture
def tiny_model(tiny_config: VanillaTransformerConfig) -> VanillaTransformerForConditionalGeneration:
    """A random model of `tiny_config`, in evaluation mode."""
    torch.manual_seed(0)
    return VanillaTransformerForConditionalGeneration(tiny_config).eval()


@pytest.fixture
def ways_taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes whose search each call of `generate` was given to: the engine's, or the library's."""
    taken: list[str] = []

    def noted(name: str, search):
        def noting(*args, **kwargs):
            found = search(*args, **kwargs)
            if found is not None:
                taken.append(name)
            return found

        return noting

    for name in ("decode", "answer"):
        monkeypatch.setattr(engine, name, noted("engine", getattr(engine, name)))
    for name in ("_beam_search", "_sample"):
        monkeypatch.setattr(GenerationMixin, name, noted("library", getattr(GenerationMixin, name)))
    return taken
