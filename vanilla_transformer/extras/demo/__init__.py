"""A web page to try models: `vanilla-transformer demo`, and the Space that `push --space` makes."""
