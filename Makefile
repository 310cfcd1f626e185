.PHONY: help demo up docs links test test-oldest test-thorough test-paused coverage faults compat backfill-kills fuzz check check-types check-docs check-rest lock bench bench-seeds bench-web pictures tables format clean
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

# The tests start hundreds of processes, which would each compile all that they import: 5 s of processor time for torch.
unexport PYTHONDONTWRITEBYTECODE
# Threads of a model that wait for others would spin, on cores that other tests want.
export GOMP_SPINCOUNT ?= 0

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## Start everything, send sentences, measure naive against batched, stop
	@$(BIN)/python -m demo

up: $(STAMP) ## Start Redis, worker, web app and Flower, and keep them until Ctrl-C
	@$(BIN)/python -m demo.up

# Tests wait for real servers as often as for the processor.  A process that is lost fails the run: pytest-xdist
# hangs where it replaces one.
PYTEST := $(BIN)/python -m pytest -n $(or $(N),6) --dist loadgroup --no-loadscope-reorder \
	--max-worker-restart=0 \
	-r fE --durations=20 --junitxml=build/junit/tests.xml --ignore=tests/docs

# `make check` runs tests/docs and tests/batching, which start no servers.
test: $(STAMP) ## Run the test suite with real servers (TEST_SEED=n repeats a run)
	@$(PYTEST) --ignore=tests/batching tests

# What differs by release: Celery's features on one broker and pool, clients, and what stands on private parts.
OLDEST := 5.5.3-5.5.4-5.2.1
OLDEST_TESTS := tests/integration/features tests/client tests/compat
# How batches are chosen, values stored and results awaited is ours alone: these run on the locked releases, and with `make compat`.
ALIKE := test_background or test_cost or test_dedupe or test_keys or test_max_queue_bursts or test_max_queue_cost or test_pending_results or test_poll_schedule or test_queue_depth or test_recorded_trace or test_shapes or test_target_latency
ALIKE += or test_late_calls or test_listener_elsewhere or test_reprs or test_sending_many or test_states or test_max_queue_outage
ALIKE += or a_directory_as_store or a_model_that_changes_its_items or fills_the_array_of_its_outputs_again or keeps_to_the_memory_there_is or output_that_is_too_large or sixty_four_megabytes or store_that_is_away or tensors_of_any_layout or values_are_too_large_together or what_a_message_cannot_hold

test-oldest: $(STAMP) ## Run features, clients and one fault on the oldest supported Celery, on Redis and prefork (`make compat` runs all)
	@$(BIN)/python -m tests.rows $(OLDEST) --tests $(OLDEST_TESTS) \
		--only 'not rabbitmq- and not redis-solo and not redis-threads and not ($(ALIKE))' \
		--faults child-killed --seeds 1 --mixed 0 --jobs $(or $(N),4)

# Per cent of the package that test processes alone have to see, branches counted; `make coverage` sees workers, too.
FLOOR := 82
COVER := --cov --cov-report=term:skip-covered --cov-fail-under=$(FLOOR)

test-thorough: $(STAMP) ## Run all variants and sizes too, with workers that are executed, and measure coverage (ONLY=1: variants alone)
	@THOROUGH=1 $(BIN)/python -m pytest --collect-only -qq -m thorough tests | sed -n '/^thorough:/p'
	@THOROUGH=1 FUZZ_SECONDS=60 CANVAS_TORTURE=1000 $(PYTEST) $(if $(ONLY),-m thorough,$(COVER)) tests

# A failure that only this shows is one that a busy machine shows some day.
test-paused: $(STAMP) ## Run tests while random processes of theirs stand still for a moment (TESTS=tests/client for some)
	@$(BIN)/python -m tests.pauses -- -q -n $(or $(N),6) --dist loadgroup --no-loadscope-reorder --max-worker-restart=0 \
		-rfE $(or $(TESTS),tests/integration tests/client)

fuzz: $(STAMP) ## Send hostile messages to real workers, a minute for each broker
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-60} $(BIN)/python -m pytest -q tests/fuzz

faults: $(STAMP) ## Strike under load with every fault (SEEDS=10, FAULT=name), and show what became of the items
	@THOROUGH=1 $(BIN)/python -m tests.faults $(FAULT) --seeds $(or $(SEEDS),10) $(if $(JSON),--json $(JSON))

compat: $(STAMP) ## Run the behaviour tests on all supported releases of Celery (ROWS=5.5.3-5.5.4-5.2.1 for some)
	@$(BIN)/python -m tests.rows $(ROWS) $(if $(TESTS),--tests $(TESTS))

backfill-kills: $(STAMP) ## Kill a backfill's producer, worker or Redis at random moments (SEEDS=20)
	@$(BIN)/python -m tests.integration.backfill.kills --seeds $(or $(SEEDS),20)

# What each process has seen is gathered in a folder of its own.
GATHERED = $(CURDIR)/.coverage.processes
RCFILE = --rcfile=tests/processes.coveragerc

coverage: $(STAMP) ## Branch coverage with all that tests start, pool processes too (TESTS="tests/worker" for some)
	@rm -rf '$(GATHERED)' && mkdir '$(GATHERED)'
	@COVERAGE_PROCESS_START='$(CURDIR)/tests/processes.coveragerc' COVERAGE_FILE='$(GATHERED)/data' $(BIN)/python -m pytest -q $(or $(TESTS),tests)
	@COVERAGE_FILE='$(GATHERED)/data' $(BIN)/python -m coverage combine --quiet $(RCFILE)
	@COVERAGE_FILE='$(GATHERED)/data' $(BIN)/python -m coverage report $(RCFILE) --skip-covered

# Each of the three leaves a processor to the others at times.  An outer make's -j holds.
check: $(STAMP) ## Lint, types, import rules and cycles, sizes, lock, the site, documented examples
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j 3) $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) check-types check-docs check-rest

# Reading all tests compiles them and what they import once, where each process of `make test` would.
check-types: $(STAMP)
	@mkdir -p build
	@$(BIN)/python -m pytest -qq --collect-only tests >build/collected || { cat build/collected; exit 1; }
	@$(BIN)/mypy

check-docs: $(STAMP)
	@$(BIN)/python -m sphinx -b dummy -n -W -q docs build/dummy
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup --no-loadscope-reorder tests/docs

check-rest: $(STAMP)
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/interrogate -q tests || { $(BIN)/interrogate -vv tests | grep MISSED; exit 1; }
	@$(BIN)/python tests/repository/house.py
	@$(BIN)/python tests/repository/lock.py
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@COVERAGE_FILE=.coverage.batching $(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/batching --hypothesis-profile=some-examples --cov=celery_batch.batching --cov-report=term-missing:skip-covered --cov-fail-under=100

bench: $(STAMP) ## Measure ours and the peers, and renew the figures of README and docs (CASE="cost noop" for some)
	@$(BIN)/python -m bench --write $(if $(JSON),--json $(JSON)) $(CASE)

bench-seeds: $(STAMP) ## Measure service-streamer's published tables again, with wrk (QUICK=1 for a minute of it)
	@$(BIN)/python -m bench $(if $(QUICK),--quick,--write) seeds

pictures: $(STAMP) ## Take the pictures of the page, the monitor and Flower in docs/img anew
	@$(BIN)/python -m demo.pictures
	@$(BIN)/python -m demo.cluster_pictures

bench-web: $(STAMP) ## Measure our web servers beside service-streamer's, LitServe's and mosec's, with wrk
	@$(BIN)/python -m bench $(if $(QUICK),--quick,--write) web

# It has to work also where constraints.txt and pyproject.toml contradict each other.
lock: $(if $(wildcard $(STAMP)),,$(STAMP)) ## Lock what pyproject.toml asks for (UPGRADE="ruff mypy" or UPGRADE=all for newer versions)
	@$(BIN)/python tests/repository/lock.py --write $(if $(UPGRADE),--upgrade $(UPGRADE))

tables: $(STAMP) ## Write the tables of docs/reference that come from the code
	@$(BIN)/python -m tests.docs.tables --write

docs: $(STAMP) ## Build the site into build/docs
	@$(BIN)/python -m sphinx -b html -n -W -q docs build/docs

links: $(STAMP) ## Ask for every external link of the documents
	@$(BIN)/python -m sphinx -b linkcheck -q docs build/links

format: $(STAMP) ## Put every file into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove the virtual environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*

# The constraints name every version, and hold for the environment that builds our package, too.
# uv asks where pip is told to ask, and keeps what it unpacks for the next environment: a twentieth of
# pip's processor time.  Where uv fails, pip says why, or installs.
AS_UV := s/^[^=]*\.find-links=/export UV_FIND_LINKS=/p;s/^[^=]*\.index-url=/export UV_INDEX_URL=/p
AS_UV := $(AS_UV);s/^[^=]*\.extra-index-url=/export UV_EXTRA_INDEX_URL=/p;s/^[^=]*\.cert=/export SSL_CERT_FILE=/p
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12")'
	@$(PYTHON) -m venv .venv
	@echo "Installing into .venv; the first time this takes a minute or two ..."
	@$(PIP) --constraint constraints.txt 'pip>=25.1' uv
	@eval "$$($(BIN)/python -m pip config list | sort -r | sed -n '$(AS_UV)')"; \
	UV_INDEX_STRATEGY=unsafe-best-match $(BIN)/uv pip install --quiet --python $(BIN)/python \
		--constraint constraints.txt --build-constraint constraints.txt --group dev -e . 2>/dev/null || \
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PIP) --group dev -e .
	@touch $@
