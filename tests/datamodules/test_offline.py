"""Training on a data set: the minibatches, the spaces, statistics, limits, resuming, and ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding import nested
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import Dataset, OfflineDataModule, ReplayDataModule
from lightning_ding.policy import DQNPolicy, PPOPolicy, SACPolicy
from tests.conftest import MakeTrainer
from tests.processes import run_ranks_of_lightning
from tests.toys.datasets import counting_steps, target_steps

Config = dict[str, Any]
SCRIPT = Path(__file__).with_name("offline_ranks_script.py")
SMALL: Config = {
    "nstep": 1,
    "model": {"encoder_hidden_size_list": [8]},
    "learn": {"update_per_collect": 5, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 2, "eval_freq": 10}},
}


def long_steps() -> Any:
    return counting_steps((5,) * 10, (True, False) * 5)


def batches(make_trainer: MakeTrainer, config: Config, data: Any, max_train_iter: int = 200) -> Any:
    """Return the minibatches that a policy learns from, joined."""
    seen: list[Any] = []

    class Noting(DQNPolicy):
        def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            seen.append({name: value.clone() for name, value in batch.items() if name not in ("target", "discount_t")})
            return super()._forward_learn(batch)

    make_trainer().fit(Noting(config), OfflineDataModule(data, max_train_iter=max_train_iter))
    return nested.concatenate(seen)


def test_transitions_are_those_of_the_data_set(make_trainer: MakeTrainer) -> None:
    batch = batches(make_trainer, SMALL, counting_steps())
    number, following = batch["obs"][:, 0], batch["next_obs"][:, 0]
    assert set(number.tolist()) == {0, 1, 2, 10, 11, 20, 21, 22, 23}
    assert torch.equal(following, number + 1)  # also at a time limit, where it is the true final observation
    assert set(number[batch["terminated"]].tolist()) == {2.0}


def test_n_step_returns_end_with_their_episode(make_trainer: MakeTrainer) -> None:
    batch = batches(make_trainer, {**SMALL, "nstep": 3, "discount_factor": 0.5}, counting_steps())
    table = {
        round(obs): (round(reward, 4), round(following), round(discount, 4))
        for obs, reward, following, discount in zip(
            batch["obs"][:, 0].tolist(),
            batch["reward"].tolist(),
            batch["next_obs"][:, 0].tolist(),
            batch["discount"].tolist(),
            strict=True,
        )
    }
    # rewards 1, 2, 3, 4: 1 + 2/2 + 3/4 = 2.75; 2 + 3/2 + 4/4 = 4.5; at the end of an episode fewer steps
    assert table[0] == (2.75, 3, 0.125)
    assert table[1] == (3.5, 3, 0.25)
    assert table[10] == (2.0, 12, 0.25)
    assert table[11] == (2.0, 12, 0.5)
    assert table[21] == (4.5, 24, 0.125)
    assert table[23] == (4.0, 24, 0.5)


def test_priorities_work(make_trainer: MakeTrainer) -> None:
    config = {**SMALL, "priority": True, "other": {"replay_buffer": {"type": "advanced"}}}
    policy, datamodule = DQNPolicy(config), OfflineDataModule(long_steps(), max_train_iter=20)
    make_trainer().fit(policy, datamodule)
    batch = datamodule.buffer.sample(8)
    assert len(set(batch["priority"].tolist())) > 1


def test_actions_of_an_env_that_counts_from_another_number_are_shifted(make_trainer: MakeTrainer) -> None:
    steps = counting_steps()
    data = Dataset({**steps, "action": steps["action"] + 5}, action_space=spaces.Discrete(2, start=5))
    assert set(batches(make_trainer, SMALL, data)["action"].tolist()) == {0, 1}


def test_run_ends_at_max_train_iter_and_counts_updates(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy = DQNPolicy({**SMALL, "learn": {**SMALL["learn"], "lr_scheduler": {"type": "linear", "end": 0.5}}})
    trainer = make_trainer(enable_checkpointing=True)
    trainer.fit(policy, OfflineDataModule(long_steps(), max_train_iter=40))
    assert (policy.progress.train_iter, policy.progress.env_step) == (40, 0)
    rate = 5e-4 * (1 - 0.5 * 35 / 40)  # the last round began after 35 of 40 updates
    assert policy.cur_lr() == pytest.approx(rate)
    assert [file.name for file in tmp_path.rglob("last-*")] == ["last-40"]


def test_run_ends_at_max_epochs(make_trainer: MakeTrainer) -> None:
    policy = DQNPolicy(SMALL)
    make_trainer(max_epochs=3).fit(policy, OfflineDataModule(long_steps(), rounds_per_epoch=2))
    assert policy.progress.train_iter == 3 * 2 * 5


def test_run_is_evaluated_in_the_env(make_trainer: MakeTrainer) -> None:
    config = {"model": {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8}, **{"eval": SMALL["eval"]}}
    policy = SACPolicy({**config, "learn": {"batch_size": 8}})
    datamodule = OfflineDataModule(target_steps(100), "tests.toys.bandits.TargetEnv", max_train_iter=10)
    trainer = make_trainer()
    trainer.fit(policy, datamodule)
    assert "eval/return_mean" in trainer.callback_metrics
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    assert scores["test/return_mean"] <= 1
    assert policy.config.model.action_high == (2.0,)  # of the env, not of the data


def test_normaliser_gets_the_statistics_of_the_data_set(make_trainer: MakeTrainer) -> None:
    policy, datamodule = DQNPolicy(SMALL), OfflineDataModule(long_steps(), max_train_iter=5, norm_obs=True)
    make_trainer().fit(policy, datamodule)
    make_trainer().fit(policy, OfflineDataModule(counting_steps(), max_train_iter=10, norm_obs=True))  # keeps them
    state = policy.normaliser.state_dict()
    np.testing.assert_allclose(state["obs.mean"], datamodule.statistics.obs_mean, rtol=1e-6)
    np.testing.assert_allclose((state["obs.m2"] / 50).sqrt(), datamodule.statistics.obs_std, rtol=1e-5)


def test_rewards_are_normalised_by_the_discounted_returns(make_trainer: MakeTrainer) -> None:
    policy = DQNPolicy({**SMALL, "discount_factor": 0.5, "learn": {"update_per_collect": 5, "batch_size": 4}})
    make_trainer().fit(policy, OfflineDataModule(counting_steps((2, 2), (True, True)), max_train_iter=5, **NORM))
    # discounted returns so far of both episodes: 1 and 2 + 1/2: mean 1.75, squares 2 * 2 * 0.75^2 = 2.25
    state = policy.normaliser.state_dict()
    assert float(state["reward.count"]) == 4
    assert float(state["reward.m2"]) == pytest.approx(2.25)


NORM: Config = {"norm_reward": True}


def test_online_training_continues_after_offline_training(make_trainer: MakeTrainer) -> None:
    policy = DQNPolicy({**SMALL, "model": {"obs_shape": 4, "action_shape": 2}})
    steps = long_steps()
    wide = {name: np.concatenate([steps[name], steps[name]], axis=1) for name in ("obs", "next_obs")}
    make_trainer().fit(policy, OfflineDataModule({**steps, **wide}, max_train_iter=10))
    make_trainer(limit_val_batches=0).fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=16))
    assert policy.progress.position == policy.progress.env_step > 0


# ---------------------------------------------------------------------- errors


def test_data_that_do_not_fit_the_policy_are_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(TypeError, match="SACPolicy needs a one-dimensional Box"):
        make_trainer().fit(SACPolicy(), OfflineDataModule(long_steps(), max_train_iter=5))
    with pytest.raises(ValueError, match="policy must be one that learns from replay, got 'PPOPolicy'"):
        make_trainer().fit(PPOPolicy(), OfflineDataModule(long_steps(), max_train_iter=5))


def test_mistakes_are_named(make_trainer: MakeTrainer) -> None:
    datamodule = OfflineDataModule(long_steps(), "CartPole-v1", max_train_iter=5)
    with pytest.raises(ValueError, match=r"dataset's obs must be numbers for Box.* got .*shape \(2,\)"):
        make_trainer().fit(DQNPolicy(SMALL), datamodule)
    with pytest.raises(ValueError, match=r"learn\.batch_size must be at most the 9 transitions"):
        make_trainer().fit(DQNPolicy(), OfflineDataModule(counting_steps(), max_train_iter=5))
    with pytest.raises(ValueError, match="prioritised"):
        make_trainer().fit(DQNPolicy({**SMALL, "priority": True}), OfflineDataModule(long_steps(), max_train_iter=5))
    limited = {"type": "advanced", "thruput_controller": {"push_sample_rate_limit": {"min": 1.0}}}
    policy = DQNPolicy({**SMALL, "other": {"replay_buffer": limited}})
    with pytest.raises(ValueError, match="thruput_controller must be left at its default with a data set"):
        make_trainer().fit(policy, OfflineDataModule(long_steps(), max_train_iter=2))


@pytest.mark.parametrize("unit", ["env_step", "budget"])
def test_importance_weights_are_annealed_by_updates(make_trainer: MakeTrainer, unit: str) -> None:
    own = {"type": "advanced", "beta": 0.2, "anneal_unit": unit, "anneal_step": 20 if unit == "env_step" else 1.0}
    policy = DQNPolicy({**SMALL, "priority": True, "other": {"replay_buffer": own}})
    datamodule = OfflineDataModule(long_steps(), max_train_iter=20)
    make_trainer().fit(policy, datamodule)
    begun = 20 - policy.config.learn.update_per_collect  # when the last round began
    assert datamodule.buffer.beta == pytest.approx(0.2 + 0.8 * begun / 20)  # type: ignore[attr-defined]


def test_bounds_of_an_action_that_never_changes_have_to_be_given(make_trainer: MakeTrainer) -> None:
    steps = {**target_steps(40), "action": np.full((40, 1), 0.5, np.float32)}
    sizes = {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
    config = {"model": sizes, "learn": {"batch_size": 8}}
    with pytest.raises(ValueError, match=r"dataset's action .* set env_id, or action_low .* dimensions \[0\]"):
        make_trainer().fit(SACPolicy(config), OfflineDataModule(steps, max_train_iter=2))
    data = Dataset(steps, action_space=spaces.Box(-1.0, 1.0, (1,)))
    policy = SACPolicy(config)
    make_trainer().fit(policy, OfflineDataModule(data, max_train_iter=2))
    assert policy.config.model.action_low == (-1.0,)


def test_evaluation_without_an_env_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="env_id must be an env for evaluations"):
        make_trainer().test(DQNPolicy(SMALL), OfflineDataModule(long_steps()), verbose=False)
    with pytest.raises(ValueError, match="stop_value must be None without env_id"):
        OfflineDataModule(long_steps(), stop_value=3.0)


# ---------------------------------------------------------------------- resuming


def fit(make_trainer: MakeTrainer, config: Config, max_train_iter: int, folder: Path, file: Any = None) -> Any:
    torch.manual_seed(1 if file else 0)
    policy = DQNPolicy(config)
    datamodule = OfflineDataModule(long_steps(), max_train_iter=max_train_iter, norm_obs=True)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(folder)])
    trainer.fit(policy, datamodule, ckpt_path=file, weights_only=True if file else None)
    return policy


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    kind: str, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    config = {**SMALL, "priority": kind == "advanced", "other": {"replay_buffer": {"type": kind}}}
    straight = fit(make_trainer, config, 40, tmp_path / "straight")
    fit(make_trainer, config, 20, tmp_path / "half")
    resumed = fit(make_trainer, config, 40, tmp_path / "half", tmp_path / "half" / "last.ckpt")
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_resuming_with_another_data_set_is_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    fit(make_trainer, SMALL, 10, tmp_path)
    other = OfflineDataModule(counting_steps((50,), (True,)), max_train_iter=20, norm_obs=True)
    with pytest.raises(ValueError, match="dataset must be that of the checkpoint"):
        make_trainer().fit(DQNPolicy(SMALL), other, ckpt_path=tmp_path / "last.ckpt", weights_only=True)


def test_two_ranks_draw_different_minibatches_and_keep_the_same_weights(tmp_path: Path) -> None:
    run_ranks_of_lightning(SCRIPT, tmp_path, "dqn")
    one, other = (torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2))
    assert not torch.equal(one["rows"], other["rows"])
    assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
    np.testing.assert_allclose(one["weights"]["normaliser.obs.mean"], one["mean"], rtol=1e-6)
    assert float(one["weights"]["normaliser.obs.count"]) == 50
