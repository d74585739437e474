# Everything runs from a clean clone: `make test` makes the environment and builds first.
PYTHON ?= python3
CC ?= cc
VENV := .venv
BIN := $(VENV)/bin
# cython-lint starts another tool of the environment by its name.
export PATH := $(CURDIR)/$(BIN):$(PATH)
LIBRARY_SOURCES := $(wildcard native/*.pyx native/*.pxd native/include/*.h bindings/*.pyx bindings/*.pxd)
INSTALLED := $(VENV)/.installed
BUILT := $(VENV)/.built
PYTHON_FOLDERS := eoslog spark tests benches tools setup.py

.PHONY: venv build test soak sanitize lint demo bench wheel sdist clean check-tools

venv: $(BUILT)

check-tools:
	@command -v "$(PYTHON)" > /dev/null \
	  || { echo "error: eoslog needs Python 3.11 or newer, and no '$(PYTHON)' was found" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: eoslog needs Python 3.11 or newer, but '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1);" \
	       "say which one to use with PYTHON=..." >&2; exit 1; }
	@command -v "$(CC)" > /dev/null \
	  || { echo "error: eoslog needs a C compiler to build, and no '$(CC)' was found" >&2; exit 1; }

# The environment: made anew only when what it must hold has changed.
$(INSTALLED): pyproject.toml setup.py | check-tools
	[ -x $(BIN)/python ] || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python tools/build_requirements.py | xargs -d '\n' $(BIN)/python -m pip install --quiet
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[test,demo,lint,bench]'
	touch $@

# The extensions: setup.py rebuilds those whose sources have changed.
$(BUILT): $(INSTALLED) $(LIBRARY_SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

build: $(INSTALLED)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $(BUILT)

test: venv
	$(BIN)/python -m pytest

soak: venv
	$(BIN)/python -m pytest -m soak --timeout=3600

# The engine's tests, with every load and store checked.
sanitize: venv
	bash tools/run_sanitized.sh $(BIN)/python "$(CC)" tests/conformance tests/format \
	  tests/crash/test_torn_tails.py tests/crash/test_flipped_bits.py \
	  tests/crash/test_lost_derived_files.py tests/crash/test_lost_power.py \
	  tests/property tests/unit/test_crc32c.py

lint: venv
	$(BIN)/ruff check $(wildcard $(PYTHON_FOLDERS))
	$(BIN)/ruff format --check $(wildcard $(PYTHON_FOLDERS))
	$(BIN)/cython-lint native/*.pyx native/*.pxd bindings/*.pyx bindings/*.pxd
	$(BIN)/python tools/check_headers.py --compiler "$(CC)"
	$(BIN)/python tools/typing_tree.py
	$(BIN)/mypy
	MYPYPATH=build/typing $(BIN)/python -m mypy.stubtest --concise --ignore-missing-stub --mypy-config-file pyproject.toml \
	  $(patsubst bindings/%.pyx,eoslog.bindings.%,$(wildcard bindings/*.pyx))

demo: venv
	$(BIN)/eoslog demo

bench: venv
	$(BIN)/python -m pytest benches --benchmark-only --benchmark-json=build/benchmarks.json
	$(BIN)/python benches/report.py build/benchmarks.json

wheel: venv
	bash tests/packaging/check_wheel.sh $(BIN)/python

sdist: venv
	rm -rf dist/*.tar.gz
	$(BIN)/python setup.py --quiet sdist

clean:
	rm -rf build dist *.egg-info $(BUILT) $(INSTALLED)
	rm -f native/*.so bindings/*.so
