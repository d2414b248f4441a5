"""Batches side by side: the same gradients as one after another, the same again each time, and no matter the order."""

import copy
import time

import pytest
import torch

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.replicas import Replicas

CONFIG = VanillaTransformerConfig(
    vocab_size=48, d_model=32, d_ff=64, num_heads=4, encoder_layers=1, decoder_layers=1, dropout=0.3
)


@pytest.fixture
def batches():
    torch.manual_seed(1)
    return [
        {"input_ids": torch.randint(4, 48, (rows, 5)), "labels": torch.randint(4, 48, (rows, 6))}
        for rows in (3, 1, 4, 2, 5)
    ]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return VanillaTransformerForConditionalGeneration(CONFIG).train()


def loss_of(model, batch):
    return model(**batch, num_items_in_batch=10, skip_logits=True).loss


def gradients(model, batches, replicas, loss=loss_of):
    """The losses and gradients of a copy of the model, of which there are so many replicas."""
    torch.set_num_threads(replicas)
    side_by_side = Replicas(copy.deepcopy(model), len(batches))
    torch.manual_seed(7)
    losses = side_by_side.backward(loss, batches)
    side_by_side.close()
    return losses, [parameter.grad for parameter in side_by_side.models[0].parameters()]


def test_losses_gradients_and_dropout_are_those_of_one_after_another(model, batches):
    losses, alone = gradients(model, batches, 1)
    theirs, together = gradients(model, batches, 2)
    torch.testing.assert_close(theirs, losses)
    torch.testing.assert_close(together, alone)


def test_whichever_batch_is_done_first_gradients_are_the_same_bit_for_bit(model, batches):
    def late(first):
        def loss(model, batch):
            if (len(batch["labels"]) == 3) == first:
                time.sleep(0.05)
            return loss_of(model, batch)

        return loss

    one, other = (gradients(model, batches, 2, late(first)) for first in (True, False))
    assert all(map(torch.equal, one[1], other[1]))


def test_an_update_of_the_weights_reaches_all(model, batches):
    torch.set_num_threads(2)
    replicas = Replicas(model, 2)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    replicas.backward(loss_of, batches)
    optimizer.step()
    replicas.close()
    of_model, of_replica = (loss_of(each.eval(), batches[0]) for each in replicas.models)
    assert torch.equal(of_model, of_replica)


def test_a_step_of_fewer_batches_than_replicas_is_whole(model, batches):
    torch.set_num_threads(2)
    replicas = Replicas(model, 2)
    replicas.backward(loss_of, batches[:1])
    replicas.close()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_an_error_in_a_thread_is_raised(model, batches):
    def failing(model, batch):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        gradients(model, batches, 2, failing)


def test_there_are_as_many_as_threads_and_batches_allow_and_threads_stay_as_they_were(model):
    torch.set_num_threads(2)
    for batches, expected in ((1, 1), (2, 2), (5, 2)):
        replicas = Replicas(model, batches)
        assert len(replicas.models) == expected
        assert torch.get_num_threads() == 2
        replicas.close()
