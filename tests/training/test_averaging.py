import torch
from refusals import refused
from safetensors.torch import save_file

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.errors import RunError
from vanilla_transformer.training.checkpoints import load_average


def test_the_average_is_the_mean_of_every_weight(tmp_path, tiny_config):
    models = [VanillaTransformerForConditionalGeneration(tiny_config) for _ in range(3)]
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    target = VanillaTransformerForConditionalGeneration(tiny_config)
    load_average(target, [tmp_path / str(number) for number in range(3)])
    for name, weight in target.state_dict().items():
        mean = torch.stack([model.state_dict()[name].double() for model in models]).mean(0).float()
        torch.testing.assert_close(weight, mean, rtol=1e-7, atol=0, msg=name)
    assert target.get_output_embeddings().weight is target.get_input_embeddings().weight


def layer(path, **weights):
    save_file(weights, path)
    return path


def test_small_differences_of_large_numbers_are_not_lost(tmp_path):
    weights = [torch.tensor([[1e8 + 8 * (number % 2)]]) for number in range(20)]
    mean = torch.nn.Linear(1, 1, bias=False)
    load_average(mean, [layer(tmp_path / f"{n}.safetensors", weight=weight) for n, weight in enumerate(weights)])
    assert mean.weight.double().item() == torch.tensor(1e8 + 4.0).double().item()


def test_checkpoints_of_different_models_are_refused(tmp_path, tiny_model):
    model = torch.nn.Linear(2, 1, bias=False)
    good = layer(tmp_path / "a.safetensors", weight=torch.zeros(1, 2))
    (tmp_path / "d.safetensors").write_bytes(b"no weights")
    for other, words in (
        (layer(tmp_path / "b.safetensors", weight=torch.zeros(1, 3)), ["b.safetensors", "weight", "(1, 3)"]),
        (layer(tmp_path / "c.safetensors", bias=torch.zeros(1)), ["c.safetensors", "bias"]),
        (tmp_path / "d.safetensors", ["d.safetensors"]),
    ):
        with refused(RunError, *words):
            load_average(model, [good, other])
    with refused(RunError, "checkpoints"):
        load_average(model, [])
    # A tied weight may be there twice, but then in each file.
    twice = {**tiny_model.state_dict(), "lm_head.weight": tiny_model.get_input_embeddings().weight.clone()}
    once = {name: weight.clone() for name, weight in tiny_model.named_parameters()}
    paths = [layer(tmp_path / "once.safetensors", **once), layer(tmp_path / "twice.safetensors", **twice)]
    load_average(tiny_model, paths[1:])
    with refused(RunError, "Only one", "lm_head.weight"):
        load_average(tiny_model, paths)
