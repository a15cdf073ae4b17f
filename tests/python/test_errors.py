"""Mistakes: the same exception types as PyTorch, and a message that says what was expected and what came."""

import pytest
import torch

from oracle import OURS, THEIRS

RANKS = [1, 2, 3]
HUGE = 2**62


def tensors(rank, dtype=torch.float32):
    return torch.randn(2, 4, *(5,) * rank).to(dtype), torch.randn(4, 6, *(3,) * rank).to(dtype)


def x_of(rank, *sizes):
    return torch.randn(*sizes, *(5,) * rank)


# name: (a change of the call, words that the message must hold). The change returns args and kwargs.
MISTAKES = {
    "channels": (lambda r, x, w: ((x_of(r, 2, 5), w), {}), ["4 channels", "got 5 channels"]),
    "channels, unbatched": (lambda r, x, w: ((x_of(r, 5), w), {}), ["4 channels", "got 5 channels"]),
    "groups do not divide": (lambda r, x, w: ((x, w), {"groups": 3}), ["divisible by 3"]),
    "groups zero": (lambda r, x, w: ((x, w), {"groups": 0}), ["groups", "0"]),
    "groups negative": (lambda r, x, w: ((x, w), {"groups": -1}), ["groups", "-1"]),
    "groups too many": (lambda r, x, w: ((x, w), {"groups": 8}), ["groups=8", "at least 8"]),
    "output_padding too large": (
        lambda r, x, w: ((x, w), {"stride": 2, "output_padding": 2}),
        ["smaller than either stride or dilation", "output_padding=[2]"],
    ),
    "output_padding negative": (lambda r, x, w: ((x, w), {"output_padding": -1}), ["output_padding", "-1"]),
    "stride zero": (lambda r, x, w: ((x, w), {"stride": 0}), ["stride", "at least 1"]),
    "stride negative": (lambda r, x, w: ((x, w), {"stride": -1}), ["stride", "-1"]),
    "dilation zero": (lambda r, x, w: ((x, w), {"dilation": 0}), ["dilation", "at least 1"]),
    "dilation negative": (lambda r, x, w: ((x, w), {"dilation": -2}), ["dilation", "-2"]),
    "padding negative": (lambda r, x, w: ((x, w), {"padding": -1}), ["padding", "-1"]),
    "stride huge": (lambda r, x, w: ((x, w), {"stride": HUGE}), []),
    "dilation huge": (lambda r, x, w: ((x, w), {"dilation": HUGE}), []),
    "padding huge": (lambda r, x, w: ((x, w), {"padding": HUGE}), []),
    "padding beyond 64 bits": (lambda r, x, w: ((x, w), {"padding": 2**63}), ["padding", "64 bits"]),
    "empty output": (lambda r, x, w: ((x[..., :1], w), {"padding": 4}), ["output size", "at least 1"]),
    "weight dtype": (lambda r, x, w: ((x, w.double()), {}), ["Float", "Double", "weight"]),
    "bias dtype": (lambda r, x, w: ((x, w, torch.randn(6).double()), {}), ["Float", "Double", "bias"]),
    "bias size": (lambda r, x, w: ((x, w, torch.randn(5)), {}), ["6 elements", "[5]"]),
    "bias shape": (lambda r, x, w: ((x, w, torch.randn(6, 1)), {}), ["1-dimensional", "[6, 1]"]),
    "bias scalar": (lambda r, x, w: ((x, w, torch.randn(())), {}), ["1-dimensional"]),
    "int32": (lambda r, x, w: ((x.int(), w.int()), {}), ["Int"]),
    "bool": (lambda r, x, w: ((x.bool(), w.bool()), {}), ["Bool"]),
    "float8": (lambda r, x, w: ((x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)), {}), ["Float8"]),
    "input rank + 1": (lambda r, x, w: ((x[None], w), {}), ["(unbatched)", "(batched)", "[1, 2, 4"]),
    "input rank - 2": (lambda r, x, w: ((x[0, 0], w), {}), ["(unbatched)", "(batched)"]),
    "weight rank - 1": (lambda r, x, w: ((x, w[0]), {}), ["[6, 3"]),
    "weight rank + 1": (lambda r, x, w: ((x, w[None]), {}), ["[1, 4, 6"]),
    "long stride": (lambda r, x, w: ((x, w), {"stride": (1,) * (r + 1)}), ["stride", "[1, 1"]),
    "long padding": (lambda r, x, w: ((x, w), {"padding": (0,) * (r + 1)}), ["padding"]),
    "long output_padding": (lambda r, x, w: ((x, w), {"output_padding": (0,) * (r + 1)}), ["output_padding"]),
    "long dilation": (lambda r, x, w: ((x, w), {"dilation": (1,) * (r + 1)}), ["dilation"]),
    "empty stride": (lambda r, x, w: ((x, w), {"stride": ()}), ["stride=[]"]),
    "no kernel": (lambda r, x, w: ((x, w[..., :0]), {}), ["kernel", "at least 1"]),
    "no input channels": (lambda r, x, w: ((x[:, :0], w[:0]), {}), ["at least 1"]),
    "no output channels": (lambda r, x, w: ((x, w[:, :0]), {}), ["output channel"]),
    "no space": (lambda r, x, w: ((x[..., :0], w), {}), ["zero"]),
    "float stride": (lambda r, x, w: ((x, w), {"stride": 1.0}), ["stride", "float"]),
    "str padding": (lambda r, x, w: ((x, w), {"padding": "same"}), ["padding", "str"]),
    "no stride": (lambda r, x, w: ((x, w), {"stride": None}), ["stride", "NoneType"]),
    "bool stride": (lambda r, x, w: ((x, w), {"stride": True}), ["stride", "bool"]),
    "float groups": (lambda r, x, w: ((x, w), {"groups": 1.0}), ["groups", "float"]),
    "no input": (lambda r, x, w: ((None, w), {}), ["input", "NoneType"]),
    "list as input": (lambda r, x, w: (([1.0], w), {}), ["input", "list"]),
    "list as bias": (lambda r, x, w: ((x, w, [1.0]), {}), ["bias", "list"]),
    "sparse": (lambda r, x, w: ((x.to_sparse(), w), {}), []),
}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(rank, mistake):
    change, words = MISTAKES[mistake]
    arguments, options = change(rank, *tensors(rank))
    with pytest.raises((RuntimeError, ValueError, TypeError)) as theirs:
        THEIRS[rank](*arguments, **options)
    with pytest.raises((RuntimeError, ValueError, TypeError)) as ours:
        OURS[rank](*arguments, **options)
    assert issubclass(ours.type, theirs.type), f"PyTorch: {theirs.value!r}; tconv: {ours.value!r}"
    for word in words:
        assert word in str(ours.value)


@pytest.mark.parametrize("rank", RANKS)
def test_meta_tensors_refuse_the_same(rank):
    for mistake in ("channels", "groups zero", "output_padding too large", "stride zero", "empty output", "bias size"):
        change, words = MISTAKES[mistake]
        arguments, options = change(rank, *tensors(rank))
        with pytest.raises(RuntimeError) as error:
            OURS[rank](*(a.to("meta") for a in arguments), **options)
        for word in words:
            assert word in str(error.value)


def test_an_output_too_large_for_memory_is_an_error():
    x, w = tensors(1)
    with pytest.raises(RuntimeError):
        OURS[1](x, w, stride=2**50)


def test_backward_refuses_a_gradient_of_the_wrong_size():
    x, w = tensors(2)
    with pytest.raises(RuntimeError, match="grad_output"):
        torch.ops.tconv.conv_transpose_backward(
            torch.randn(2, 6, 6, 7), x, w, [1, 1], [0, 0], [0, 0], 1, [1, 1], [True, True, True]
        )


@pytest.mark.parametrize("rank", RANKS)
def test_an_empty_batch_works(rank):
    x, w = tensors(rank)
    x, w, b = x[:0].requires_grad_(), w.requires_grad_(), torch.randn(6, requires_grad=True)
    y = OURS[rank](x, w, b, stride=2)
    assert y.shape == THEIRS[rank](x, w, b, stride=2).shape
    gx, gw, gb = torch.autograd.grad(y.sum(), (x, w, b))
    assert gx.shape == x.shape and not gw.any() and not gb.any()
    nowhere = OURS[rank](torch.randn(0, 4, *(0,) * rank), torch.randn(4, 6, *(5,) * rank))
    assert nowhere.shape == (0, 6, *(4,) * rank)


def test_numpy_and_symbolic_integers_are_integers():
    numpy = pytest.importorskip("numpy")
    x, w = tensors(2)
    assert torch.equal(OURS[2](x, w, stride=numpy.int64(2)), OURS[2](x, w, stride=2))
    assert torch.equal(OURS[2](x, w, stride=(numpy.int32(2), 3)), OURS[2](x, w, stride=(2, 3)))


def test_forcing_an_unknown_family_is_an_error():
    import tconv.testing

    with tconv.testing.force_family("no-such-family"), pytest.raises(RuntimeError, match="no-such-family"):
        OURS[1](*tensors(1))
    OURS[1](*tensors(1))
