"""A page on which anyone can try a model, on this machine or as a Space."""

GROUP = "Use"
SEAMS = {"command": {"demo": "command:Demo"}, "push": {"space": "command:prepare_space"}}
