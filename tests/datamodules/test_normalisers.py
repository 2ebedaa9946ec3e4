from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.policy import DQNPolicy, PPOPolicy
from tests.conftest import MakeTrainer

CONFIG: dict[str, Any] = {
    "model": {"encoder_hidden_size_list": [8]},
    "learn": {"epoch_per_collect": 1, "batch_size": 16},
    "collect": {"n_sample": 32},
    "eval": {"evaluator": {"n_episode": 2, "eval_freq": 4}},
}


class FarAway(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole a thousand metres away; a class, so that it is a callable of an env."""

    def observation(self, observation: Any) -> Any:
        return observation + np.float32(1000)


def datamodule(max_env_step: int = 96, **kwargs: Any) -> RolloutDataModule:
    return RolloutDataModule("CartPole-v1", num_envs=2, max_env_step=max_env_step, wrappers=[FarAway], **kwargs)


def seen_by(policy: PPOPolicy) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return lists that fill with what the policy acts on when collecting and when evaluating."""
    collected: list[torch.Tensor] = []
    evaluated: list[torch.Tensor] = []
    collect, evaluate = policy._forward_collect, policy._forward_eval

    def note(into: list[torch.Tensor], forward: Any) -> Any:
        def noting(obs: torch.Tensor, **kwargs: Any) -> Any:
            into.append(obs)
            return forward(obs, **kwargs)

        return noting

    policy._forward_collect = note(collected, collect)  # type: ignore[method-assign]
    policy._forward_eval = note(evaluated, evaluate)  # type: ignore[method-assign]
    return collected, evaluated


def test_policy_sees_normalised_observations_when_collecting_and_evaluating(make_trainer: MakeTrainer) -> None:
    policy = PPOPolicy(CONFIG)
    collected, evaluated = seen_by(policy)
    make_trainer().fit(policy, datamodule(norm_obs=True))
    assert torch.cat(collected).abs().max() <= 10
    assert torch.cat(evaluated).abs().max() <= 10
    policy = PPOPolicy(CONFIG)
    collected, evaluated = seen_by(policy)
    make_trainer().fit(policy, datamodule())
    assert torch.cat(collected).min() > 990
    assert torch.cat(evaluated).min() > 990


def test_evaluation_leaves_the_statistics_as_they_are(make_trainer: MakeTrainer) -> None:
    policy, data = PPOPolicy(CONFIG), datamodule(norm_obs=True)
    trainer = make_trainer()
    trainer.fit(policy, data)
    before = data.state_dict()["normalisers"]["norm_obs"]
    trainer.test(policy, data, verbose=False)
    after = data.state_dict()["normalisers"]["norm_obs"]
    assert before.keys() == after.keys()
    assert all(torch.equal(torch.as_tensor(before[name]), torch.as_tensor(after[name])) for name in before)
    assert float(before["count"]) > 0


def test_reported_returns_are_those_of_the_env_and_learned_rewards_are_scaled(make_trainer: MakeTrainer) -> None:
    policy, data = PPOPolicy(CONFIG), datamodule(max_env_step=320, norm_reward=True)
    rewards, returns = [], []
    learn = policy._forward_learn

    def note(batch: Any) -> Any:
        rewards.append(batch["reward"])
        returns.extend(data.pop_episodes()[0])
        return learn(batch)

    policy._forward_learn = note  # type: ignore[method-assign]
    make_trainer().fit(policy, data)
    assert len(returns) > 2
    assert all(value == int(value) and value >= 8 for value in returns)  # CartPole gives 1 a step
    assert not torch.cat(rewards)[32:].eq(1).any()


@pytest.mark.parametrize("kind", [RolloutDataModule, ReplayDataModule])
def test_checkpoint_holds_the_statistics_for_resuming_and_for_evaluating(
    kind: Any, make_trainer: MakeTrainer, tmp_path: Path, small: dict[str, Any]
) -> None:
    config = CONFIG if kind is RolloutDataModule else small
    policy_class: Any = PPOPolicy if kind is RolloutDataModule else DQNPolicy
    made = {"num_envs": 2, "wrappers": [FarAway], "norm_obs": True, "norm_reward": kind is RolloutDataModule}
    last = "norm_reward" if kind is RolloutDataModule else "norm_obs"
    first = kind("CartPole-v1", max_env_step=96, **made)
    checkpoint = RunCheckpoint(tmp_path)
    make_trainer(callbacks=[checkpoint], enable_checkpointing=True).fit(policy_class(config), first)
    saved = first.state_dict()["normalisers"]

    tested = kind("CartPole-v1", **made)
    make_trainer().test(policy_class(config), tested, ckpt_path=checkpoint.last_model_path, verbose=False)
    assert torch.equal(saved["norm_obs"]["mean"], tested.state_dict()["normalisers"]["norm_obs"]["mean"])

    loaded: list[Any] = []
    resumed = kind("CartPole-v1", max_env_step=192, **made)
    begin = resumed._begin

    def note() -> None:
        loaded.append(resumed.state_dict()["normalisers"])
        begin()

    resumed._begin = note
    make_trainer().fit(policy_class(config), resumed, ckpt_path=checkpoint.last_model_path)
    count = float(saved[last]["count"])
    assert float(loaded[0][last]["count"]) == count  # episodes go on: the resets before they do do not count
    assert float(resumed.state_dict()["normalisers"][last]["count"]) > count + 4


def test_checkpoint_of_normalised_observations_is_not_evaluated_on_others(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    checkpoint = RunCheckpoint(tmp_path)
    make_trainer(callbacks=[checkpoint], enable_checkpointing=True).fit(PPOPolicy(CONFIG), datamodule(norm_obs=True))
    with pytest.raises(ValueError, match="norm_obs must be True, as when the checkpoint was written, got False"):
        make_trainer().test(PPOPolicy(CONFIG), datamodule(), ckpt_path=checkpoint.last_model_path, verbose=False)


def test_evaluating_without_having_seen_an_observation_says_what_to_do(make_trainer: MakeTrainer) -> None:
    policy = PPOPolicy(CONFIG)
    make_trainer().fit(policy, datamodule(norm_obs=True))
    with pytest.raises(RuntimeError, match="no observation was seen yet: evaluate a checkpoint with ckpt_path"):
        make_trainer().test(policy, datamodule(norm_obs=True), verbose=False)


def test_rewards_are_not_normalised_for_replay(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    data = ReplayDataModule("CartPole-v1", max_env_step=96, norm_reward=True)
    with pytest.raises(ValueError, match="norm_reward must be False with replay, got True"):
        make_trainer().fit(DQNPolicy(small), data)
