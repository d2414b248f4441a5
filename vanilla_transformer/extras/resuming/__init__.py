"""Outputs of commands that go on after any end where they stopped."""
