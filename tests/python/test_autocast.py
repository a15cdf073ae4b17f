"""Autocast casts exactly what PyTorch casts."""

import pytest
import torch
from torch.nn import functional as F

import tconv
from oracle import OURS, REAL_DTYPES, THEIRS, Case


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [*REAL_DTYPES, torch.complex64], ids=str)
def test_cpu(rank, lower, dtype):
    case = Case((4,) * rank, (3,) * rank, (2,) * rank)
    x, w, b = (t.to(dtype) for t in case.tensors(torch.complex64 if dtype.is_complex else torch.float32))
    with torch.autocast("cpu", dtype=lower):
        ours, theirs = (f(x, w, b, **case.parameters) for f in (OURS[rank], THEIRS[rank]))
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0.02)


def test_gradients_come_in_the_parameters_type():
    layer = tconv.ConvTranspose2d(4, 6, 3, stride=2)
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert y.dtype == torch.bfloat16
        loss = y.float().square().mean()
    loss.backward()
    assert x.grad.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32
    expected = F.conv_transpose2d(x.detach().bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16(), stride=2)
    torch.testing.assert_close(y, expected, atol=0.05, rtol=0.02)


def test_mixed_types_are_reconciled():
    x, w = torch.randn(1, 2, 4), torch.randn(2, 3, 3).bfloat16()
    with pytest.raises(RuntimeError, match="should be the same"):
        OURS[1](x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert OURS[1](x, w).dtype == torch.bfloat16


def test_a_disabled_region_casts_nothing():
    x, w = torch.randn(1, 2, 4), torch.randn(2, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert OURS[1](x, w).dtype == torch.float32
