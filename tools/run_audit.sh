#!/usr/bin/env bash
# Ask the index of known weaknesses about every package that is installed beside eoslog.
# usage: run_audit.sh PYTHON
# Status 0: none is known. 1: some are. 3: the service could not be reached, and nothing was learnt.
set -uo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."
mkdir -p build
tools=$PWD/build/auditor
if [ ! -d "$tools/pip_audit" ] \
  && ! "$python" -m pip install --quiet --target "$tools" 'pip-audit>=2.7,<3'; then
  echo "audit: pip-audit could not be installed; NOTHING WAS CHECKED" >&2
  exit 3
fi
"$python" -m pip freeze --exclude-editable > build/audited.txt
said=$(PYTHONPATH=$tools "$python" -m pip_audit --no-deps --disable-pip --timeout 15 \
  --requirement build/audited.txt 2>&1)
status=$?
echo "$said"
wanted=$(grep -c == build/audited.txt)
skipped=$(grep -c "could not be audited" <<< "$said")
if [ "$skipped" -ge "$wanted" ] \
  || { [ $status -ne 0 ] && ! grep -qi "found .* known vulnerabilit" <<< "$said"; }; then
  echo "audit: the service could not be reached; NOTHING WAS CHECKED" >&2
  exit 3
fi
echo "audit: $((wanted - skipped)) of $wanted packages were checked" >&2
exit $status
