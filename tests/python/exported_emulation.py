"""Runs exported files on the CPU: their CUDA text, compiled by the host compiler against the kernel emulator."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

import tconv

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++") or shutil.which("c++")

LAUNCH = r"""
#include <tuple>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace {

constexpr long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }
constexpr long long at_most(long long a, long long b) { return a < b ? a : b; }
void* at(void* tensor, long long bytes) { return static_cast<char*>(tensor) + bytes; }
std::string g_failure;

template <typename... Params, typename... Given>
int launch(void (*kernel)(Params...), dim3 grid, unsigned block, size_t shared_bytes, bool, void*,
           const Given&... given) {
  if (grid.x == 0) return 0;
  std::tuple<std::remove_cv_t<Params>...> values(static_cast<std::remove_cv_t<Params>>(given)...);
  return std::apply([&](auto&... value) {
    void* arguments[] = {const_cast<void*>(static_cast<const void*>(&value))...};
    try {
      emulation::run_grid(kernel, arguments, {grid.x, grid.y, grid.z}, block, 1, shared_bytes);
    } catch (const std::exception& error) {
      g_failure = error.what();
      return 1;
    }
    return 0;
  }, values);
}

}  // namespace

const char* error_text(int) { return g_failure.c_str(); }

extern "C" int emulated_run(int direction, void* input, void* weight, void* bias, void* output, void* workspace,
                            const char* layer) {
  Layer sizes;
  std::memcpy(&sizes, layer, sizeof(sizes));
  const Tensors tensors = {input, weight, bias, output, workspace};
  return launch_direction(direction, tensors, sizes, nullptr);
}
extern "C" long long emulated_workspace(int direction, const char* layer) {
  Layer sizes;
  std::memcpy(&sizes, layer, sizeof(sizes));
  return workspace_bytes(direction, sizes);
}
extern "C" const char* emulated_failure() { return g_failure.c_str(); }
"""


class EmulatedSet:
    """What load_inline would return."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        pointer = ctypes.c_void_p
        library.emulated_run.argtypes = [ctypes.c_int, *[pointer] * 5, ctypes.c_char_p]
        library.emulated_workspace.argtypes = [ctypes.c_int, ctypes.c_char_p]
        library.emulated_workspace.restype = ctypes.c_longlong
        library.emulated_failure.restype = ctypes.c_char_p

    def run(self, direction: int, *addresses: Any) -> str:
        *tensors, layer = addresses
        failed = self.library.emulated_run(direction, *[address or None for address in tensors], layer)
        return self.library.emulated_failure().decode() if failed else ""

    def workspace(self, direction: int, layer: bytes) -> int:
        return self.library.emulated_workspace(direction, layer)


def host_text(text: str) -> str:
    """CUDA text as the emulator's headers let the host compiler read it."""
    text = re.sub(
        r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\];",
        r"unsigned char* const \1 = emulation::shared_memory();",
        text,
    )
    # The instruction that is written out for the width of a shape.
    for found in list(re.finditer(r"__device__ __forceinline__ void multiply\(float \(&d\).*?\n}\n", text, re.DOTALL)):
        kind = next((kind for kind in ("tf32", "bf16", "f16") if f".f32.{kind}." in found[0]), None)
        if kind is None:
            continue
        plain = (
            "template <int kTiles, typename A>\n"
            "void multiply(float (&d)[kTiles][4], const A& a, unsigned long long b) {\n"
            f"  ptx::multiply_warpgroup<emulation::Type::{kind}>(d, a, b);\n}}\n"
        )
        text = text.replace(found[0], plain)
    # Copies into shared memory that are instructions of their own have a plain form beside them.
    text = re.sub(
        r"#ifdef __CUDACC__\n(?:(?!#else|#endif).)*?cp\.async.*?#else\n(.*?)#endif\n", r"\1", text, flags=re.DOTALL
    )
    text = text.replace('asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));', "value = ptx::widen_f16(bits);")
    return text.replace('asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));', "bits = ptx::round_to_f16(value);")


def compile_emulated(exported: ModuleType, pieces: tuple[str, ...], folder: Path) -> EmulatedSet:
    """A set of an exported file, compiled for the CPU."""
    real = dict(exported.FILES)
    exported.FILES.update({"ptx.cuh": "", "launch.cuh": LAUNCH})
    try:
        names = ["begin", *pieces]
        text = '#include "ptx_emulation.h"\n#define __CUDACC__\n' + host_text(
            exported.expand("\n".join(exported.PIECES[n] for n in names))
        )
    finally:
        exported.FILES.update(real)
    stem = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    stem.with_suffix(".cpp").write_text(text)
    command = [COMPILER, "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-fno-gnu-unique", "-fno-strict-aliasing"]
    command += [f"-I{ROOT}/tests/cpp", f"-I{ROOT}/src", stem.with_suffix(".cpp"), "-o", stem.with_suffix(".so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return EmulatedSet(ctypes.CDLL(str(stem.with_suffix(".so"))))


def export_layer(layer: nn.Module, shape: tuple[int, ...], folder: Path) -> Path:
    """Writes a layer's exported file, made for inputs of a size."""
    path = folder / "exported.py"
    tconv.export(layer, torch.zeros(shape, dtype=layer.weight.dtype), path)
    return path


def geometry(layer: nn.Module) -> tuple:
    """What an exported file knows a call by, behind the sizes of its tensors."""
    return (layer.stride, layer.padding, layer.output_padding, layer.dilation, layer.groups)


def load_exported(path: Path) -> ModuleType:
    """An exported file as a module of its own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_emulated(path: Path, gpu: str = "ampere", *, tf32: bool = False) -> ModuleType:
    """An exported file whose layers run on the CPU, with the kernels that a kind of GPU would get."""
    module = load_exported(path)
    sets: dict[tuple[str, ...], EmulatedSet] = {}

    def compile_set(pieces: tuple[str, ...], _gpu: str) -> EmulatedSet:
        if pieces not in sets:
            sets[pieces] = compile_emulated(module, pieces, path.parent)
        return sets[pieces]

    def launch(kernels: EmulatedSet, direction: int, addresses: list[int], layer: bytes, _device: torch.device) -> None:
        failure = kernels.run(direction, *addresses, layer)
        if failure:
            raise RuntimeError(failure)

    module.compile_set = compile_set
    module.launch = launch
    module.require_gpu = lambda tensor: None
    module.choose_gpu = lambda capability, toolkit: gpu
    module.capability_of = lambda device: (0, 0)
    module.toolkit_version = lambda: (0, 0)
    module.tf32_allowed = lambda: tf32
    return module
