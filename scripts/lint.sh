#!/usr/bin/env bash
# lint.sh: checks the format and lints; lint.sh --fix: rewrites to the format instead.
# clang-tidy reads the library's sources; torch/ is left out, because PyTorch's headers take a minute per file.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$PWD/${VENV:-.venv}/bin
[[ ${VENV:-.venv} = /* ]] && bin=$VENV/bin
jobs=${JOBS:-$(nproc)}

cpp_files() { find include src torch tests examples python -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cuh' \) -print0; }

if [[ ${1:-} = --fix ]]; then
  cpp_files | xargs -0 "$bin/clang-format" -i
  "$bin/ruff" check --quiet --fix-only .
  "$bin/ruff" format .
  exit
fi

failed=0
check() {
  local name=$1 start=$SECONDS
  shift
  if "$@"; then
    echo "lint: $name ok ($((SECONDS - start)) s)"
  else
    echo "lint: $name FAILED ($((SECONDS - start)) s)"
    failed=1
  fi
}

check_format() { cpp_files | xargs -0 "$bin/clang-format" --dry-run -Werror; }

# Highway files are read once, for the instruction set that the compiler starts from, not once for each.
check_tidy() {
  mkdir -p build
  cmake -S . -B build/tidy -G Ninja -DTCONV_BUILD_TESTS=OFF >build/configure-tidy.log || return 1
  find src -name '*.cpp' -print0 |
    xargs -0 -n 1 -P "$jobs" "$bin/clang-tidy" -p build/tidy --quiet --warnings-as-errors='*' \
      --extra-arg=-Wno-unknown-warning-option --extra-arg=-DHWY_COMPILE_ONLY_STATIC 2>build/tidy-errors.log ||
    { grep -v -E '^[0-9]+ warnings? generated|^Suppressed|^Use -' build/tidy-errors.log || true; return 1; }
}

check "clang-format" check_format
check "ruff check" "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check --quiet .
check "clang-tidy" check_tidy
exit $failed
