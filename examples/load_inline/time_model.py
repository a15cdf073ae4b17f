"""Checks exported files against PyTorch in float64 and times them beside PyTorch, forward and backward, on a GPU.

python examples/load_inline/time_model.py examples/load_inline/kb69.py
"""

import importlib.util
import statistics
import sys

import torch
from torch import nn


def load(path):
    spec = importlib.util.spec_from_file_location("exported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytorch_layer(layer):
    """PyTorch's layer of the same arguments and parameters."""
    kind = getattr(nn, f"ConvTranspose{layer.rank}d")
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "groups", "dilation")
    arguments = {name: getattr(layer, name) for name in names}
    other = kind(**arguments, bias=layer.bias is not None).to(layer.weight)
    other.load_state_dict(layer.state_dict())
    return other


def gradients(model, x, grad):
    x = x.detach().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *model.parameters()], grad.to(y.dtype))]


def error(got, expected):
    return ((got.double() - expected).norm() / expected.norm()).item()


def median_times(functions, rounds=20):
    """Milliseconds of each function, taken in turn, with a cold cache."""
    flush = torch.empty(1 << 26, dtype=torch.int32, device="cuda")
    times = [[] for _ in functions]
    for turn in range(rounds + 3):
        for function, taken in zip(functions, times):
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            if turn >= 3:
                taken.append(start.elapsed_time(end))
    return [statistics.median(taken) for taken in times]


def main(path):
    module = load(path)
    model = module.ModelNew().cuda()
    layer = next(child for child in model.modules() if isinstance(child, module.ConvTransposeNd))
    theirs = pytorch_layer(layer)
    (x,) = (tensor.cuda() for tensor in module.get_inputs())

    few = x[:2]
    grad = torch.randn_like(layer(few))
    expected = gradients(pytorch_layer(layer).double(), few.double(), grad)
    names = ["output", "input's gradient", "weight's gradient", "bias's gradient"]
    for name, got, right in zip(names, gradients(layer, few, grad), expected):
        print(f"{name}: relative error {error(got, right):.1e}")

    with torch.no_grad():
        ours_ms, theirs_ms = median_times([lambda: layer(x), lambda: theirs(x)])
    print(f"forward: {ours_ms:.3f} ms, PyTorch {theirs_ms:.3f} ms, {theirs_ms / ours_ms:.2f}x")
    x.requires_grad_()
    calls = []
    for one in (layer, theirs):
        y = one(x)
        targets = [x, *one.parameters()]
        grad = torch.randn_like(y)
        calls.append(lambda y=y, targets=targets, grad=grad: torch.autograd.grad(y, targets, grad, retain_graph=True))
    ours_ms, theirs_ms = median_times(calls)
    print(f"backward: {ours_ms:.3f} ms, PyTorch {theirs_ms:.3f} ms, {theirs_ms / ours_ms:.2f}x")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(path)
        main(path)
