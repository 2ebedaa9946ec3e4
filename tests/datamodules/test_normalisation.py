from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding import nested
from lightning_ding.callbacks import BestCheckpoint, RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.policy import DQNPolicy, PPOPolicy
from lightning_ding.worker import InteractionSerialEvaluator
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


def statistics(policy: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.normaliser.state_dict().items()}


def test_evaluation_leaves_the_statistics_as_they_are(make_trainer: MakeTrainer) -> None:
    policy, data = PPOPolicy(CONFIG), datamodule(norm_obs=True)
    trainer = make_trainer()
    trainer.fit(policy, data)
    before = statistics(policy)
    trainer.test(policy, data, verbose=False)
    assert before["obs.count"] == 96
    assert all(torch.equal(before[name], value) for name, value in statistics(policy).items())


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


def test_first_ratio_of_ppo_is_one_because_it_learns_from_what_it_acted_on(make_trainer: MakeTrainer) -> None:
    policy, differences = PPOPolicy(deep_merge(CONFIG, {"learn": {"batch_size": 32}})), []
    loss = policy.loss

    def note(batch: Any) -> Any:
        with torch.no_grad():
            logit = policy._logit(batch["obs"])
        log_prob = policy._distribution(logit, batch["obs"]).log_prob(batch["action"])
        differences.append((log_prob - batch["log_prob"]).abs().max().item())
        return loss(batch)

    policy.loss = note  # type: ignore[method-assign]
    make_trainer().fit(policy, datamodule(max_env_step=160, norm_obs=True))
    assert len(differences) == 5
    assert max(differences) < 1e-5


REPLAY = [{}, {"nstep": 3}, {"priority": True, "other": {"replay_buffer": {"type": "advanced"}}}]


@pytest.mark.parametrize("changes", REPLAY, ids=["uniform", "nstep", "prioritised"])
def test_replay_keeps_what_the_env_gave_and_learns_from_it_normalised_by_the_newest_statistics(
    changes: dict[str, Any], make_trainer: MakeTrainer, small: dict[str, Any]
) -> None:
    policy = DQNPolicy(deep_merge(small, changes))
    data = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=96, wrappers=[FarAway], norm_obs=True,
                            norm_reward=True)  # fmt: skip
    learned: list[Any] = []
    learn = policy._forward_learn

    def note(batch: Any) -> Any:
        newest = policy.normaliser.normalise_batch(next(one for one in drawn if holds(one, batch)))
        learned.append([(newest[name], batch[name]) for name in ("obs", "next_obs", "reward")])
        return learn(batch)

    def holds(one: Any, batch: Any) -> bool:
        return torch.equal(one["action"], batch["action"]) and torch.equal(one["episode_id"], batch["episode_id"])

    drawn: list[Any] = []
    policy._forward_learn = note  # type: ignore[method-assign]
    note_draws(data, drawn)
    make_trainer(limit_val_batches=0).fit(policy, data)
    assert len(learned) == policy.progress.train_iter > 10
    assert all(torch.equal(*pair) for pairs in learned for pair in pairs)
    stored = torch.cat([one["obs"] for one in drawn])
    assert stored.min() > 990
    assert torch.cat([pairs[0][1] for pairs in learned]).abs().max() <= 10
    # the standard deviation of returns 1, 1 + gamma, ... of episodes of about 20 steps
    assert 1 / 12 < learned[-1][2][1].min() <= learned[-1][2][1].max() < 1


def note_draws(data: ReplayDataModule, drawn: list[Any]) -> None:
    """Let a list fill with the minibatches that the buffer of a datamodule gives."""
    check = data._check_policy

    def set_up(policy: Any) -> None:
        check(policy)
        buffer: Any = data.buffer
        sample = buffer.sample

        def note(*arguments: Any, **kwargs: Any) -> Any:
            given = sample(*arguments, **kwargs)
            of_round = kwargs.get("num_batches")
            rows = range(of_round) if of_round else [slice(None)]
            drawn[:] = [nested.index(given, row) for row in rows] + drawn
            return given

        buffer.sample = note

    data._check_policy = set_up  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", [RolloutDataModule, ReplayDataModule])
def test_policy_from_a_checkpoint_alone_acts_on_raw_observations(
    kind: Any, make_trainer: MakeTrainer, tmp_path: Path, small: dict[str, Any]
) -> None:
    policy_class: Any = PPOPolicy if kind is RolloutDataModule else DQNPolicy
    config = deep_merge(CONFIG if kind is RolloutDataModule else small, {"eval": {"evaluator": {"fixed_starts": True}}})
    data = kind("CartPole-v1", num_envs=2, wrappers=[FarAway], max_env_step=200, norm_obs=True, norm_reward=True)
    best = BestCheckpoint(tmp_path)
    make_trainer(callbacks=[best], enable_checkpointing=True).fit(policy_class(config), data)

    loaded = policy_class.load_from_checkpoint(best.best_model_path, weights_only=True)

    raw = torch.randn(32, 4) + 1000
    normal = (raw - loaded.normaliser.obs.shift) * loaded.normaliser.obs.scale
    assert loaded.normaliser.obs.shift.min() > 990
    outputs = loaded.eval_mode.forward(raw)["action"]
    assert torch.equal(outputs, loaded._forward_eval(normal.clamp(-10, 10))["action"])
    assert torch.equal(outputs, loaded(raw))
    assert loaded.collect_mode.forward(raw)["action"].shape == (32,)
    (scores,) = make_trainer().validate(loaded, kind("CartPole-v1", wrappers=[FarAway]), verbose=False)
    assert scores["eval/return_mean"] == best.best_model_score
    envs = gym.vector.SyncVectorEnv([lambda: FarAway(gym.make("CartPole-v1"))] * 2, autoreset_mode="Disabled")
    by_hand = InteractionSerialEvaluator({"n_episode": 2}, env=envs, policy=loaded, seed=data.evaluator.seed)
    assert by_hand.eval()[1]["return_mean"] == best.best_model_score


@pytest.mark.parametrize("kind", [RolloutDataModule, ReplayDataModule])
def test_resumed_run_continues_with_the_statistics_of_its_checkpoint(
    kind: Any, make_trainer: MakeTrainer, tmp_path: Path, small: dict[str, Any]
) -> None:
    config = CONFIG if kind is RolloutDataModule else small
    policy_class: Any = PPOPolicy if kind is RolloutDataModule else DQNPolicy
    made = {"num_envs": 2, "wrappers": [FarAway], "norm_obs": True, "norm_reward": True}
    checkpoint, first = RunCheckpoint(tmp_path), policy_class(config)
    make_trainer(callbacks=[checkpoint], enable_checkpointing=True).fit(
        first, kind("CartPole-v1", max_env_step=96, **made)
    )
    saved = statistics(first)
    policy, resumed = policy_class(config), kind("CartPole-v1", max_env_step=192, **made)
    loaded: list[Any] = []
    begin = resumed._begin

    def note() -> None:
        loaded.append(statistics(policy))
        begin()

    resumed._begin = note
    make_trainer().fit(policy, resumed, ckpt_path=checkpoint.last_model_path)
    assert all(torch.equal(loaded[0][name], tensor) for name, tensor in saved.items())
    assert statistics(policy)["obs.count"] == statistics(policy)["reward.count"] == 192


@pytest.mark.parametrize("name", ["norm_obs", "norm_reward"])
def test_run_cannot_resume_with_a_different_normalisation(name: str, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    checkpoint, policy = RunCheckpoint(tmp_path), PPOPolicy(CONFIG)
    make_trainer(callbacks=[checkpoint], enable_checkpointing=True).fit(policy, datamodule(**{name: True}))
    with pytest.raises(ValueError, match=f"{name} must be True, as when the checkpoint was written, got False"):
        make_trainer().fit(PPOPolicy(CONFIG), datamodule(192, **{name: False}), ckpt_path=checkpoint.last_model_path)
    with pytest.raises(ValueError, match=f"{name} must be True for a policy that was trained with it, got False"):
        make_trainer().fit(policy, datamodule(192, **{name: False}))


def test_checkpoint_with_statistics_in_its_datamodule_is_refused_in_one_sentence(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    checkpoint = RunCheckpoint(tmp_path)
    make_trainer(callbacks=[checkpoint], enable_checkpointing=True).fit(PPOPolicy(CONFIG), datamodule())
    content = torch.load(checkpoint.last_model_path, weights_only=True)
    content["RolloutDataModule"]["normalisers"] = {"norm_obs": {"count": 1}}
    torch.save(content, tmp_path / "old.ckpt")
    with pytest.raises(ValueError, match=r"in the state of its datamodule \(norm_obs\): it was written by an older"):
        PPOPolicy.load_from_checkpoint(tmp_path / "old.ckpt", weights_only=True)


def test_evaluating_without_having_seen_an_observation_says_what_to_do(make_trainer: MakeTrainer) -> None:
    with pytest.raises(
        RuntimeError, match="the policy has no statistics of observations yet: evaluate a checkpoint with ckpt_path"
    ):
        make_trainer().test(PPOPolicy(CONFIG), datamodule(norm_obs=True), verbose=False)


def test_policy_without_normalisation_has_nothing_of_it_in_its_state(make_trainer: MakeTrainer) -> None:
    policy = PPOPolicy(CONFIG)
    make_trainer().fit(policy, datamodule())
    assert not [name for name in policy.state_dict() if name.startswith("normaliser")]
    assert set(policy.collect_mode.state_dict()) == {"model"}
    batch = {"obs": torch.zeros(2, 4)}
    assert policy.normaliser.normalise_batch(batch) is batch
