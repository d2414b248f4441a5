"""Labels of texts and of their words, by encoder-only models."""
