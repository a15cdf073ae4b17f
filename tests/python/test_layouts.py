"""Memory: every layout is read in place, and results come in the layout that PyTorch would give them."""

import itertools

import pytest
import torch

from oracle import CHANNELS_LAST, OURS, THEIRS, Case, check_forward, check_gradients, gradients


def sliced(tensor):
    """The same values in every second element of a larger tensor."""
    larger = torch.full([2 * size for size in tensor.shape], float("nan"), dtype=tensor.dtype)
    view = larger[tuple(slice(1, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


def reversed_axes(tensor):
    """The same values with the last axis outermost in memory."""
    order = list(range(tensor.dim()))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def transposed_channels(tensor):
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


LAYOUTS = {
    "contiguous": lambda t: t,
    "sliced": sliced,
    "reversed": reversed_axes,
    "transposed": transposed_channels,
    "channels_last": lambda t: t.to(memory_format=CHANNELS_LAST[t.dim() - 2]) if t.dim() > 3 else t.mT.contiguous().mT,
}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_do_not_depend_on_the_layout(rank, layout, family):
    case = Case((4, 3, 5)[:rank], (3, 2, 4)[:rank], (2, 1, 3)[:rank], groups=2)
    x, w, b = case.tensors(torch.float64)
    dy = torch.randn(2, 4, *case.output, dtype=torch.float64)
    change = LAYOUTS[layout]
    for other in {"contiguous", layout}:
        y = OURS[rank](change(x), LAYOUTS[other](w), sliced(b), **case.parameters)
        check_forward(case, x, w, b, y)
        check_gradients(
            case, x, w, b, dy, gradients(OURS[rank], case, change(x), LAYOUTS[other](w), b, LAYOUTS[other](dy))
        )


@pytest.mark.parametrize("rank", [1, 2])
def test_expanded_weight_and_input(rank, family):
    """Depthwise layers share one filter by a stride of zero."""
    case = Case((6,) * rank, (4,) * rank, (2,) * rank, (1,) * rank, groups=5, in_per_group=1, out_per_group=1)
    x, _, b = case.tensors(torch.float64)
    w = torch.randn(1, 1, *case.kernel, dtype=torch.float64).expand(5, 1, *case.kernel)
    check_forward(case, x, w, b, OURS[rank](x, w, b, **case.parameters))
    dy = torch.randn(1, 1, *(1,) * rank, dtype=torch.float64).expand(2, 5, *case.output)
    check_gradients(case, x, w, b, dy, gradients(OURS[rank], case, x, w, b, dy))
    x = x[:1, :1].expand(x.shape)
    check_forward(case, x, w, b, OURS[rank](x, w, b, **case.parameters))


def test_conjugate_and_negative_views():
    case = Case((4, 5), (3, 3), (2, 2))
    x, w, b = case.tensors(torch.complex128)
    check_forward(case, x.conj(), w.conj(), b.conj(), OURS[2](x.conj(), w.conj(), b.conj(), **case.parameters))
    negative = torch._neg_view(x.real)
    check_forward(case, negative, w.real, b.imag, OURS[2](negative, w.real, b.imag, **case.parameters))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("input_last,weight_last", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("groups", [1, 2])
def test_2d_results_have_pytorchs_strides(dtype, input_last, weight_last, groups):
    case = Case((5, 6), (3, 3), (2, 2), groups=groups, in_per_group=4, out_per_group=3)
    x, w, b = case.tensors(dtype)
    x = x.to(memory_format=torch.channels_last) if input_last else x
    w = w.to(memory_format=torch.channels_last) if weight_last else w
    ours, theirs = OURS[2](x, w, b, **case.parameters), THEIRS[2](x, w, b, **case.parameters)
    assert ours.stride() == theirs.stride()
    unbatched = OURS[2](x[0], w, b, **case.parameters)
    assert unbatched.stride() == THEIRS[2](x[0], w, b, **case.parameters).stride()
    if not dtype.is_complex:
        dy = torch.randn_like(theirs)
        for a, c in zip(gradients(OURS[2], case, x, w, b, dy), gradients(THEIRS[2], case, x, w, b, dy), strict=True):
            assert a.stride() == c.stride()


@pytest.mark.parametrize("input_last,weight_last", list(itertools.product([False, True], repeat=2)))
def test_3d_results_have_pytorchs_strides(input_last, weight_last):
    case = Case((3, 4, 5), (3, 3, 3), (2, 2, 2), in_per_group=4, out_per_group=6)
    x, w, b = case.tensors(torch.float32)
    x = x.to(memory_format=torch.channels_last_3d) if input_last else x
    w = w.to(memory_format=torch.channels_last_3d) if weight_last else w
    assert OURS[3](x, w, b, **case.parameters).stride() == THEIRS[3](x, w, b, **case.parameters).stride()


def test_1d_results_are_contiguous():
    case = Case((6,), (3,), (2,))
    x, w, b = case.tensors(torch.float32)
    assert OURS[1](x.mT.contiguous().mT, w, b, **case.parameters).is_contiguous()


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("last", [False, True])
def test_meta_tensors_tell_the_shape_and_the_strides(rank, last):
    case = Case((3,) * rank, (3,) * rank, (2,) * rank, in_per_group=4)
    x, w, b = case.tensors(torch.float32)
    x = LAYOUTS["channels_last"](x) if last else x
    real = OURS[rank](x, w, b, **case.parameters)
    meta = OURS[rank](x.to("meta"), w.to("meta"), b.to("meta"), **case.parameters)
    assert (meta.shape, meta.stride(), meta.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("input_last,weight_last", [(False, True), (True, False)])
@pytest.mark.parametrize("kernel,stride", [(2, 2), (3, 3), (4, 2), (5, 2), (3, 1)])
def test_tensors_of_different_layouts(kernel, stride, input_last, weight_last):
    """Many channels: a layer in channels-last that is given a contiguous tensor, and the other way round."""
    case = Case((14, 28), (kernel,) * 2, (stride,) * 2, in_per_group=128, out_per_group=64, bias=False)
    x, w, _ = case.tensors(torch.float32)
    if input_last:
        x = x.to(memory_format=torch.channels_last)
    if weight_last:
        w = w.to(memory_format=torch.channels_last)
    y = OURS[2](x, w, None, **case.parameters)
    check_forward(case, x, w, None, y)
    dy = torch.randn(y.shape)
    check_gradients(case, x, w, None, dy, gradients(OURS[2], case, x, w, None, dy))


def test_strided_tensors_are_not_copied(family):
    """Channels-last inputs, expanded and transposed weights: PyTorch runs no operator that copies one of them."""
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(2, 8, 6, 5)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        OURS[2](x.to(memory_format=torch.channels_last), torch.randn(8, 4, 3, 3), stride=2)
        OURS[2](x, torch.randn(1, 1, 3, 3).expand(8, 1, 3, 3), groups=8)
        OURS[2](x.transpose(2, 3), torch.randn(4, 8, 3, 3).transpose(0, 1))
    events = {event.key: event.count for event in trace.key_averages()}
    assert events["tconv::conv_transpose"] == 3
    assert events.get("aten::copy_", 0) == 1, "only the channels-last input that the test itself makes"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kernel,stride,groups", [(2, 2, 1), (4, 2, 1), (3, 1, 1), (4, 2, 64)])
def test_gradients_of_sums_over_images(kernel, stride, groups, dtype):
    """What comes back from a sum over images is one element for each channel: strides of 0 along the axes."""
    channels = 64 // groups
    case = Case((24, 24), (kernel,) * 2, (stride,) * 2, groups=groups, in_per_group=channels, out_per_group=channels)
    x, w, b = case.tensors(dtype)
    x = x.to(memory_format=torch.channels_last)
    dy = torch.randn(x.shape[0], 64, 1, 1, dtype=dtype).expand(x.shape[0], 64, *case.output)
    check_gradients(case, x, w, b, dy, gradients(OURS[2], case, x, w, b, dy))
