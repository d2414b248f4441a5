"""Numbered tasks for what one machine does not do in time."""

GROUP = "Many machines"
SEAMS = {
    "command": {"prepare": "commands.prepare:Prepare", "join": "commands.join:Join"},
    "corpus": {"prepared": "prepared:PreparedText"},
    "options": {"tasks": "task_options:TaskOptions"},
}
