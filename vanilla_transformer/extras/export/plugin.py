"""Models for other runtimes, and those of other systems as ours."""

GROUP = "Share and export"
SEAMS = {
    "command": {"convert": "commands.convert:Convert", "export": "commands.export:Export"},
    "push": {"web": "commands.export:prepare_space"},
}
