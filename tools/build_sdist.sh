#!/usr/bin/env bash
# Build the sdist of what git has of the tree into dist/, by an environment that holds only what a build requires.
# usage: build_sdist.sh PYTHON; prints the path of the sdist. The environment is a folder below build/packaging, and is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
folder=$PWD/build/packaging
python=$folder/venv$version/bin/python
mkdir -p "$folder" dist
if [ ! -e "$folder/venv$version/.installed" ] || [ pyproject.toml -nt "$folder/venv$version/.installed" ]; then
  rm -rf "$folder/venv$version"
  "$1" -m venv "$folder/venv$version"
  "$python" -m pip install --quiet --upgrade pip
  mapfile -t required < <("$python" tools/requirements.py build)
  "$python" -m pip install --quiet "${required[@]}" --group wheel
  touch "$folder/venv$version/.installed"
fi
# The tree itself may hold modules of another build, and a list of files of an earlier one.
rm -rf "$folder/source"
mkdir "$folder/source"
git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents -t "$folder/source"
rm -f dist/eoslog-*.tar.gz
"$python" -m build --no-isolation --sdist --outdir dist "$folder/source" > "$folder/sdist.log" 2>&1 || { cat "$folder/sdist.log" >&2; exit 1; }
sdist=$(echo "$PWD"/dist/eoslog-*.tar.gz)
missing=$(LC_ALL=C comm -23 \
  <(cd "$folder/source" && find . -type f ! -path './.*/*' ! -name .gitignore ! -path '*.egg-info/*' | LC_ALL=C sort) \
  <(tar tzf "$sdist" | sed 's#^[^/]*/#./#' | LC_ALL=C sort))
if [ -n "$missing" ]; then
  echo "error: MANIFEST.in leaves out: $missing" >&2
  exit 1
fi
echo "$sdist"
