"""Derivatives: first and second, reverse and forward, real and complex."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from oracle import OURS, THEIRS, Case

CASES = {
    1: Case((4,), (3,), (2,), (1,), (1,), groups=2, in_per_group=2, out_per_group=1),
    2: Case((3, 2), (2, 3), (2, 1), (0, 1), (1, 0), (1, 2), batch=1, groups=2, in_per_group=1, out_per_group=2),
    3: Case((2, 1, 2), (2, 2, 1), (1, 2, 2), batch=1, in_per_group=1, out_per_group=2),
}


def leaves(case, dtype):
    return tuple(t.requires_grad_() for t in case.tensors(dtype))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradcheck(rank, dtype, family):
    case = CASES[rank]
    assert gradcheck(
        lambda x, w, b: OURS[rank](x, w, b, **case.parameters),
        leaves(case, dtype),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradgradcheck(rank, dtype):
    case = CASES[rank]
    assert gradgradcheck(
        lambda x, w, b: OURS[rank](x, w, b, **case.parameters),
        leaves(case, dtype),
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_batched_grad=dtype == torch.float64,
    )


def test_only_what_is_asked_for_is_computed():
    case = CASES[2]
    for wanted in range(3):
        tensors = list(case.tensors())
        tensors[wanted].requires_grad_()
        y = OURS[2](*tensors, **case.parameters)
        (grad,) = torch.autograd.grad(y.square().sum(), tensors[wanted])
        theirs = [t.detach() for t in tensors]
        theirs[wanted].requires_grad_()
        (expected,) = torch.autograd.grad(THEIRS[2](*theirs, **case.parameters).square().sum(), theirs[wanted])
        torch.testing.assert_close(grad, expected)
    x, w, _ = case.tensors()
    dy = torch.ones(1, 4, *case.output, dtype=torch.float64)
    arguments = (dy, x, w, [2, 1], [0, 1], [1, 0], 2, [1, 2])
    for mask in ([True, False, False], [False, True, False], [False, False, True], [False, False, False]):
        result = torch.ops.tconv.conv_transpose_backward(*arguments, mask)
        assert [grad is not None for grad in result] == mask


def test_no_graph_without_need():
    x, w, b = CASES[2].tensors()
    assert OURS[2](x, w, b, **CASES[2].parameters).grad_fn is None
    with torch.no_grad():
        assert OURS[2](x.requires_grad_(), w, b, **CASES[2].parameters).grad_fn is None


def test_saved_tensors_are_guarded_and_freed():
    x, w, b = leaves(CASES[1], torch.float64)
    y = OURS[1](x, w, b, **CASES[1].parameters)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    y = OURS[1](x, w, b, **CASES[1].parameters)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_tensor_hooks_see_both_factors():
    x, w, b = leaves(CASES[1], torch.float64)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        OURS[1](x, w, b, **CASES[1].parameters).sum().backward()
    assert len(packed) == 2


def test_forward_mode_against_pytorch():
    case = CASES[2]
    primals, tangents = case.tensors(), case.tensors()
    results = {}
    for name, function in (("ours", OURS[2]), ("theirs", THEIRS[2])):
        for which in ((0,), (1,), (2,), (0, 1, 2)):
            with forward_ad.dual_level():
                duals = [
                    forward_ad.make_dual(p, t) if i in which else p
                    for i, (p, t) in enumerate(zip(primals, tangents, strict=True))
                ]
                results[name, which] = forward_ad.unpack_dual(function(*duals, **case.parameters)).tangent
    for which in ((0,), (1,), (2,), (0, 1, 2)):
        torch.testing.assert_close(results["ours", which], results["theirs", which])


def test_gradient_penalty():
    """Double backward as WGAN-GP uses it: the gradient's norm is part of the loss."""
    case = Case((4, 4), (4, 4), (2, 2), (1, 1), in_per_group=4, out_per_group=3)
    x, w, b = leaves(case, torch.float64)

    def penalty(function):
        y = function(x, w, b, **case.parameters)
        (gx,) = torch.autograd.grad(y.tanh().sum(), x, create_graph=True)
        return torch.autograd.grad((gx.square().sum((1, 2, 3)).sqrt() - 1).square().sum(), (x, w, b))

    for a, c in zip(penalty(OURS[2]), penalty(THEIRS[2]), strict=True):
        torch.testing.assert_close(a, c)
