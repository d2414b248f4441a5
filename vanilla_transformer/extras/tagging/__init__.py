"""A tag for each word of a sentence, such as its part of speech."""
