#!/usr/bin/env bash
# Installs the C++ package to build/prefix and builds and runs the example against it, as a user's project would.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf build/prefix build/example
cmake --install build/release --component cpp --prefix build/prefix >/dev/null
cmake -S examples/cpp -B build/example -G Ninja -DCMAKE_BUILD_TYPE=Release \
  "-DCMAKE_PREFIX_PATH=$PWD/build/prefix" >/dev/null
cmake --build build/example --parallel "${JOBS:-$(nproc)}"
build/example/example
