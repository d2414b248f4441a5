"""The measurement of single calls from several threads, on a small model."""

from small_models import save_translator

from scripts.benchmarks import service


def test_three_ways_to_call_are_listed_with_equal_answers(tmp_path, argv, capsys):
    save_translator(tmp_path / "model")
    (tmp_path / "words").write_text("a b\nb\na\nb a\n")
    argv(tmp_path / "model", tmp_path / "words", "--calls", 4, "--turns", 1, "--num-beams", 1)
    service.main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [row[1].strip() for row in rows] == ["one thread", "4 threads", "4 threads, Batcher"]
    assert all(float(row[3]) > 0 for row in rows)


def test_answers_that_differ_are_counted(tmp_path, argv, monkeypatch, capsys):
    monkeypatch.setattr(service, "load_model", lambda *args, **kwargs: (None, None))
    monkeypatch.setattr(service, "translate_lines", lambda model, tokenizer, lines: iter([Answer("one")]))
    monkeypatch.setattr(service, "Batcher", Other)
    (tmp_path / "words").write_text("a\nb\n")
    argv("model", tmp_path / "words", "--calls", 2, "--turns", 1)
    service.main()
    assert "Answers that differ: 2" in capsys.readouterr().out


class Answer:
    def __init__(self, text: str) -> None:
        self.text = text


class Other:
    def __init__(self, model: None, tokenizer: None) -> None: ...

    def __enter__(self):
        return lambda line: Answer("another")

    def __exit__(self, *error) -> None: ...
