"""Checks that the Python package can be carried to another machine: copies the folder elsewhere, runs it from there,
and verifies that each shared library of the package came out of the copy and not from this machine.

    python scripts/check_package.py build/python
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROBE = """
import pathlib, sys
import torch, tconv

x, w, b = torch.randn(2, 3, 7, 5), torch.randn(3, 4, 3, 2), torch.randn(4)
arguments = dict(stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(1, 2))
ours = tconv.conv_transpose2d(x, w, b, **arguments)
exact = torch.nn.functional.conv_transpose2d(x.double(), w.double(), b.double(), **arguments)
# At most 3 channels x 4 taps and a bias are summed: 13 roundings of 2^-24 each of a sum of magnitudes below 100.
error = (ours - exact).abs().max().item()
assert error <= 13 * 2**-24 * 100, f"conv_transpose2d of the copied package is off by {error}"

lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
mapped = {line.split(maxsplit=5)[-1] for line in lines}
print("\\n".join(sorted(p for p in mapped if pathlib.Path(p).name.startswith(("libtconv", "libhwy")))))
"""


def main() -> int:
    source = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "python"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
        environment["PYTHONPATH"] = str(copy)
        probe = subprocess.run(
            [sys.executable, "-c", PROBE], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if probe.returncode != 0:
            print(probe.stderr)
            print("the copied package does not work")
            return 1
        loaded = [Path(line) for line in probe.stdout.split("\n") if line]
        strangers = [str(path) for path in loaded if path.parent != copy / "tconv"]
        names = {path.name for path in loaded}
        wanted = {path.name for path in (copy / "tconv").glob("*.so*")}
        if strangers or names != wanted or not {"libtconv.so", "libtconv_torch.so"} <= names:
            print(
                f"the copied package must load its own {sorted(wanted)}, loaded {sorted(names)}, elsewhere {strangers}"
            )
            return 1
    print(f"runs from a copy, with its own {', '.join(sorted(names))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
