#!/usr/bin/env bash
# build.sh [release|sanitize]: configures where needed and builds. The release build puts the Python package together
# in build/python; the sanitized one has the library and its C++ tests alone. WERROR=ON makes warnings errors.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-release}
options=("-DCMAKE_COMPILE_WARNING_AS_ERROR=${WERROR:-OFF}" -DTCONV_BUILD_TESTS=ON)
case $kind in
  release)
    torch=$("${VENV:-.venv}/bin/python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
    options+=(-DCMAKE_BUILD_TYPE=Release "-DTCONV_TORCH_DIR=$torch" "-DTCONV_PYTHON_DIR=$PWD/build/python")
    ;;
  sanitize)
    # -O1: instrumented, the SIMD kernels take minutes to compile at -O2.
    options+=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1 -DNDEBUG" -DTCONV_SANITIZE=ON)
    ;;
  *)
    echo "build.sh: the kind of build must be release or sanitize, got $kind" >&2
    exit 1
    ;;
esac

mkdir -p build
cmake -S . -B "build/$kind" -G Ninja "${options[@]}" >build/configure-$kind.log || { cat build/configure-$kind.log; exit 1; }
cmake --build "build/$kind" --parallel "${JOBS:-$(nproc)}"
