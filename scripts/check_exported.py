#!/usr/bin/env python3
"""Compiles exported files with other versions of CUDA and PyTorch than this machine's. No GPU is needed.

    python scripts/check_exported.py --folder /tmp/toolchains examples/load_inline/*.py

Every set of kernels goes through NVRTC 11.7, 11.8 and 12.0 (Hopper's, which begin with CUDA 12, through 12.0 alone)
and, where nvcc is installed, through nvcc for both kinds of GPU; the C++ part is compiled as load_inline would write
it, against the headers of PyTorch 1.13.1, 2.0.0 and the installed one. Wheels are downloaded from PyPI into the folder
once (1.5 GB, of which 300 MB stay). `--compilers 11.7 12.0` leaves the others out.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

NVRTC = {
    "11.7": "nvidia-cuda-nvrtc-cu11==11.7.99",
    "11.8": "nvidia-cuda-nvrtc-cu11==11.8.89",
    "12.0": "nvidia-cuda-nvrtc-cu12==12.0.76",
}
ARCHITECTURES = {"hopper": b"sm_90a", "ampere": b"sm_80"}
PYTORCH = {"1.13.1": "c++14", "2.0.0": "c++17"}  # and the standard that their load_inline asks for

# What the kernels' namespaces need of the part that nvcc alone compiles.
DEVICE_ONLY = """
constexpr long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }
constexpr long long at_most(long long a, long long b) { return a < b ? a : b; }
inline void* at(void* tensor, long long bytes) { return static_cast<char*>(tensor) + bytes; }
template <typename Kernel, typename... Given>
int launch(Kernel, dim3, unsigned, unsigned long long, bool, void*, const Given&...) { return 0; }
"""


def download(requirement: str, folder: Path, members: str, *options: str) -> Path:
    """Unpacks the members of a wheel whose path contains a text; keeps them, and not the wheel."""
    target = folder / requirement.replace("==", "-")
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
            subprocess.run([*command, *options, requirement], check=True)
            (wheel,) = Path(wheels).glob("*.whl")
            unpacked = Path(wheels) / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked, [name for name in archive.namelist() if members in name])
            unpacked.rename(target)
    return target


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sets_of(module: ModuleType) -> list[tuple[str, tuple[str, ...]]]:
    """Each set once: the kind of GPU, and its pieces."""
    found = {(gpu, pieces) for layer in module.LAYERS for (gpu, _), pieces in layer["sets"].items()}
    names = ("forward", "grad_input", "grad_weight", "grad_bias")
    found |= {("ampere", tuple(f"{name}_{kind}" for name in names)) for kind in module.ELEMENTS.values()}
    directions = (module.FORWARD, module.GRAD_INPUT)
    return sorted({(gpu, module.pieces_for(first, pieces)) for gpu, pieces in found for first in directions})


def text_of(module: ModuleType, pieces: tuple[str, ...]) -> str:
    return module.expand("\n".join(module.PIECES[name] for name in ("begin", *pieces)))


class Nvrtc:
    """The run-time compiler of another version."""

    def __init__(self, version: str, folder: Path) -> None:
        (path,) = folder.rglob("libnvrtc.so.*")
        self.library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        if f"{major.value}.{minor.value}" != version:
            raise RuntimeError(f"{path} must be NVRTC {version}, got {major.value}.{minor.value}")

    def complaint(self, text: str, architecture: bytes) -> str:
        """What the compiler says against a text, or nothing."""
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"set.cu", 0, None, None)
        options = [b"--gpu-architecture=" + architecture, b"--std=c++17", b"--device-as-default-execution-space"]
        failed = self.library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetProgramLog(program, log)
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return log.value.decode() or "failed" if failed else ""


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stderr or done.stdout or "failed") if done.returncode else ""


def nvcc_complaint(module: ModuleType, gpu: str, pieces: tuple[str, ...], folder: Path) -> str:
    source = folder / f"{gpu}_{abs(hash(pieces))}.cu"
    source.write_text(text_of(module, pieces))
    return run(["nvcc", *module.compiler_flags(gpu), "-c", str(source), "-o", str(source.with_suffix(".o"))])


def host_complaint(module: ModuleType, headers: Path, standard: str, folder: Path) -> str:
    """The C++ part as load_inline writes it to main.cpp, with the headers and the bindings that it adds."""
    source = folder / f"main_{standard}_{abs(hash(headers))}.cpp"
    bindings = "".join(f'm.def("{name}", {name}, "{name}");\n' for name in ("run", "workspace"))
    source.write_text(
        "#include <torch/extension.h>\n"
        + module.expand(module.HOST)
        + "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n"
        + bindings
        + "}\n"
    )
    folders = [headers, headers / "torch/csrc/api/include", Path(sysconfig.get_paths()["include"])]
    includes = [f"-isystem{path}" for path in folders]
    options = [f"-std={standard}", "-fsyntax-only", "-Wall", "-Werror", "-DTORCH_EXTENSION_NAME=exported"]
    return run(["g++", *options, *includes, str(source)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="where downloads are kept")
    parser.add_argument("--jobs", type=int, default=2)
    every = [*NVRTC, "nvcc", "headers"]
    parser.add_argument("--compilers", nargs="+", choices=every, default=every, help="versions of NVRTC, nvcc, headers")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)

    wheels = {version: wheel for version, wheel in NVRTC.items() if version in options.compilers}
    compilers = {v: Nvrtc(v, download(wheel, options.folder, "/lib/")) for v, wheel in wheels.items()}
    nvcc = "nvcc" in options.compilers and shutil.which("nvcc")
    platforms = [f"--platform=manylinux{tag}_x86_64" for tag in ("1", "2014", "_2_17")]
    old = ["--python-version=3.10", "--only-binary=:all:", *platforms]
    headers = {Path(torch.__file__).parent / "include": ("PyTorch " + torch.__version__, "c++17")}
    if "headers" not in options.compilers:
        headers = {}
    for version, standard in PYTORCH.items() if headers else ():
        unpacked = download(f"torch=={version}", options.folder, "torch/include/", *old)
        headers[unpacked / "torch/include"] = ("PyTorch " + version, standard)

    jobs = {}  # by what is compiled: files share some of their sets
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:

        def add(name: str, key: tuple[str, ...], function: Callable[..., str], *arguments: Any) -> None:
            if key not in jobs:
                jobs[key] = (name, pool.submit(function, *arguments))

        for path in options.files:
            module = load(path)
            if not hasattr(module, "LAYERS"):
                print(f"skipped  {path.name}: not an exported file")
                continue
            folder = Path(scratch) / path.stem
            folder.mkdir()
            for gpu, pieces in sets_of(module):
                name = f"{path.name}: {gpu} {', '.join(pieces)}"
                if nvcc:
                    key = ("nvcc", gpu, text_of(module, pieces))
                    add(f"{name}: nvcc", key, nvcc_complaint, module, gpu, pieces, folder)
                launch, module.FILES["launch.cuh"] = module.FILES["launch.cuh"], DEVICE_ONLY
                text = text_of(module, pieces)
                module.FILES["launch.cuh"] = launch
                for version, compiler in compilers.items():
                    if gpu == "ampere" or version >= "12":
                        key = (version, gpu, text)
                        add(f"{name}: NVRTC {version}", key, compiler.complaint, text, ARCHITECTURES[gpu])
            for found, (name, standard) in headers.items():
                key = (name, module.expand(module.HOST))
                add(f"{path.name}: {name}", key, host_complaint, module, found, standard, folder)
        failed = 0
        for name, job in jobs.values():
            complaint = job.result()
            failed += bool(complaint)
            print(f"{'FAILED' if complaint else 'ok'}  {name}", flush=True)
            if complaint:
                print(complaint[:3000])
    print(f"{len(jobs) - failed} of {len(jobs)} compilations succeeded")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
