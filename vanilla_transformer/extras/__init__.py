"""What stands beside the core: a folder each, with its own command, page of the documentation and tests."""
