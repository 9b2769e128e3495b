# hitbox: `make demo` and `make test` set everything up by themselves; the second time is quick.
PY := .venv/bin/python
PY_SPARK_OLDEST := .venv-spark-oldest/bin/python
CXX_SOURCES := $(wildcard src/engine/*/*.[hc]pp research/native/*.[hc]pp tests/engine/native/*.[hc]pp)
NATIVE := CMakeLists.txt pyproject.toml $(wildcard src/engine/*/* research/native/*)
# an editable installation knows the packages that there were when it was made
PACKAGES := $(wildcard src/hitbox/*/__init__.py src/hitbox/*/*/__init__.py research/*/__init__.py)

.PHONY: help demo check test test-all durations coverage test-spark-oldest lint format bench reproduce torture docs examples wheel setup setup-demo lock clean

help:            ## what can be made
	@grep -hE '^[a-z-]+: *.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

demo: setup-demo ## set up what the demo needs, then run the main job on Spark end to end
	@tools/need java
	@$(PY) -m hitbox demo
	@echo
	@echo "Next: the same with your own tables (.venv/bin/hitbox build --help), a program to read and change"
	@echo "      ($(PY) examples/price_alerts.py), or the whole tour in docs/ (make docs)."

check: lint      ## after each change: format, lint, types, and the quick tests
	HITBOX_EXAMPLES=20 $(PY) -m pytest -n 2 -m "not slow and not spark and not exhaustive" --ignore=tests/spark

test: lint docs  ## what CI runs: format, lint, types, docs, and a test of every door and feature
	@tools/need disk
	@tools/need java
	@tools/need chromium
	@tools/need kafka
# three workers on two cores, because many tests wait for disks and clocks
	HITBOX_EXAMPLES=30 $(PY) -m pytest -n 3 -m "not exhaustive"

test-all: lint docs ## before a release: all tests, the oldest Spark, two minutes of fault injection
	@tools/need disk
	@tools/need java
	@tools/need chromium
	@tools/need kafka
	@tools/need tables
	@tools/need spark-oldest
	@echo "beyond make test: $$($(PY) -m pytest --collect-only -q -m exhaustive | tail -1)"
	$(PY) -m pytest -n 3
	@test ! -x $(PY_SPARK_OLDEST) || { echo "the oldest Spark:"; $(PY_SPARK_OLDEST) -m pytest -m oldest tests/spark; }
	@$(MAKE) --no-print-directory torture ARGS="--minutes 2"

durations: setup ## measure what each test takes: `make check` leaves out what is slow (tests/durations.txt)
	$(PY) -m pytest -n 3 --write-durations

coverage: setup  ## lines and branches that the tests reach, into docs/reliability.md (make coverage ARGS='-m "not spark"')
	@$(PY) tools/coverage_table.py $(ARGS)

test-spark-oldest: setup ## all Spark tests on the oldest Spark that is supported, where Delta and Iceberg are tested
	@tools/need java
	@tools/need kafka
	@tools/need tables
	@tools/need spark-oldest
	$(PY_SPARK_OLDEST) -m pytest tests/spark

lint: setup      ## format check, lint, types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) tools/sync_client.py --check
	.venv/bin/clang-format --dry-run --Werror $(CXX_SOURCES)
	$(PY) -m mypy

format: setup    ## format the code and fix what can be fixed
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	.venv/bin/clang-format -i $(CXX_SOURCES)

bench: setup     ## the engine against REIN and a plain scan (options: make bench ARGS="w2 --n 200k")
	@$(PY) -m research bench $(ARGS)

reproduce: setup ## the papers' experiments and their claims (make reproduce ARGS="rein --scale small")
	@$(PY) -m research reproduce $(ARGS)

torture: setup   ## the broker on a simulated disk and clock, under faults (make torture ARGS="--minutes 10")
	@PYTHONPATH=tests $(PY) -m simulator $(ARGS)

docs: setup      ## build the documentation site into build/site; a warning is an error
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/site
	@echo "the site is in build/site/index.html"

examples: setup  ## run the programs in examples/
	@for file in examples/*.py; do echo "== $$file"; $(PY) $$file || exit 1; done

wheel: setup     ## build the sdist and a manylinux wheel, check both, try the wheel in empty environments
	@tools/check_wheel

# the engine is compiled while packages are fetched
setup:
	@$(MAKE) --no-print-directory -j2 .venv/installed .venv/built .venv/kernels

setup-demo:
	@$(MAKE) --no-print-directory -j2 .venv/installed-demo .venv/built

.venv/tools: requirements-demo.lock
	@tools/need python
	@test -x $(PY) || { echo "making .venv ..."; $$(tools/need python --print) -m venv .venv; }
	@$(PY) tools/install.py tools
	@touch $@

.venv/installed-demo: .venv/tools
	@$(PY) tools/install.py packages requirements-demo.lock
	@touch $@

.venv/installed: requirements.lock .venv/installed-demo
	@$(PY) tools/install.py packages requirements.lock
	@touch $@

.venv/built: .venv/tools $(NATIVE) $(PACKAGES)
	@tools/need compiler
	@$(PY) tools/install.py engine
	@touch $@

# a compiled kernel in the cache keeps the code of those that it calls, so none of them outlives a change to any
.venv/kernels: .venv/tools $(wildcard src/hitbox/matchers/*.py)
	@find src -name '*.nb[ci]' -delete
	@touch $@

LOCK := .venv/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --quiet \
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links

lock: .venv/tools ## renew requirements*.lock from pyproject.toml (what they have stays, unless it no longer fits)
	@$(LOCK) --extra dev -o requirements.lock
	@$(LOCK) --extra demo -c requirements.lock -o requirements-demo.lock

clean:           ## remove what was built
	rm -rf .venv .venv-spark-oldest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
