import numpy as np
import torch
from datasets import Dataset
from refusals import refused

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.tasks import RowRandom, get_task

TASK = get_task("translation")
CONFIG = VanillaTransformerConfig()


def test_a_batch_is_padded_on_the_right():
    uint16 = np.uint16
    rows = {
        "source": [[5, 6, 2], np.array([9, 2], dtype=uint16)],
        "target": [[7, 2], np.array([8, 4, 2], dtype=uint16)],
    }
    batch = TASK.collate(rows, None, CONFIG)
    assert batch["input_ids"].tolist() == [[5, 6, 2], [9, 2, CONFIG.pad_token_id]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 2, -100], [8, 4, 2]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_a_batch_without_rows_has_nothing_to_learn():
    batch = TASK.collate({"source": [], "target": []}, None, CONFIG)
    assert batch["input_ids"].tolist() == [[CONFIG.pad_token_id]]
    assert batch["labels"].tolist() == [[-100]]


def test_each_token_of_the_target_is_an_item_of_the_loss():
    assert TASK.items(np.array([5, 1]), np.array([2, 7])).tolist() == [2, 7]


def test_a_row_draws_the_same_numbers_in_whatever_batch_it_is():
    def drawn(seed, epoch, rows, place):
        return RowRandom(seed, epoch, np.array(rows))[place].integers(1 << 30, size=4).tolist()

    assert drawn(1, 2, [7, 5, 9], 1) == drawn(1, 2, [5], 0)
    others = [drawn(1, 2, [7], 0), drawn(2, 2, [5], 0), drawn(1, 3, [5], 0), drawn(2, 1, [5], 0)]
    assert drawn(1, 2, [5], 0) not in others and len(set(map(tuple, others))) == 4


def test_a_task_that_there_is_not_is_refused_with_those_that_there_are():
    with refused(RecipeError, "'translating'", "'translation'"):
        get_task("translating")


def test_corpus_sample_is_evenly_spaced_with_all_targets_of_a_source():
    sources = [f"{number}" for number in range(10) for _ in range(2)]
    corpus = Dataset.from_dict({"source": sources, "target": [f"{row}" for row in range(20)]})
    sample = TASK.sample(corpus, 4)
    assert sample["source"] == ["0", "0", "2", "2", "5", "5", "7", "7"]
    assert sample["target"] == ["0", "1", "4", "5", "10", "11", "14", "15"]
