"""The kernels of exported files under the CPU emulator: any batch, other sizes and types, gradients of gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from exported_emulation import export_layer, geometry, load_emulated


def few_values(shape, dtype=torch.float32):
    """Numbers whose products and sums are exact in every type."""
    return (torch.randint(-8, 9, shape) / 8).to(dtype)


def check_layer(module, layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Output and gradients of ModelNew against the layer in float64."""
    new = module.ModelNew().to(layer.weight.dtype)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.copy_(few_values(parameter.shape))
    old = copy.deepcopy(layer).double()
    old.load_state_dict(new.state_dict())
    x = few_values(shape, layer.weight.dtype).requires_grad_()
    x64 = x.detach().double().requires_grad_()
    y, y64 = new(x), old(x64)
    grad = few_values(y.shape)
    y.backward(grad.to(y.dtype))
    y64.backward(grad.double())
    pairs = [(y, y64), (x.grad, x64.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(new.parameters(), old.parameters(), strict=True)]
    rounding = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(layer.weight.dtype, 0)
    for got, expected in pairs:
        torch.testing.assert_close(got.double(), expected, rtol=rounding, atol=0)


@pytest.mark.parametrize(
    ("layer", "shape", "gpu", "tf32"),
    [
        (nn.ConvTranspose2d(24, 40, 3, 2, 1, 1), (2, 24, 5, 7), "hopper", True),
        (nn.ConvTranspose2d(24, 20, 4, 2, 1, bias=False), (2, 24, 5, 7), "ampere", True),
        (nn.ConvTranspose2d(8, 12, (3, 5), (2, 3), (1, 2), groups=2, dilation=(2, 1)), (2, 8, 5, 7), "hopper", False),
        (nn.ConvTranspose1d(6, 6, 4, 2, 1, groups=6), (2, 6, 33), "ampere", False),
        (nn.ConvTranspose3d(3, 5, 3, 2, 1, 1).double(), (2, 3, 3, 4, 5), "hopper", False),
        (nn.ConvTranspose2d(16, 32, 3, 2, 1, groups=2, bias=False), (1, 16, 5, 9), "hopper", True),
    ],
    ids=["tile-hopper", "tile-ampere", "direct-grouped", "depthwise-1d", "3d-fp64", "small-groups"],
)
def test_kernels_compute_forward_and_gradients_for_any_batch(layer, shape, gpu, tf32, tmp_path):
    module = load_emulated(export_layer(layer, shape, tmp_path), gpu, tf32=tf32)
    for batch in (shape[0], 1, 5):
        check_layer(module, layer, (batch, *shape[1:]))
    # All of these were computed by the kernels that were made for the layer.
    assert module.call_of.cache_info().currsize == len({shape[0], 1, 5})
    call = module.call_of(shape, tuple(layer.weight.shape), *geometry(layer))
    assert call.made_for is module.LAYERS[0]


def test_few_pixels_and_large_weights_for_any_batch(tmp_path):
    layer = nn.ConvTranspose2d(256, 192, 4, 2, 1)
    path = export_layer(layer, (2, 256, 2, 2), tmp_path)
    assert "forward, columns" in path.read_text()
    module = load_emulated(path, "hopper", tf32=True)
    new = module.ModelNew()
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.copy_(few_values(parameter.shape))
        layer.load_state_dict(new.state_dict())
        for batch in (2, 1, 5):
            x = few_values((batch, 256, 2, 2))
            torch.testing.assert_close(new(x).double(), layer.double()(x.double()), rtol=0, atol=0)


def test_other_sizes_types_and_biases_are_right(tmp_path):
    layer = nn.ConvTranspose2d(6, 4, (3, 2), 2, (1, 0), groups=2, dilation=(2, 1), bias=False)
    module = load_emulated(export_layer(layer, (1, 6, 4, 5), tmp_path))
    check_layer(module, layer, (2, 6, 3, 8))  # the general kernels
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        check_layer(module, copy.deepcopy(layer).to(dtype), (1, 6, 3, 4))
    # A bias where the exported layer has none, and empty and single samples.
    new = module.ModelNew(bias=True)
    plain = module.ModelNew(bias=False)
    plain.load_state_dict({"weight": new.weight})
    x = few_values((2, 6, 4, 5))
    torch.testing.assert_close(new(x), plain(x) + new.bias.view(-1, 1, 1))
    assert new(x[:0]).shape == (0, *new(x).shape[1:])
    torch.testing.assert_close(new(x[0]), new(x)[0])
    new(x[:0]).sum().backward()
    assert torch.equal(new.weight.grad, torch.zeros_like(new.weight))
    # Gaps, odd addresses, and a size that is asked for.
    torch.testing.assert_close(new(x.mT.contiguous().mT), new(x))
    torch.testing.assert_close(new(torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x)), new(x))
    larger = new(x, output_size=[size + 1 for size in new(x).shape[2:]])
    torch.testing.assert_close(larger[:, :, :-1, :-1], new(x))


def test_a_layer_may_change_between_calls(tmp_path):
    layer = nn.ConvTranspose2d(4, 3, 3, 2)
    new = load_emulated(export_layer(layer, (2, 4, 5, 6), tmp_path)).ModelNew()
    new.load_state_dict(layer.state_dict())
    x = few_values((2, 4, 5, 6))
    torch.testing.assert_close(new(x), layer(x))
    for changed in (new, layer):
        changed.stride = (1, 3)
    torch.testing.assert_close(new(x), layer(x))
    other = copy.deepcopy(new).double()  # what a call needed is not copied, and its types are looked at anew
    torch.testing.assert_close(other(x.double()), copy.deepcopy(layer).double()(x.double()))
    with pytest.raises(RuntimeError, match="input and weight must have one type"):
        new.double()(x)


def test_gradients_can_be_differentiated(tmp_path):
    layer = nn.ConvTranspose1d(2, 2, 3, 2, 1).double()
    module = load_emulated(export_layer(layer, (1, 2, 3), tmp_path))
    new = module.ModelNew(dtype=torch.float64)
    x = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)

    def compute(x, weight, bias):
        return torch.func.functional_call(new, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradgradcheck(compute, (x, new.weight, new.bias))
