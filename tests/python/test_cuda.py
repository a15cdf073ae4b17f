"""Kernels on an NVIDIA GPU: every family, dtype, layout and rank against float64.

TCONV_TEST_CUDA_PROBLEMS sets how many random problems are drawn (default 150), TCONV_TEST_CUDA_SEED which: another
text, other problems, so that several processes can share the work.
"""

from __future__ import annotations

import math
import os
import random
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch

import tconv
import tconv.testing
from oracle import CHANNELS_LAST, OURS, THEIRS, Case, gradients, wide
from tconv import problems
from tconv.networks import UNetDecoder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

COUNT = int(os.environ.get("TCONV_TEST_CUDA_PROBLEMS", "150"))
SEED = os.environ.get("TCONV_TEST_CUDA_SEED", "")
PRECISIONS = {
    "tf32": (torch.float32, True),
    "strict": (torch.float32, False),
    "float16": (torch.float16, False),
    "bfloat16": (torch.bfloat16, False),
    "float64": (torch.float64, False),
}


@pytest.fixture(params=PRECISIONS)
def precision(request):
    dtype, tf32 = PRECISIONS[request.param]
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=tf32):
        yield dtype, tf32


def draw(rng: random.Random, family: str) -> Case:
    rank = rng.choice((1, 2, 2, 3))
    groups = rng.choice((1, 1, 1, 2, 3, 5))
    if family in ("tile", "columns"):
        inputs, outputs = rng.choice((16, 17, 20, 24, 40, 64, 100)), rng.choice((1, 3, 8, 13, 16, 32, 48, 65, 130))
    elif rng.random() < 0.4:
        inputs, outputs, groups = 1, 1, rng.choice((1, 5, 16, 33))
    else:
        inputs, outputs = rng.choice((1, 2, 3, 4, 8, 12)), rng.choice((1, 2, 3, 5, 8, 16))
    most = {1: 70, 2: 13, 3: 6}[rank]
    while True:
        kernels = (1, 2, 3, 3, 4, 4, 5, 7, 8) if rank < 3 else (1, 2, 3, 4)
        case = Case(
            input=tuple(rng.randint(1, most) for _ in range(rank)),
            kernel=tuple(rng.choice(kernels) for _ in range(rank)),
            stride=tuple(rng.choice((1, 2, 2, 3, 4, 5) if rank > 1 else (1, 2, 3, 4, 8, 17)) for _ in range(rank)),
            padding=tuple(rng.randint(0, 4) for _ in range(rank)),
            dilation=tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(rank)),
            batch=rng.choice((1, 2, 3, 5)),
            groups=groups,
            in_per_group=inputs,
            out_per_group=outputs,
            bias=rng.random() < 0.5,
        )
        if all(size >= 1 for size in case.output):
            return case


def on_gpu(case: Case, dtype: torch.dtype, rng: random.Random):
    x, w, b = (None if t is None else t.to("cuda", dtype) for t in case.tensors(torch.float32))
    layout = rng.choice(("contiguous", "contiguous", "channels_last", "sliced"))
    if layout == "channels_last" and case.rank > 1:
        x = x.to(memory_format=CHANNELS_LAST[case.rank])
    elif layout == "sliced":
        padded = torch.randn(*x.shape[:-1], x.shape[-1] + 3, device="cuda").to(dtype)
        padded[..., 1:-2] = x
        x = padded[..., 1:-2]
    if rng.random() < 0.3:
        w = w.transpose(0, 1).contiguous().transpose(0, 1)
    elif case.rank > 1 and rng.random() < 0.4:
        w = w.to(memory_format=CHANNELS_LAST[case.rank])
    return x, w, b


def with_channels_last(tensor: torch.Tensor, lead: int) -> torch.Tensor:
    """A copy whose channels vary fastest, `lead` elements behind an aligned address."""
    memory = torch.empty(tensor.numel() + lead, device=tensor.device, dtype=tensor.dtype)
    strides = tensor.movedim(1, -1).contiguous().movedim(-1, 1).stride()
    return memory[lead:].as_strided(tensor.shape, strides).copy_(tensor)


def check(case: Case, x, w, b, actual: torch.Tensor, tf32: bool) -> None:
    function = THEIRS[case.rank]
    expected = function(wide(x), wide(w), wide(b), **case.parameters)
    magnitude = function(wide(x).abs(), wide(w).abs(), None if b is None else wide(b).abs(), **case.parameters)
    terms = case.in_per_group * math.prod(case.kernel) + 2
    working = torch.finfo(torch.float64 if actual.dtype == torch.float64 else torch.float32).eps
    # Two operands rounded to 11 bits each, the sum in fp32, the result in its own dtype.
    bound = magnitude * ((2.0**-10 if tf32 else 0.0) + terms * working) + torch.finfo(actual.dtype).eps * expected.abs()
    bound += 2.0**-24 if actual.dtype == torch.float16 else 0.0
    error = (wide(actual) - expected).abs()
    assert torch.isfinite(error).all(), case
    assert (error <= bound).all(), (
        f"{case}: error {error.max().item():g}, {(error / bound).max().item():g} of the bound"
    )


@pytest.mark.parametrize("family", ["direct", "tile", "columns", "general"])
def test_random_problems(family, precision):
    dtype, tf32 = precision
    rng = random.Random(f"{family} {dtype} {tf32} {SEED}")
    draws = max(COUNT // 5, 1)
    declines_all = (family == "tile" and dtype == torch.float64) or (
        family == "columns" and (dtype == torch.float64 or (dtype == torch.float32 and not tf32))
    )
    drawn = ran = 0
    while drawn < draws or (ran <= draws // 3 and not declines_all and drawn < 8 * draws):
        drawn += 1
        case = draw(rng, family)
        x, w, b = on_gpu(case, dtype, rng)
        with tconv.testing.force_family(family):
            try:
                actual = OURS[case.rank](x, w, b, **case.parameters)
            except RuntimeError as error:
                assert "no kernel family takes the problem" in str(error) or "declines" in str(error), error
                continue
        check(case, x, w, b, actual, tf32 and family != "general" and family != "direct")
        ran += 1
    assert ran == 0 if declines_all else ran > draws // 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_wide_rows_of_halves(dtype):
    """Rows of a multiple of 8 elements, which leave as boxes, and others: whole and cut off, by several cuts."""
    rng = random.Random(f"wide rows {dtype} {SEED}")
    draws = max(COUNT // 5, 1)
    ran = 0
    for _ in range(draws):
        rank = rng.choice((1, 2, 2, 3))
        kernel = rng.choice((1, 1, 2, 3, 5))
        stride = rng.choice((1, 2))
        case = Case(
            input=(*(rng.randint(1, 5) for _ in range(rank - 1)), rng.choice((8, 8, 8, 4)) * rng.randint(8, 40)),
            kernel=(*(rng.choice((1, 3)) for _ in range(rank - 1)), kernel),
            stride=(*(1 for _ in range(rank - 1)), stride),
            padding=(*(0 for _ in range(rank - 1)), (kernel - 1) // 2),
            dilation=(1,) * rank,
            batch=rng.choice((1, 2, 9)),
            groups=rng.choice((1, 1, 2)),
            in_per_group=rng.choice((16, 24, 64)),
            out_per_group=rng.choice((16, 20, 32, 48, 128, 136)),
            bias=rng.random() < 0.5,
        )
        x, w, b = on_gpu(case, dtype, rng)
        dy = torch.randn(case.batch, case.groups * case.out_per_group, *case.output, device="cuda").to(dtype)
        with tconv.testing.force_family(f"tile#{rng.choice((0, 0, 1, 2, 4, 8))}"):
            try:
                actual = OURS[rank](x, w, b, **case.parameters)
                gradient, _, _ = backward(case, dy, x, w, (True, False, False))
            except RuntimeError as error:
                assert "no kernel family takes the problem" in str(error) or "declines" in str(error), error
                continue
        check(case, x, w, b, actual, tf32=False)
        check_backward(case, x, w, dy, (gradient, None, None), tf32=False)
        ran += 1
    assert ran > draws // 2


@pytest.mark.parametrize("kernel", [5, 7])
def test_rows_whose_channels_vary_fastest_by_every_cut(kernel):
    """Stages of weights that the copy engine brings, the last of them with fewer taps than the others."""
    case = Case((4000,), (kernel,), (1,), dilation=(3,), batch=3, in_per_group=32, out_per_group=64, bias=False)
    x = torch.randn(case.batch, *case.input, case.in_per_group, device="cuda").to(torch.bfloat16).movedim(-1, 1)
    w = torch.randn(case.in_per_group, kernel, case.out_per_group, device="cuda").to(torch.bfloat16).movedim(-1, 1)
    cuts = [check(case, x, w, None, actual, tf32=False) for actual in by_every_cut(case, x, w)]
    assert len(cuts) > 3


def by_every_cut(case: Case, x, w):
    """The outputs of the tile kernels that the planner thinks best, one after another."""
    for cut in range(12):
        with tconv.testing.force_family("tile" if cut == 0 else f"tile#{cut}"):
            try:
                actual = OURS[case.rank](x, w, None, **case.parameters)
            except RuntimeError as error:
                assert "no kernel family takes the problem" in str(error) or "declines" in str(error), error
                return
        yield actual


@pytest.mark.parametrize("channels_last", [False, True])
def test_long_lines_by_every_cut(precision, channels_last):
    """Distances along an axis that are multiplied together, so many that halves of their products take turns."""
    dtype, tf32 = precision
    if dtype == torch.float64:
        pytest.skip("tiles are for tensor cores")
    case = Case((37, 67), (7, 3), (1, 1), batch=2, in_per_group=20, out_per_group=64, bias=False)
    x, w, _ = (None if t is None else t.to("cuda", dtype) for t in case.tensors(torch.float32))
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    cuts = [check(case, x, w, None, actual, tf32) for actual in by_every_cut(case, x, w)]
    assert len(cuts) > 3


def kernelbench() -> list[str]:
    return [problem.name for problem in problems.load_problems() if problem.name.startswith("kb")]


@pytest.mark.parametrize("name", kernelbench())
def test_kernelbench_problems_agree_with_pytorch(name):
    """KernelBench's own criterion, at the problem's own size: 1e-4 against PyTorch as it comes."""
    problem = next(p for p in problems.load_problems() if p.name == name)
    parameters = {
        "stride": tuple(problem.stride),
        "padding": tuple(problem.padding),
        "output_padding": tuple(problem.output_padding),
        "groups": problem.groups,
        "dilation": tuple(problem.dilation),
    }
    rank = len(problem.input)
    layer = getattr(torch.nn, f"ConvTranspose{rank}d")(
        problem.in_channels, problem.out_channels, tuple(problem.kernel), bias=False, **parameters
    ).cuda()
    x = torch.rand(problem.batch, problem.in_channels, *problem.input, device="cuda")
    with torch.no_grad():
        expected = layer(x)
        actual = OURS[rank](x, layer.weight, None, **parameters)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["kb61", "kb77", "kb79", "UNet.up3", "StyleGAN2ADA_dense.up64", "HiFiGAN_v1.up1_train"]
)
def test_strict_errors_are_no_larger_than_pytorchs(name):
    """Against float64, over the layer's own channels and kernel: three TF32 products lose no more than fp32 does."""
    problem = next(p for p in problems.load_problems() if p.name == name)
    rank = len(problem.input)
    case = Case(
        input=tuple(min(size, {1: 512, 2: 48, 3: 16}[rank]) for size in problem.input),
        kernel=tuple(problem.kernel),
        stride=tuple(problem.stride),
        padding=tuple(problem.padding),
        dilation=tuple(problem.dilation),
        batch=2,
        groups=problem.groups,
        in_per_group=problem.in_channels // problem.groups,
        out_per_group=problem.out_channels // problem.groups,
        bias=False,
    )
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
        x, w, _ = (None if t is None else t.cuda() for t in case.tensors(torch.float32))
        exact = THEIRS[rank](wide(x), wide(w), None, **case.parameters)
        errors = [
            ((wide(function(x, w, None, **case.parameters)) - exact).norm() / exact.norm()).item()
            for function in (OURS[rank], THEIRS[rank])
        ]
    assert errors[0] <= 1.05 * errors[1], errors


@pytest.mark.parametrize("channels", [(1, 1, 8), (8, 8, 2), (64, 48, 1), (512, 256, 1)], ids=str)
def test_a_sample_is_the_same_in_every_batch_and_every_run(channels, precision):
    dtype, _ = precision
    inputs, outputs, groups = channels
    case = Case((7, 9), (4, 3), (2, 2), (1, 1), batch=70, groups=groups, in_per_group=inputs, out_per_group=outputs)
    x, w, b = (None if t is None else t.to("cuda", dtype) for t in case.tensors(torch.float32))
    whole = tconv.conv_transpose2d(x, w, b, **case.parameters)
    assert torch.equal(whole, tconv.conv_transpose2d(x, w, b, **case.parameters))
    for count in (1, 2, 13):
        assert torch.equal(whole[:count], tconv.conv_transpose2d(x[:count], w, b, **case.parameters)), count


def test_capture_in_a_cuda_graph():
    layer = tconv.ConvTranspose2d(64, 32, 4, 2, 1).cuda()
    x = torch.randn(4, 64, 16, 16, device="cuda")
    tconv.prepare(layer, x)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, layer(x), rtol=0, atol=0)


def test_capture_a_unet_decoder_in_a_cuda_graph():
    width, levels, size = 32, 4, 16
    decoder = tconv.convert(UNetDecoder(width, levels)).cuda()

    def features() -> list[torch.Tensor]:
        sizes = [
            (width << levels, size),
            *((width << level, size << (levels - level)) for level in reversed(range(levels))),
        ]
        return [torch.randn(2, channels, side, side, device="cuda") for channels, side in sizes]

    inputs = features()
    tconv.prepare(decoder, *inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        output = decoder(*inputs)
    with torch.no_grad():
        for _ in range(3):
            for tensor, fresh in zip(inputs, features(), strict=True):
                tensor.copy_(fresh)
            output.fill_(math.nan)
            graph.replay()
            # PyTorch's own convolutions are in there too, and need not sum in the same order every time.
            torch.testing.assert_close(output, decoder(*inputs), rtol=1e-3, atol=1e-3)


def test_writes_through_data_are_seen():
    layer = tconv.ConvTranspose2d(64, 64, 2, 2).cuda()
    x = torch.randn(2, 64, 32, 32, device="cuda")
    with torch.no_grad():
        layer(x)
        layer.weight.data.mul_(2)
        layer.bias.data.zero_()
        torch.testing.assert_close(
            layer(x), torch.nn.functional.conv_transpose2d(x, layer.weight, None, 2), rtol=0, atol=0.02
        )


def test_streams_and_threads():
    layer = tconv.ConvTranspose1d(32, 32, 4, 2, 1).cuda()
    x = torch.randn(3, 32, 500, device="cuda")
    with torch.no_grad():
        expected = layer(x)
    torch.cuda.synchronize()
    wrong = []

    def work():
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(20):
                if not torch.equal(layer(x), expected):
                    wrong.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def backward(case: Case, dy, x, w, wanted=(True, True, True)):
    p = case.parameters
    return torch.ops.tconv.conv_transpose_backward(
        dy, x, w, p["stride"], p["padding"], p["output_padding"], p["groups"], p["dilation"], list(wanted)
    )


def check_backward(case: Case, x, w, dy, actual, tf32: bool) -> None:
    """Gradients of input, weight and bias, those that are given, against float64."""
    function = THEIRS[case.rank]
    b = torch.zeros(case.groups * case.out_per_group, device="cuda", dtype=torch.float64)
    expected = gradients(function, case, wide(x), wide(w), b, wide(dy))
    magnitude = gradients(function, case, wide(x).abs(), wide(w).abs(), b, wide(dy).abs())
    terms = (
        case.out_per_group * math.prod(case.kernel),
        case.batch * math.prod(case.input),
        case.batch * math.prod(case.output),
    )
    for index, (got, want, size, count) in enumerate(zip(actual, expected, magnitude, terms, strict=True)):
        if got is None:
            continue
        working = torch.finfo(torch.float64 if got.dtype == torch.float64 else torch.float32).eps
        rounded = 2.0**-10 if tf32 and index < 2 else 0.0
        bound = size * (rounded + (count + 2) * working) + torch.finfo(got.dtype).eps * want.abs()
        bound += 2.0**-24 if got.dtype == torch.float16 else 0.0
        error = (wide(got) - want).abs()
        assert torch.isfinite(error).all(), (index, case)
        assert (error <= bound).all(), f"{case}: gradient {index}: {(error / bound).max().item():g} of the bound"


@pytest.mark.parametrize("family", ["reduce", "depthwise", "general"])
def test_gradients_of_the_weight(family, precision):
    dtype, tf32 = precision
    rng = random.Random(f"grad_weight {family} {dtype} {tf32} {SEED}")
    draws = max(COUNT // 5, 6)
    declines_all = family != "general" and dtype == torch.float64
    drawn = ran = 0
    while drawn < draws or (ran <= draws // 6 and not declines_all and drawn < 8 * draws):
        drawn += 1
        case = draw(rng, "tile" if family == "reduce" else "direct")
        x, w, _ = on_gpu(case, dtype, rng)
        dy = torch.randn(case.batch, case.groups * case.out_per_group, *case.output, device="cuda").to(dtype)
        with tconv.testing.force_family(family):
            try:
                _, actual, _ = backward(case, dy, x, w, (False, True, False))
            except RuntimeError as error:
                assert "no kernel family takes the problem" in str(error) or "declines" in str(error), error
                continue
        check_backward(case, x, w, dy, (None, actual, None), tf32 and family == "reduce")
        ran += 1
    assert ran == 0 if declines_all else ran > draws // 6


def test_gradients_of_small_groups(precision):
    dtype, tf32 = precision
    rng = random.Random(f"small groups {dtype} {tf32} {SEED}")
    wanted = max(COUNT // 10, 1)
    ran = 0
    for _ in range(8 * wanted):  # the family declines some
        if ran == wanted:
            break
        case = draw(rng, "direct")
        case = replace(case, groups=rng.choice((2, 3, 4)), in_per_group=8, out_per_group=rng.choice((8, 16, 24, 32)))
        x, w, _ = on_gpu(case, dtype, rng)
        dy = torch.randn(case.batch, case.groups * case.out_per_group, *case.output, device="cuda").to(dtype)
        if rng.random() < 0.4:
            x, dy = (with_channels_last(t, rng.choice((0, 0, 1, 3))) for t in (x, dy))
        with tconv.testing.force_family("group"):
            try:
                actual = backward(case, dy, x, w, (True, True, False))
            except RuntimeError as error:
                assert "no kernel family takes the problem" in str(error) or "declines" in str(error), error
                continue
        check_backward(case, x, w, dy, (actual[0], actual[1], None), tf32)
        ran += 1
    declines_all = dtype == torch.float64 or (dtype == torch.float32 and not tf32)
    assert ran == (0 if declines_all else wanted)


def test_channels_last_depthwise_and_small_groups(precision):
    """Forward and grad_input by the kernel that walks along the channels, whichever tile, at any address."""
    dtype, _ = precision
    rng = random.Random(f"channels last {dtype} {SEED}")
    wanted = max(COUNT // 10, 1)
    ran = 0
    for _ in range(8 * wanted):  # it has no second tile for some
        if ran == wanted:
            break
        case = draw(rng, "direct")
        while case.rank == 1:
            case = draw(rng, "direct")
        if rng.random() < 0.6:
            case = replace(case, groups=rng.choice((3, 8, 16, 33, 128, 300)), in_per_group=1, out_per_group=1)
        else:
            case = replace(case, groups=rng.choice((2, 3, 4)), in_per_group=rng.choice((1, 3, 4, 8, 16)))
        x, w, b = (None if t is None else t.to("cuda", dtype) for t in case.tensors(torch.float32))
        shape = (case.batch, case.groups * case.out_per_group, *case.output)
        dy = torch.randn(shape, device="cuda").to(dtype).to(memory_format=CHANNELS_LAST[case.rank])
        x = with_channels_last(x, rng.choice((0, 0, 1, 3)))
        with tconv.testing.force_family(f"direct#{rng.choice((0, 0, 1, 2, 3))}"):
            try:
                actual = OURS[case.rank](x, w, b, **case.parameters)
                dx, _, _ = backward(case, dy, x, w, (True, False, False))
            except RuntimeError as error:
                assert "no kernel family takes the problem" in str(error) or "declines" in str(error), error
                continue
        check(case, x, w, b, actual, tf32=False)
        check_backward(case, x, w, dy, (dx, None, None), tf32=False)
        ran += 1
    assert ran == wanted


def test_each_gradient_alone_and_all_together(precision):
    dtype, tf32 = precision
    rng = random.Random(f"gradients {dtype} {tf32} {SEED}")
    for _ in range(max(COUNT // 10, 1)):
        case = draw(rng, rng.choice(("tile", "direct")))
        x, w, _ = on_gpu(case, dtype, rng)
        dy = torch.randn(case.batch, case.groups * case.out_per_group, *case.output, device="cuda").to(dtype)
        together = backward(case, dy, x, w)
        check_backward(case, x, w, dy, together, tf32)
        for index in range(3):
            alone = backward(case, dy, x, w, [i == index for i in range(3)])
            assert [gradient is not None for gradient in alone] == [i == index for i in range(3)]
            assert torch.equal(alone[index], together[index]), (index, case)


def test_gradients_are_the_same_in_every_run(precision):
    dtype, _ = precision
    for case in (
        Case((33, 40), (3, 3), (1, 1), (1, 1), batch=9, in_per_group=64, out_per_group=48),
        Case((500,), (12,), (2,), (0,), batch=4, groups=30, in_per_group=1, out_per_group=1),
    ):
        x, w, _ = (t if t is None else t.to("cuda", dtype) for t in case.tensors(torch.float32))
        dy = torch.randn(case.batch, case.groups * case.out_per_group, *case.output, device="cuda").to(dtype)
        first = backward(case, dy, x, w)
        for _ in range(5):
            for a, b in zip(first, backward(case, dy, x, w), strict=True):
                assert torch.equal(a, b)


BESIDE = {
    "a cut that leaves room": Case((4, 4), (4, 4), (2, 2), (1, 1), batch=64, in_per_group=512, out_per_group=256),
    "more tiles than fit at once": Case((64, 64), (2, 2), (2, 2), (0, 0), batch=4, in_per_group=512, out_per_group=256),
    "one behind the other": Case((64, 64), (4, 4), (2, 2), (1, 1), batch=8, groups=64),
    "small groups": Case((31, 31), (3, 3), (2, 2), (1, 1), batch=4, groups=8, in_per_group=8, out_per_group=8),
}


@pytest.mark.parametrize("case", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_at_the_same_time(case, dtype):
    """The bits of each alone; whoever comes next on the stream sees all of both, and so does a CUDA Graph."""
    x, w, _ = (t if t is None else t.to("cuda", dtype) for t in case.tensors(torch.float32))
    dy = torch.randn(case.batch, case.groups * case.out_per_group, *case.output, device="cuda").to(dtype)
    alone = [backward(case, dy, x, w, [i == index for i in range(3)])[index] for index in range(2)]
    for _ in range(10):
        together = [gradient.clone() for gradient in backward(case, dy, x, w, (True, True, False))[:2]]
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [gradient.clone() for gradient in backward(case, dy, x, w, (True, True, False))[:2]]
    for _ in range(3):
        for gradient in captured:
            gradient.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(alone, captured, strict=True))


def test_double_backward():
    x = torch.randn(2, 4, 5, 6, device="cuda", dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 3, 3, 4, device="cuda", dtype=torch.float64, requires_grad=True)
    b = torch.randn(6, device="cuda", dtype=torch.float64, requires_grad=True)
    layer = partial(tconv.conv_transpose2d, stride=2, padding=1, groups=2)
    assert torch.autograd.gradcheck(layer, (x, w, b))
    assert torch.autograd.gradgradcheck(layer, (x, w, b))


def test_autocast_and_empty_batch():
    layer = tconv.ConvTranspose2d(16, 16, 2, 2).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer(torch.randn(1, 16, 4, 4, device="cuda")).dtype == torch.bfloat16
    assert layer(torch.randn(0, 16, 4, 4, device="cuda")).shape == (0, 16, 8, 8)


@pytest.mark.parametrize("groups", [1, 64])
def test_more_than_two_to_the_31_elements(groups):
    free, _ = torch.cuda.mem_get_info()
    if free < 40 << 30:
        pytest.skip(f"needs 40 GiB of GPU memory, {free >> 30} are free")
    length = 1 << 25
    x = torch.randn(1, 64, length // 2, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(64, 64 // groups + 8 * (groups == 1), 2, device="cuda", dtype=torch.bfloat16) / 8
    y = tconv.conv_transpose1d(x, w, stride=2, groups=groups)
    assert y.numel() > 2**31 - 1
    tail = tconv.conv_transpose1d(x[..., -1000:].contiguous(), w, stride=2, groups=groups)
    # Another size may be planned another way, and round its last bit another way.
    torch.testing.assert_close(y[..., -2000:], tail, rtol=2.0**-7, atol=2.0**-7)
    del y, tail

    def gradients_of(dy, x):
        return torch.ops.tconv.conv_transpose_backward(dy, x, w, [2], [0], [0], groups, [1], [True, True, False])[:2]

    dy = torch.randn(1, groups * w.shape[1], length, device="cuda", dtype=torch.bfloat16)
    dx, dw = gradients_of(dy, x)
    pieces = [slice(at, at + length // 16) for at in range(0, length // 2, length // 16)]
    parts = [
        gradients_of(dy[..., 2 * piece.start : 2 * piece.stop].contiguous(), x[..., piece].contiguous())
        for piece in pieces
    ]
    torch.testing.assert_close(dx, torch.cat([part for part, _ in parts], dim=-1), rtol=2.0**-7, atol=2.0**-7)
    sums = sum(wide(part) for _, part in parts)
    # Eight parts, each rounded to bf16.
    assert (wide(dw) - sums).norm() <= 2.0**-7 * sums.norm()
