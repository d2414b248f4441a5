"""Recurrent encoder-decoders of 2014 and 2015, which the paper replaced, trained and decoded like the Transformer."""
