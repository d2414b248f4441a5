"""`vanilla-transformer tokenizer encode` and `tokenizer decode`: lines as sub-words or ids, and back."""

from dataclasses import dataclass

from vanilla_transformer.cli.arguments import Flag, Model
from vanilla_transformer.cli.streams import open_output, read_input, refuse_same_file


@dataclass(frozen=True)
class TokenizerEncode:
    """Encode lines of standard input as sub-words separated by spaces."""

    model: Model
    """Directory or Hub id of a model or a tokenizer."""
    ids: Flag = False
    """Write ids instead of sub-words."""

    def run(self) -> None:
        """Writes the sub-words of each line."""
        from vanilla_transformer.plain_text import plain_text
        from vanilla_transformer.translation import load_tokenizer

        refuse_same_file(None, None)
        tokenizer = plain_text(load_tokenizer(self.model))
        with open_output(None) as output:
            for line in read_input(None):
                ids = tokenizer(line, add_special_tokens=False)["input_ids"]
                print(*(ids if self.ids else tokenizer.convert_ids_to_tokens(ids)), file=output)


@dataclass(frozen=True)
class TokenizerDecode:
    """Decode lines of sub-words from standard input to text."""

    model: Model
    """Directory or Hub id of a model or a tokenizer."""
    ids: Flag = False
    """Read ids instead of sub-words."""

    def run(self) -> None:
        """Writes the text of each line of sub-words."""
        from vanilla_transformer.translation import load_tokenizer

        refuse_same_file(None, None)
        tokenizer = load_tokenizer(self.model)
        vocabulary = tokenizer.get_vocab()
        known = {str(index): index for index in vocabulary.values()} if self.ids else vocabulary
        with open_output(None) as output:
            for number, line in enumerate(read_input(None), start=1):
                tokens = line.split()
                for token in tokens:
                    if token not in known:
                        kind = "id" if self.ids else "sub-word"
                        raise ValueError(f"Line {number} of standard input: the tokenizer has no {kind} {token}.")
                print(tokenizer.decode([known[token] for token in tokens], skip_special_tokens=True), file=output)
