#!/usr/bin/env bash
# Install a wheel beside nothing but what it requires, where no compiler is found, and use it.
# usage: check_wheel.sh PYTHON WHEEL [FOLDER]; the environment stays in the folder, as FOLDER/venv and the PATH FOLDER/path.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$(command -v "$1")
wheel=$(realpath "$2")
if [ $# -gt 2 ]; then
  mkdir -p "$3"
  folder=$(realpath "$3")
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi

bytes=$(stat -c %s "$wheel")
if [ "$bytes" -gt 6000000 ]; then
  echo "error: $wheel has $bytes bytes, more than 6 MB" >&2
  exit 1
fi

"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --only-binary :all: "$wheel"
# All programs of the machine, compilers excepted.
mkdir -p "$folder/path"
find /usr/local/bin /usr/bin /bin -maxdepth 1 \( -type f -o -type l \) \
  ! -regex '.*/\([^/]*-\)?\(cc\|c[89]9\|tcc\|gcc\|g\+\+\|c\+\+\|cpp\|clang\|ld\|as\|zig\)\(-[^/]*\)?' -exec ln -sf -t "$folder/path" {} +
export PATH=$folder/venv/bin:$folder/path
for compiler in cc gcc g++ clang; do
  if command -v "$compiler"; then
    echo "error: a compiler is on the PATH" >&2
    exit 1
  fi
done

# Away from the clone, so that only what the wheel holds can be imported.
cd "$folder"
python "$here/use_installed.py" "$folder/store"
rm -rf "$folder/store"

if eoslog --help > help.txt 2>&1; then
  echo "error: the command ran without the packages of the cli extra" >&2
  exit 1
fi
if [ "$(wc -l < help.txt)" -ne 1 ] || ! grep -q 'eoslog\[cli\]' help.txt; then
  echo "error: without the cli extra the command should say one sentence, but it said:" >&2
  cat help.txt >&2
  exit 1
fi
echo "$wheel ($bytes bytes) works as installed"
