#!/usr/bin/env bash
# A store's process dies at each of its changes in turn: tests/crash/crash_points.py, in a build of its own.
# usage: run_crash_points.sh PYTHON COMPILER [options of crash.crash_points]
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
compiler=$2
shift 2
cd "$(dirname "$0")/.."
copy=$PWD/build/crash_points
EOSLOG_CRASH_POINTS=1 bash tools/build_copy.sh "$python" "$copy"
# In memory, where a sync takes no time: what a killed process leaves is the same.
folder=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" eoslog-crash-XXXXXX)
"$compiler" -O1 -Wall -Wextra -shared -fPIC -o "$folder/numbered_calls.so" "$copy/tests/crash/numbered_calls.c" -ldl
cd "$copy/tests"
status=0
PYTHONHASHSEED=0 PYTHONPATH=$copy LD_PRELOAD=$folder/numbered_calls.so \
  "$python" -m crash.crash_points "$folder" "$@" || status=$?
if [ "$status" = 0 ]; then
  rm -rf "$folder"
else
  echo "what the failed ones left is in $folder" >&2
fi
exit "$status"
