#!/usr/bin/env bash
# Build a copy of the tree in which nothing of another build is; what EOSLOG_... asks for decides which.
# usage: build_copy.sh PYTHON FOLDER; the folder is a PYTHONPATH then. Only what changed is built again.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."
mkdir -p "$2"
copy=$(cd "$2" && pwd)
sources() {
  find native bindings eoslog spark tests tools -type f ! -name '*.so' ! -name '*.pyc' | LC_ALL=C sort
}
# What is newer, and no module of another build.
sources | xargs -d '\n' cp -pu --parents -t "$copy"
# What the tree no longer has would be built, and its tests run.
LC_ALL=C comm -13 <(sources) <(cd "$copy" && sources) | (cd "$copy" && xargs -r -d '\n' rm -f)
cp -pu setup.py pyproject.toml README.md LICENSE "$copy"
cd "$copy"
"$python" setup.py --quiet build_ext --inplace >&2
# As installed: the layers are packages of eoslog.
for layer in native bindings spark; do
  ln -sfn "../$layer" "eoslog/$layer"
done
