# make package | train | test | quick | test-failed | test-slow | pythons | learning-seeds | same-weights | check | bench | soak | learn | zoo | docs | coverage | clean
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
KEEP ?= config
SIDES ?= ours peer
JOBS ?= 1
UV := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt

.PHONY: package train test quick test-failed test-slow pythons learning-seeds same-weights check format bench soak learn zoo docs coverage clean

train: $(READY)  ## train DQN on CartPole-v1
	$(BIN)/python recipes/dqn.py

# Hundreds of processes import the package: each would compile it where none may write bytecode
test: $(READY)  ## the fast tests, doctests included, in three processes
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=40

quick: $(READY)  ## the tests that fail when the core breaks: less than a minute
	$(BIN)/python -m pytest -q -n 2 --dist loadfile @tests/quick.txt

test-failed: $(READY)  ## what failed in the last run, once more and alone
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-slow: $(READY)  ## what learns or measures; by hand
	$(BIN)/python -m pytest -m slow

pythons: $(READY)  ## a choice of the fast tests on Python 3.10 to 3.13, those that are installed
	$(BIN)/python -m nox

learning-seeds: $(READY)  ## whether the learning tests pass for 20 seeds, with and without AVX2; hours
	$(BIN)/python -m tests.learning_seeds --seeds 20 --capability default avx2

same-weights: $(READY)  ## whether this tree trains the same weights as commit BASE, to the last bit; minutes
	$(BIN)/python -m benchmarks.same_weights --base $(or $(BASE),$(error BASE must be a commit: make same-weights BASE=HEAD~1))

check: $(READY)  ## ruff, ruff-format, mypy --strict, codespell
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pre-commit run --all-files --show-diff-on-failure

format: $(READY)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: $(READY)  ## measure speed against bare loops and other libraries
	$(PIP) -e '.[bench]'
	$(BIN)/python -m benchmarks.dqn
	$(BIN)/python -m benchmarks.ppo
	$(BIN)/python -m benchmarks.sac
	$(BIN)/python -m benchmarks.pixels
	$(BIN)/python -m benchmarks.frame_memory
	$(BIN)/python -m benchmarks.collecting
	$(BIN)/python -m benchmarks.buffers
	$(BIN)/python -m benchmarks.envs
	$(BIN)/python -m benchmarks.ddp

soak: $(READY)  ## whether long runs leak
	$(BIN)/python -m benchmarks.soak

learn: $(READY)  ## measure how every algorithm learns, compared with Stable-Baselines3; takes hours
	$(PIP) -e '.[bench,box2d,dm-control,minatar,minigrid,mujoco,robotics]' mpe2 lbforaging
	failed=0; $(BIN)/python -m benchmarks.learn --sides $(SIDES) || failed=1; \
	$(BIN)/python -m benchmarks.curves && $(BIN)/python -m benchmarks.versus && \
	$(BIN)/python -m benchmarks.published && $(BIN)/python -m benchmarks.algorithm_pages && \
	exit $$failed

zoo: $(READY)  ## train what the results lack, five seeds of everything, and draw docs/zoo.md and all curves; takes a day
	$(PIP) -e '.[bench,box2d,dm-control,minatar,minigrid,mujoco,robotics]' mpe2 lbforaging
	failed=0; $(BIN)/python -m benchmarks.learn --sides $(SIDES) --keep $(KEEP) --jobs $(JOBS) || failed=1; \
	$(BIN)/python -m benchmarks.offline --keep $(KEEP) || failed=1; \
	$(BIN)/python -m benchmarks.curves && $(BIN)/python -m benchmarks.versus && \
	$(BIN)/python -m benchmarks.published && $(BIN)/python -m benchmarks.algorithm_pages && \
	$(BIN)/python -m benchmarks.zoo_page && exit $$failed

docs: $(READY)  ## the pages of docs/, with the API, into build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

package: $(READY)  ## wheel and sdist in dist/: checked, each installed in a new environment and used for a short run there
	rm -rf dist build/package
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build/package && bin/lightning-ding fit --policy dqn --data.env_id CartPole-v1 --data.max_env_step 200
	build/package/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.tar.gz
	cd build/package && bin/lightning-ding fit --policy dqn --data.env_id CartPole-v1 --data.max_env_step 200

coverage: $(READY)
	$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered

clean:
	rm -rf $(VENV) build dist runs *.egg-info

# torch first and pinned: asked for through another package, pip takes the newest build with all its CUDA libraries.
# uv installs the other packages much faster than pip, which also works. As pip, it compiles them: where no process may
# write bytecode, each would compile all that it imports
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch uv
	$(UV) -e '.[dev]' || $(PIP) -e '.[dev]'
	touch $(READY)
