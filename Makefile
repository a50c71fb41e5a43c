# Two commands for newcomers: `make demo` and `make test`. Both make .venv and install what they need; both are quick the second time.
# pip compiles nothing ahead: Python compiles the modules that are imported, the first time.

enough = import sys; sys.exit(sys.version_info < $(1))
find = $(shell for p in $(1); do $$p -c '$(call enough,$(2))' 2>/dev/null && echo $$p && break; done)

PYTHON ?= $(call find,python3 python3.13 python3.12 python3.11 python,(3$(comma)11))
comma := ,
NEWEST ?= $(call find,python3.13 python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python3.12),(3$(comma)12))

.PHONY: demo test test-slow test-all test-newest test-newest-plain test-newest-upgrades lint sanitize bench docs clean

demo: .venv/.demo
	.venv/bin/python docs/demo.py

test: .venv/.test
	.venv/bin/python -m pytest -n auto -m "not slow"

test-slow: .venv/.test
	.venv/bin/python -m pytest -n auto -m slow

test-all: .venv/.test
	TENFERRO_SWEEP=all .venv/bin/python -m pytest -n auto

test-newest: test-newest-plain test-newest-upgrades

test-newest-plain: .venv-newest/.test
	.venv-newest/bin/python -c "import jax; print('JAX', jax.__version__)"
	.venv-newest/bin/python -m pytest -n auto

# With the flags that a later JAX turns on.
test-newest-upgrades: .venv-newest/.test
	env $$(.venv-newest/bin/python -m tests.upgrades) .venv-newest/bin/python -m pytest -n auto

lint: .venv/.test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

sanitize:
	mkdir -p build
	for s in address,undefined thread; do \
		$(CXX) -std=c++17 -g -O1 -fwrapv -ffp-contract=off -fsanitize=$$s -fno-sanitize-recover=all -pthread tests/native/sanitize.cc \
			$(filter-out %handler.cc,$(wildcard ext_tropical/native/*.cc)) -o build/sanitize && ./build/sanitize || exit 1; done

bench: .venv/.test
	.venv/bin/python -m benchmarks

SAY_WHAT_PIP_DOES = echo "Installing JAX and the other packages into $*, and compiling the native kernels. The first time it takes some minutes."

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

%/.docs: pyproject.toml | %/bin/python
	@$(SAY_WHAT_PIP_DOES)
	$*/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[docs]'
	touch $@

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found; name one: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv .venv

.venv-newest/bin/python:
	@test -n "$(NEWEST)" || { echo "No Python 3.12 or newer found; name one: make NEWEST=/path/to/python3.12 test-newest"; exit 1; }
	$(NEWEST) -m venv .venv-newest

%/.demo: pyproject.toml | %/bin/python
	@$(SAY_WHAT_PIP_DOES)
	$*/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[demo]'
	touch $@

%/.test: pyproject.toml | %/bin/python
	@$(SAY_WHAT_PIP_DOES)
	$*/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[test]'
	touch $@ $*/.demo

clean:
	rm -rf .venv .venv-newest demo_out build site *.egg-info
