"""Recurrent encoder-decoders of 2014 and 2015, which the paper replaced, trained and decoded like the Transformer."""

import transformers  # noqa: F401  Registers the models (see the package), which imports them in an order that works.
