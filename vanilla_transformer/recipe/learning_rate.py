"""Section 5.3, Eq. 3: the learning rate by step."""


def paper_learning_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """Section 5.3, Eq. 3: d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5); the first step is step 1."""
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
