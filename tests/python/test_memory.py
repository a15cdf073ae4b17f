"""Large CPU results are made of memory that earlier ones have left."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tconv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is kept on Linux alone")

WEIGHT = torch.ones(1, 8, 2, 2)


def result(side: int = 512) -> torch.Tensor:
    """8 channels of twice the side: 32 MiB for 512."""
    return tconv.conv_transpose2d(torch.ones(1, 1, side, side), WEIGHT, stride=2)


@pytest.fixture(autouse=True)
def _nothing_kept():
    """Begins with nothing kept; without the mode of all other tests, in which PyTorch itself allocates and fills."""
    torch.use_deterministic_algorithms(False)
    tconv.release_memory()
    yield
    tconv.release_memory()
    torch.use_deterministic_algorithms(True, warn_only=True)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_memory_is_used_again_and_given_back():
    first = result()
    place = first.data_ptr()
    second = result()
    assert second.data_ptr() != place
    del first
    third = result(508)  # somewhat smaller
    assert third.data_ptr() == place
    del third
    assert result(480).data_ptr() != place  # much smaller
    assert torch.equal(result(), torch.ones(1, 8, 1024, 1024))
    del second
    before = resident()
    tconv.release_memory()
    assert before - resident() > 60 << 20


def test_small_results_come_from_pytorch():
    small = result(64)
    assert small.data_ptr() % (2 << 20) != 0
    assert torch.equal(small, torch.ones(1, 8, 128, 128))


def test_gradients_use_it_too():
    x = torch.ones(1, 1, 1536, 1536, requires_grad=True)  # 9 MiB
    w = torch.ones(1, 1, 2, 2)
    (first,) = torch.autograd.grad(tconv.conv_transpose2d(x, w, stride=2).sum(), x)
    place = first.data_ptr()
    del first
    (second,) = torch.autograd.grad(tconv.conv_transpose2d(x, w, stride=2).sum(), x)
    assert second.data_ptr() == place
    assert torch.equal(second, torch.full_like(x, 4))


def test_results_are_tensors_like_any_other():
    y = result()
    assert y.numel() * 4 == y.untyped_storage().nbytes()
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    assert torch.equal(torch.load(file), y)
    y.resize_(1, 8, 1024, 2048)
    assert torch.equal(y.view(2, 8, 1024, 1024)[0].sum(), torch.tensor(8.0 * 1024 * 1024))
    y.untyped_storage().resize_(0)
    shared = result().share_memory_()
    assert torch.equal(shared, result())


def test_deterministic_mode_fills_results_first():
    torch.use_deterministic_algorithms(True, warn_only=True)
    place = result().data_ptr()
    assert place % (2 << 20) != 0  # of PyTorch's own
    torch.use_deterministic_algorithms(False)
    assert result().data_ptr() % (2 << 20) == 0


def test_a_result_larger_than_any_memory_is_an_error():
    x = torch.ones(1, 1, 1).expand(1, 1, 1 << 40)
    with pytest.raises(RuntimeError, match="memory"):
        tconv.conv_transpose1d(x, torch.ones(1, 1, 64), stride=64)


def test_the_user_limits_what_is_kept():
    program = """
import torch, tconv
w = torch.ones(1, 8, 2, 2)
def place():
    return tconv.conv_transpose2d(torch.ones(1, 1, 512, 512), w, stride=2)
from pathlib import Path
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
place()
held = [place() for _ in range(3)]
before = resident()
del held
print((before - resident()) >> 20)
"""
    given_back = {}
    for limit in ("0", "40", "200"):
        environment = {**os.environ, "TCONV_KEEP_MEMORY": limit}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        given_back[limit] = int(done.stdout)
    assert given_back["0"] >= 95
    assert 60 <= given_back["40"] <= 70
    assert given_back["200"] <= 5


def test_the_same_as_pytorch_in_a_process_that_was_forked():
    y = result()
    del y
    child = os.fork()
    if child == 0:
        x = torch.randn(1, 1, 512, 512)
        torch.set_num_threads(1)
        same = torch.equal(tconv.conv_transpose2d(x, WEIGHT, stride=2), F.conv_transpose2d(x, WEIGHT, stride=2))
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
