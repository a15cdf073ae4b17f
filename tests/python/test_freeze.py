"""freeze(): the same results, and back to the weights as soon as the promise ends."""

from __future__ import annotations

import copy

import pytest
import torch

import tconv

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def layer_and_input(device: str):
    layer = tconv.ConvTranspose2d(32, 24, 4, 2, 1).to(device)
    return layer, torch.randn(2, 32, 9, 7, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_the_same_to_the_bit(device):
    layer, x = layer_and_input(device)
    other = torch.randn(3, 32, 5, 6, device=device)
    with torch.no_grad():
        expected, expected_other = layer(x), layer(other)
        assert layer.freeze() is layer
        assert layer.frozen
        for _ in range(3):
            assert torch.equal(layer(x), expected)
            assert torch.equal(layer(other), expected_other)
            assert torch.equal(layer(x[0]), expected[0])
        torch.testing.assert_close(layer(x, output_size=(19, 15)).shape, torch.Size((2, 24, 19, 15)))


@pytest.mark.parametrize("device", DEVICES)
def test_counted_changes_are_seen(device):
    layer, x = layer_and_input(device)
    layer.freeze()
    with torch.no_grad():
        layer(x)
        layer.weight.mul_(2)
        layer.bias.add_(1)
        expected = torch.nn.functional.conv_transpose2d(x.double(), layer.weight.double(), layer.bias.double(), 2, 1)
        torch.testing.assert_close(layer(x).double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("undo", [tconv.ConvTranspose2d.unfreeze, tconv.ConvTranspose2d.train])
def test_undone(undo):
    layer, x = layer_and_input("cpu")
    layer.freeze()
    with torch.no_grad():
        layer(x)
        layer.weight.data.zero_()
        undo(layer)
        assert not layer.frozen
        assert torch.equal(layer(x), layer.bias.view(1, -1, 1, 1).expand(2, 24, 18, 14))


def test_a_loaded_state_is_used():
    layer, x = layer_and_input("cpu")
    model = torch.nn.Sequential(layer).eval()
    layer.freeze()
    with torch.no_grad():
        layer(x)
        state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        assert not layer.frozen
        assert not layer(x).any()


def test_eval_keeps_it_and_a_parents_train_ends_it():
    layer, _ = layer_and_input("cpu")
    model = torch.nn.Sequential(layer)
    layer.freeze()
    assert layer.frozen
    model.eval()
    assert layer.frozen
    model.train()
    assert not layer.frozen


def test_gradients_flow_through_a_frozen_layer():
    layer, x = layer_and_input("cpu")
    layer.freeze()
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad.any()
    assert layer.weight.grad.any()


def test_moving_and_converting():
    layer, x = layer_and_input("cpu")
    layer.freeze()
    with torch.no_grad():
        layer(x)
        layer.double()
        assert layer.frozen
        expected = torch.nn.functional.conv_transpose2d(x.double(), layer.weight, layer.bias, 2, 1)
        torch.testing.assert_close(layer(x.double()), expected)


def test_a_copy_is_not_frozen():
    layer, x = layer_and_input("cpu")
    layer.freeze()
    with torch.no_grad():
        expected = layer(x)
        twin = copy.deepcopy(layer)
        assert not twin.frozen
        assert torch.equal(twin(x), expected)
