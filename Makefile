# Everything is done from here: `make demo` shows it, `make test` proves it, `make check` keeps it clean.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SHARED_DATA := $(wildcard ../shared/data)
export HEADWATER_DATA ?= $(abspath $(SHARED_DATA))

.DEFAULT_GOAL := help
.PHONY: help demo deploy-demo test test-all check docs docs-tables build format bench bench-deploy bench-plan bench-defaults secure-costs cifar10-resnet8 compare-methods teacher-weights quadratics pipelining theory-bounds attacks leaks join tuning papers traffic text-table cifar-fusion evidence deploy-check secure-check soak fuzz kills endurance stateful clean

help:
	@echo "make demo      compare four methods on the embedded data set (a minute after the install)"
	@echo "make deploy-demo"
	@echo "               a whole federation on this machine, a process for each party, beside its simulation (two minutes after the install)"
	@echo "make test      the quick tests: every kind of part and every promise (six minutes on 2 cores)"
	@echo "make test-all  the whole test suite (under half an hour; with HEADWATER_SLOW=1 also killed parties and the like)"
	@echo "make check     lint, types, import order, generated tables"
	@echo "make docs      the documentation as a site, in site/index.html"
	@echo "make docs-tables"
	@echo "               write the generated tables of README and docs, and the type stub of the package"
	@echo "make build     wheel and source archive in dist/, tried out in a fresh environment"
	@echo "make format    put the code into its standard form"
	@echo "make bench     time it beside hand-written loops and other frameworks (WORKS=\"W1 W2\" for some of it)"
	@echo "make bench-deploy"
	@echo "               seconds a round of a federation of 8 processes; BENCH=\"--against CHECKOUT\" compares (minutes, idle machine)"
	@echo "make bench-plan"
	@echo "               planned time and memory beside measured ones (some ten minutes on an idle machine)"
	@echo "make bench-defaults"
	@echo "               which methods learn with their defaults, on five data sets (some hours; carries on where it was stopped)"
	@echo "make secure-costs"
	@echo "               bytes and CPU time of secure sums, as multiples of a round without (carries on where it was stopped)"
	@echo "make cifar10-resnet8"
	@echo "               FedHEAD beside FedAvg and FedDF with ResNet-8 on a part of CIFAR-10 (one to two hours on 2 cores)"
	@echo "make compare-methods, teacher-weights, quadratics, pipelining"
	@echo "               the other experiments under experiments/ (an hour or two, half an hour, minutes, minutes)"
	@echo "make theory-bounds"
	@echo "               measured gaps under the published bounds (half an hour)"
	@echo "make attacks   methods under simulated attacks, with and without robust rules (an hour or two)"
	@echo "make leaks     what server, hosts and leaders learn by simple attacks, with and without protection (a quarter of an hour)"
	@echo "make join      which combination of the papers' parts is best, and what it does on other data (some hours)"
	@echo "make tuning    what tuning the learning rate changes, for four methods on Fashion-MNIST (half an hour)"
	@echo "make traffic   FedHEAD's traffic table at the paper's own scale (an hour or two)"
	@echo "make text-table, cifar-fusion"
	@echo "               FedHEAD's text table, and FedDF's and FedEED's comparisons on CIFAR-10, small (an hour each)"
	@echo "make evidence, or evidence-mtgc, evidence-fedhkd, evidence-traffic and so on"
	@echo "               the tables of experiments/evidence, all or one of them (many hours; carry on where they were stopped)"
	@echo "make deploy-check"
	@echo "               the same bits from every engine and from a federation of processes (a quarter of an hour)"
	@echo "make secure-check"
	@echo "               secure sums between processes, with a client killed in each step (half an hour)"
	@echo "make soak      as root: an hour of a federation over network namespaces, with a fault every 30 s (SOAK=\"--minutes 3\" for less)"
	@echo "make fuzz      changed inputs of every kind, 10 000 of each (hours; FUZZ=\"--cases 1000 config tables\" for less, FUZZ=--carry-on goes on)"
	@echo "make kills     200 SIGKILLs over all commands that write (half an hour; KILLS=\"--kills 20 run\" for less)"
	@echo "make endurance memory and open files over 2 000 rounds (some minutes; ENDURANCE=\"--rounds 200\" for less)"
	@echo "make stateful  messages of rounds and of secure sums lost, doubled, reordered and damaged (some minutes; STATEFUL=\"--examples 20 rounds\" for less)"
	@echo "make papers    every table and figure of the papers at the smoke scale (an hour or two; PAPERS=\"fedhead mtgc\" for some)"
	@echo "make clean     remove what these targets made"

# One stamp for each set of packages, renewed when pyproject.toml or constraints.txt changes.
$(VENV)/.made:
	@echo "make: creating a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Headwater needs Python 3.11 or newer; name one with PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.made
	@echo "make: installing Headwater and what it needs (torch is large; this takes a few minutes once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -e .
	@touch $@

$(VENV)/.installed-flower: pyproject.toml constraints.txt $(VENV)/.made
	@echo "make: installing Headwater with Flower (torch is large; this takes a few minutes once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -e '.[flower]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-test: pyproject.toml constraints.txt $(VENV)/.made
	@echo "make: installing Headwater with its test tools (torch is large; this takes a few minutes once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-flower $(VENV)/.installed-docs

$(VENV)/.installed-docs: pyproject.toml constraints.txt $(VENV)/.made
	@echo "make: installing Headwater with what its documentation needs (torch is large; this takes a few minutes once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -e '.[docs]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	@$(BIN)/headwater compare fedavg feddf fedhead fedhead+ --config demo --out runs/demo

deploy-demo: $(VENV)/.installed-flower
	@$(BIN)/python tools/federation.py --out runs/deploy-demo

# Compiled modules are kept, whatever the shell says: the tests start processes, and each would compile all of it again.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --dist worksteal
# One worker more than cores: many tests wait for a process that they started.
WORKERS = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')

test: $(VENV)/.installed-test
	@test -n "$(HEADWATER_DATA)" || echo "make: HEADWATER_DATA is not set, so tests on real data sets will be skipped"
	$(PYTEST) -n $(WORKERS) -m "not thorough"

# The quick tests first, then those that they left out, so that no test runs twice.
test-all: test
	$(PYTEST) -n $(WORKERS) -m thorough

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/import_order.py
	$(BIN)/python tools/docs_tables.py --check

docs-tables: $(VENV)/.installed
	$(BIN)/python tools/docs_tables.py

# Offline, and with warnings as errors. The variable silences an announcement of the theme's authors.
docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "make: the documentation is in site/index.html; its search needs a server: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

build: $(VENV)/.installed-test
	@rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/python tools/check_build.py

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/bench.py $(WORKS)

bench-deploy: $(VENV)/.installed-flower
	$(BIN)/python benchmarks/deployed_round.py $(BENCH)

bench-plan: $(VENV)/.installed
	$(BIN)/python benchmarks/plan_accuracy.py

bench-defaults: $(VENV)/.installed
	$(BIN)/python benchmarks/defaults.py $(DEFAULTS)

secure-costs: $(VENV)/.installed-test
	$(BIN)/python benchmarks/secure_costs.py $(COSTS)

cifar10-resnet8: $(VENV)/.installed
	$(BIN)/python experiments/cifar10_resnet8/run.py
	$(BIN)/python experiments/cifar10_resnet8/collect.py
	$(BIN)/python experiments/paired.py cifar10_resnet8

compare-methods: $(VENV)/.installed
	$(BIN)/python experiments/fashion_mnist_methods/run.py
	$(BIN)/python experiments/fashion_mnist_methods/collect.py
	$(BIN)/python experiments/paired.py fashion_mnist_methods

teacher-weights: $(VENV)/.installed
	$(BIN)/python experiments/teacher_weights/run.py
	$(BIN)/python experiments/teacher_weights/collect.py
	$(BIN)/python experiments/paired.py teacher_weights

quadratics: $(VENV)/.installed
	$(BIN)/python experiments/quadratics/run.py

pipelining: $(VENV)/.installed
	$(BIN)/python experiments/pipelining/run.py
	$(BIN)/python experiments/pipelining/real.py

theory-bounds: $(VENV)/.installed
	$(BIN)/python experiments/theory_bounds/run.py

attacks: $(VENV)/.installed
	$(BIN)/python experiments/attacks/run.py

leaks: $(VENV)/.installed-test
	$(BIN)/python experiments/leaks/run.py

join: $(VENV)/.installed
	$(BIN)/python experiments/join/run.py choose
	$(BIN)/python experiments/join/run.py unseen --seeds 0,1,2,3,4
	$(BIN)/python experiments/join/collect.py

tuning: $(VENV)/.installed
	$(BIN)/python experiments/tuning/run.py

traffic: $(VENV)/.installed
	$(BIN)/headwater reproduce experiments/traffic/table.toml --scale paper --out runs/traffic
	$(BIN)/python experiments/collect.py experiments/traffic/table.toml runs/traffic --command "make traffic"
	$(BIN)/python experiments/paired.py traffic

text-table: $(VENV)/.installed
	$(BIN)/headwater reproduce experiments/text/table.toml --scale small --seeds 0,1,2 --out runs/text
	$(BIN)/python experiments/collect.py experiments/text/table.toml runs/text --command "make text-table"
	$(BIN)/python experiments/paired.py text

cifar-fusion: $(VENV)/.installed
	@for table in feddf fedeed; do \
	$(BIN)/headwater reproduce experiments/cifar10_fusion/$$table.toml --scale small --out runs/cifar10_fusion/$$table && \
	$(BIN)/python experiments/collect.py experiments/cifar10_fusion/$$table.toml runs/cifar10_fusion/$$table --command "make cifar-fusion" || exit 1; done
	$(BIN)/python experiments/paired.py cifar10_fusion

evidence: $(VENV)/.installed
	$(BIN)/python experiments/evidence/run.py

evidence-%: $(VENV)/.installed
	$(BIN)/python experiments/evidence/run.py --tables $*

deploy-check: $(VENV)/.installed-test
	$(BIN)/python experiments/deployment/run.py

secure-check: $(VENV)/.installed-test
	$(BIN)/python experiments/deployment/secure.py $(SECURE)

soak: $(VENV)/.installed-flower
	$(BIN)/python experiments/soak/run.py $(SOAK)

fuzz: $(VENV)/.installed-test
	$(BIN)/python proof/fuzz.py $(FUZZ)

kills: $(VENV)/.installed-test
	$(BIN)/python proof/kills.py $(KILLS)

endurance: $(VENV)/.installed-test
	$(BIN)/python proof/endurance.py $(ENDURANCE)

stateful: $(VENV)/.installed-test
	$(BIN)/python proof/stateful.py $(STATEFUL)

# Every table and figure, one after another; what fails is told and does not stop the rest.
PAPERS ?= fedhead fedeed mtgc fedhkd feddf
papers: $(VENV)/.installed
	@failed=""; for paper in $(PAPERS); do $(BIN)/headwater reproduce $$paper --scale smoke --out runs/papers/$$paper || failed="$$failed $$paper"; done; \
	if [ -n "$$failed" ]; then echo "make: not all of these went well:$$failed"; exit 1; fi

clean:
	rm -rf $(VENV) benchmarks/.environments runs build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
