"""A page on which a model computes live."""

GROUP = "Look inside"
SEAMS = {"command": {"explore": "command:Explore"}, "push": {"explore": "command:prepare_space"}}
