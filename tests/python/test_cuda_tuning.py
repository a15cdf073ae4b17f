"""Autotuning on an NVIDIA GPU, in processes of its own: what is tuned lives in the cache folder and in the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

LAYER = """
import sys, torch, tconv
torch.manual_seed(3)
layer = torch.nn.Sequential(tconv.ConvTranspose2d(64, 48, 4, 2, 1), tconv.ConvTranspose2d(48, 6, 3, 2, groups=6)).cuda()
x = torch.randn(8, 64, 24, 24, device="cuda", requires_grad=True)

def compute():
    y = layer(x)
    return y, *torch.autograd.grad(y, (x, *layer.parameters()), torch.ones_like(y))

def wide():
    with torch.backends.cudnn.flags(allow_tf32=False):
        model = torch.nn.Sequential(torch.nn.ConvTranspose2d(64, 48, 4, 2, 1),
                                    torch.nn.ConvTranspose2d(48, 6, 3, 2, groups=6)).cuda().double()
        model.load_state_dict(layer.state_dict())
        z = x.detach().double().requires_grad_()
        y = model(z)
        return y, *torch.autograd.grad(y, (z, *model.parameters()), torch.ones_like(y))

def check(results):
    for actual, expected in zip(results, wide()):
        error = (actual.double() - expected).norm() / expected.norm()
        assert error < 2e-3, error
"""


def program(text: str, folder: os.PathLike[str], **variables: str) -> list[str]:
    """The lines that the library logs about tuning while the program runs."""
    environment = {**os.environ, "TCONV_CACHE_DIR": str(folder), "TCONV_LOG": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", LAYER + text], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [line for line in done.stderr.splitlines() if "tuned" in line]


def test_tuned_once_and_used_by_the_next_process(tmp_path):
    first = program("with tconv.autotune():\n    check(compute())\ncheck(compute())", tmp_path)
    raced = [line for line in first if line.startswith("tconv: tuned ")]
    assert len(raced) == 8, raced  # two layers: forward and three gradients
    assert len(list(tmp_path.glob("*.plan"))) == 8

    later = program("check(compute())", tmp_path)
    assert not [line for line in later if line.startswith("tconv: tuned ")]
    assert len([line for line in later if line.endswith(", tuned")]) == 8
    assert not program("check(compute())", tmp_path, TCONV_AUTOTUNE="0")
    assert not program("with tconv.autotune():\n    check(compute())", tmp_path / "forced", TCONV_FORCE="general")


def test_the_variable_and_the_call(tmp_path):
    assert len(program("check(compute())", tmp_path / "a", TCONV_AUTOTUNE="1")) >= 8
    assert len(program("tconv.autotune(layer, x)\ncheck(compute())", tmp_path / "b")) >= 8
    assert len(list((tmp_path / "b").glob("*.plan"))) == 8


def test_a_spoilt_entry_is_ignored_and_tuned_again(tmp_path):
    program("tconv.autotune(layer, x)", tmp_path)
    for path in tmp_path.glob("*.plan"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    lines = program("check(compute())", tmp_path)
    assert not [line for line in lines if line.endswith(", tuned")]
    raced = program("tconv.autotune(layer, x)\ncheck(compute())", tmp_path)
    assert len([line for line in raced if line.startswith("tconv: tuned ")]) == 8


def test_nothing_is_tuned_while_a_graph_is_captured(tmp_path):
    lines = program(
        """
with torch.no_grad():
    expected = layer(x)
    graph = torch.cuda.CUDAGraph()
    with tconv.autotune(), torch.cuda.graph(graph):
        y = layer(x)
    graph.replay()
    assert torch.equal(y, expected)
""",
        tmp_path,
    )
    assert not [line for line in lines if line.startswith("tconv: tuned ")]


def test_threads_and_frozen_layers_while_plans_change(tmp_path):
    program(
        """
import threading
frozen = tconv.ConvTranspose2d(64, 48, 4, 2, 1).cuda().freeze()
inputs = [torch.randn(n, 64, 24, 24, device="cuda") for n in range(1, 5)]
with torch.no_grad():
    expected = [torch.nn.functional.conv_transpose2d(i.double(), frozen.weight.double(), frozen.bias.double(), 2, 1)
                for i in inputs]
failures = []

def work(tunes):
    for _ in range(10):
        for i, e in zip(inputs, expected):
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                i.record_stream(torch.cuda.current_stream())
                if tunes:
                    with tconv.autotune():
                        y = frozen(i)
                else:
                    y = frozen(i)
                torch.cuda.current_stream().synchronize()
                if (y.double() - e).norm() > 2e-3 * e.norm():
                    failures.append(i.shape)

torch.cuda.synchronize()
threads = [threading.Thread(target=work, args=(tunes,)) for tunes in (False, True, False, True)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
""",
        tmp_path,
    )
