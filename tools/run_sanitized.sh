#!/usr/bin/env bash
# Build a copy of the tree with the C compiler's sanitizers and run the engine's tests on it.
# usage: run_sanitized.sh PYTHON COMPILER [pytest arguments]
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
compiler=$2
copy=build/sanitized
shift 2
. "$(dirname "$0")/sanitized_copy.sh"
export LD_PRELOAD=$libraries
"$python" tools/overflow_is_found.py
"$python" -m pytest -p no:cacheprovider -n 2 --dist loadfile "$@"
