# Everything that a person or a robot needs to run; CONTRIBUTING.md says when.
# PYTHON=/path/to/python3.11 chooses the interpreter that .venv is made from.

python := .venv/bin/python
export PYTHON
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Each of the hundreds of processes of the tests would compile kungfu anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-oldest demo test unit test-oldest soak browser screenshots moving-picture lint format proto plots docs docs-serve examples bench lock clean

help:  ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile | column -t -s:

setup:  ## bring .venv to the locked state; quick when it is there
	@bash tools/setup.sh

setup-oldest:  ## bring .venv-oldest, with the oldest TensorFlow that is taken, to its locked state
	@bash tools/setup.sh .venv-oldest requirements-oldest.lock

demo: setup  ## train a small network that grows and shrinks, and draw what happened
	@$(python) -m examples.demo

# A file is one worker's, so what a module has traced or started serves all its tests.
pytest = -m pytest --doctest-modules --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 50

test: setup  ## everything that has to hold
	@$(MAKE) --no-print-directory --jobs 2 lint unit

unit: setup
	-@bash tools/etcd.sh  # without it the tests of --store are skipped
	@$(python) $(pytest) tests kungfu kungfu_planning

test-oldest: setup-oldest  ## the tests of it, on the oldest TensorFlow
	@.venv-oldest/bin/python $(pytest) tests kungfu kungfu_planning

soak: setup  ## the long runs: 500 random policies in three interpreters, 500 random cases of each property, 10,000 histories of the agents, jobs under random faults, lost hosts
	-@bash tools/browser.sh  # without it what needs a browser is skipped
	-@bash tools/etcd.sh  # likewise: what an etcd decides
	-@bash tools/shells.sh  # likewise: completion in zsh and fish
	@KUNGFU_RANDOM=1 KUNGFU_SOAK_EXAMPLES=500 $(python) -m pytest --timeout 3600 tests/compiler/test_equivalence.py
	@KUNGFU_RANDOM=1 $(python) -m pytest --timeout 3600 --numprocesses 2 --dist loadfile -m hypothesis tests
	@KUNGFU_SOAK=1 KUNGFU_RANDOM=1 KUNGFU_SOAK_EXAMPLES=10000 $(python) -m pytest --timeout 3600 \
		tests/runtime/agent/consensus/test_agreement.py tests/runtime/agent/consensus/test_store_histories.py
	@KUNGFU_SOAK_FAULTS=30,10,0 $(python) -m pytest --timeout 3600 tests/jobs/test_faults.py
	@KUNGFU_SOAK_JOBS=40,$${SEED:-1} $(python) -m pytest --numprocesses 2 -rA tests/jobs/test_faults.py
	@KUNGFU_SOAK_NETWORK=60,$${SEED:-1} $(python) -m pytest -rA tests/jobs/test_network_changes.py
	@KUNGFU_SOAK_HOSTS=1 $(python) -m pytest tests/jobs/test_hosts.py
	@KUNGFU_SOAK=1 $(python) -m pytest tests/jobs tests/benchmarks tests/test_distribution.py \
		tests/runtime/attachment/horovod \
		tests/keras/test_next_action.py tests/training/test_two_devices.py tests/cli/test_completion.py tests/docs/test_examples.py \
		tests/docs/test_first_steps.py tests/planning/test_measure.py

browser: setup  ## the browser of make soak and make screenshots, where it is missing (Debian's Chromium)
	@bash tools/browser.sh

screenshots: browser  ## take the pictures of docs/screenshots from a real job; look at them, and commit them
	@$(python) -m tools.screenshots

moving-picture: browser  ## take the moving picture of the README from a real job; look at it, and commit it
	@$(python) -m tools.moving_picture

lint: setup  ## style and types only
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mypy

format: setup  ## let ruff mend what it can
	@$(python) -m ruff check --fix .
	@$(python) -m ruff format .

proto: setup-oldest  ## regenerate the code of the wire's messages, by the oldest protobuf
	@.venv-oldest/bin/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \
		kungfu/runtime/ipc/messages.proto kungfu/runtime/ipc/etcd.proto

plots: setup  ## draw the prebuilt policies on modelled clusters, and write down what they cost
	@$(python) tools/policy_plots.py
	@$(python) tools/policy_costs.py

docs: setup  ## build the documentation site into build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict  # --quiet would hide the warnings, and let them pass

docs-serve: setup  ## show the site at http://127.0.0.1:8000 while its pages are written
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs serve --strict

examples: setup  ## run the examples, and write down what they print
	@$(python) tools/example_outputs.py

benchmarks := $(filter-out __init__,$(basename $(notdir $(wildcard benchmarks/*.py))))
bench: setup  ## measure all; make bench benchmarks=NAME measures one
	@set -e; for name in $(benchmarks); do $(python) -m benchmarks.$$name; done

lock: setup  ## move every pin to the newest version that pyproject.toml allows
	@$(python) tools/lock.py

clean:  ## remove what was built or run, but no environment
	@rm -rf build dist *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv*/*' -prune -exec rm -rf {} +
