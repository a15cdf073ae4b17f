"""PyTorch's own sample inputs, and its error inputs where it has them, for the three functions."""

import warnings

import pytest
import torch

from oracle import OURS, unit, wide

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

OPS = {op.name.rsplit(".", 1)[-1]: op for op in op_db if op.name.startswith("nn.functional.conv_transpose")}
FUNCTIONS = {f"conv_transpose{rank}d": function for rank, function in OURS.items()}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]


def test_pytorch_has_samples_for_all_three():
    assert set(OPS) == set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples(name, dtype, family):
    op, count = OPS[name], 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        ours = FUNCTIONS[name](sample.input, *sample.args, **sample.kwargs)
        theirs = op(sample.input, *sample.args, **sample.kwargs)
        arguments = [wide(a) if isinstance(a, torch.Tensor) else a for a in sample.args]
        exact = op(wide(sample.input), *arguments, **sample.kwargs)
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        scale = exact.abs().amax().item() if exact.numel() else 1.0
        torch.testing.assert_close(wide(ours), exact, atol=16 * unit(dtype) * scale, rtol=16 * unit(dtype))
        leaves = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor) and t.requires_grad]
        dy = torch.ones_like(theirs)
        for a, b in zip(torch.autograd.grad(ours, leaves, dy), torch.autograd.grad(theirs, leaves, dy), strict=True):
            scale = b.abs().amax().item() if b.numel() else 1.0
            torch.testing.assert_close(a, b, atol=64 * unit(dtype) * scale, rtol=64 * unit(dtype))
        count += 1
    assert count >= 5


@pytest.mark.parametrize("name", FUNCTIONS)
def test_non_contiguous_samples(name):
    op = OPS[name]
    for sample in op.sample_inputs("cpu", torch.float64):
        strided = sample.noncontiguous()
        torch.testing.assert_close(
            FUNCTIONS[name](strided.input, *strided.args, **strided.kwargs),
            op(sample.input, *sample.args, **sample.kwargs),
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_inputs(name):
    op = OPS[name]
    errors = list(op.error_inputs("cpu")) if op.error_inputs_func is not None else []
    for error in errors:
        sample = error.sample_input
        with pytest.raises(error.error_type):
            FUNCTIONS[name](sample.input, *sample.args, **sample.kwargs)
    # The listed version of PyTorch states no error inputs for these functions; test_errors.py has its own.
    if op.error_inputs_func is None:
        with pytest.raises(RuntimeError):
            FUNCTIONS[name](torch.randn(2, 2), torch.randn(2, 2))
