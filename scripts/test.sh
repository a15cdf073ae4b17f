#!/usr/bin/env bash
# Builds and runs every test, and ends with one summary. A step that fails does not stop the others (only a failed
# build does); the result is failure all the same.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${VENV:-.venv}/bin/python
jobs=${JOBS:-$(nproc)}
mkdir -p build/logs
summary=()
failed=0

# step NAME PATTERN COMMAND...: runs the command; the summary gets the last line of its output that matches PATTERN.
step() {
  local name=$1 pattern=$2 start=$SECONDS result=ok line
  shift 2
  local log=build/logs/${name// /-}.log
  printf '\n=== %s\n' "$name"
  if ! "$@" 2>&1 | tee "$log"; then
    result=FAILED
    failed=1
  fi
  line=$(grep -E "$pattern" "$log" | tail -n 1 | sed -E 's/^=+ //; s/ =+$//' || true)
  summary+=("$(printf '%-16s %-7s %5d s  %s' "$name" "$result" $((SECONDS - start)) "${line:-no closing line}")")
}

# GPU kernels are compiled by the NVRTC that PyTorch brings, as in a user's process; a machine need not have another.
if [[ -z ${TCONV_NVRTC:-} ]]; then
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  TCONV_NVRTC=$(find "$packages/nvidia" -name 'libnvrtc.so.*' | sort -V | tail -n 1)
  export TCONV_NVRTC
fi

# cpp_tests FOLDER OPTIONS...: every test of a build folder; a folder with no tests is a failure.
cpp_tests() { ctest --test-dir "$1" --output-on-failure --no-tests=error --parallel "$jobs" --timeout 600 "${@:2}"; }
python_tests() { PYTHONPATH=build/python "$python" -m pytest tests/python "$@"; }

finish() {
  printf '\n=== Summary\n'
  printf '%s\n' "${summary[@]}"
  if ((failed)); then
    echo "FAILED in $SECONDS s"
    exit 1
  fi
  echo "All passed in $SECONDS s"
}

step "build" "." scripts/build.sh release
((failed == 0)) || finish
step "C++" "tests passed|tests failed" cpp_tests build/release
step "C++ package" "." scripts/example.sh
step "Python package" "." "$python" scripts/check_package.py build/python
step "Python" "(passed|failed|error).* in " python_tests -q
step "sanitizer build" "." scripts/build.sh sanitize
# Without the tests that hand sources to a compiler, NVRTC or the host's: sanitizers see nothing of its work.
step "C++ sanitized" "tests passed|tests failed" cpp_tests build/sanitize --exclude-regex 'Compil|PlannedKernels|Emulated'
finish
