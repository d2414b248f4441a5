"""What this package raises of its own: the message is one sentence that says what failed, where, and what to do."""


class CorpusError(ValueError):
    """Text that cannot be used as it is: names the file and the line, or the row."""


class VocabularyError(ValueError):
    """The texts cannot give a vocabulary of the size asked for.

    Attributes:
        available: The size that they can give.
    """

    def __init__(self, vocab_size: int, available: int) -> None:
        super().__init__(vocab_size, available)
        self.vocab_size = vocab_size
        self.available = available

    def __str__(self) -> str:
        return (
            f"The texts yield a vocabulary of at most {self.available} entries, not {self.vocab_size}: ask "
            f"for {self.available} or fewer, or give more text."
        )


class RecipeError(ValueError):
    """A setting that is unknown, has a wrong value, or does not go with another: a field of a recipe, or an option."""


class ModelError(ValueError):
    """A model that cannot be found, read, or used for what was asked."""


class RunError(OSError):
    """An output directory, checkpoint or process of a run that is damaged, in use or lost."""


class DivergenceError(ValueError):
    """Training whose loss is no longer a number."""


class MetricError(ValueError):
    """A score that cannot be computed from these texts."""


class PushError(OSError):
    """A model that cannot be pushed to the Hub."""
