"""Atari games with ale-py's own ROMs: what only helps training does not reach an evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs import make_atari, make_vector_env
from lightning_ding.policy import DQNPolicy

pytest.importorskip("ale_py")
FIXED: dict[str, Any] = {"repeat_action_probability": 0.0, "noop_max": 0}


class GoesLeft(DQNPolicy):
    """Greedily goes to the left, where the first points are."""

    def _forward_eval(self, obs: Any) -> dict[str, torch.Tensor]:
        output = super()._forward_eval(obs)
        return {**output, "action": torch.full_like(output["action"], 3)}


def play(steps: int, stop: bool = True, **kwargs: Any) -> tuple[list[float], list[int], list[bool]]:
    """Return rewards, lives and ends of steps with random actions."""
    env = make_atari(**{**FIXED, **kwargs})
    env.reset(seed=0)
    draw = np.random.default_rng(0)
    rewards, lives, ends = [], [], []
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(int(draw.integers(env.action_space.n)))  # type: ignore[attr-defined]
        rewards.append(float(reward))
        lives.append(info["lives"])
        ends.append(terminated or truncated)
        if ends[-1]:
            if stop:
                break
            env.reset()
    env.close()
    return rewards, lives, ends


def test_observations_are_stacks_of_small_grey_images() -> None:
    env = make_atari("Pong")
    obs, _ = env.reset(seed=0)
    assert obs.shape == env.observation_space.shape == (4, 84, 84)
    assert obs.dtype == np.uint8
    assert env.unwrapped.spec is not None
    assert env.unwrapped.spec.kwargs["frameskip"] == 1  # the preprocessing skips, so that the env must not
    assert env.unwrapped.spec.kwargs["repeat_action_probability"] == 0.25
    env.close()


def test_training_sees_the_sign_of_the_score_and_evaluation_the_score() -> None:
    clipped, _, _ = play(150, game="MsPacman")
    raw, _, _ = play(150, game="MsPacman", training=False)
    assert set(clipped) == {0.0, 1.0}
    assert set(raw) == {0.0, 10.0}
    assert [np.sign(reward) for reward in raw] == clipped


def test_training_episodes_end_with_a_life_and_evaluation_with_the_game() -> None:
    _, lives, ends = play(250, stop=False, game="Breakout")
    at_ends = [life for life, end in zip(lives, ends, strict=True) if end]
    assert at_ends[:4] == [4, 3, 2, 1]  # the same game continues with the next life

    _, lives, ends = play(1000, game="Breakout", training=False)
    assert ends[-1]
    assert lives[-1] == 0
    assert set(lives) == {0, 1, 2, 3, 4, 5}


def test_each_life_begins_with_fire_in_training_and_evaluation() -> None:
    """Without FIRE there is no ball, and so no life is lost."""
    for training in (True, False):
        env = make_atari("Breakout", training=training, **FIXED)
        env.reset(seed=0)
        lives = []
        for _ in range(200):
            _, _, terminated, truncated, info = env.step(0)
            lives.append(info["lives"])
            if terminated or truncated:
                env.reset()
        env.close()
        assert {4, 3, 2, 1} <= set(lives)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning_ding\[atari\]'"):
        make_atari("Pong")


def test_atari_runs_in_processes() -> None:
    envs = make_vector_env(make_atari, 1, "async", seed=0, env_kwargs={"game": "Pong"})
    assert envs.step(np.zeros(1, np.int64))[0].shape == (1, 4, 84, 84)
    envs.close()


def test_a_run_reports_the_raw_score_of_its_evaluation(
    make_trainer: Callable[..., Trainer], small: dict[str, Any]
) -> None:
    policy = GoesLeft({**small, "model": {}, "eval": {"evaluator": {"n_episode": 1, "max_episode_steps": 100}}})
    pacman = {"game": "MsPacman", **FIXED}
    data = ReplayDataModule(
        make_atari, 1, env_kwargs=pacman, eval_env_kwargs={**pacman, "training": False}, max_env_step=50
    )
    trainer = make_trainer()
    trainer.fit(policy, data)
    assert data.buffer is not None
    rewards = data.buffer.sample(16, 0, n_step=1, discount_factor=0.99)["reward"]
    assert set(rewards.unique().tolist()) <= {0.0, 1.0}
    score = float(trainer.callback_metrics["eval/return_mean"])
    assert score >= 10
    assert score % 10 == 0
