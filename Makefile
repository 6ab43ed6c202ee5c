# `make demo` and `make test` work from a fresh clone on a machine with Python >= 3.10 and pip.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# Ranks share two cores with each other on small machines; more threads a rank only get in each other's way.
export OMP_NUM_THREADS = 1
# Tests start hundreds of processes: without bytecode each compiles the project anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check slow matrix wide measure bench verified format api clean

demo: $(READY)
	$(BIN)/python recipes/demo.py

# Some 25 minutes on two cores. CI runs `make test matrix`.
test: check slow

# The fast tier, some two minutes: style, types, and every test that is not marked slow.
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p .cache/types && ln -sfn "$(CURDIR)" .cache/types/pytorch_fsdp2_dcp
	MYPYPATH=.cache/types $(BIN)/mypy --namespace-packages --explicit-package-bases \
	  -p pytorch_fsdp2_dcp.validate -p pytorch_fsdp2_dcp.templates
	MYPYPATH=evals $(BIN)/mypy evals/grade.py
	$(BIN)/pytest -m "not slow" -n 2

slow: $(READY)
	$(BIN)/pytest -m "slow and not matrix" -n 2

# What is tried for each rule, and for each pair of the generator's options.
matrix: $(READY)
	$(BIN)/pytest -m "matrix and not wide" -n 2

# More of the same, that CI has no time for: proofs of minutes, of programs whose like it tries.
wide: $(READY)
	$(BIN)/pytest -m wide -n 2

# How right the linter is: precision and recall over tests/corpus, per rule. Fails below 1.0 and 0.95. Then how many of
# the mutants are found by lint and by running them, and that nothing right is blamed: an hour at first, then what is new.
measure: $(READY)
	$(BIN)/python -m tests.corpus.measure
	$(BIN)/python -m tests.mutants.measure

# Ratios, on an idle machine to mean something; README.md has those of one.
bench: $(READY)
	$(BIN)/python -m tests.benchmarks

# Run the code of the reference pages that has changed, and write references/verified.md.
verified: $(READY)
	$(BIN)/python -m tests.references

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# After a release of torch: make the linter's table of its API anew (validate/api/extract.py says how).
api: $(READY)
	$(BIN)/python -m pytorch_fsdp2_dcp.validate.api.extract

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv .cache build dist *.egg-info
