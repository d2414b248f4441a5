"""Measures the cost of sub-word sampling in seconds of one core: preparing the words, and sampling each epoch.

python -m scripts.benchmarks.subword_sampling train.en train.de --vocab-size 8000
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from vanilla_transformer.data.corpus import open_corpus
from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.extras.subword_sampling.sampled_corpus import SampledCorpus
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task

SAMPLINGS: dict[str, list[dict[str, Any]]] = {
    "bpe": [{"bpe_dropout": dropout} for dropout in (0.05, 0.1, 0.2)],
    "unigram": [{"unigram_alpha": alpha} for alpha in (0.5, 0.2)],
}
HEAD = (
    "| sampling | pairs | tokens, usual | tokens, drawn | found words in, s | drew an epoch in, s |\n"
    "|---|---|---|---|---|---|"
)
ROW = "| {name} | {pairs:,} | {usual:,} | {drawn:,} | {start:.1f} | {epoch:.2f} |"


def main(words: list[str] | None = None) -> None:
    """Prints a row for each algorithm and strength; seconds are processor time, of the fastest epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", nargs=2, help="two line-aligned files")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--algorithms", nargs="+", choices=SAMPLINGS, default=list(SAMPLINGS))
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args(words)
    stream = open_corpus(CorpusSpec(tuple(options.corpus)))
    print(HEAD)
    for algorithm in options.algorithms:
        texts = (text for table in stream.tables() for column in table.columns for text in column.to_pylist())
        tokenizer = VanillaTransformerTokenizer.train(texts, options.vocab_size, algorithm)
        with tempfile.TemporaryDirectory() as directory:
            task = get_task("translation").encoder(Recipe())
            corpus = prepare_corpus(stream, tokenizer, task, max_length=256, directory=Path(directory), progress=False)
            for sampling in SAMPLINGS[algorithm]:
                began = time.process_time()
                columns = tuple(corpus.lengths)
                sampled = SampledCorpus(corpus, tokenizer, **sampling, columns=columns, max_length=256, seed=1)
                start, seconds = time.process_time() - began, []
                for epoch in range(1, options.epochs + 1):
                    began = time.process_time()
                    sampled.draw(epoch)
                    seconds.append(time.process_time() - began)
                row = {"pairs": len(corpus), "usual": sum(corpus.token_counts), "drawn": sum(sampled.token_counts)}
                name = f"{algorithm} {next(iter(sampling.values()))}"
                print(ROW.format(name=name, **row, start=start - min(seconds), epoch=min(seconds)), flush=True)


if __name__ == "__main__":
    main()
