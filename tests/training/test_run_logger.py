"""Reading a run's log again, and reporting lost lines."""

import json

import pytest

from vanilla_transformer.training.run_logger import RunLogger

RECORDS = [{"step": step, "loss": 1.0 / step} for step in (1, 2, 3)]


@pytest.fixture
def logger(tmp_path):
    logger = RunLogger(tmp_path / "metrics.jsonl", tmp_path / "train.log", enabled=True)
    logger.metrics.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return logger


def test_records_of_steps_that_are_made_again_are_forgotten(logger):
    logger.truncate_after(2)
    assert logger.read_metrics() == RECORDS[:2]
    assert not logger.log.exists()


@pytest.mark.parametrize("line", [b'{"step": 4, "lo', b'{"step": 4, "loss": "\xff"}'])
def test_a_line_that_is_no_record_is_dropped_and_counted(logger, line):
    whole = logger.metrics.read_bytes()
    logger.metrics.write_bytes(whole[:-1] + b"\n" + line + b"\n" + whole)
    assert logger.read_metrics() == RECORDS * 2
    logger.truncate_after(3)
    assert logger.metrics.read_bytes() == whole * 2
    assert logger.log.read_text().endswith(" 1 damaged line was dropped from metrics.jsonl.\n")


def test_a_figure_that_is_no_number_is_left_out(logger):
    logger.log_metrics({"step": 4, "loss": float("nan"), "dev_loss": float("inf"), "seconds": 1.0}, "step 4")
    assert logger.read_metrics()[-1] == {"step": 4, "seconds": 1.0}
