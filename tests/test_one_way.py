"""The way of an observation from the env to the loss: through few files, and converted once.

A DQN run is traced. A file *works with* the observations if one of its functions has an array or a tensor of them as an
argument, a local variable or a result. A file that only hands on a mapping that holds them does not count.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from lightning import Trainer, seed_everything
from numpy.typing import NDArray
from torch import Tensor

import lightning_ding
from lightning_ding.config import resolve
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

PACKAGE = Path(lightning_ding.__file__).resolve().parent
SIZE = 7  # of an observation; nothing else in the run has this size
TO_THE_BUFFER = {
    "envs/stepper.py",
    "worker/collector/base.py",
    "policy/base/policy.py",
    "nested.py",
    "worker/buffer/columns.py",
    "worker/buffer/storage.py",
    "worker/buffer/links.py",
}
TO_THE_LOSS = {"policy/q_learning.py", "policy/base/normaliser.py", "model/dqn.py", "model/encoder.py", "model/mlp.py"}
LOSS = "policy/dqn.py"
BESIDE = {
    "envs/action_masks.py",  # checks masks of legal actions, where there are some
    "envs/bounds.py",  # warns of the first observations outside their space
    "envs/checks.py",  # raises an error for an observation that cannot be used
    "envs/sync.py",  # joins the observations of separate envs
    "envs/vector.py",  # resets envs
    "policy/base/vitals.py",  # measures a round now and then
    "worker/actions.py",  # from an observation to an action
    "policy/base/acting.py",  # from an observation to an action
    "worker/buffer/memory.py",  # allocates memory
}


class SevenNumbers(gym.Env[NDArray[np.float32], np.int64]):
    """Episodes of nine steps with observations of seven random numbers."""

    observation_space = spaces.Box(-1, 1, (SIZE,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._obs(), 1.0, self._steps == 9, False, {}

    def _obs(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1, 1, SIZE).astype(np.float32)


@dataclass
class Trace:
    """What a run did."""

    kinds: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Types of the observations that each file of the package worked with."""
    calls: dict[CodeType, None] = field(default_factory=dict)
    """The functions of the package that ran, in the order of their first calls."""
    resolved: Counter[str] = field(default_factory=Counter)
    """How often a config of each class was made from a section."""

    def note(self, frame: FrameType, event: str, result: Any) -> None:
        """Note one call or return; for ``sys.setprofile``."""
        file = Path(frame.f_code.co_filename)
        if event not in ("call", "return") or not file.is_relative_to(PACKAGE):
            return
        self.calls.setdefault(frame.f_code)
        if frame.f_code is resolve.__code__ and event == "call":
            self.resolved[frame.f_locals["config_class"].__name__] += 1
        values = [*frame.f_locals.values(), result]
        kinds = {type(value).__name__ for value in values if isinstance(value, (np.ndarray, Tensor)) and _is_obs(value)}
        if kinds:
            self.kinds[file.relative_to(PACKAGE).as_posix()] |= kinds


def _is_obs(value: NDArray[Any] | Tensor) -> bool:
    is_weight = value.shape[0] == 128 if value.ndim else False  # of the first layer, or a moment of it
    return value.ndim > 1 and value.shape[-1] == SIZE and min(value.shape) > 0 and not is_weight


@pytest.fixture(scope="module")
def trace() -> Trace:
    """The trace of a DQN run of a few rounds, without evaluations."""
    seed_everything(0)
    off = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    trainer = Trainer(accelerator="cpu", limit_val_batches=0, num_sanity_val_steps=0, **off)  # type: ignore[arg-type]
    found, before = Trace(), sys.getprofile()
    sys.setprofile(found.note)
    try:
        section = {"learn": {"batch_size": 16, "update_per_collect": 2}, "collect": {"n_sample": 16}}
        policy = DQNPolicy({**section, "random_collect_size": 0})  # the first actions are the policy's
        trainer.fit(policy, ReplayDataModule(SevenNumbers, num_envs=4, max_env_step=160))
    finally:
        sys.setprofile(before)
    assert policy.progress.train_iter > 0
    return found


def test_observations_pass_twelve_files_on_their_way_to_the_loss(trace: Trace) -> None:
    assert trace.kinds.keys() - BESIDE == TO_THE_BUFFER | TO_THE_LOSS | {LOSS}
    assert len(TO_THE_BUFFER | TO_THE_LOSS) == 12


def test_observations_are_arrays_before_the_buffer_and_tensors_after_it(trace: Trace) -> None:
    both = {"nested.py", "worker/buffer/storage.py"}  # the functions for either, and the place where it happens
    before, after = TO_THE_BUFFER - both, TO_THE_LOSS | {LOSS}

    assert {kind for name in before for kind in trace.kinds[name]} == {"ndarray"}
    assert {kind for name in after for kind in trace.kinds[name]} == {"Tensor"}


def test_the_config_of_the_policy_and_of_each_worker_is_made_once(trace: Trace) -> None:
    once = ["DQNConfig", "DQNModelConfig", "CollectorConfig", "ReplayBufferConfig", "EvaluatorConfig"]

    assert trace.resolved == dict.fromkeys(once, 1)  # that of the model when the shapes of the env are known


def test_steps_of_a_run_in_contributing_are_called_in_that_order(trace: Trace) -> None:
    text = Path(__file__).parents[1].joinpath("CONTRIBUTING.md").read_text()
    steps = re.findall(r"^\d+\. `([\w/]+)\.py`, `([\w.]+)`", text, re.MULTILINE)
    modules = [import_module(f"lightning_ding.{file.replace('/', '.')}") for file, _ in steps]
    functions = [attrgetter(name)(module) for module, (_, name) in zip(modules, steps, strict=True)]

    assert [inspect.unwrap(one).__module__ for one in functions] == [module.__name__ for module in modules]
    order = list(trace.calls)
    first_calls = [order.index(inspect.unwrap(one).__code__) for one in functions]
    assert len(steps) == 12
    assert first_calls == sorted(first_calls)
