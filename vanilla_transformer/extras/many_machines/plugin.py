"""Numbered tasks, for work that takes one machine too long."""

GROUP = "Many machines"
SEAMS = {
    "command": {"prepare": "commands.prepare:Prepare", "join": "commands.join:Join"},
    "corpus": {"prepared": "prepared:PreparedText"},
    "options": {"tasks": "task_options:TaskOptions"},
}
