# Two commands are all the set-up there is: `make demo` and `make test`. Both make .venv from requirements.lock.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-slow test-browser check format clean

demo: $(STAMP)
	$(BIN)/unmask demo $(if $(CORPUS),"$(CORPUS)") --out $(or $(OUT),runs/demo)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not browser"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-browser: $(STAMP)
	@command -v chromium >/dev/null || { echo "needs a browser: apt-get install chromium" >&2; exit 2; }
	$(BIN)/python -m pytest -m browser tests

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

clean:
	rm -rf .venv runs

# pip, not uv or poetry: torch is pinned there and comes from wherever pip is set up to look.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(STAMP)
