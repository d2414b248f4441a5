"""The command `vanilla-transformer`."""

from vanilla_transformer.cli.program import main

__all__ = ["main"]
