#!/usr/bin/env bash
# Build the wheel of one Python from the sdist, away from the repository, into dist/.
# usage: build_wheel.sh PYTHON; prints the path of the wheel.
set -euo pipefail
floor=manylinux_2_34
cd "$(dirname "$0")/.."
dist=$PWD/dist
version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
sdist=$(bash tools/build_sdist.sh "$1")
python=$PWD/build/packaging/venv$version/bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tar xzf "$sdist" -C "$scratch" --strip-components=1
cd "$scratch"
"$python" -m build --no-isolation --wheel --outdir built . > wheel.log 2>&1 || { cat wheel.log >&2; exit 1; }
tag=cp${version/./}
rm -f "$dist"/eoslog-*-"$tag"-*"_$(uname -m).whl"
# auditwheel refuses a module that needs a newer C library than the floor, or a library that a system may lack.
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --plat "${floor}_$(uname -m)" --wheel-dir "$dist" built/*.whl \
  > repair.log 2>&1 || { cat repair.log >&2; exit 1; }
echo "$dist"/eoslog-*-"$tag"-*"_$(uname -m).whl"
