# Everything a contributor runs. `make` alone lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup test-setup demo quickstart test test-unit test-long check check-format check-lint check-types \
	check-imports check-dead check-names check-size bench docs clean

BIN := .venv/bin
STAMP := .venv/.setup-done
BASE := .venv/.base-done
# Three processes, a file of tests each at a time: much of a test is waiting. The files keep their order.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
# Spark finds Java by JAVA_HOME; java.sh prints the home of a fitting one.
WITH_JAVA = JAVA_HOME="$$(scripts/java.sh)"

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with Headwater and its tools; install Java 17 where there is none
	@scripts/java.sh --install >/dev/null

# Tests that need a missing program are skipped.
test-setup: setup ## Install Chromium, Mosquitto and strace for the tests; write Java's class-data archive
	@scripts/browser.sh --install >/dev/null
	@scripts/mosquitto.sh --install >/dev/null
	@scripts/strace.sh --install >/dev/null
	@-$(WITH_JAVA) $(BIN)/python -m headwater.spark.training

$(STAMP): pyproject.toml scripts/setup.sh scripts/system_package.sh
	@scripts/setup.sh '.[dev]'
	@touch $(BASE) $@

$(BASE): pyproject.toml scripts/setup.sh scripts/system_package.sh
	@scripts/setup.sh .
	@touch $@

demo: $(BASE) ## Run the demonstration on this machine; install only what it needs
	@scripts/java.sh --install >/dev/null
	@$(WITH_JAVA) $(BIN)/headwater demo

quickstart: $(BASE) ## Type the README's quickstart in a new environment, and time each command
	@scripts/java.sh --install >/dev/null
	@$(WITH_JAVA) $(BIN)/python scripts/quickstart.py

# The longest files come first, so that both processes end at about the same time.
test: test-setup ## Run all tests but the long ones (14 to 20 minutes on 2 cores)
	@$(WITH_JAVA) $(BIN)/python -m pytest $(PARALLEL) --doctest-modules tests/deployments tests/simulation tests/web tests/conformance tests/unit headwater

test-unit: setup ## Run the unit tests only
	@$(WITH_JAVA) $(BIN)/python -m pytest $(PARALLEL) --doctest-modules headwater tests/unit

test-long: test-setup ## Run the tests marked long
	@$(WITH_JAVA) $(BIN)/python -m pytest -m long tests

check: setup ## Check format, lint, types, import rules, unused code, names and file sizes
	@$(MAKE) --no-print-directory --keep-going check-format check-lint check-types check-imports check-dead check-names check-size

check-format:
	$(BIN)/ruff format --check .

check-lint:
	$(BIN)/ruff check .

check-types:
	$(BIN)/mypy --strict headwater
	$(BIN)/mypy --explicit-package-bases tests benchmarks scripts

check-imports:
	$(BIN)/lint-imports --no-logo

check-dead:
	$(BIN)/vulture headwater scripts/vulture_whitelist.py --min-confidence 60

check-names:
	$(BIN)/python scripts/check_names.py

check-size:
	$(BIN)/python scripts/check_size.py

bench: test-setup ## Run every benchmark in its quick form; results go to artifacts/*.json
	@$(WITH_JAVA) $(BIN)/python scripts/bench.py

docs: setup ## Write docs/reference, check README.md and docs/, build the site in artifacts/site
	@$(WITH_JAVA) $(BIN)/python scripts/reference.py
	@$(WITH_JAVA) $(BIN)/python scripts/check_docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict --clean
	@echo "the site is artifacts/site/index.html"

clean: ## Remove what the targets made: caches, artifacts, build output, .venv
	rm -rf .venv artifacts build dist *.egg-info spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
