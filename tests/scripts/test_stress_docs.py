"""`python -m scripts.stress.docs`: blocks of a page, made small, run and compared."""

import pytest

from scripts.stress.docs import LEARNING, Block, blocks, made_small, run, teachers_of, trained_by

PAGE = """
```bash
echo 3 pairs
```

prints

    12 pairs

or

```text
7 pairs
```

```{code-cell}
:tags: [remove-cell]
hidden
```

```{code-cell}
print(1)
```
"""


def test_output_on_a_page_belongs_to_the_block_before_it():
    first, second = blocks("page", PAGE)
    assert (first.language, first.code, first.shown) == ("bash", "echo 3 pairs\n", ["    12 pairs", "7 pairs"])
    assert (second.language, second.code, second.shown) == ("python", "print(1)\n", [])


@pytest.mark.parametrize(
    ("line", "small"),
    [
        ("vanilla-transformer train a --max-steps 3000", "vanilla-transformer train a --max-steps 4"),
        ("vanilla-transformer train a  # why", "vanilla-transformer train a --max-steps 4"),
        ("vanilla-transformer translate m --num-beams 1", "vanilla-transformer translate m --num-beams 1"),
        ("PROCESSES=2 one_machine.sh r", "PROCESSES=2 one_machine.sh r --max-steps 4"),
    ],
)
def test_trainings_are_short(line, small):
    assert made_small(line) == small


def test_a_model_whose_translations_are_learned_from_learns_the_text():
    page = "python examples/back_translation.py de-en mono.de en de\npython examples/distillation.py two text.en en de"
    assert teachers_of(page) == ["de-en", "two"]
    assert made_small("vanilla-transformer train a --output two", teachers_of(page)).endswith(f"two {LEARNING}")


@pytest.mark.parametrize(
    ("line", "trained"),
    [
        ("vanilla-transformer train a.en a.de --output one", "one"),
        ("PROCESSES=2 one_machine.sh my-recipe.yaml", "my-model"),
        ("vanilla-transformer tokenizer train a --output pieces", None),
    ],
)
def test_a_command_says_which_model_it_trains(line, trained):
    assert trained_by(line) == trained


def test_a_program_that_reads_the_files_of_a_folder_runs_inside_it(tmp_path):
    (tmp_path / "my-model-onnx").mkdir()
    (tmp_path / "my-model-onnx" / "translate.onnx").touch()
    code = 'assert Path("translate.onnx").exists()  # onnxruntime.InferenceSession("translate.onnx")'
    assert run(Block("page", "python", code), tmp_path, ["1 / 0  # of the folder above"], 100)[0] == "ran"


@pytest.mark.parametrize(
    ("code", "shown", "verdict"),
    [
        ("echo 12 pairs", ["3 pairs"], "ran, printed the 1 lines"),
        ("echo 12 pairs", ["3 rows"], "FAILED: did not print 3 rows"),
        ("echo gone\nfalse", [], "FAILED: false"),
        ("sleep 9", [], "FAILED: more than 1 s"),
        ("sbatch a\necho 1", ["2 lost"], "ran; not run: needs Slurm"),
    ],
)
def test_a_block_fails_by_its_exit_code_its_output_or_its_time(code, shown, verdict, tmp_path):
    assert run(Block("page", "bash", code, shown), tmp_path, [], 1)[0].startswith(verdict)
