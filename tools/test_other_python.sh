#!/usr/bin/env bash
# Test the wheel of the newest Python that is here besides the one of the whole suite: used as installed, the bindings and
# conformance where no compiler and no Spark is, then with Spark the other unit tests and one job. Its environment is a folder of its own below build/.
# usage: test_other_python.sh PYTHON; PYTHON is the one of the whole suite.
set -euo pipefail
here="import sys; print('%d.%d' % sys.version_info[:2])"
own=$("$1" -c "$here")
cd "$(dirname "$0")/.."
root=$PWD
found=
for version in 3.14 3.13 3.12 3.11; do
  [ "$version" = "$own" ] && continue
  # pyenv has a command for each version, and most of them only say that another one is chosen.
  for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
    if [ "$("$candidate" -c "$here" 2> /dev/null)" = "$version" ]; then
      found=$candidate
      break 2
    fi
  done
done
if [ -z "$found" ]; then
  echo "no other Python from 3.11 to 3.14 is here: nothing was tested" >&2
  exit 0
fi
folder=$root/build/python$version
rm -rf "$folder"
wheel=$(bash tools/build_wheel.sh "$found")
bash tests/packaging/check_wheel.sh "$found" "$wheel" "$folder"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --upgrade pip
"$python" -m pip install --quiet "$wheel[arrow,cli,metrics]" --group "$root/pyproject.toml:test"
# In a folder without sources: what is imported is what was installed.
mkdir "$folder/run"
cd "$folder/run"
export EOSLOG_WHEEL=$wheel  # For the installs of docs/tutorial.md.
tests() {
  "$python" -m pytest --config-file="$root/pyproject.toml" --rootdir="$root" "$@"
}
PATH=$folder/venv/bin:$folder/path tests -n 2 --dist loadfile "$root/tests/unit/bindings" "$root/tests/conformance"
"$python" -m pip install --quiet "$wheel[spark]"
# Of the C sources nothing depends on the Python.
tests -n 2 --dist loadfile --ignore="$root/tests/unit/test_cython_annotations.py" --ignore="$root/tests/unit/bindings" "$root/tests/unit"
tests "$root/tests/spark/test_batch_write.py::test_rows_land_once_and_keys_go_where_kafkas_partitioner_puts_them"
