#!/usr/bin/env bash
# Build a copy of the tree with sanitizers and coverage, and fuzz what decodes bytes from outside.
# usage: run_fuzz.sh PYTHON COMPILER SECONDS [TARGET ...]   (the seconds are shared by the targets)
# What reached something new is kept in build/fuzz/found, what broke something in build/fuzz/findings.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
compiler=$2
seconds=$3
copy=build/fuzz
shift 3
export EOSLOG_COVERAGE=trace-pc,trace-cmp
. "$(dirname "$0")/sanitized_copy.sh"
# Not in the environment itself: nothing but this needs it.
fuzzer=$PWD/fuzzer
[ -d "$fuzzer/atheris" ] \
  || "$python" -m pip install --quiet --no-deps --target "$fuzzer" 'atheris>=3,<4'
if [ ! coverage.so -nt tests/fuzz/coverage.c ]; then
  "$compiler" -O2 -fPIC -shared -Wall -Wextra -o coverage.so tests/fuzz/coverage.c -ldl
fi
export PYTHONPATH=$PWD:$PWD/tests:$fuzzer
# Before the sanitizers: they have functions of the same names.
export LD_PRELOAD="$PWD/coverage.so $libraries"
export ASAN_OPTIONS=$ASAN_OPTIONS:verify_asan_link_order=0:quarantine_size_mb=16:handle_abort=1
mkdir -p findings
exec "$python" tests/fuzz/campaign.py "$seconds" "$@"
