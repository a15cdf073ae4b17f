"""Threads: many callers at once, PyTorch's own threads inside, and neither changes a bit of the result."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from oracle import OURS, Case, gradients
from tconv import _library


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


CASE = Case((12, 13), (4, 4), (2, 2), (1, 1), in_per_group=24, out_per_group=20)


def test_the_threads_are_pytorchs():
    """False where torch/ was compiled without -fopenmp: torch.set_num_threads would not be heeded."""
    assert _library.info()["threads"] == ["pytorch"]


def test_the_number_of_threads_changes_nothing(family):
    x, w, b = CASE.tensors(torch.float32)
    dy = torch.randn(2, 20, *CASE.output)

    def compute():
        return (OURS[2](x, w, b, **CASE.parameters), *gradients(OURS[2], CASE, x, w, b, dy))

    alone = compute()
    before = torch.get_num_threads()
    try:
        for count in (2, 3, 4):
            torch.set_num_threads(count)
            for a, c in zip(alone, compute(), strict=True):
                assert torch.equal(a, c)
    finally:
        torch.set_num_threads(before)


def test_many_callers(family, four_threads):
    """Each thread meets new problems (the plan cache is written) and old ones (it is read), forward and backward."""
    cases = [
        Case((4 + i % 5, 5), (3, 2 + i % 3), (1 + i % 2, 2), in_per_group=2 + i % 4, out_per_group=3) for i in range(24)
    ]
    problems = [(case, *case.tensors(torch.float32)) for case in cases]
    expected = [OURS[2](x, w, b, **case.parameters) for case, x, w, b in problems[:12]]

    def work(index):
        case, x, w, b = problems[index % len(problems)]
        y = OURS[2](x, w, b, **case.parameters)
        dy = torch.ones(y.shape)
        return index % len(problems), y, gradients(OURS[2], case, x, w, b, dy)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(192)))
    by_problem = {}
    for index, y, grads in results:
        if index < len(expected):
            assert torch.equal(y, expected[index])
        first = by_problem.setdefault(index, (y, grads))
        assert torch.equal(first[0], y) and all(torch.equal(a, c) for a, c in zip(first[1], grads, strict=True))
        assert math.isfinite(y.sum().item())
    assert len(by_problem) == len(problems)


def test_backward_runs_in_pytorchs_engine_threads(four_threads):
    x, w, b = (t.requires_grad_() for t in CASE.tensors(torch.float64))
    y = OURS[2](x, w, b, **CASE.parameters)
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: torch.autograd.grad(y.sum(), (x, w, b), retain_graph=True), range(8)))
    for run in runs[1:]:
        assert all(torch.equal(a, c) for a, c in zip(runs[0], run, strict=True))
