#!/usr/bin/env bash
# Makes the machine ready to build and test: system packages, and a virtual environment in the project.
# Does nothing when all is there. PYTHON and VENV choose another interpreter and another folder.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=${VENV:-.venv}

# A package is present when what we need of it works, wherever it came from.
has_header() { command -v c++ >/dev/null && echo "#include <$1>" | c++ -std=c++20 -E -x c++ - >/dev/null 2>&1; }
has_venv() { [[ -x $venv/bin/python ]] || "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }
# The header is part of the Debian package too, but not everywhere: CMake looks for this library.
has_gtest() { has_header gtest/gtest.h && echo 'int main() {}' | c++ -x c++ - -o /dev/null -lgtest >/dev/null 2>&1; }

missing_packages() {
  command -v c++ >/dev/null || echo g++
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  has_header hwy/highway.h || echo libhwy-dev
  has_gtest || echo libgtest-dev
  has_venv || echo python3-venv
}

if ! command -v "$python" >/dev/null; then
  echo "setup: $python not found; install Python 3.11 or later, or name one with PYTHON=..." >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "setup: Python must be 3.11 or later, got $("$python" --version); name another one with PYTHON=..." >&2
  exit 1
fi

mapfile -t missing < <(missing_packages)
if ((${#missing[@]} > 0)); then
  if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o Acquire::Retries=3 update
    apt-get -qq -o Acquire::Retries=3 install -y --no-install-recommends "${missing[@]}" >/dev/null
    mapfile -t missing < <(missing_packages)
  fi
  if ((${#missing[@]} > 0)); then
    {
      echo "setup: these packages are missing: ${missing[*]}"
      echo "setup: install them (other systems have them under similar names) and run again:"
      echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
    } >&2
    exit 1
  fi
fi

cmake_version=$(cmake --version | sed -n '1s/[^0-9]*//p')
if [[ $(printf '3.25\n%s\n' "$cmake_version" | sort -V | head -n 1) != 3.25 ]]; then
  echo "setup: CMake must be 3.25 or later, got $cmake_version" >&2
  exit 1
fi

# The stamp is what the environment was made from, so that a changed pin installs again and nothing else does.
wanted=$(cat requirements.txt constraints.txt | sha256sum | cut -d ' ' -f 1)
if [[ ! -x $venv/bin/python || $(cat "$venv/tconv-stamp" 2>/dev/null) != "$wanted" ]]; then
  echo "setup: creating the Python environment in $venv (PyTorch and its libraries: several GB on first use)"
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --retries 5 \
    --requirement requirements.txt --constraint constraints.txt
  echo "$wanted" >"$venv/tconv-stamp"
fi
