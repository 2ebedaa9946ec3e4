from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs import EnvStepper, make_vector_env
from lightning_ding.policy import DQNPolicy


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning_ding\[envpool\]'"):
        make_vector_env("envpool:CartPole-v1", 1, "native")


def test_pool_repeats_its_episodes_with_a_seed_and_has_spaces_of_all_envs() -> None:
    pytest.importorskip("envpool", reason="needs the extra envpool")

    def play() -> Any:
        env = make_vector_env("envpool:CartPole-v1", 2, "native", seed=3)
        stepper = EnvStepper(env)
        first = stepper.reset([7, 8])
        obs = [stepper.step(np.zeros(2, np.int64)).next_obs for _ in range(20)]
        assert env.action_space.sample().shape == (2,)
        env.close()
        return np.stack([first, *obs])

    first, second = play(), play()
    np.testing.assert_array_equal(first, second)


def test_policy_trains_in_a_pool(make_trainer: Callable[..., Trainer], small: dict[str, Any]) -> None:
    pytest.importorskip("envpool", reason="needs the extra envpool")
    datamodule = ReplayDataModule("envpool:CartPole-v1", 2, "native", max_env_step=100)
    trainer = make_trainer()
    trainer.fit(DQNPolicy(small), datamodule)
    assert float(trainer.callback_metrics["eval/return_mean"]) > 5


def test_mistakes_are_named() -> None:
    pytest.importorskip("envpool", reason="needs the extra envpool")
    with pytest.raises(ValueError, match="got 'CartPol-v1'; did you mean 'CartPole-v1'"):
        make_vector_env("envpool:CartPol-v1", 1, "native")
    pytest.importorskip("envpool", reason="needs the extra envpool")
    with pytest.raises(ValueError, match='mode must be "native"'):
        make_vector_env("envpool:CartPole-v1", 1)
