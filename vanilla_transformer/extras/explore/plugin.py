"""The page on which a model computes before the reader's eyes."""

GROUP = "Look inside"
SEAMS = {"command": {"explore": "command:Explore"}, "push": {"explore": "command:prepare_space"}}
