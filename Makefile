PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check bench clean

demo: .venv/installed  ## verify a tiny model, predict the paper's rows, draw a picture
	$(BIN)/recap verify mar-base --tiny
	$(BIN)/recap plan
	$(BIN)/recap sample --model mar-base --tiny --num 4 --full 12 --local 4 --out demo

test: .venv/installed  ## the whole suite
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: .venv/installed  ## format, lint, types
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

bench: .venv/installed  ## peak memory against what is predicted
	$(BIN)/python benchmarks/memory.py

.venv/installed: pyproject.toml constraints/cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints/cpu.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist demo samples .mypy_cache .ruff_cache .pytest_cache .hypothesis
