"""`python -m vanilla_transformer` runs the command `vanilla-transformer`."""

import sys

from vanilla_transformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
