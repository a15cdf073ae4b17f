"""torch.compile, torch.export and the operator checks of torch.library."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import tconv
from oracle import OURS, Case

FORWARD = torch.ops.tconv.conv_transpose.default
BACKWARD = torch.ops.tconv.conv_transpose_backward.default


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model():
    return nn.Sequential(
        tconv.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
        nn.ReLU(),
        tconv.ConvTranspose2d(6, 3, 4, stride=2, padding=1),
    )


def assert_compiled_agrees(plain, compiled, x):
    ours, expected = compiled(x), plain(x)
    torch.testing.assert_close(ours, expected)
    parameters = list(plain.parameters())
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


def test_a_dynamic_batch_compiles_once():
    plain, counter = model(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(plain, backend=counter, fullgraph=True, dynamic=True)
    for batch in (2, 3, 5, 8):
        assert_compiled_agrees(plain, compiled, torch.randn(batch, 4, 5, 6))
    assert counter.frame_count == 1


def test_automatic_dynamic_shapes():
    plain, counter = model(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(plain, backend=counter, fullgraph=True)
    for batch, height in ((2, 5), (3, 5), (4, 7), (5, 8)):
        assert_compiled_agrees(plain, compiled, torch.randn(batch, 4, height, 6))
    assert counter.frame_count <= 3


def test_inductor():
    plain = model()
    assert_compiled_agrees(plain, torch.compile(plain, fullgraph=True), torch.randn(2, 4, 5, 6))


def test_output_size_unbatched_and_channels_last():
    layer = tconv.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(compiled(x, output_size=[10, 12]), layer(x, output_size=[10, 12]))
    torch.testing.assert_close(compiled(x[0]), layer(x[0]))
    last = x.to(memory_format=torch.channels_last)
    assert compiled(last).stride() == layer(last).stride()


def test_transforms_compile():
    x, w = torch.randn(3, 2, 4, 5), torch.randn(3, 4, 6, 3)

    def per_sample(x, w):
        return torch.vmap(torch.func.grad(lambda x, w: tconv.conv_transpose1d(x, w, stride=2).sin().sum()))(x, w)

    compiled = torch.compile(per_sample, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, w), per_sample(x, w))


def test_export_with_dynamic_sizes():
    plain = model().eval()
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=2)}
    program = torch.export.export(plain, (torch.randn(2, 4, 5, 6),), dynamic_shapes=(sizes,))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(FORWARD) == 2
    x = torch.randn(7, 4, 9, 6)
    torch.testing.assert_close(program.module()(x), plain(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_opcheck_forward(rank, dtype):
    case = Case((3,) * rank, (3,) * rank, (2,) * rank, (1,) * rank, (1,) * rank, groups=2)
    x, w, b = (t.requires_grad_() for t in case.tensors(dtype))
    parameters = [case.stride, case.padding, case.output_padding, case.groups, case.dilation]
    torch.library.opcheck(FORWARD, (x, w, b, *parameters))
    if rank == 2:
        last = x.detach().to(memory_format=torch.channels_last)
        torch.library.opcheck(FORWARD, (last, w, None, *parameters))


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False]], ids=str)
def test_opcheck_backward(mask):
    case = Case((3, 4), (3, 2), (2, 2), (1, 0), groups=2)
    x, w, _ = (t.requires_grad_() for t in case.tensors())
    dy = torch.randn(2, 4, *case.output, dtype=torch.float64, requires_grad=True)
    parameters = [case.stride, case.padding, case.output_padding, case.groups, case.dilation]
    torch.library.opcheck(BACKWARD, (dy, x, w, *parameters, mask))


def test_symbolic_sizes_are_checked():
    compiled = torch.compile(OURS[2], backend="aot_eager", fullgraph=True, dynamic=True)
    with pytest.raises(RuntimeError, match="channels"):
        compiled(torch.randn(2, 5, 4, 4), torch.randn(4, 3, 3, 3))
