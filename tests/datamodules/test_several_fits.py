"""Memory of several fits in one process, as in a notebook or a sweep."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RolloutDataModule, resume
from lightning_ding.datamodules.run_envs import FIXED
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.toys.datasets import counting_steps
from tests.toys.envs import CountingEnv


class Wide(gym.Env[Any, Any]):
    """An env whose buffer takes 2 MB for 100 transitions."""

    observation_space = gym.spaces.Box(-1, 1, (5000,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(5000, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(5000, np.float32), 1.0, True, False, {}


@pytest.fixture
def no_collection_by_itself() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection_by_itself")
@pytest.mark.parametrize(("large", "alive"), [(1e6, {1, 2}), (1e12, {6})])
def test_buffers_of_earlier_fits_are_freed_before_another_one_begins(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, large: float, alive: set[int]
) -> None:
    monkeypatch.setattr(resume, "LARGE", large)
    config = {"model": {"encoder_hidden_size_list": [8]}, "collect": {"n_sample": 16}, "learn": {"batch_size": 8}}
    made: list[weakref.ref[Any]] = []
    for _ in range(6):
        datamodule = ReplayDataModule(Wide, num_envs=2, max_env_step=100, n_evaluator_episode=2)
        make_trainer().fit(DQNPolicy(config), datamodule)
        assert datamodule.nbytes > 1e6
        made.append(weakref.ref(datamodule.buffer))
    assert sum(one() is not None for one in made) in alive  # one of the first fits of a process may be kept longer


SETTABLE = {
    *("num_envs", "seed", "max_env_step", "max_train_iter", "stop_value", "rounds_per_epoch", "evaluator_env_num"),
    *("n_evaluator_episode", "demonstration_share", "imitation_reward"),
}


def made(kind: Any) -> Any:
    return kind(counting_steps()) if kind is OfflineDataModule else kind(CountingEnv)


@pytest.mark.parametrize("kind", [ReplayDataModule, RolloutDataModule, OfflineDataModule])
def test_option_that_only_the_constructor_reads_cannot_be_set(kind: Any) -> None:
    datamodule = made(kind)
    options = set(inspect.signature(kind).parameters) & FIXED
    assert {"norm_obs", "norm_reward", "wrappers", "info_keys"} <= options
    for name in options:
        before = getattr(datamodule, name, "none")
        with pytest.raises(AttributeError, match=f"{name} cannot be set later: pass it to .* a new {kind.__name__}"):
            setattr(datamodule, name, True)
        assert getattr(datamodule, name, "none") is before


def test_an_attribute_of_a_class_without_the_option_may_have_its_name() -> None:
    datamodule = made(RolloutDataModule)
    datamodule.demonstrations = "mine"
    assert datamodule.demonstrations == "mine"


def test_every_option_is_either_read_later_or_refused() -> None:
    options = set(inspect.signature(ReplayDataModule).parameters)
    assert options == (SETTABLE | FIXED)
    datamodule = made(ReplayDataModule)
    for name in SETTABLE:
        setattr(datamodule, name, 1)
        assert getattr(datamodule, name) == 1


def test_normalisation_of_the_policy_is_shown_after_a_fit(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    datamodule, policy = ReplayDataModule(CountingEnv, num_envs=2, norm_obs=True), DQNPolicy(small)
    make_trainer(max_epochs=1, limit_train_batches=2).fit(policy, datamodule)
    assert (datamodule.norm_obs, datamodule.norm_reward) == (True, False)
    second = ReplayDataModule(CountingEnv, num_envs=2)
    make_trainer(max_epochs=1, limit_train_batches=2).fit(policy, second)
    assert (second.norm_obs, second.norm_reward, policy.normaliser.kinds["norm_obs"]) == (True, False, True)


class Described:
    """A base that is no datamodule."""


def test_a_subclass_with_another_base_first_shows_the_common_arguments() -> None:
    class Own(Described, ReplayDataModule):
        pass

    assert inspect.signature(Own) == inspect.signature(ReplayDataModule)
