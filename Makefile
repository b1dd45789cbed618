# Two commands for a newcomer: `make demo`, `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
SHAPES := tests/topology tests/influence/test_first_order.py tests/influence/test_truth.py tests/engine/test_operator.py tests/engine/test_engine_runs.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow torture chaos peers language loggers flower notebooks lint bench reproduce docs wheel clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "cascadice needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[dev]
	@touch $@

demo: $(READY)  ## train 16 participants, three of them faulty, then find out who helped the final models (under 2 minutes)
	$(BIN)/cascadice run demo-attacked --record all --out demo --overwrite
	$(BIN)/cascadice influence demo --kind whole-run-shares --points 4 --samples
	$(BIN)/cascadice influence demo --hops 2 --kind truth,first-order,path-integrated --every 20
	$(BIN)/cascadice detect demo --overwrite
	$(BIN)/cascadice reward demo --budget 1000 --points 4 --overwrite
	$(BIN)/cascadice report demo

test: lint  ## linters, types and the whole fast test suite, in two processes; the engine's tests again with shapes checked
	CASCADICE_SHAPES=0 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -n 2 --dist loadfile $(SHAPES)

test-slow: $(READY)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

torture: $(READY)  ## attack it for 18 minutes on every core; ARGS="--minutes 2 --seed 7 --only kills"
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m torture $(ARGS)

chaos: $(READY)  ## faults by chance on real processes, every round verified; two hosts and a cut link (needs root)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m chaos
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m chaos.hosts

peers: $(READY)  ## other libraries of data attribution, which some tests and benchmarks compare with
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt captum accelerate einconv einops opt_einsum tqdm
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps kronfluence

language: $(READY)  ## transformers and peft, which the example of a language model and its tests fine-tune with
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[language]

loggers: $(READY)  ## TensorBoard, Weights & Biases and MLflow, whose files tests read back
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[loggers]

flower: $(READY)  ## Flower, whose runs tests and an example watch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt cryptography grpcio httpx iterators protobuf pycryptodome tomli tomli-w typer
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps flwr

notebooks: $(READY)  ## write the notebooks from the examples and execute them (under a minute)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[notebooks]
	$(BIN)/python examples/notebooks/generate.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow tests/test_notebooks.py

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## training speed against a plain loop over nn.Modules
	$(BIN)/python benchmarks/training.py

reproduce: $(READY)  ## every figure of the paper, small: under 15 minutes on two cores
	$(BIN)/cascadice reproduce all --quick --out out/reproduce

docs: $(READY)  ## the documentation, into site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[docs]
	$(BIN)/mkdocs build --strict

wheel: $(READY)  ## a wheel, into dist/; ADDRESS=https://... of the repository makes the links of its description absolute
	CASCADICE_ADDRESS=$(ADDRESS) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

clean:  ## remove everything that was made
	rm -rf .venv demo runs out site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
