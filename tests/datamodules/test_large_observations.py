"""Time stamps as observations: norm_obs keeps their variation, and without it a run says that it is lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding.datamodules import Dataset, OfflineDataModule, ReplayDataModule, RolloutDataModule
from lightning_ding.envs.bounds import _reported
from tests.algorithms.table import make_policy
from tests.conftest import MakeTrainer

BEGIN = 1_700_000_000.0


class ClockEnv(gym.Env[Any, Any]):
    """Observes the time, in seconds; action 1 is right at odd seconds and action 0 at even ones, for a reward of 1."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        reward = float(action == self.odd)
        self.steps += 1
        return self._observe(), reward, False, self.steps == 8, {}

    def _observe(self) -> Any:
        self.odd = int(self.np_random.integers(2))
        return np.array([BEGIN + self.odd, 0.5])


def arguments(**changes: Any) -> dict[str, Any]:
    return {"env_id": ClockEnv, "num_envs": 2, "max_env_step": 64, "rounds_per_epoch": 1, "seed": 0, **changes}


def policy_of(name: str, **changes: Any) -> Any:
    return make_policy(name, model={"obs_shape": None, "action_shape": None}, **changes)


def check_statistics(policy: Any) -> None:
    """Check the statistics of the time, and that the network tells odd from even seconds."""
    part = policy.normaliser.get_submodule("obs")
    assert float(part.mean[0]) == pytest.approx(BEGIN + 0.5, abs=0.3)
    assert float(part.std[0]) == pytest.approx(0.5, abs=0.1)
    seen: list[torch.Tensor] = []
    act = policy._forward_eval

    def noting(obs: Any) -> Any:
        seen.append(obs)
        return act(obs)

    policy._forward_eval = noting
    policy.predict(np.array([[BEGIN, 0.5], [BEGIN + 1, 0.5]]))
    assert seen[0].dtype == torch.float32
    assert float(seen[0][1, 0] - seen[0][0, 0]) == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize("name", ["ppo", "trpo", "a2c", "pqn", "pg"])
def test_rollouts_of_time_stamps_are_normalised(make_trainer: MakeTrainer, name: str) -> None:
    policy = policy_of(name)
    make_trainer().fit(policy, RolloutDataModule(**arguments(norm_obs=True)))
    check_statistics(policy)


@pytest.mark.parametrize("name", ["dqn", "c51", "discrete_sac", "r2d2", "impala", "ppo_offpolicy"])
def test_replayed_time_stamps_are_normalised(make_trainer: MakeTrainer, name: str, tmp_path: Any) -> None:
    policy, datamodule = policy_of(name), ReplayDataModule(**arguments(norm_obs=True))
    trainer = make_trainer()
    trainer.fit(policy, datamodule)
    assert datamodule.buffer is not None
    state = (
        datamodule.buffer.state_dict()["storage"]["tensors"] if "storage" in datamodule.buffer.state_dict() else None
    )
    if state is not None:
        assert state["frames/obs:row"].dtype == torch.float64
    if name == "dqn":
        check_statistics(policy)
        batch = datamodule.buffer.sample(32, 0)
        assert set(np.unique(batch["obs"][:, 0])) == {BEGIN, BEGIN + 1}
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        resumed, after = policy_of(name), ReplayDataModule(**arguments(norm_obs=True, max_env_step=96))
        make_trainer().fit(resumed, after, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
        check_statistics(resumed)


@pytest.mark.slow
def test_ppo_learns_from_time_stamps(make_trainer: MakeTrainer) -> None:
    policy = policy_of("ppo", collect={"n_sample": 256}, learn={"batch_size": 64, "learning_rate": 3e-3})
    trainer = make_trainer()
    trainer.fit(policy, RolloutDataModule(**arguments(norm_obs=True, max_env_step=8192)))
    assert float(trainer.callback_metrics["eval/return_mean"]) >= 7.5  # of 8; 4 by chance


@pytest.mark.parametrize("norm_obs", [False, True])
def test_lost_variation_is_reported_once_without_norm_obs(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture, norm_obs: bool
) -> None:
    _reported.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            make_trainer().fit(policy_of("dqn"), ReplayDataModule(**arguments(norm_obs=norm_obs, max_env_step=240)))
    lost = [record.getMessage() for record in caplog.records if "variation" in record.getMessage()]
    assert len(lost) == (not norm_obs)
    if lost:
        assert lost[0].startswith(
            "the observations at index (0,) of ClockEnv lie between 1700000000.0 and 1700000001.0, and single precision"
        )
        assert "has steps of 128.0 there: their variation is lost. Set norm_obs to true" in lost[0]


def steps() -> dict[str, Any]:
    """Return 40 steps of one second each."""
    obs = np.stack([BEGIN + np.arange(41.0), np.full(41, 0.5)], 1)
    ends = {"terminated": np.arange(40) == 39, "truncated": np.zeros(40, bool)}
    return {"obs": obs[:-1], "next_obs": obs[1:], "action": np.arange(40) % 2, "reward": np.ones(40), **ends}


@pytest.mark.parametrize("norm_obs", [False, True])
def test_data_set_of_time_stamps_is_normalised_or_reported(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture, norm_obs: bool
) -> None:
    datamodule = OfflineDataModule(Dataset(steps()), env_id=ClockEnv, norm_obs=norm_obs, max_train_iter=4, seed=0)
    policy = policy_of("discrete_cql")
    with caplog.at_level(logging.WARNING):
        make_trainer().fit(policy, datamodule)
    assert any("variation is lost" in record.getMessage() for record in caplog.records) is not norm_obs
    if norm_obs:
        assert float(policy.normaliser.get_submodule("obs").std[0]) == pytest.approx(np.std(np.arange(40)))
        assert len(np.unique(datamodule.buffer.sample(40, 0)["obs"][:, 0])) == 40


@pytest.mark.parametrize("norm_obs", [False, True])
def test_demonstrations_of_time_stamps_are_normalised_or_reported(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture, norm_obs: bool
) -> None:
    datamodule = ReplayDataModule(**arguments(norm_obs=norm_obs, demonstrations=Dataset(steps())))
    policy = policy_of("dqn")
    with caplog.at_level(logging.WARNING):
        make_trainer().fit(policy, datamodule)
    lost = [record for record in caplog.records if record.getMessage().startswith("observations of the data set")]
    assert bool(lost) is not norm_obs
    if norm_obs:
        assert datamodule._demonstrations is not None
        assert len(np.unique(datamodule._demonstrations.buffer.sample(40, 0)["obs"][:, 0])) == 40
        # the times of 40 demonstrations have a mean of 19.5 seconds, those of the env 0.5
        part = policy.normaliser.get_submodule("obs")
        own = part.count - 40
        assert float(part.mean[0] - BEGIN) == pytest.approx(float((40 * 19.5 + own * 0.5) / part.count), abs=0.2)


def test_expert_of_time_stamps_is_normalised(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    np.savez(tmp_path / "expert.npz", **steps())
    policy = policy_of("ppo", reward_model={"type": "gail", "data_path": str(tmp_path / "expert.npz")})
    make_trainer().fit(policy, RolloutDataModule(**arguments(norm_obs=True)))
    seen = policy.normaliser.normalise_obs(policy.reward_model._expert["obs"])
    assert seen.dtype == torch.float32
    assert float(seen[1, 0] - seen[0, 0]) == pytest.approx(2, abs=0.3)  # standard deviations, for one second


def test_data_set_in_which_nothing_is_lost_is_kept_in_single_precision() -> None:
    changed = {**steps(), "obs": steps()["obs"] - BEGIN, "next_obs": steps()["next_obs"] - BEGIN}
    assert Dataset(changed).columns["obs"].dtype == np.float32
    assert Dataset(steps()).columns["obs"].dtype == Dataset(steps()).columns["next_obs"].dtype == np.float64
