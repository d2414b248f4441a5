"""The page on which anybody can try a model, here or as a Space."""

GROUP = "Use"
SEAMS = {"command": {"demo": "command:Demo"}, "push": {"space": "command:prepare_space"}}
