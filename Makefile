# Everything runs from a clean clone: `make test` makes the environment and builds first.
PYTHON ?= python3
CC ?= cc
VENV := .venv
BIN := $(VENV)/bin
# cython-lint starts another tool of the environment by its name.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The tests start thousands of processes: none has to compile the modules again.
unexport PYTHONDONTWRITEBYTECODE
LIBRARY_SOURCES := $(wildcard native/*.pyx native/*.pxd native/include/*.h bindings/*.pyx bindings/*.pxd)
INSTALLED := $(VENV)/.installed
INSTALLED_FOR_DEMO := $(VENV)/.installed-for-demo
BUILT := $(VENV)/.built
PYTHON_FOLDERS := eoslog spark tests benches docs tools setup.py

# How long `make fuzz` looks, and at which targets: all of them if none is named.
SECONDS ?= 600
TARGET ?=

# How many states of power cuts are built.
STATES ?= 10000
# What `make soak` and `make power-loss` begin with; not given: another one for each soak, 1 for power cuts.
SEED ?=

.PHONY: venv build test test-long test-other-python broker soak crash-points power-loss sanitize sanitize-short fuzz audit lint docs demo bench bench-growth bench-durable wheel wheels wheel-cp314 wheel-aarch64 sdist clean check-tools

venv: $(BUILT)

check-tools:
	@command -v "$(PYTHON)" > /dev/null \
	  || { echo "error: eoslog needs Python 3.11 or newer, and no '$(PYTHON)' was found" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: eoslog needs Python 3.11 or newer, but '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1);" \
	       "say which one to use with PYTHON=..." >&2; exit 1; }
	@command -v "$(CC)" > /dev/null \
	  || { echo "error: eoslog needs a C compiler to build, and no '$(CC)' was found" >&2; exit 1; }

# Make the environment, with eoslog as it is in the tree. $(1): extras of eoslog; $(2): groups of tools, as pip takes them. The
# packages, most of them Spark's, come while the modules compile; of their modules only those are compiled that are used.
define environment
	[ -x $(BIN)/python ] || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python tools/requirements.py build > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet -r $(VENV)/requirements.txt
	$(BIN)/python tools/requirements.py $(1) > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --no-compile -r $(VENV)/requirements.txt $(2) & packages=$$!; \
	  $(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .; built=$$?; \
	  wait $$packages && exit $$built
	touch $@
endef

# Made anew only when what it must hold has changed.
$(INSTALLED): pyproject.toml setup.py | check-tools
	$(call environment,demo metrics,--group test --group lint --group bench --group docs)

# What the demo uses, and no more.
$(INSTALLED_FOR_DEMO): pyproject.toml setup.py $(LIBRARY_SOURCES) | check-tools
	$(call environment,demo)

# The extensions: setup.py rebuilds those whose sources have changed.
$(BUILT): $(INSTALLED) $(LIBRARY_SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

build: $(INSTALLED)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $(BUILT)

# Where memory has room for the tests' stores they are there: a sync costs nothing. What the other
# targets run is on the disk.
MEMORY := /dev/shm
IN_MEMORY = $(shell [ -w $(MEMORY) ] && [ "$$(df -k --output=avail $(MEMORY) | tail -1)" -gt 8000000 ] \
  && echo PYTEST_DEBUG_TEMPROOT=$(MEMORY))

# One process more than two processors: some tests wait for others' processes.
IN_PROCESSES := -n 3 --dist loadfile --no-loadscope-reorder

test: venv
	$(IN_MEMORY) $(BIN)/python -m pytest $(IN_PROCESSES) --durations=50

# The slowest of the tests, most of them of Spark.
test-long: venv
	$(IN_MEMORY) $(BIN)/python -m pytest $(IN_PROCESSES) -m "long and not soak"

# The short form on the newest other Python that is here, as installed: unit tests, conformance, one Spark job.
test-other-python: venv
	bash tools/test_other_python.sh $(BIN)/python

# Stores in a Kafka broker, and a broker's logs in a store. Skipped, with the reason, without a Java or Maven.
broker: venv
	$(BIN)/python -m pytest -m broker tests/broker

# MINUTES: for how long processes are killed while they write down what they are told. What was found
# is kept in build/soak; a seed repeats it: make soak MINUTES=1 SEED=7.
MINUTES ?= 5
soak: venv
	EOSLOG_SOAK_MINUTES=$(MINUTES) $(if $(SEED),EOSLOG_SEED=$(SEED)) \
	  $(BIN)/python -m pytest -m soak -s --timeout=3600 tests/processes/test_recorded_life.py
	$(BIN)/python -m pytest -m soak --timeout=3600 \
	  --ignore=tests/processes/test_recorded_life.py

# A store's process dies at each of its changes in turn. CRASH_POINTS="--only 1234" repeats one death,
# "--mode beside" has another process live on, "--again --step 20" has the next one die as well.
crash-points: venv
	bash tools/run_crash_points.sh $(BIN)/python "$(CC)" $(CRASH_POINTS)

# Stores whose power was cut at random moments of all kinds of work. One state again:
# REPEAT=work:durability:seed:number
power-loss: venv
	cd tests && ../$(BIN)/python -m power_loss --states $(STATES) --seed $(or $(SEED),1) $(if $(REPEAT),--repeat $(REPEAT))

# The engine's tests, with every load and store checked; the short form is what CI runs.
SANITIZED_SHORT := tests/fuzz tests/format tests/conformance tests/unit/bindings/test_crc32c.py \
  tests/crash/test_torn_tails.py tests/crash/test_flipped_bits.py tests/crash/test_lost_derived_files.py
sanitize: venv
	bash tools/run_sanitized.sh $(BIN)/python "$(CC)" $(SANITIZED_SHORT) \
	  tests/bad_input tests/property

sanitize-short: venv
	bash tools/run_sanitized.sh $(BIN)/python "$(CC)" $(SANITIZED_SHORT)

# Whatever decodes bytes from outside, in a build with sanitizers that says which way it goes.
fuzz: venv
	bash tools/run_fuzz.sh $(BIN)/python "$(CC)" $(SECONDS) $(TARGET)

# Known weaknesses of what is installed; needs the network.
audit: venv
	bash tools/run_audit.sh $(BIN)/python

lint: venv
	$(BIN)/ruff check $(wildcard $(PYTHON_FOLDERS))
	$(BIN)/ruff format --check $(wildcard $(PYTHON_FOLDERS))
	$(BIN)/python tools/docstring_openings.py eoslog spark
	$(BIN)/cython-lint native/*.pyx native/*.pxd bindings/*.pyx bindings/*.pxd
	$(BIN)/python tools/check_headers.py --compiler "$(CC)"
	$(BIN)/python tools/typing_tree.py
	$(BIN)/mypy
	MYPYPATH=build/typing $(BIN)/python -m mypy.stubtest --concise --ignore-missing-stub --mypy-config-file pyproject.toml \
	  $(patsubst bindings/%.pyx,eoslog.bindings.%,$(wildcard bindings/*.pyx))

# The site of docs/, without a warning and from scratch, in build/docs.
docs: venv
	rm -rf build/docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky docs build/docs
	$(BIN)/python tools/check_site.py build/docs

# In the whole environment, if it is there.
demo: $(if $(wildcard $(INSTALLED)),$(BUILT),$(INSTALLED_FOR_DEMO))
	$(BIN)/eoslog demo

# Costs that must not grow with what a store holds, as a table.
bench-growth: venv
	$(BIN)/python benches/growth.py

# Durable commits beside SQLite, LMDB, RocksDB and bare syncs of the same run, as tables.
bench-durable: venv
	$(BIN)/python benches/durable.py

bench: venv
	$(BIN)/python -m pytest benches --benchmark-only --benchmark-json=build/benchmarks.json
	$(BIN)/python benches/report.py build/benchmarks.json

# Into dist/, without the environment of the tests: from the sdist, once, then used as installed.
wheel: check-tools
	wheel=$$(bash tools/build_wheel.sh "$(PYTHON)") && bash tests/packaging/check_wheel.sh "$(PYTHON)" "$$wheel"

# One for each Python from 3.11 on that is here.
wheels: check-tools
	bash tools/build_wheels.sh

# Of Python 3.14, with the headers of Debian sid, and used there. As root; not in CI. DEBIAN: where such systems are kept.
DEBIAN ?= build/debian
wheel-cp314: check-tools
	bash tools/debian_root.sh sid amd64 $(DEBIAN)/sid
	bash tools/build_cross_wheel.sh "$(PYTHON)" 3.14 x86_64 $(DEBIAN)/sid/usr/include
	bash tools/use_in_root.sh "$(PYTHON)" dist/eoslog-*-cp314-*_x86_64.whl 3.14 $(DEBIAN)/sid

# Of Python 3.11 for ARM, by gcc-aarch64-linux-gnu, and tested there under QEMU. As root; not in CI.
wheel-aarch64: check-tools
	bash tools/debian_root.sh bookworm arm64 $(DEBIAN)/arm64
	bash tools/build_cross_wheel.sh "$(PYTHON)" 3.11 aarch64 $(DEBIAN)/arm64/usr/include
	bash tools/use_in_root.sh "$(PYTHON)" dist/eoslog-*-cp311-*_aarch64.whl 3.11 $(DEBIAN)/arm64 \
	  tests/unit/bindings tests/conformance tests/crash/test_torn_tails.py tests/crash/test_flipped_bits.py

sdist: check-tools
	bash tools/build_sdist.sh "$(PYTHON)"

clean:
	rm -rf build dist *.egg-info $(BUILT) $(INSTALLED) $(INSTALLED_FOR_DEMO)
	rm -f native/*.so bindings/*.so
