"""Compiling ahead: what the first call would otherwise do, done before it matters (CUDA Graph capture, serving)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import torch

from tconv._modes import evaluation_mode
from tconv.explain import Setting
from tconv.problems import Problem
from tconv.terminal import make_progress


def prepare(model: torch.nn.Module, *example: Any, **keywords: Any) -> None:
    """Plans and compiles every layer that `model(*example, **keywords)` reaches, by running it once.

    The model runs without gradients and in evaluation mode, so that no running statistics change; each module's own
    mode is restored afterwards. Tensors of the example must be on the device, and of the sizes and dtype, that will be
    used later. Afterwards a forward call with these sizes compiles nothing.
    """
    with evaluation_mode(model), torch.no_grad():
        model(*example, **keywords)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def prepare_problems(problems: Sequence[Problem], setting: Setting, *, backward: bool) -> int:
    """Compiles the kernels of problems, many at a time; returns the exit code of `python -m tconv prepare`."""
    if not torch.cuda.is_available():
        print(
            "tconv prepare: this machine has no GPU that PyTorch can use, so there is nothing to compile "
            "(CPU kernels are ready as installed)",
            file=sys.stderr,
        )
        return 1

    def ready(problem: Problem) -> str:
        begin = time.perf_counter()
        try:
            _prepare_problem(problem, setting, backward=backward)
        except RuntimeError as error:
            return f"failed: {str(error).splitlines()[0]}"
        return f"ready ({time.perf_counter() - begin:.2f} s)"

    failed = 0
    with make_progress(len(problems), sys.stderr) as line, ThreadPoolExecutor() as pool:
        line.start("compiling")
        waiting = {pool.submit(ready, problem): problem.name for problem in problems}
        for done in as_completed(waiting):
            failed += done.result().startswith("failed")
            line.finish(f"{waiting[done]}: {done.result()}")
    print(f"prepared {len(problems) - failed} of {len(problems)} problems")
    return 1 if failed else 0


def _prepare_problem(problem: Problem, setting: Setting, *, backward: bool) -> None:
    gradients = ("grad_input", "grad_weight", *(("grad_bias",) if setting.bias else ())) if backward else ()
    for direction in ("forward", *gradients):
        torch.ops.tconv._prepare(*replace(setting, direction=direction).arguments(problem))
