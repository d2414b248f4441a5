"""LoRA: fine-tuning that trains few parameters."""

SEAMS = {"recipe": {"lora": "block:Lora"}}
