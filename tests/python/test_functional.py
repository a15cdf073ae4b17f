"""Values: random problems of every kind against PyTorch in float64, with each CPU kernel family forced."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tconv.testing
from oracle import DTYPES, OURS, THEIRS, Case, check_forward, check_gradients, gradients

# Those that take some layers alone have their own tests in tests/cpp.
FAMILIES = [name for name in tconv.testing.families("cpu") if name not in ("columns", "depthwise", "winograd")]
DECLINED = "no kernel family takes the problem"

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)


@st.composite
def cases(draw, ranks=(1, 2, 3)) -> Case:
    rank = draw(st.sampled_from(ranks))
    most = {1: 9, 2: 5, 3: 3}[rank]
    axes = []
    for _ in range(rank):
        size, kernel = draw(st.integers(1, most)), draw(st.integers(1, most))
        stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        output_padding = draw(st.integers(0, max(stride, dilation) - 1))
        bare = (size - 1) * stride + dilation * (kernel - 1) + output_padding + 1
        axes.append((size, kernel, stride, draw(st.integers(0, (bare - 1) // 2)), output_padding, dilation))
    size, kernel, stride, padding, output_padding, dilation = zip(*axes, strict=True)
    return Case(
        size,
        kernel,
        stride,
        padding,
        output_padding,
        dilation,
        batch=draw(st.integers(0, 3)),
        groups=draw(st.integers(1, 3)),
        in_per_group=draw(st.integers(1, 5)),
        out_per_group=draw(st.integers(1, 5)),
        bias=draw(st.booleans()),
    )


def forced(family, compute):
    """The result under a forced family, or None where the family says that it does not take the problem."""
    if family is None:
        return compute()
    with tconv.testing.force_family(family):
        try:
            return compute()
        except RuntimeError as error:
            if DECLINED not in str(error):
                raise
            return None


@pytest.mark.parametrize("chosen", [None, *FAMILIES], ids=lambda name: name or "planned")
def test_random_problems(chosen):
    taken = 0

    @settings(relaxed, max_examples=400)
    @given(case=cases(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**31))
    def run(case, dtype, seed):
        nonlocal taken
        torch.manual_seed(seed)
        x, w, b = case.tensors(dtype)
        y = forced(chosen, lambda: OURS[case.rank](x, w, b, **case.parameters))
        if y is None:
            return
        taken += 1
        assert y.dtype == dtype and y.shape[2:] == case.output
        check_forward(case, x, w, b, y)

    run()
    assert taken > 0, "the family declined every problem"


@pytest.mark.parametrize("chosen", [None, *FAMILIES], ids=lambda name: name or "planned")
def test_random_gradients(chosen):
    taken = 0

    @settings(relaxed, max_examples=300)
    @given(case=cases(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**31))
    def run(case, dtype, seed):
        nonlocal taken
        torch.manual_seed(seed)
        x, w, b = case.tensors(dtype)
        dy = torch.randn(case.batch, case.groups * case.out_per_group, *case.output, dtype=dtype)
        actual = forced(chosen, lambda: gradients(OURS[case.rank], case, x, w, b, dy))
        if actual is None:
            return
        taken += 1
        check_gradients(case, x, w, b, dy, actual)

    run()
    assert taken > 0, "the family declined every problem"


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_against_pytorch_itself_in_fp32(rank, family):
    case = Case((6,) * rank, (4,) * rank, (2,) * rank, (1,) * rank, groups=2, in_per_group=8, out_per_group=8)
    x, w, b = case.tensors(torch.float32)
    torch.testing.assert_close(
        OURS[rank](x, w, b, **case.parameters), THEIRS[rank](x, w, b, **case.parameters), atol=1e-4, rtol=1e-5
    )


def test_larger_layers(family):
    """Sizes at which blocks, vectors and threads all have whole parts and remainders."""
    for case in (
        Case((17, 19), (4, 4), (2, 2), (1, 1), batch=2, in_per_group=37, out_per_group=21),
        Case((5, 6, 7), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1), in_per_group=19, out_per_group=18),
        Case((130,), (16,), (8,), (4,), in_per_group=33, out_per_group=17),
        Case((11, 13), (5, 3), (1, 1), dilation=(2, 3), in_per_group=16, out_per_group=33, groups=2),
        Case((33,), (7,), (2,), (3,), (1,), groups=40, in_per_group=1, out_per_group=1),
    ):
        x, w, b = case.tensors(torch.float32)
        dy = torch.randn(case.batch, case.groups * case.out_per_group, *case.output)
        check_forward(case, x, w, b, OURS[case.rank](x, w, b, **case.parameters))
        check_gradients(case, x, w, b, dy, gradients(OURS[case.rank], case, x, w, b, dy))


def test_a_single_int_serves_every_axis():
    x, w, b = Case((4, 5), (3, 3), (2, 2)).tensors(torch.float64)
    one = OURS[2](x, w, b, 3, 1, 2, 1, 2)
    each = OURS[2](x, w, b, (3, 3), [1, 1], (2, 2), 1, (2, 2))
    short = OURS[2](x, w, b, (3,), [1], (2,), 1, (2,))
    assert torch.equal(one, each) and torch.equal(one, short)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_unbatched_input(rank):
    case = Case((4,) * rank, (3,) * rank, (2,) * rank)
    x, w, b = case.tensors(torch.float64)
    y = OURS[rank](x[0], w, b, **case.parameters)
    assert y.shape == (2, *case.output)
    torch.testing.assert_close(y, THEIRS[rank](x[0], w, b, **case.parameters))


def test_a_sample_does_not_depend_on_its_batch(family):
    x, w, b = Case((9, 9), (4, 4), (2, 2), batch=5, in_per_group=16, out_per_group=16).tensors(torch.float32)
    whole = OURS[2](x, w, b, 2, 1)
    for n in range(5):
        assert torch.equal(whole[n : n + 1], OURS[2](x[n : n + 1], w, b, 2, 1))


def test_the_same_bits_every_time(family):
    x, w, b = Case((9, 9), (4, 4), (2, 2), batch=3, in_per_group=16, out_per_group=16).tensors(torch.float32)
    case = Case((9, 9), (4, 4), (2, 2), batch=3, in_per_group=16, out_per_group=16)
    dy = torch.randn(3, 16, *case.output)
    first = gradients(OURS[2], case, x, w, b, dy)
    for _ in range(3):
        for a, c in zip(first, gradients(OURS[2], case, x, w, b, dy), strict=True):
            assert torch.equal(a, c)


class TestClassicMistakes:
    """The errors that everybody makes once, each with a problem on which it shows."""

    def test_inputs_reach_only_outputs_that_the_stride_allows(self, family):
        # One tap and stride 3: outputs between the multiples of 3 hold the bias alone.
        y = OURS[1](torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[10.0]]]), torch.tensor([0.5]), stride=3)
        assert y.tolist() == [[[10.5, 0.5, 0.5, 20.5, 0.5, 0.5, 30.5]]]

    def test_the_weight_is_in_channels_first(self, family):
        # With as many inputs as outputs a weight read as [Cout, Cin] fits and is transposed.
        x = torch.tensor([[[1.0], [10.0]]])
        w = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
        assert OURS[1](x, w).flatten().tolist() == [31.0, 42.0]
        assert OURS[1](x, torch.ones(2, 3, 1)).shape == (1, 3, 1)

    def test_the_dilation_lengthens_the_output(self, family):
        y = OURS[1](torch.ones(1, 1, 2), torch.tensor([[[1.0, 10.0, 100.0]]]), dilation=3)
        assert y.flatten().tolist() == [1.0, 1.0, 0.0, 10.0, 10.0, 0.0, 100.0, 100.0]

    def test_output_padding_adds_at_the_end_and_moves_nothing(self, family):
        case = Case((4, 5), (3, 3), (3, 3), (1, 1), (2, 1))
        x, w, b = case.tensors()
        plain = case.without_output_padding()
        longer = OURS[2](x, w, b, **case.parameters)
        shorter = OURS[2](x, w, b, **plain.parameters)
        assert torch.equal(longer[..., : plain.output[0], : plain.output[1]], shorter)
        # The added rows are computed, not filled: the last column still receives a tap of the padding that was cut off.
        torch.testing.assert_close(longer, THEIRS[2](x, w, b, **case.parameters))

    def test_padding_removes_outputs_at_both_ends(self, family):
        x, w, b = Case((5,), (4,), (2,)).tensors()
        assert torch.equal(OURS[1](x, w, b, 2, 2), OURS[1](x, w, b, 2)[..., 2:-2])

    def test_groups_do_not_mix(self, family):
        x = torch.tensor([[[1.0], [10.0]]])
        assert OURS[1](x, torch.tensor([[[2.0]], [[3.0]]]), groups=2).flatten().tolist() == [2.0, 30.0]


def test_outputs_are_poisoned_before_they_are_written():
    """Guards the tests themselves: see conftest.py."""
    assert torch.empty(3, 4).isnan().all() and torch.empty(2, dtype=torch.bfloat16).isnan().all()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_int64_is_exact(rank):
    """As PyTorch computes it on a CPU: modulo 2^64."""
    whole = torch.iinfo(torch.int64)
    torch.manual_seed(rank)
    for largest in (9, 2**40, whole.max):
        x = torch.randint(-largest, largest, (2, 6, *(5, 4, 3)[:rank]))
        w = torch.randint(-largest, largest, (6, 4, *(3, 2, 4)[:rank]))
        b = torch.randint(-largest, largest, (8,))
        options = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
        y = OURS[rank](x, w, b, **options)
        assert y.dtype == torch.int64
        assert torch.equal(y, THEIRS[rank](x, w, b, **options))
    with pytest.raises(NotImplementedError, match="Int"):
        OURS[rank](x.int(), w.int())


@pytest.mark.parametrize("channels", [1, 3])
def test_memory_of_others_leaves_no_trace(channels):
    """Scratch memory may hold NaN from earlier use; sums of whole vectors must not see what lies behind a row."""
    for length in range(3, 40):
        junk = [torch.full((size,), torch.nan) for size in (100, 500, 1000, 3000, 10000) for _ in range(6)]
        del junk
        x = torch.randn(1, channels, length)
        w = torch.randn(channels, 2, 1, requires_grad=True)
        y = tconv.conv_transpose1d(x, w)
        (grad,) = torch.autograd.grad(y, w, torch.ones_like(y))
        expected = x.sum(2).sum(0)[:, None, None].expand_as(w)
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "channels,size,kernel,batch",
    [((64, 2), 16, 5, 32), ((2200, 1), 4, 6, 64), ((24, 1), 40, 9, 9), ((32, 32), 16, 3, 20), ((64, 48), 5, 4, 33)],
    ids=str,
)
def test_a_sample_is_the_same_in_every_batch(channels, size, kernel, batch, dtype):
    """Which kernel computes a layer, and in which order it adds, does not depend on the batch."""
    inputs, outputs = channels
    case = Case((size,) * 2, (kernel,) * 2, (2, 2), (2, 2), batch=batch, in_per_group=inputs, out_per_group=outputs)
    x, w, b = case.tensors(dtype)
    whole = OURS[2](x, w, b, **case.parameters)
    for count in (1, 3):
        assert torch.equal(whole[:count], OURS[2](x[:count], w, b, **case.parameters)), count
