"""What is done to the package to see whether anything goes wrong in silence: `python -m scripts.stress.NAME`."""
