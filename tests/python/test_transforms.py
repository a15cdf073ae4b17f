"""torch.func: vmap, grad, jvp and their compositions agree with PyTorch's own operator."""

import itertools

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

import tconv
from oracle import OURS, THEIRS

PARAMETERS = {"stride": 2, "padding": 1, "groups": 2, "dilation": (1, 2)}
MAPPED = [dims for dims in itertools.product((0, None), repeat=3) if any(d == 0 for d in dims)]


def samples(rank=2):
    """Three of each tensor along a leading axis."""
    return (
        torch.randn(3, 2, 4, *(3, 4)[:rank], dtype=torch.float64),
        torch.randn(3, 4, 3, *(3, 2)[:rank], dtype=torch.float64),
        torch.randn(3, 6, dtype=torch.float64),
    )


def assert_same(transform):
    """`transform(function)` must agree for tconv's and PyTorch's function."""
    ours, theirs = (pytree.tree_leaves(transform(function)) for function in (OURS[2], THEIRS[2]))
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def energy(function):
    return lambda x, w, b: function(x, w, b, **PARAMETERS).sin().sum()


@pytest.mark.parametrize("dims", MAPPED, ids=str)
def test_vmap(dims):
    tensors = [t if d == 0 else t[0] for t, d in zip(samples(), dims, strict=True)]
    assert_same(lambda f: vmap(lambda x, w, b: f(x, w, b, **PARAMETERS), in_dims=dims)(*tensors))


@pytest.mark.parametrize("dims", MAPPED, ids=str)
def test_per_sample_gradients(dims):
    tensors = [t if d == 0 else t[0] for t, d in zip(samples(), dims, strict=True)]
    assert_same(lambda f: vmap(grad(energy(f), argnums=(0, 1, 2)), in_dims=dims)(*tensors))


@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, None), (None, 0, 0)], ids=str)
def test_per_sample_second_derivatives(dims):
    tensors = [t if d == 0 else t[0] for t, d in zip(samples(), dims, strict=True)]

    def second(function):
        first = grad(energy(function), argnums=(0, 1, 2))
        return grad(lambda *args: sum(g.sin().sum() for g in first(*args)), argnums=(0, 1, 2))

    assert_same(lambda f: vmap(second(f), in_dims=dims)(*tensors))


def test_vmap_along_inner_axes_and_nested():
    x, w, _ = samples()
    assert_same(
        lambda f: vmap(lambda x, w: f(x, w, **PARAMETERS), in_dims=(4, 3), out_dims=2)(
            x.movedim(0, 4).contiguous(), w.movedim(0, 3).contiguous()
        )
    )
    assert_same(lambda f: vmap(vmap(lambda x, w: f(x, w, **PARAMETERS), in_dims=(0, None)), in_dims=(None, 0))(x, w))
    assert_same(lambda f: vmap(lambda x, w: f(x, w, **PARAMETERS))(x[:, 0], w))


def test_reverse_and_forward_mode():
    x, w, b = samples()
    primals, tangents = (x[0], w[0], b[0]), (x[1], w[1], b[1])
    call = lambda f: lambda x, w, b: f(x, w, b, **PARAMETERS)  # noqa: E731
    assert_same(lambda f: jvp(call(f), primals, tangents))
    assert_same(lambda f: vjp(call(f), *primals)[1](call(THEIRS[2])(*tangents)))
    assert_same(lambda f: jacrev(call(f), argnums=(0, 1, 2))(*primals))
    assert_same(lambda f: jacfwd(call(f), argnums=(0, 1, 2))(*primals))


def test_compositions():
    x, w, b = samples()
    primals, tangents = (x[0, :1], w[0], b[0]), (x[1, :1], w[1], b[1])
    assert_same(lambda f: jvp(grad(energy(f), argnums=(0, 1, 2)), primals, tangents))
    assert_same(lambda f: grad(lambda *p: jvp(energy(f), p, tangents)[1], argnums=(0, 1, 2))(*primals))
    assert_same(lambda f: hessian(energy(f), argnums=(0, 1))(*primals))
    assert_same(lambda f: jacrev(jacrev(energy(f), argnums=(0, 1)), argnums=(0, 1))(*primals))


def test_an_ensemble_of_modules():
    layers = [tconv.ConvTranspose2d(4, 3, 3, stride=2).double() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    together = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([layer(x) for layer in layers]))
