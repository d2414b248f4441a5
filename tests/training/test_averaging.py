import torch
from refusals import refused
from safetensors.torch import save_file

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.errors import RunError
from vanilla_transformer.training.averaging import average_checkpoints, load_average


def random_models(config, number):
    models = []
    for seed in range(number):
        torch.manual_seed(seed)
        models.append(VanillaTransformerForConditionalGeneration(config))
    return models


def test_the_average_is_the_mean_of_every_weight(tmp_path, tiny_config):
    models = random_models(tiny_config, 3)
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    target = VanillaTransformerForConditionalGeneration(tiny_config)
    load_average(target, [tmp_path / str(number) for number in range(3)])
    for name, weight in target.state_dict().items():
        mean = torch.stack([model.state_dict()[name].double() for model in models]).mean(0).float()
        torch.testing.assert_close(weight, mean, rtol=1e-7, atol=0, msg=name)
    assert target.get_output_embeddings().weight is target.get_input_embeddings().weight


def test_small_differences_of_large_numbers_are_not_lost(tmp_path):
    for number in range(20):
        save_file({"w": torch.tensor([1e8 + 8 * (number % 2)])}, tmp_path / f"{number}.safetensors")
    mean = average_checkpoints([tmp_path / f"{number}.safetensors" for number in range(20)])
    assert mean["w"].dtype == torch.float32
    assert mean["w"].double().item() == torch.tensor(1e8 + 4.0).double().item()


def test_checkpoints_of_different_models_are_refused(tmp_path, tiny_config):
    save_file({"w": torch.zeros(2)}, tmp_path / "a.safetensors")
    save_file({"w": torch.zeros(3)}, tmp_path / "b.safetensors")
    save_file({"v": torch.zeros(2)}, tmp_path / "c.safetensors")
    (tmp_path / "d.safetensors").write_bytes(b"no weights")
    with refused(RunError, "w", "(3,)"):
        average_checkpoints([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    with refused(RunError, "v"):
        average_checkpoints([tmp_path / "a.safetensors", tmp_path / "c.safetensors"])
    with refused(RunError, "d.safetensors"):
        average_checkpoints([tmp_path / "d.safetensors"])
    with refused(RunError, "checkpoints"):
        average_checkpoints([])
    model = VanillaTransformerForConditionalGeneration(tiny_config)
    with refused(RunError, "a.safetensors", "missing", "w"):
        load_average(model, [tmp_path / "a.safetensors"])
    name, weight = next(iter(model.named_parameters()))
    save_file(
        {**model.state_dict(), name: torch.zeros(2)} | {"lm_head.weight": weight.clone()}, tmp_path / "e.safetensors"
    )
    with refused(RunError, "e.safetensors", name, "(2,)"):
        load_average(model, [tmp_path / "e.safetensors"])
