# Two commands do everything on a fresh machine: `make demo` and `make test`. Needs Python >= 3.11, make and gcc.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

DEMO_VENV := .venv-demo
TEST_VENV := .venv-test
DEMO := demo
# What an editable install is made of; the Python files themselves need no new install.
BUILT_FROM := setup.cfg pyproject.toml $(wildcard setup.py leakscope/analyse/*.c leakscope/agent/_probe/*.[ch])
# One more than the processors of the smallest machine it runs on: many tests wait for programs that sleep.
WORKERS ?= 3
PYTEST_OPTIONS ?=

# The first Python that is new enough and can make a virtual environment; `make demo PYTHON=/path/to/python` overrules.
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$each -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$each; break; }; done)

.PHONY: help demo test lint types pictures clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 18

demo: $(DEMO_VENV)/ready  ## run the bundled streaming server under leakscope and write demo/report.html
	@rm -rf $(DEMO)
	export PATH="$$PWD/$(DEMO_VENV)/bin:$$PATH"
	python fixtures/demo/load.py -- leakscope run -o $(DEMO) -- \
		python fixtures/demo/serve.py --leak cycle --port {port}
	@echo "Open $(DEMO)/report.html in a browser; the same is in $(DEMO)/report.md and $(DEMO)/report.json."

test: lint types  ## lint, types, then the whole suite; the last line is pytest's summary
	@export PATH="$$PWD/$(TEST_VENV)/bin:$$PATH"
	if ! python -m pytest -n $(WORKERS) --dist worksteal --color=no $(PYTEST_OPTIONS); then
		echo "Some tests failed beside others: once more, those alone. What fails again is broken; what passes now needs a look."
		python -m pytest --last-failed --last-failed-no-failures none --color=no
	fi

lint: $(TEST_VENV)/ready  ## ruff
	@$(TEST_VENV)/bin/ruff check --quiet .

types: $(TEST_VENV)/ready  ## mypy --strict
	@$(TEST_VENV)/bin/mypy

pictures: demo  ## renew the picture of the README from a real report (needs chromium)
	@mkdir -p fixtures/pictures
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1200,1000 \
		--screenshot=fixtures/pictures/report.png "file://$$PWD/$(DEMO)/report.html"

clean:  ## remove the environments and what was built
	@rm -rf $(DEMO_VENV) $(TEST_VENV) $(DEMO) build dist *.egg-info
	find leakscope -name '*.so' -delete

$(DEMO_VENV)/ready: $(BUILT_FROM)
	@$(call make_venv,$(DEMO_VENV))
	$(DEMO_VENV)/bin/python -m pip install --quiet --editable '.[demo,dot]'
	touch $@

# Elsewhere than on Linux for x86 there is no wheel called +cpu: the plain one is the CPU one there.
$(TEST_VENV)/ready: $(BUILT_FROM)
	@$(call make_venv,$(TEST_VENV))
	$(TEST_VENV)/bin/python -m pip install --quiet 'torch==2.13.0+cpu' 2>/dev/null ||
		$(TEST_VENV)/bin/python -m pip install --quiet 'torch==2.13.0'
	$(TEST_VENV)/bin/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

define make_venv
if [ -z "$(PYTHON)" ]; then
	echo "LeakScope needs Python 3.11 or newer with its venv module, and none was found." >&2
	echo "  hint: make demo PYTHON=/path/to/python3.11 (on Debian and Ubuntu: apt install python3-venv)" >&2
	exit 2
fi
echo "Setting up $(1) with $$($(PYTHON) --version) (once; a minute or two)"
$(PYTHON) -m venv --clear $(1)
endef
