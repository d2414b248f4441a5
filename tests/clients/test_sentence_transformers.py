"""sentence-transformers: an encoder of the package becomes one of sentences, is fitted, saved and loaded."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

import vanilla_transformer  # noqa: F401  registers the Auto classes

sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed.")


def test_an_encoder_of_sentences_is_fitted_saved_and_loaded(directories: dict[str, Path], tmp_path: Path):
    from sentence_transformers import losses, models

    torch.manual_seed(0)
    words = models.Transformer(str(directories["encoder"]), max_seq_length=16)
    pooling = models.Pooling(words.get_embedding_dimension())
    model = sentence_transformers.SentenceTransformer(modules=[words, pooling], device="cpu")
    close, far = ["the cat sat", "a cat sat"], ["Hello king", "a dog ran"]
    settings = sentence_transformers.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=20,
        learning_rate=1e-2,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    pairs = {"first": [close[0], far[0]], "second": [close[1], far[1]], "score": [1.0, 0.0]}
    sentence_transformers.SentenceTransformerTrainer(
        model, settings, Dataset.from_dict(pairs), loss=losses.CosineSimilarityLoss(model)
    ).train()
    same, other = (float(model.similarity(*model.encode(pair)[:, None])) for pair in (close, far))
    assert same > 0.9 and other < 0.3
    model.save(str(tmp_path / "saved"))
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(loaded.encode(close), model.encode(close), atol=1e-6)
