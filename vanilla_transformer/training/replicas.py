"""Batches of a step side by side on a processor, each on threads of its own."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from torch import nn

from vanilla_transformer.model.modeling_vanilla_transformer import Dropout
from vanilla_transformer.training.feed import Batch

LossFunction = Callable[[nn.Module, Batch], torch.Tensor]
# Each takes the memory of a batch and of all gradients, and while Python prepares an operation of one the other waits.
MOST_REPLICAS = 2
# The products of wide models keep all threads busy by themselves.
WIDEST_REPLICA = 256


class Replicas:
    """The model as often as batches are computed at once: all share its weights, each has gradients of its own.

    Threads that share a batch wait for each other after every operation, thousands of times a step, and one that has
    to share its core with another process holds up all others each time. These meet once a step.

    Dropout draws its numbers from one generator a batch, so that they depend on the batch's place in the run alone.
    """

    def __init__(self, model: nn.Module, batches: int) -> None:
        threads = torch.get_num_threads()
        count = max(1, min(threads, batches, MOST_REPLICAS))
        self.models = [model, *(_sharing_weights(model) for _ in range(count - 1))]
        self._generators = [torch.Generator() for _ in self.models]
        for replica, generator in zip(self.models, self._generators, strict=True):
            for module in replica.modules():
                if isinstance(module, Dropout):
                    module.generator = generator
        self._pool = ThreadPoolExecutor(count, "replica") if count > 1 else None
        if self._pool is not None:
            all_begun = Barrier(count)

            def begin(_: int) -> None:
                torch.set_num_threads(threads // count)
                all_begun.wait()

            list(self._pool.map(begin, range(count)))
            # Each thread has its own number, but those that begin later have the last one that was set anywhere.
            torch.set_num_threads(threads)

    def backward(self, loss: LossFunction, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Adds the gradients of all batches to those of the model, and returns the losses, in their order."""
        seeds = torch.randint(2**62, (len(batches),)).tolist()
        losses = [torch.empty(0)] * len(batches)

        def work(number: int) -> None:
            for index in range(number, len(batches), len(self.models)):
                self._generators[number].manual_seed(seeds[index])
                batch_loss = loss(self.models[number], batches[index])
                batch_loss.backward()
                losses[index] = batch_loss.detach()

        if self._pool is None:
            work(0)
        else:
            list(self._pool.map(work, range(len(self.models))))
            self._gather_gradients()
        return losses

    def _gather_gradients(self) -> None:
        for replica in self.models[1:]:
            for own, other in zip(self.models[0].parameters(), replica.parameters(), strict=True):
                if other.grad is not None:  # The last step of an epoch may have fewer batches.
                    assert own.grad is not None
                    own.grad += other.grad
                    other.grad = None

    def close(self) -> None:
        """Ends the threads, once they have nothing to do."""
        if self._pool is not None:
            self._pool.shutdown()


def _sharing_weights(model: nn.Module) -> nn.Module:
    weights = {id(weight): nn.Parameter(weight.detach()) for weight in model.parameters()}
    return copy.deepcopy(model, weights)
