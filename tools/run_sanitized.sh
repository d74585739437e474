#!/usr/bin/env bash
# Build a copy of the tree with the C compiler's sanitizers and run the engine's tests on it.
# usage: run_sanitized.sh PYTHON COMPILER [pytest arguments]
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
compiler=$2
shift 2
cd "$(dirname "$0")/.."
export EOSLOG_SANITIZE=address,undefined
libraries=""
for name in libasan.so libubsan.so; do
  path=$("$compiler" -print-file-name="$name")
  [ "$path" != "$name" ] || { echo "error: $compiler has no $name" >&2; exit 1; }
  libraries="$libraries $path"
done
copy=build/sanitized
mkdir -p "$copy"
for folder in native bindings eoslog spark tests tools; do
  mkdir -p "$copy/$folder"
  cp -rpu "$folder/." "$copy/$folder"
done
cp -pu setup.py pyproject.toml README.md LICENSE "$copy"
cd "$copy"
find native bindings -name '*.so' -delete
"$python" setup.py --quiet build_ext --inplace
# As installed: the layers are packages of eoslog.
for layer in native bindings spark; do
  ln -sfn "../$layer" "eoslog/$layer"
done
PYTHONPATH=$PWD ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 LD_PRELOAD=${libraries# } \
  "$python" -m pytest -p no:cacheprovider "$@"
