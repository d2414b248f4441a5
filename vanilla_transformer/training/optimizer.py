"""Section 5.3: Adam, its learning rate, and the kernels that compute a step."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.optim.lr_scheduler import LambdaLR

from vanilla_transformer.recipe.schema import Recipe


def paper_learning_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """Section 5.3, Eq. 3: d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5); the first step is step 1."""
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def make_optimizer(parameters: Iterable[torch.nn.Parameter], recipe: Recipe, device: torch.device) -> torch.optim.Adam:
    """Section 5.3: Adam with the recipe's β1, β2 and ε, as one kernel where torch has it for the device."""
    return torch.optim.Adam(
        parameters,
        lr=1.0,  # The schedule gives the learning rate itself.
        betas=(recipe.optimization.adam_beta1, recipe.optimization.adam_beta2),
        eps=recipe.optimization.adam_epsilon,
        fused=device.type in ("cpu", "cuda"),
    )


def make_schedule(
    optimizer: torch.optim.Optimizer, d_model: int, warmup_steps: int, scale: float, constant: float | None = None
) -> LambdaLR:
    """Returns Eq. 3, or a constant rate after the warm-up, as a schedule of torch, which counts finished steps."""
    if constant is not None:
        return LambdaLR(optimizer, lambda steps_done: constant * min(1.0, (steps_done + 1) / warmup_steps))
    return LambdaLR(optimizer, lambda steps_done: paper_learning_rate(steps_done + 1, d_model, warmup_steps, scale))


def has_tf32(device: torch.device) -> bool:
    """Returns True if the device can compute float32 matrix multiplications in TF32."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def training_kernels(tf32: bool) -> Iterator[None]:
    """Allows or forbids TF32 for float32 matrix multiplications in the body, whatever the program has set.

    The attention of cuDNN is turned off, because it makes a new plan for each shape.
    """
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    precisions, cudnn = [backend.fp32_precision for backend in backends], torch.backends.cuda.cudnn_sdp_enabled()
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # The program uses the newer settings, from which this older one differs.
        older = "highest"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")  # It sets both.
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(older)
        for backend, precision in zip(backends, precisions, strict=True):
            backend.fp32_precision = "none"  # The general setting applies again.
            if backend.fp32_precision != precision:
                backend.fp32_precision = precision
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
