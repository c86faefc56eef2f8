# `make demo` and `make test` do everything on a machine with Python 3.11 or newer and make.
PYTHON ?= python3
VENV ?= .venv
# On Linux without a GPU: TORCH_INDEX=https://download.pytorch.org/whl/cpu saves gigabytes of CUDA libraries.
TORCH_INDEX ?=
EXTRAS ?= encoder,lm,faiss,bm25,report,dev
OUT ?= demo
BIN := $(VENV)/bin
STAGES := data models signals controllers envs evaluation train runtime cli
LINKS := build/links/stopwise

.PHONY: setup links demo test test-slow check format wheel clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

demo: setup
	$(BIN)/stopwise demo --out $(OUT)

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

# the two checkers want a package `stopwise` on disk: links to the stage folders
links:
	mkdir -p $(LINKS)
	for stage in $(STAGES) configs; do ln -sfn ../../../$$stage $(LINKS)/$$stage; done

check: setup links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=build/links $(BIN)/basedpyright --outputjson > build/types.json; \
	  $(BIN)/python -c "import json, sys; \
	    result = json.load(open('build/types.json')); \
	    [print(d['file'], d['range']['start']['line'] + 1, d['message']) for d in result['generalDiagnostics'] \
	      if d['severity'] == 'error']; \
	    files = result['summary']['filesAnalyzed']; \
	    print(files, 'files,', result['summary']['errorCount'], 'type errors'); \
	    sys.exit(result['summary']['errorCount'] > 0 or files <= 20)"
	PYTHONPATH=build/links $(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# a wheel must work in a bare environment, without the checkout and without torch
wheel: setup
	rm -rf dist build/lib
	$(BIN)/python -m build -q .
	$(PYTHON) -m venv build/bare
	build/bare/bin/python -m pip install -q dist/*.whl
	cd build && bare/bin/stopwise analyze samples --resamples 50 --json > bare/analyze.json
	cd build && bare/bin/stopwise train bare/lib/python*/site-packages/stopwise/configs/logistic.yaml --out bare/run
	cd build && bare/bin/python -c "import stopwise.runtime; print(stopwise.runtime.load('bare/run/policy').name)"

clean:
	rm -rf build dist demo .venv .pytest_cache .ruff_cache .hypothesis *.egg-info
