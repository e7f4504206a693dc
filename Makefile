# Everything a newcomer needs: `make demo`, then `make test`.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
WAREHOUSE ?= warehouse/demo
DATE ?= 2026-01-01
NIGHT ?= 2026-01-02
CONFIG ?= demo
Q ?= leaderboard
BENCH ?= warehouse/bench_runs
STAMP := $(VENV)/.installed
CORE := $(VENV)/.core
# Containers often forbid Python to keep its bytecode: each process would compile package and tests anew.
unexport PYTHONDONTWRITEBYTECODE
# One worker runs all of the first group, which needs Spark; files without Spark fill the other. A third worker
# was no faster on two cores. Threads of OpenBLAS and OpenMP that wait for work sleep soon: by default they spin,
# and take the core of the other worker.
WORKERS = OPENBLAS_THREAD_TIMEOUT=4 OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest -q -n 2 --dist loadgroup --no-loadscope-reorder

.PHONY: docs notebooks faults platforms bench bench-quick bench-gpu package package-env libraries demo demo-night demo-spark test test-short test-rest test-all test-fast test-slow lint style types sql report setup requirements clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo demo-night demo-spark report: export STORED_AT = $(value WAREHOUSE)
demo: $(CORE) ## set up the core and run the main job on the generated world, without Java
	$(PY) -m recbench_spark nightly --config $(CONFIG) --warehouse "$$STORED_AT" --logical-date $(DATE) $(ARGS)
	@echo "next: make demo-night   # a second night, on which a model falls: see its report"

# als_32 is random on this night. The job ends with 4, as it does for a regression.
demo-night: $(CORE) ## after make demo: a second night on which a model falls
	$(PY) -m recbench_spark nightly --config demo --warehouse "$$STORED_AT" --logical-date $(NIGHT) \
		--set 'models.als_32={name: als_32, kind: random}' --set 'comparisons={baseline: popular}' \
		--set 'regressions=[{metric: ndcg, k: 10, drop: 0.01}]' $(ARGS) || [ $$? -eq 4 ]

demo-spark: $(STAMP) ## the demo's night on both runners, and whether the tables are the same; needs Java 17
	$(PY) -m recbench_spark nightly --config $(CONFIG) --warehouse "$${STORED_AT%/}-local" --logical-date $(DATE) --engine local $(ARGS)
	$(VENV)/bin/spark-submit --properties-file conf/spark/local.conf jobs/recbench.py nightly --config $(CONFIG) \
		--warehouse "$${STORED_AT%/}-spark" --logical-date $(DATE) --engine spark $(ARGS)
	$(PY) tools/compare_warehouses.py "$${STORED_AT%/}-local" "$${STORED_AT%/}-spark"

test: $(STAMP) style ## style, types, tests without a JVM, one shared night and a test of each job: 5 minutes
	@$(MAKE) --no-print-directory -j 2 types test-short

test-short: $(STAMP)
	$(WORKERS) -m "not slow and not full" $(ARGS)

test-rest: $(STAMP) ## what `make test` leaves out, but the slow ones
	$(WORKERS) -m "full and not slow" $(ARGS)

test-all: $(STAMP) lint ## style, types and all tests but the slow ones: half an hour
	$(WORKERS) -m "not slow" $(ARGS)

test-fast: $(STAMP) ## the tests that need no JVM
	$(PY) -m pytest -q -m "not slow and not spark"

test-slow: $(STAMP) ## replications on real data and long properties
	$(PY) -m pytest -q -m slow

faults: $(STAMP) ## the fault campaign, hours; goes on where it was stopped: make faults ARGS="--seed 2", docs/measured/reliability.md
	$(PY) -m tests.faults $(ARGS)

platforms: $(STAMP) ## small jobs under each Spark and Python, classic and by Connect; docs/measured/platforms.md
	$(PY) -m tools.platforms --page docs/measured/platforms.md $(ARGS)

lint: style types ## ruff and strict mypy

style: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(STAMP)
	$(VENV)/bin/mypy

# What is asked reaches the job through the environment: neither make nor the shell reads it as its own.
unexport Q
sql: export ASKED = $(value Q)
sql: export ASKED_OF = $(value WAREHOUSE)
sql: $(CORE) ## ask in SQL: make sql Q="SELECT ..." or Q=which_model_is_best
	@$(PY) -m recbench_spark query --warehouse "$$ASKED_OF" "$$ASKED"

report: $(CORE) ## write the HTML report again
	$(PY) -m recbench_spark report --config $(CONFIG) --warehouse "$$STORED_AT" --logical-date $(DATE)

setup: $(STAMP) ## only install

$(CORE): requirements.txt pyproject.toml
	./tools/setup.sh $(VENV) core
	@touch $@

$(STAMP): requirements.txt pyproject.toml
	./tools/setup.sh $(VENV) all
	@touch $@ $(CORE)

libraries: $(STAMP) ## one environment per library behind the presets, for tests/libraries
	./tools/library_envs.sh

bench: $(STAMP) ## ranking and lists beside their limits and other systems: half an hour; see docs/measured/ranking_speed.md
	./tools/library_envs.sh faiss replay-spark rectools ranx
	$(PY) jobs/bench/ranking.py --output $(BENCH)/ranks.jsonl
	$(PY) jobs/bench/ranking.py --world planted --output $(BENCH)/ranks.jsonl
	$(PY) jobs/bench/ranking.py --world planted --users 4096 --items 100000 --output $(BENCH)/ranks.jsonl
	$(PY) jobs/bench/ranking.py --world planted --users 50000 --systems spark,mllib,faiss --rounds 2 --output $(BENCH)/ranks.jsonl
	$(PY) jobs/bench/ranking.py --world planted --users 200000 --items 100000 --systems spark --rounds 2 --output $(BENCH)/ranks.jsonl
	$(PY) jobs/bench/lists.py --output $(BENCH)/lists.jsonl
	$(PY) jobs/bench/lists.py --systems ours-spark,replay-spark --rounds 1 --output $(BENCH)/lists.jsonl
	$(PY) jobs/bench/night.py
	$(PY) jobs/bench/ranking.py --record $(BENCH)/ranks.jsonl $(BENCH)/lists.jsonl --warehouse warehouse/bench

bench-quick: $(STAMP) ## kernels' time and memory beside the figures kept in docs/bench_quick.json: minutes; 4 where worse
	$(PY) jobs/bench/quick.py $(ARGS)

bench-gpu: ## the kernel on a GPU: torch and numpy are enough, without `make setup` give PY=python3
	$(PY) jobs/bench/ranking.py --device cuda --users 100000 --items 100000 --world planted \
		--systems product,topk,topk-tf32,kernel@k $(ARGS)

package: ## dist/: the zip for spark-submit --py-files, and the wheel; needs no `make setup`
	./tools/package.sh $(VENV) dist

package-env: $(STAMP) package ## dist/env.tar.gz: the environment for spark-submit --archives (gigabytes: torch)
	./tools/package_env.sh $(VENV) dist

requirements: ## pin again what pyproject.toml asks for
	$(VENV)/bin/uv pip compile pyproject.toml --extra dev --python-version 3.11 --no-annotate --no-header --no-emit-index-url -o requirements.txt

docs: $(STAMP) ## write docs/reference from the code, and build the site into site/
	$(PY) -m tools.reference
	@test -x .venv-docs/bin/mkdocs || ($(VENV)/bin/uv venv -q --python $(PY) .venv-docs && \
		$(VENV)/bin/uv pip install -q --python .venv-docs/bin/python -r tools/docs_requirements.txt)
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build -q
	@echo "open site/index.html"

# Three read the demo's warehouse, so `make demo` comes first.
notebooks: $(STAMP) ## after make demo: run the notebooks and store their outputs; ARGS=--check compares them
	RECBENCH_WAREHOUSE="$(abspath $(WAREHOUSE))" RECBENCH_SUITE=demo $(PY) -m tools.notebooks $(ARGS)

clean: ## remove the demo's tables
	rm -rf warehouse spark-warehouse
