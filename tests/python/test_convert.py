"""convert: the same model, the same tensors, other arithmetic."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import (
    parametrizations,
    parametrize,
    remove_spectral_norm,
    remove_weight_norm,
    spectral_norm,
    weight_norm,
)

import tconv


class Upsampler(nn.ConvTranspose2d):
    """A user's own layer, with a forward of its own."""

    def forward(self, input, output_size=None):
        return super().forward(input, output_size) * 2


def test_every_kind_of_layer_is_converted():
    model = nn.Sequential(
        nn.ConvTranspose1d(2, 2, 2), nn.ModuleDict({"a": nn.ConvTranspose2d(2, 2, 2), "b": nn.ConvTranspose3d(2, 2, 2)})
    )
    assert tconv.convert(model) is model
    assert type(model[0]) is tconv.ConvTranspose1d
    assert type(model[1]["a"]) is tconv.ConvTranspose2d and type(model[1]["b"]) is tconv.ConvTranspose3d
    tconv.convert(model)
    assert type(model[0]) is tconv.ConvTranspose1d


def test_a_bare_layer_is_converted_itself():
    layer = nn.ConvTranspose2d(2, 3, 2)
    assert tconv.convert(layer) is layer and type(layer) is tconv.ConvTranspose2d


def test_other_layers_and_subclasses_are_left_alone():
    model = nn.Sequential(nn.Conv2d(2, 2, 1), Upsampler(2, 2, 2), nn.Linear(2, 2))
    kinds = [type(layer) for layer in model]
    assert [type(layer) for layer in tconv.convert(model)] == kinds


def test_parameters_buffers_hooks_and_flags_stay():
    layer = nn.ConvTranspose2d(2, 3, 2)
    layer.register_buffer("extra", torch.ones(1))
    layer.weight.requires_grad_(False)
    layer.note = "mine"
    model = nn.Sequential(layer).eval()
    seen = []
    layer.register_forward_pre_hook(lambda module, args: seen.append("pre"))
    layer.register_forward_hook(lambda module, args, out: seen.append("forward"))
    layer.register_full_backward_hook(lambda module, gi, go: seen.append("backward"))
    layer.register_state_dict_post_hook(lambda *args: seen.append("state"))
    parameters, keys = list(model.parameters()), list(model.state_dict())
    seen.clear()
    tconv.convert(model)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys and not layer.training and layer.note == "mine"
    model(torch.randn(1, 2, 3, 3, requires_grad=True)).sum().backward()
    assert seen == ["state", "pre", "forward", "backward"]


def test_a_shared_layer_stays_shared():
    layer = nn.ConvTranspose1d(2, 2, 2)
    model = nn.ModuleList([layer, nn.Sequential(layer)])
    tconv.convert(model)
    assert model[0] is layer and model[1][0] is layer


def test_lazy_layers():
    model = tconv.convert(nn.Sequential(nn.LazyConvTranspose2d(3, 2), nn.LazyConvTranspose2d(4, 2)))
    assert model(torch.randn(1, 5, 3, 3)).shape == (1, 4, 5, 5)
    assert [type(layer) for layer in model] == [tconv.ConvTranspose2d] * 2


def seeded(norm):
    torch.manual_seed(11)
    return nn.Sequential(norm(nn.ConvTranspose2d(4, 6, 3, stride=2))).eval()


NORMS = {
    "weight_norm hook": weight_norm,
    "spectral_norm hook": spectral_norm,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", NORMS)
def test_normalised_weights(norm):
    model, original = (seeded(NORMS[norm]) for _ in range(2))
    tconv.convert(model)
    assert isinstance(model[0], tconv.ConvTranspose2d) and not isinstance(original[0], tconv.ConvTranspose2d)
    assert list(model.state_dict()) == list(original.state_dict())
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(model(x), original(x))
    model(x).sum().backward()
    original(x).sum().backward()
    for a, b in zip(model.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)
    if norm == "weight_norm hook":
        remove_weight_norm(model[0])
    elif norm == "spectral_norm hook":
        remove_spectral_norm(model[0])
    else:
        twin = copy.deepcopy(model)
        assert torch.equal(twin(x), model(x))
        parametrize.remove_parametrizations(model[0], "weight")
        assert parametrize.is_parametrized(twin[0])
    torch.testing.assert_close(model(x), original(x))
    assert type(model[0]) is tconv.ConvTranspose2d


def test_copies_of_a_parametrised_layer_are_converted_apart():
    """Copies share the class that holds the parametrised weight; converting one must leave the other as it was."""
    one = parametrizations.weight_norm(nn.ConvTranspose1d(2, 2, 2))
    other = copy.deepcopy(one)
    tconv.convert(one)
    assert isinstance(one, tconv.ConvTranspose1d) and not isinstance(other, tconv.ConvTranspose1d)
    x = torch.randn(1, 2, 4)
    torch.testing.assert_close(one(x), other(x))
