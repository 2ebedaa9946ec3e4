"""Envs in this process: the same results as those of gymnasium's SyncVectorEnv."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.frames_env import makers
from lightning_ding.envs.sync import _SyncVectorEnv
from tests.envs.process.test_vector_env import actions_of, assert_same
from tests.envs.rich import RichEnv, WordEnv
from tests.toys.envs import CountingEnv

each_mode = pytest.mark.parametrize("mode", list(AutoresetMode))
CASES: dict[str, list[Callable[[], Any]]] = {
    "rich": [RichEnv] * 3,
    "words": [WordEnv] * 2,
    "vectors": [lambda: gym.make("CartPole-v1")] * 3,
    "frames": [*makers(2)],
}


class NumberEnv(CountingEnv):
    """A CountingEnv that observes one number, without an axis."""

    def __init__(self) -> None:
        super().__init__(lengths=(3,))
        self.observation_space: Any = spaces.Box(0, 9, (), np.float32)

    def _observe(self) -> Any:
        return np.float32(self._step)


@each_mode
@pytest.mark.parametrize("case", [*CASES, "numbers"])
def test_lean_envs_give_the_results_of_a_sync_vector_env(case: str, mode: AutoresetMode) -> None:
    makers_ = CASES.get(case, [NumberEnv] * 2)
    lean, sync = _SyncVectorEnv(makers_, autoreset_mode=mode), SyncVectorEnv(makers_, autoreset_mode=mode)
    assert_same(lean.reset(seed=4), sync.reset(seed=4))

    resets = 0
    for action in actions_of(sync, 250):
        ours, theirs = lean.step(action), sync.step(action)
        assert_same(ours, theirs)
        ended = theirs[2] | theirs[3]
        if mode == AutoresetMode.DISABLED and ended.any():
            masks = [{"reset_mask": ended.copy()} for _ in range(2)]
            assert_same(lean.reset(options=masks[0]), sync.reset(options=masks[1]))
        resets += int(ended.sum())
    assert resets > 2
    lean.close()
    sync.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("case", ["rich", "vectors", "frames"])
def test_lean_envs_give_observations_of_the_callers_own(case: str, mode: AutoresetMode) -> None:
    env = _SyncVectorEnv(CASES[case], autoreset_mode=mode)
    seen = [env.reset(seed=0)[0]]
    for action in actions_of(env, 3):
        seen.append(env.step(action)[0])
    kept = [np.copy(leaf) for one in seen for leaf in leaves(one)]
    env.reset(seed=1)

    assert all(
        np.array_equal(leaf, old) for leaf, old in zip([x for one in seen for x in leaves(one)], kept, strict=True)
    )


def leaves(obs: Any) -> list[Any]:
    if isinstance(obs, (dict, tuple)):
        return [leaf for part in (obs.values() if isinstance(obs, dict) else obs) for leaf in leaves(part)]
    return [obs]


def test_lean_envs_refuse_an_observation_of_another_shape() -> None:
    class Wrong(CountingEnv):
        def __init__(self) -> None:
            super().__init__(lengths=(9,))
            self.observation_space: Any = spaces.Box(0, 9, (2,), np.float32)

        def _observe(self) -> Any:
            return np.zeros(2 + (self._step == 1), dtype=np.float32)

    env = _SyncVectorEnv([Wrong] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset()

    with pytest.raises(ValueError, match="shape"):
        env.step(np.zeros(2, dtype=np.int64))


def test_lean_envs_refuse_to_step_an_env_that_ended_and_was_not_reset() -> None:
    env = _SyncVectorEnv([NumberEnv], autoreset_mode=AutoresetMode.DISABLED)
    env.reset()
    for _ in range(3):
        env.step(np.zeros(1, dtype=np.int64))

    with pytest.raises(AssertionError):
        env.step(np.zeros(1, dtype=np.int64))


class RaisingEnv(CountingEnv):
    """Raises in the second step."""

    def step(self, action: Any) -> Any:
        if self._step == 1:
            raise ArithmeticError("it broke")
        return super().step(action)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_error_of_an_env_says_its_index_class_step_and_seed() -> None:
    envs = _SyncVectorEnv([CountingEnv, RaisingEnv], autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=[4, 5])
    envs.step(np.zeros(2, np.int64))
    with pytest.raises(ArithmeticError, match="it broke") as caught:
        envs.step(np.zeros(2, np.int64))
    assert caught.value.__notes__ == ["raised by env 1, RaisingEnv, in step 2 of its episode, last seed 5"]
