"""Several envs in one worker process: faults, time limits, wake-ups, state, and the number of workers."""

from __future__ import annotations

import functools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from lightning import Trainer

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs import EnvProcessError, FaultBarrier, ProcessVectorEnv, from_plain, make_vector_env
from lightning_ding.envs.process import worker
from lightning_ding.envs.process.shared_memory import SharedArrays
from lightning_ding.envs.sync import check_workers
from lightning_ding.policy import DQNPolicy
from tests.envs.faulty import FaultyEnv
from tests.envs.rich import RichEnv
from tests.envs.state.test_state import RunningNormalisation, check_continues
from tests.toys.envs import CountingEnv

Make = Callable[..., Any]
NEXT = AutoresetMode.NEXT_STEP
FOUR, EIGHT = np.zeros(4, dtype=np.int64), np.zeros(8, dtype=np.int64)


@pytest.fixture
def make() -> Iterator[Make]:
    """Make vector envs that are closed after the test."""
    made: list[Any] = []

    def make_and_remember(makers: Any, **kwargs: Any) -> ProcessVectorEnv:
        envs = ProcessVectorEnv(makers, **{"num_workers": 2, "context": "fork", **kwargs})
        made.append(envs)
        return envs

    yield make_and_remember
    for env in made:
        env.close()


def eight(kind: str, marker: Path) -> list[Any]:
    """Return the makers of eight envs, of which number 1 fails in its second step, once."""
    makers = [functools.partial(FaultyEnv, number) for number in range(8)]
    makers[1] = functools.partial(FaultyEnv, 1, kind, [(0, 2)], marker)
    return makers


@pytest.mark.parametrize(("kind", "said"), [("segfault", "ended by SIGSEGV"), ("hang", "no answer within 0.5 s")])
def test_worker_that_is_lost_loses_the_episodes_of_its_envs_alone(
    make: Make, kind: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    envs = make(eight(kind, tmp_path / "mark"), autoreset_mode=NEXT, step_timeout=0.5, on_env_error="restart")
    envs.set_attr("lengths", [(number + 5,) for number in range(8)])
    envs.reset(seed=3)
    envs.step(EIGHT)
    with caplog.at_level(logging.WARNING):
        obs, reward, _, truncated, info = envs.step(EIGHT)

    assert truncated.tolist() == [True] * 4 + [False] * 4
    assert reward.tolist() == [0] * 4 + [2] * 4
    assert obs[:, 2].tolist() == [1] * 4 + [2] * 4
    assert all(said in fault and "in env 1" in fault for fault in info["fault"][:4])
    assert envs.faults.tolist() == [1] * 4 + [0] * 4
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("envs [0, 1, 2, 3] failed in step(): ")
    assert line.endswith(
        "in env 1 (last reset with seed 4, last action 0)\nthe processes of the envs [0, 1, 2, 3] are replaced"
    )
    assert envs.get_attr("lengths") == tuple((number + 5,) for number in range(8))
    assert envs.step(EIGHT)[0][:, 2].tolist() == [0] * 4 + [3] * 4
    assert envs.step(EIGHT)[0][:, 2].tolist() == [1] * 4 + [4] * 4


def test_env_that_raises_behind_a_barrier_loses_its_episode_alone(make: Make, tmp_path: Path) -> None:
    makers = [lambda make=one: FaultBarrier(make()) for one in eight("raise", tmp_path / "mark")]
    envs = make(makers, autoreset_mode=NEXT, on_env_error="restart")
    envs.reset()
    envs.step(EIGHT)
    before = [process.process.pid for process in envs._processes.all]

    assert envs.step(EIGHT)[3].tolist() == [False, True] + [False] * 6
    assert envs.step(EIGHT)[0][:, 2].tolist() == [3, 0] + [3] * 6
    assert [process.process.pid for process in envs._processes.all] == before


def test_lost_worker_ends_the_run_with_the_name_of_the_env(make: Make, tmp_path: Path) -> None:
    envs = make(eight("kill", tmp_path / "mark"))
    envs.reset(seed=3)
    envs.step(EIGHT)

    said = (
        r"envs \[0, 1, 2, 3\] failed in step\(\): its process was ended by SIGKILL in env 1 \(last reset with seed 4,"
    )
    with pytest.raises(EnvProcessError, match=said):
        envs.step(EIGHT)


class Slow(CountingEnv):
    """Takes a while for a step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.3)
        return super().step(action)


def test_time_limit_is_that_of_one_env(make: Make) -> None:
    envs = make([Slow] * 4, num_workers=1, step_timeout=0.9)
    envs.reset()

    assert envs.step(FOUR)[0][:, 2].tolist() == [1] * 4


# ------------------------------------------------------------------ the cost of a step


def switches(envs: Any) -> list[int]:
    """Return how often each worker has waited, which is how often it was woken."""
    found = []
    for process in envs._processes.all:
        lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
        found += [int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")]
    return found


@pytest.mark.parametrize("env", [CountingEnv, RichEnv])
def test_a_step_wakes_each_worker_once_and_is_one_message_of_each(
    make: Make, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = make([env] * 6)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(30)]
    calls: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            if name in ("read", "write"):
                calls.append(name)
            return getattr(os, name)

    monkeypatch.setattr(worker, "os", Counting())
    before = switches(envs)
    for action in actions:
        envs.step(action)

    assert calls.count("write") == calls.count("read") == 2 * len(actions)
    for then, now in zip(before, switches(envs), strict=True):
        assert now - then <= len(actions) + 2


# ------------------------------------------------------------------ state


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_two_workers_of_three_envs_continue_from_a_saved_state(autoreset: Any) -> None:
    wraps = (FaultBarrier, RunningNormalisation)
    made = [make_vector_env("CartPole-v1", 6, "async", None, wraps, None, autoreset, num_workers=2) for _ in range(2)]
    try:
        for seed, envs in enumerate(made):
            envs.reset(seed=seed)
            envs.action_space.seed(seed)
        check_continues(made[0], made[1])
    finally:
        for envs in made:
            envs.close()


def test_run_with_two_workers_of_three_envs_resumes_with_the_same_bits(
    make_trainer: Callable[..., Trainer], small: dict[str, Any], tmp_path: Path
) -> None:
    def fit(mode: Any, max_env_step: int, ckpt_path: Any = None) -> Any:
        workers = 2 if mode == "async" else None
        data = ReplayDataModule("CartPole-v1", num_envs=6, mode=mode, max_env_step=max_env_step, num_workers=workers)
        torch.manual_seed(0)
        policy = DQNPolicy(small)
        saves = [RunCheckpoint(tmp_path / mode)]
        make_trainer(enable_checkpointing=True, callbacks=saves, limit_val_batches=0).fit(
            policy, data, ckpt_path=ckpt_path
        )
        return np.concatenate([one.detach().numpy().ravel() for one in policy.model.parameters()])

    whole = fit("sync", 144)
    fit("async", 72)
    assert np.array_equal(fit("async", 144, tmp_path / "async" / "last.ckpt"), whole)


def of_older_version(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a worker in the form of versions whose workers had no vector env."""
    names = ("_count", "_begun", "_autoreset_envs", "_fallback_seeds", "_reset_options")
    coded = state.pop("core")["attributes"]
    core = {name: from_plain(coded[name]) for name in names}
    del state["wrappers"]
    autoreset = state["made"][0].pop("autoreset")
    steps = [core["_count"] - begun for begun in core["_begun"]]
    own = {"ended": core["_autoreset_envs"].tolist(), "steps": steps, "seeds": core["_fallback_seeds"]}
    return {**state, **own, "reset_options": core["_reset_options"], "autoreset": autoreset}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_state_of_an_older_version_continues(autoreset: Any) -> None:
    made: list[Any] = [
        make_vector_env("CartPole-v1", 4, "async", None, (), None, autoreset, num_workers=2) for _ in range(2)
    ]
    try:
        for seed, envs in enumerate(made):
            envs.reset(seed=seed)
        made[0].set_reset_options({"low": -0.01, "high": 0.01})
        while not np.logical_or(*made[0].step(FOUR)[2:4]).any():
            pass
        state = made[0].state_dict()
        state["processes"] = [of_older_version(one) for one in state["processes"]]
        made[1].load_state_dict(state)
        for _ in range(15):
            for first, second in zip(*(envs.step(FOUR)[:4] for envs in made), strict=True):
                assert np.array_equal(first, second)
    finally:
        for envs in made:
            envs.close()


# ------------------------------------------------------------------ resets


class Space(gym.Env[Any, Any]):
    """Has any observation space and returns zeros; its info says which options its reset got."""

    def __init__(self, space: Any) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)

    def _obs(self) -> Any:
        below = self.observation_space["box"] if isinstance(self.observation_space, spaces.Dict) else None
        zeros = np.zeros(2, (below or self.observation_space).dtype)
        return zeros if below is None else {"box": zeros, "text": "a"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._obs(), {"options": repr(options)}

    def step(self, action: Any) -> Any:
        return self._obs(), 0.0, False, False, {}


BOX = spaces.Box(-1, 1, (2,))
LARGE = spaces.Box(-np.finfo(np.float64).max, np.finfo(np.float64).max, (2,), np.float64)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_reset_without_options_passes_none(mode: Any) -> None:
    envs = make_vector_env(functools.partial(Space, BOX), 2, mode)
    mask = np.array([True, False])
    try:
        assert envs.reset()[1]["options"].tolist() == ["None", "None"]
        assert envs.reset(options={"reset_mask": mask})[1]["options"].tolist() == ["None", None]
        found = envs.reset(options={"reset_mask": mask, "low": 1})[1]["options"].tolist()
        assert found == ["{'low': 1}", None]
    finally:
        envs.close()


@pytest.mark.parametrize("space", [LARGE, spaces.Dict(box=BOX, text=spaces.Text(2))], ids=["range", "text"])
def test_one_env_of_a_replaced_worker_is_reset(make: Make, space: Any) -> None:
    makers = [functools.partial(Space, space)] * 2
    envs = make(makers, autoreset_mode=AutoresetMode.DISABLED, num_workers=1, on_env_error="restart")
    envs.reset()
    os.kill(envs._processes.all[0].process.pid, signal.SIGKILL)

    info = envs.reset(options={"reset_mask": np.array([True, False])})[1]
    assert info["options"].tolist() == ["None", None]
    assert envs.faults.tolist() == [1, 1]


def test_memory_for_a_worker_that_has_ended_is_a_failure_of_the_worker(make: Make) -> None:
    process = make([CountingEnv] * 2, num_workers=1)._processes.all[0]
    os.kill(process.process.pid, signal.SIGKILL)
    process.process.join(5)
    block = SharedArrays(2, None, None)

    process.share(block)
    assert process.failure is not None
    assert process.failure.kind == "died"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(block.file)


# ------------------------------------------------------------------ the number of workers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "sync", "num_workers": 2}, "num_workers must be None with mode='sync', got 2"),
        ({"mode": "native", "num_workers": 1}, "num_workers must be None with mode='native', got 1"),
        ({"mode": "async", "num_workers": 5}, "num_workers must be from 1 to 4, .*, got 5"),
        ({"mode": "async", "num_workers": 0}, "num_workers must be from 1 to 4, .*, got 0"),
        ({"mode": "async", "num_workers": 1.5}, r"num_workers must be from 1 to 4, .*, got 1\.5"),
    ],
)
def test_number_of_workers_is_checked_before_anything_starts(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_vector_env("CartPole-v1", 4, **options)
    with pytest.raises(ValueError, match=message):
        ReplayDataModule("CartPole-v1", num_envs=4, **options)


def test_default_is_a_worker_for_each_core_and_at_most_one_for_each_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5})
    assert [check_workers(None, num_envs) for num_envs in (1, 2, 3, 8)] == [1, 2, 3, 3]


def test_envs_are_spread_evenly_over_workers(make: Make) -> None:
    envs = make([CountingEnv] * 7, num_workers=3)
    assert [list(process.env_ids) for process in envs._processes.all] == [[0, 1, 2], [3, 4], [5, 6]]
