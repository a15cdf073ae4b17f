#!/usr/bin/env bash
# Writes the files of examples/load_inline anew, with the package in build/python (or on PYTHONPATH).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=${PYTHONPATH:-build/python}
python=${PYTHON:-${VENV:-.venv}/bin/python}
out=examples/load_inline

"$python" -m tconv export --batch 8 --in-channels 24 --out-channels 40 --input 48 80 --kernel 3 5 --stride 2 3 \
  --padding 1 2 --output-padding 1 2 --dilation 2 3 --bias -o $out/asymmetric.py
"$python" -m tconv export --problem kb75 -o $out/kb75.py
"$python" -m tconv export --problem kb65 -o $out/kb65.py
"$python" -m tconv export --problem kb75 --bias -o $out/kb75_bias.py
"$python" -m tconv export --problem kb69 -o $out/kb69.py
