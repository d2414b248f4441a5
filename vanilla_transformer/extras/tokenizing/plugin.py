"""Commands that apply a tokenizer to lines of text."""

GROUP = "Data"
SEAMS = {"command": {"tokenizer encode": "commands:TokenizerEncode", "tokenizer decode": "commands:TokenizerDecode"}}
