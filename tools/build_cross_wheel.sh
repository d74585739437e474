#!/usr/bin/env bash
# Build the wheel of a Python that does not run here, for this processor or another one, into dist/.
# usage: build_cross_wheel.sh PYTHON VERSION MACHINE INCLUDE; prints the path of the wheel. PYTHON builds; the wheel is for
# CPython VERSION (as 3.14) on MACHINE (x86_64 or aarch64), whose headers are in INCLUDE (of Debian's libpython3-dev).
set -euo pipefail
floor=manylinux_2_34
version=$2
machine=$3
include=$(realpath "$4")
cd "$(dirname "$0")/.."
own=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
dist=$PWD/dist
tag=cp${version/./}
if [ ! -e "$include/python$version/Python.h" ]; then
  echo "error: $include has no headers of Python $version" >&2
  exit 1
fi
sdist=$(bash tools/build_sdist.sh "$1")
python=$PWD/build/packaging/venv$own/bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tar xzf "$sdist" -C "$scratch" --strip-components=1
cd "$scratch"
if [ "$machine" != "$(uname -m)" ]; then
  export CC=$machine-linux-gnu-gcc
  export LDSHARED="$CC -shared"
fi
# The headers of the Python that builds come after these.
export CFLAGS="-I$include/python$version -idirafter $include"
export _PYTHON_HOST_PLATFORM=linux-$machine-${version/./}
export SETUPTOOLS_EXT_SUFFIX=.cpython-${version/./}-$machine-linux-gnu.so
"$python" setup.py --quiet bdist_wheel --plat-name "linux_$machine" --dist-dir built > wheel.log 2>&1 || { cat wheel.log >&2; exit 1; }
"$python" -m wheel tags --remove --python-tag "$tag" --abi-tag "$tag" built/*.whl > /dev/null
rm -f "$dist"/eoslog-*-"$tag"-*"_$machine.whl"
# auditwheel takes the names of this processor alone: it finds the floor, and that is compared.
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --plat auto --wheel-dir repaired built/*.whl \
  > repair.log 2>&1 || { cat repair.log >&2; exit 1; }
wheel=$(echo repaired/*.whl)
case $wheel in
  *-"${floor}_$machine.whl") ;;
  *)
    echo "error: $wheel does not have the floor $floor" >&2
    exit 1
    ;;
esac
cp "$wheel" "$dist"
echo "$dist/$(basename "$wheel")"
