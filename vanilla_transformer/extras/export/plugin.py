"""Models for other runtimes, and conversion of other systems' models to ours."""

GROUP = "Share and export"
SEAMS = {
    "command": {"convert": "commands.convert:Convert", "export": "commands.export:Export"},
}
