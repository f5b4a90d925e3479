# make serve    the quickstart: environment, model, tenants, then the service in the foreground
# make test     the environment, then every test that needs no GPU
# make check    formatter, linter, types and the fast tests
# make isolation  what a noisy neighbour costs the quiet: six minutes or more on two cores, and a report
# make load     SCENARIO on the running quickstart, and its report; `python -m loadgen list`
#
# PORT=8000            where `make serve` answers
# PYTHON=python3       the interpreter that the environment is made with: 3.11 or newer
# TORCH_INDEX=URL      an index with other builds of torch: those for the CPU save gigabytes where
#                      there is no GPU; those for an older CUDA serve an older driver
# TESTS=tests          what `make test` runs
# WORKERS=2            processes that it runs them in
# SCENARIO=..., LOAD=  what `make load` runs; LOAD= with other parameters than those for two cores

PYTHON ?= python3
PORT ?= 8000
TORCH_INDEX ?=
TESTS ?= tests
WORKERS ?= 2
SCENARIO ?= noisy-neighbour
SEED ?= 1
LOAD ?= $(LOAD_$(SCENARIO))
QUICKSTART ?= .loraplex/quickstart
REPORT ?= .loraplex/load/$(SCENARIO)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-from-$(shell cat requirements.lock pyproject.toml | sha256sum | cut -c1-16)
# Several processes share the cores: a thread that waits must not spin.
RUN := OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m
SIDE_BY_SIDE = OMP_NUM_THREADS=1 $(RUN) pytest -n $(WORKERS) --no-loadscope-reorder

ISOLATION ?=

.PHONY: serve test check load isolation env lock bench-check clean
.DEFAULT_GOAL := serve

serve: env
	@$(RUN) deployments.quickstart serve --port $(PORT)

test: env
	$(SIDE_BY_SIDE) -m "not gpu" $(TESTS)

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(SIDE_BY_SIDE) -q -m "not gpu and not slow and not ray" $(TESTS)

bench-check: env
	@$(RUN) tests.bench_check

isolation: env
	@$(RUN) tests.bench_isolation $(ISOLATION)

# Each scenario on two CPU cores, which draw about 110 tokens a second of some tens of rows: as much
# above or below a tenant's share as the scenario is about, two minutes long.
SIZED = --set rate_factor=$(1) --set length_factor=$(2) --set duration_s=$(3)
LOAD_s-lora := $(call SIZED,1,0.1,120)
LOAD_punica := $(call SIZED,0.3,0.06,120) --set requests=150
LOAD_vtc-overload := $(call SIZED,0.6,0.25,90)
LOAD_vtc-overload-8 := $(call SIZED,0.6,0.25,90)
LOAD_vtc-weighted := $(call SIZED,0.6,0.25,90)
LOAD_vtc-proportional := $(call SIZED,0.8,0.25,120)
LOAD_vtc-on-off := $(call SIZED,0.8,0.25,120) --set on_off_s=20
LOAD_vtc-on-off-overload := $(call SIZED,0.5,0.25,120) --set on_off_s=20
LOAD_vtc-short-long := $(call SIZED,0.6,0.25,90)
LOAD_vtc-in-out := $(call SIZED,0.3,0.25,90)
LOAD_vtc-ramp := $(call SIZED,0.7,0.25,120)
LOAD_vtc-shift := $(call SIZED,0.8,0.25,180) --set on_off_s=20
LOAD_flash-crowd := $(call SIZED,0.3,0.25,120)
LOAD_diurnal := $(call SIZED,0.4,0.25,120)
LOAD_noisy-neighbour := $(call SIZED,0.3,0.25,120) --set quiet=1.5
LOAD_cold-start := $(call SIZED,0.5,0.25,120) --set cold=40
LOAD_campaign := $(call SIZED,0.3,0.25,120)

LOADED := --quickstart $(QUICKSTART) --url http://127.0.0.1:$(PORT) --scenario $(SCENARIO) \
  --seed $(SEED) --roster $(dir $(REPORT))roster.json

load: env
	@$(RUN) loadgen publish $(LOADED) $(LOAD)
	@$(RUN) loadgen run $(LOADED) $(LOAD) --out $(REPORT) --drain-s 240

env: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "loraplex needs Python 3.11 or newer, %s is %s: make PYTHON=... names another" \
	  % (sys.executable, sys.version.split()[0]))'
	@echo "making the environment in $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --requirement requirements.lock
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.made-from-*
	@touch $@

# Pins what pyproject.toml resolves to today. A build's local version (+cpu) is not part of it.
lock:
	@$(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) ".[quickstart,loadgen,test]" setuptools
	@{ sed '/^[^#]/,$$d' requirements.lock; \
	  .venv-lock/bin/python -m pip freeze --all --exclude pip --exclude loraplex \
	  | sed 's/+cpu$$//' | grep -v '^\(nvidia-\|cuda-\)'; } > .venv-lock/requirements.lock
	@mv .venv-lock/requirements.lock requirements.lock
	@rm -r .venv-lock

clean:
	rm -rf $(VENV) .loraplex build *.egg-info
