#!/usr/bin/env bash
# Use a wheel as installed in another system, a folder of debian_root.sh: a commit before a kill, then tests, if any are named.
# usage: use_in_root.sh PYTHON WHEEL VERSION ROOT [TESTS...], as root. PYTHON only fetches what the wheel requires.
#
# QEMU, which runs the programs of another processor, keeps this one's order of loads and stores, and has its pages: see
# docs/decisions/0017-memory-order.md. What else a system lacks the tests ask it, and are skipped by name.
set -euo pipefail
wheel=$(realpath "$2")
version=$3
root=$(realpath "$4")
cd "$(dirname "$0")/.."
own=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pip=$PWD/build/packaging/venv$own/bin/pip
shift 4
machine=${wheel##*manylinux_2_34_}
machine=${machine%.whl}
rm -rf "$root/opt"
mkdir -p "$root/opt/packages" "$root/opt/eoslog" "$root/opt/run"
fetch() {
  "$pip" install --quiet --upgrade --target "$root/opt/packages" --only-binary=:all: --implementation cp --python-version "$version" \
    --platform "manylinux_2_34_$machine" --platform "manylinux_2_28_$machine" --platform "manylinux_2_17_$machine" \
    --platform "manylinux2014_$machine" "$@"
}
fetch "$wheel"
git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents -t "$root/opt/eoslog"
mounted=()
trap 'umount "${mounted[@]}"' EXIT
mount -t proc proc "$root/proc" && mounted+=("$root/proc")
mount -t tmpfs tmpfs "$root/dev/shm" && mounted+=("$root/dev/shm")
inside() {
  chroot "$root" env HOME=/root PYTHONPATH=/opt/packages sh -c 'cd /opt/run && exec "$@"' sh python3 "$@"
}
inside /opt/eoslog/tests/packaging/use_installed.py /opt/run/store
echo "$wheel works as installed in $root"
if [ $# -gt 0 ]; then
  fetch "$wheel[arrow,cli,metrics]" --group test
  inside -m pytest --config-file=/opt/eoslog/pyproject.toml --rootdir=/opt/eoslog -p no:cacheprovider -n 2 --dist loadfile \
    --timeout=1200 "${@/#//opt/eoslog/}"
fi
