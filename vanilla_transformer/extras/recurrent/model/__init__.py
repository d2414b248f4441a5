"""The recurrent models; each file is copied to the Hub beside the weights, and runs there without the package."""

import transformers  # noqa: F401  Registers the models (see the package), which imports them in an order that works.
