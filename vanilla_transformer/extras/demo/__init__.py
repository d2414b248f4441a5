"""A page to try models in a browser: `vanilla-transformer demo`, and the Space that `push --space` makes."""
