"""Autotuning as a user meets it; what needs a GPU is in test_cuda_tuning.py."""

from __future__ import annotations

import pytest
import torch

import tconv
from tconv import _library


def small_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        tconv.ConvTranspose2d(3, 4, 2, stride=2), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5).eval()
    )


def test_a_model_is_left_as_it_was():
    model = small_model()
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append((torch.is_grad_enabled(), model.training)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model[0].weight.grad = torch.ones_like(model[0].weight)
    assert tconv.autotune(model, torch.randn(2, 3, 5, 5)) is None
    assert seen == [(True, False)]
    assert [module.training for module in model] == [True, True, False]
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[0].bias.grad is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_model_that_learns_nothing_computes_no_gradients():
    model = small_model().requires_grad_(False)
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    tconv.autotune(model, torch.randn(2, 3, 5, 5))
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    tconv.autotune(model, x)
    assert seen == [False, True]
    assert x.grad is None


def test_frozen_layers_stay_frozen():
    layer = tconv.ConvTranspose2d(3, 4, 2, stride=2).freeze()
    tconv.autotune(layer, torch.randn(2, 3, 5, 5))
    assert layer.frozen


def test_the_context_ends_whatever_happens():
    x, weight = torch.randn(1, 2, 4), torch.randn(2, 2, 3)
    expected = tconv.conv_transpose1d(x, weight)
    with tconv.autotune(), tconv.autotune():
        assert torch.equal(tconv.conv_transpose1d(x, weight), expected)
    with pytest.raises(RuntimeError, match="expected"), tconv.autotune():
        tconv.conv_transpose1d(x, torch.randn(5, 2, 3))

    @tconv.autotune()
    def decorated() -> torch.Tensor:
        return tconv.conv_transpose1d(x, weight)

    assert torch.equal(decorated(), expected)


def test_arguments_without_a_model_are_refused():
    with pytest.raises(TypeError, match="without a model"):
        tconv.autotune(None, torch.randn(1))


def test_a_frozen_layer_plans_anew_when_plans_change():
    layer = tconv.ConvTranspose2d(8, 8, 4, stride=2, padding=1).freeze()
    x = torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        planned = layer(x)
        before = _library.planning()
        with tconv.testing.force_family("reference"):
            assert _library.planning() != before
            forced = layer(x)
        again = layer(x)
    torch.testing.assert_close(forced, planned)
    assert torch.equal(again, planned)


@pytest.mark.parametrize("direction", ["forward", "grad_input", "grad_weight", "grad_bias"])
def test_a_race_on_the_cpu(direction):
    x, weight, bias = torch.randn(2, 16, 20), torch.randn(16, 8, 4), torch.randn(8)
    grad_output = None if direction == "forward" else torch.randn(2, 8, 42)
    lines = _library.ops._race(x, weight, bias, grad_output, [2], [0], [0], 1, [1], direction, 4).splitlines()
    entries = [line.split("\t") for line in lines]
    assert [entry[4] for entry in entries] == ["planned", *[""] * (len(entries) - 1)]
    for name, seconds, runs, _, _, _, failure in entries:
        assert failure == ""
        assert float(seconds) > 0, name
        assert int(runs) >= 1
