# make demo: train a small GPT and let it write.  make test: every check.  Both work in a fresh clone.
# make check: lint, types, and the tests of what has changed.
PYTHON := $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INTEL := .venv-intel
BESIDE := .venv-transformers
INTEROP := .venv-interop
RELEASE := .venv-release
SKIPS := build/skips
JOBS ?= 2
EXAMPLES ?= 200
VERSIONS ?= 2024.12 2025.12

.PHONY: venv demo docs stubs check test types suite sanitized beside thorough test-intel test-mesa test-transformers \
	test-versions release-check array-api interop sanitize platforms bench clean

# Hundreds of processes load the same modules, which Python compiles for the first of them.
unexport PYTHONDONTWRITEBYTECODE

# Several processes run tests side by side: NumPy's threads would wait for each other, and so would those of PoCL that
# are pinned to one core in every process.
check suite sanitized thorough: export OPENBLAS_NUM_THREADS := 1
check suite thorough: export POCL_AFFINITY := 0

venv: .venv/ready

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: venv
	$(BIN)/polyarr train --preset demo --out runs/demo --overwrite
	$(BIN)/polyarr generate runs/demo --prompt "def " --tokens 400 --seed 1
	@echo "the loss curve is in runs/demo/loss.png"

# The site, in build/site; `make test` builds it, too. A link that leads nowhere is an error.
docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html; for its search: python3 -m http.server -d build/site"

# What type checkers see of the ops, out of the ops.
stubs: venv
	$(BIN)/python -m tests.typed.stubs

check: types
	$(BIN)/ruff check .
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal --reuse tests/test_architecture.py $$($(BIN)/python -m tests.changed)

test: venv
	$(BIN)/ruff check .
	rm -rf $(SKIPS)
	$(MAKE) --jobs=2 types suite sanitized
	$(MAKE) beside
	$(BIN)/python -m tests.skips $(SKIPS)/*.json

types: venv
	$(BIN)/mypy

# Neighbours share what is drawn and compiled, so each process gets a stretch of the tests, and takes over the end of
# another's; each is one core's work.
suite: venv
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal --reuse --skips $(SKIPS)/make-suite.json

# Beside the tests, for it keeps one core busy only.
sanitized: venv
	$(BIN)/python tests/sanitize/run.py --if-installed --reuse

# What compares with transformers, where its environment is there; without it, nothing is downloaded for it.
beside:
	@if [ -f $(BESIDE)/ready ]; then $(MAKE) test-transformers; fi

# As tests/conftest.py has it.
thorough test-intel: export POLYARR_CHECK_LAUNCHES := 1

# The conformance kit with many more examples, and its own tests; nothing is taken from the cache.
thorough: venv
	$(BIN)/pytest -q -n $(JOBS) --polyarr-thorough polyarr/testing/conformance.py
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal tests/testing

# The conformance kit on Intel's OpenCL runtime, which takes 900 MB and so an environment of its own.
test-intel: $(INTEL)/ready
	OCL_ICD_VENDORS=$(CURDIR)/$(INTEL)/opencl POLYARR_DEVICE=intel \
		$(INTEL)/bin/pytest -q -n $(JOBS) --pyargs polyarr.testing.conformance --polyarr-backend=opencl

# The package's own registration names a folder that does not exist.
$(INTEL)/ready: pyproject.toml
	$(PYTHON) -m venv $(INTEL)
	$(INTEL)/bin/pip install --quiet --disable-pip-version-check --editable '.[testing]' pytest-xdist \
		pyopencl intel-opencl-rt intel-cmplr-lib-rt
	mkdir -p $(INTEL)/opencl
	ls $(CURDIR)/$(INTEL)/lib/libintelocl.so > $(INTEL)/opencl/intel.icd
	touch $@

# The conformance kit on Mesa's OpenCL with llvmpipe, which compiles on any CPU as on AMD's and Intel's GPUs: with the
# kernels for GPUs, which it gets, and with those for CPUs. Of these long loops end too early there (docs/opencl-drivers.md).
test-mesa: MESA_KIT = $(BIN)/pytest -q -n $(JOBS) --pyargs polyarr.testing.conformance --polyarr-backend=opencl
test-mesa: export RUSTICL_ENABLE := llvmpipe
test-mesa: venv
	@$(BIN)/polyarr devices | grep -q rusticl || { echo "Mesa's OpenCL is not installed: apt-get install" \
		"mesa-opencl-icd, and register it where OCL_ICD_VENDORS points to, if that is set"; exit 1; }
	POLYARR_DEVICE=rusticl POLYARR_KERNELS=gpu $(MESA_KIT)
	POLYARR_DEVICE=rusticl POLYARR_KERNELS=cpu $(MESA_KIT) -k "not large and not sweep"

# Language models beside those of transformers, and the encoder, ResNets, convolutions
# and all other ops beside PyTorch's: that takes an environment of its own.
test-transformers: $(BESIDE)/ready
	$(BESIDE)/bin/pytest -q -n $(JOBS) --dist worksteal --skips $(SKIPS)/make-test-transformers.json \
		tests/models/test_transformers.py tests/models/test_gpt_oss.py \
		tests/models/test_text_beside_transformers.py tests/models/test_encoder.py \
		tests/models/test_image_models.py tests/text/test_conversations.py tests/training/test_records_beside_trl.py \
		tests/ops/test_convolutions_beside_torch.py tests/ops/test_ops_beside_torch.py tests/ops/test_fft_beside_torch.py \
		tests/ops/test_linalg_beside_torch.py tests/testing/test_adapters_beside_frameworks.py \
		tests/test_muon.py tests/test_optim.py

$(BESIDE)/ready: pyproject.toml
	$(PYTHON) -m venv $(BESIDE)
	$(BESIDE)/bin/pip install --quiet --disable-pip-version-check --editable '.[opencl,train,testing,transformers]' pytest-xdist
	touch $@

# The array API standard's test suite on both backends. SUITE is a checkout of github.com/data-apis/array-api-tests with
# its submodule. What is expected to fail is in tests/array_api/expected.toml.
array-api: $(INTEROP)/ready
	$(INTEROP)/bin/python tests/array_api/run.py $(SUITE) --examples $(EXAMPLES) --versions $(VERSIONS) -n $(JOBS)

# Other libraries called with arrays of both backends; writes the table of docs/interop.md.
interop: $(INTEROP)/ready
	$(INTEROP)/bin/python tests/interop/run.py

# Libraries that work with arrays of any library, which are an environment of their own.
$(INTEROP)/ready: pyproject.toml
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/pip install --quiet --disable-pip-version-check --editable '.[opencl,testing,interop]' pytest-xdist
	touch $@

# Every OpenCL kernel under Oclgrind, which must be installed.
sanitize: venv
	$(BIN)/python tests/sanitize/run.py

# Names that Windows and macOS lack, by mypy, and every OpenCL program compiled for devices that are not here, by clang.
platforms: venv
	$(BIN)/python -m tests.platforms.run

# pyright, which takes as long as three mypys: on the package, and on a user's programs; the variable keeps it from asking
# for a newer version. Then the package as a user installs it, in new environments; all steps need a package index.
release-check: export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
release-check: $(RELEASE)/ready docs
	$(RELEASE)/bin/pyright --pythonpath $(BIN)/python
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" $(BIN)/pytest -q tests/typed -k pyright
	$(RELEASE)/bin/python -m tests.release.check

# A part of the suite on each Python that uv finds or installs, with the lowest and the newest dependencies.
test-versions: $(RELEASE)/ready
	$(RELEASE)/bin/python -m tests.release.versions --jobs $(JOBS)

$(RELEASE)/ready:
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check uv 'pyright[nodejs]>=1.1.414'
	touch $@

bench: venv
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/matmul.py

clean:
	rm -rf .venv $(INTEL) $(BESIDE) $(INTEROP) $(RELEASE) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
