"""Runs every GPU kernel on small problems, for compute-sanitizer:

python tests/python/kernels_once.py   # once without the tool: compiles, and the cache keeps the kernels
compute-sanitizer --tool racecheck python tests/python/kernels_once.py   # likewise memcheck, synccheck, initcheck

Exits with an error if a kernel of the list below was never run. With an argument I/N (1/4 to 4/4, say) it runs one
share of the problems and checks no list, so that several processes can share the work of a slow tool.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import tempfile

KERNELS = (
    "tconv_columns of columns.cuh",
    "tconv_tile of tile.cuh",
    "tconv_tile of tile_sm90.cuh",
    "tconv_tile of tile_stream.cuh",
    "tconv_tile_pack of tile_pack.cuh",
    "tconv_direct of direct.cuh",
    "tconv_depthwise of direct_depthwise.cuh",
    "tconv_direct_gradient of direct_gradient.cuh",
    "tconv_direct_gradient_depthwise of direct_gradient_depthwise.cuh",
    "tconv_reduce of reduce.cuh",
    "tconv_reduce of reduce_sm90.cuh",
    "tconv_reduce_finish of reduce_finish.cuh",
    "tconv_depthwise_weight of depthwise_weight.cuh",
    "tconv_depthwise_weight_finish of depthwise_weight.cuh",
    "tconv_group_input of group_input.cuh",
    "tconv_group_weight of group_weight.cuh",
    "tconv_group_weight_finish of group_weight.cuh",
    "tconv_general of general.cuh",
    "tconv_general_weight of general_weight.cuh",
    "tconv_general_weight_finish of general_weight.cuh",
    "tconv_grad_bias of grad_bias.cuh",
)


def shapes():
    """rank, batch, channels in and out, groups, input, kernel, stride, padding, output_padding, dilation"""
    yield 2, 2, 64, 32, 1, 9, 4, 2, 1, 0, 1
    yield 2, 2, 72, 64, 1, 9, 3, 2, 1, 1, 1
    yield 2, 1, 512, 256, 1, 4, 4, 2, 1, 0, 1
    yield 2, 2, 32, 16, 1, 9, 3, 1, 1, 0, 2
    yield 2, 2, 40, 48, 1, 9, 2, 2, 0, 0, 1
    yield 1, 2, 64, 32, 1, 40, 16, 8, 4, 0, 1
    yield 3, 1, 32, 33, 1, 5, 2, 2, 0, 0, 1
    yield 3, 1, 16, 32, 4, 5, 3, 2, 1, 1, 1
    yield 2, 2, 16, 16, 16, 9, 4, 2, 1, 0, 1
    yield 1, 2, 24, 24, 24, 60, 12, 2, 5, 0, 1
    yield 2, 2, 32, 32, 4, 9, 3, 2, 1, 1, 1
    yield 2, 2, 16, 32, 2, 9, 3, 2, 1, 0, 1
    yield 2, 2, 3, 5, 1, 9, 3, 2, 1, 0, 1
    yield 2, 2, 128, 3, 1, 16, 4, 2, 1, 0, 1
    # Large enough for packed weights and for warps that only load.
    yield 2, 2, 512, 256, 1, 16, 2, 2, 0, 0, 1
    yield 2, 1, 256, 256, 1, 15, 3, 2, 1, 1, 1
    yield 1, 2, 256, 128, 1, 300, 16, 8, 4, 0, 1
    # Tiles enough for blocks that keep their weights, in place and packed; pairs of outputs as phases.
    yield 1, 8, 16, 16, 1, 40000, 5, 1, 2, 0, 1
    yield 2, 2, 32, 32, 1, 270, 2, 2, 0, 0, 1
    # Lines with so many products that halves of them take turns.
    yield 2, 1, 32, 64, 1, 200, 5, 1, 0, 0, 1
    # Pixels enough for several blocks to share the sums of a depthwise weight.
    yield 2, 2, 16, 16, 16, 64, 4, 2, 1, 0, 1
    # Outputs of two bytes that leave as boxes.
    yield 2, 1, 64, 128, 1, 96, 1, 1, 0, 0, 1


def run(share: int, shares: int) -> None:
    import torch

    import tconv
    import tconv.testing

    torch.manual_seed(0)
    precisions = (
        (torch.float32, True),
        (torch.float32, False),
        (torch.bfloat16, False),
        (torch.float16, False),
        (torch.float64, False),
    )
    families = (None, "general", "columns")
    problems = itertools.product(precisions, shapes(), (False, True), families)
    for (dtype, tf32), shape, channels_last, family in itertools.islice(problems, share - 1, None, shares):
        rank, n, inputs, outputs, groups, size, kernel, stride, padding, output_padding, dilation = shape
        if channels_last and rank != 2:
            continue
        if family == "general" and (dtype != torch.float32 or tf32 or channels_last):
            continue
        if family == "columns" and (dtype == torch.float64 or (dtype == torch.float32 and not tf32)):
            continue
        x = torch.randn(n, inputs, *[size] * rank, device="cuda").to(dtype)
        w = torch.randn(inputs, outputs // groups, *[kernel] * rank, device="cuda").to(dtype)
        if channels_last:
            x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
        b = torch.randn(outputs, device="cuda").to(dtype)
        leaves = [t.requires_grad_() for t in (x, w, b)]
        with (
            torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32),
            tconv.testing.force_family(family or ""),
        ):
            function = getattr(tconv, f"conv_transpose{rank}d")
            try:
                y = function(*leaves, stride, padding, output_padding, groups, dilation)
            except RuntimeError as error:
                # Columns are for small images; whether they ran at all is asked at the end.
                if family == "columns" and "no kernel family takes the problem" in str(error):
                    continue
                raise
            if family != "columns":
                y.backward(torch.randn_like(y))
        torch.cuda.synchronize()


def main() -> int:
    """Runs, with the library's log on a file, and compares the kernels that it names with the list."""
    share, shares = map(int, sys.argv[1].split("/")) if len(sys.argv) > 1 else (1, 1)
    with tempfile.TemporaryFile() as log:
        os.environ["TCONV_LOG"] = "1"
        screen = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            run(share, shares)
        finally:
            os.dup2(screen, 2)
            log.seek(0)
            text = log.read().decode()
    loaded = set(re.findall(r"loaded (\w+ of \w+\.cuh)", text))
    missing = [kernel for kernel in KERNELS if kernel not in loaded and shares == 1]
    print(f"{len(loaded)} kinds of kernels, {text.count('loaded ')} kernels ran", flush=True)
    if missing:
        print("never ran: " + ", ".join(missing))
        print(text[-2000:])
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
