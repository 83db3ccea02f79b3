# make demo: train a small GPT and let it write.  make test: every check.  Both work in a fresh clone.
PYTHON := $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
JOBS ?= 2

.PHONY: venv demo test sanitize bench clean

venv: .venv/ready

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: venv
	$(BIN)/polyarr train --preset demo --out runs/demo --overwrite
	$(BIN)/polyarr generate runs/demo --prompt "def " --tokens 400 --seed 1
	@echo "the loss curve is in runs/demo/loss.png"

test: venv
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n $(JOBS)
	$(BIN)/python tests/sanitize/run.py --if-installed

# Every OpenCL kernel under Oclgrind, which must be installed.
sanitize: venv
	$(BIN)/python tests/sanitize/run.py

bench: venv
	$(BIN)/python benchmarks/train_step.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
