#!/usr/bin/env bash
# Build the wheels of all Pythons from 3.11 on that are here, each as build_wheel.sh does, and use each as installed.
set -euo pipefail
here="import sys; print('%d.%d' % sys.version_info[:2])"
cd "$(dirname "$0")/.."
for version in 3.11 3.12 3.13 3.14; do
  found=
  # pyenv has a command for each version, and most of them only say that another one is chosen.
  for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
    if [ -z "$found" ] && [ "$("$candidate" -c "$here" 2> /dev/null)" = "$version" ]; then
      found=$candidate
    fi
  done
  if [ -n "$found" ]; then
    wheel=$(bash tools/build_wheel.sh "$found")
    bash tests/packaging/check_wheel.sh "$found" "$wheel"
  else
    echo "no Python $version is here: no wheel of it was built" >&2
  fi
done
