"""LoRA: a saved model is fine-tuned through small matrices beside its weights."""
