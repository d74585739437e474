#!/usr/bin/env bash
# Build the wheel into dist/, install it beside nothing but what it requires, and use it.
# Usage: check_wheel.sh PYTHON, a Python that has the build requirements.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cd "$root"
# setuptools would pack what an earlier build left there.
rm -rf dist/*.whl build/lib.* build/bdist.*
"$python" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet dist/*.whl
# Away from the clone, so that only what the wheel holds can be imported.
cd "$scratch"
"$scratch/venv/bin/python" "$here/use_installed.py" "$scratch/store"

if "$scratch/venv/bin/eoslog" --help > help.txt 2>&1; then
    echo "error: the command ran without the packages of the cli extra" >&2
    exit 1
fi
if [ "$(wc -l < help.txt)" -ne 1 ] || ! grep -q 'eoslog\[cli\]' help.txt; then
    echo "error: without the cli extra the command should say one sentence, but it said:" >&2
    cat help.txt >&2
    exit 1
fi
echo "wheel: $(cd "$root/dist" && ls ./*.whl) works as installed"
