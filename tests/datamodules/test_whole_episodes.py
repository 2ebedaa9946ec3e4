"""Rounds of whole episodes from a replay buffer: ``collect.n_episode`` in a ``ReplayDataModule``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.datamodules.remote import RemoteReplayDataModule
from lightning_ding.distributed.coordinator.settings import check_policy
from lightning_ding.envs.tensor import CartPole
from lightning_ding.policy import DQNPolicy, create_policy
from tests.algorithms.table import make_datamodule, make_policy, plain
from tests.conftest import MakeTrainer
from tests.toys.envs import CountingEnv

Config = dict[str, Any]
EPISODES: Config = {"collect": {"n_episode": 3, "n_sample": None, "collector": {"type": "episode"}}}
ENV = partial(CountingEnv, lengths=(5, 3))


def rows(datamodule: Any) -> dict[str, Any]:
    """Return everything in the buffer, in the order of pushing."""
    found: dict[str, Any] = datamodule.buffer.transitions()
    return found


def fit(make_trainer: MakeTrainer, config: Config, mode: str = "sync", **data: Any) -> tuple[Any, Any]:
    policy, keys = DQNPolicy(config), {"num_envs": 2, "seed": 0, "mode": mode, **data}
    datamodule = ReplayDataModule(ENV, **keys)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    return policy, datamodule


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_round_holds_the_whole_episodes_asked_for(mode: Any, make_trainer: MakeTrainer, small: Config) -> None:
    config = deep_merge(small, {"random_collect_size": 0, "learn": {"batch_size": 4}, **EPISODES})
    policy, datamodule = fit(make_trainer, config, mode, max_env_step=30)
    found = rows(datamodule)
    _, lengths = np.unique(found["episode_id"].numpy(), return_counts=True)
    assert set(lengths) <= {3, 5}  # no episode is cut
    assert found["terminated"].sum() == len(lengths)
    assert policy.progress.episode == len(lengths)
    assert policy.progress.episode % 3 == 0
    rounds = policy.progress.train_iter // policy.update_per_collect
    assert policy.progress.episode == 3 * rounds
    assert policy.progress.env_step == policy.progress.sample == len(found["reward"]) >= 30


def test_native_envs_which_cannot_pause_finish_their_episodes_in_later_rounds(
    make_trainer: MakeTrainer, small: Config
) -> None:
    config = deep_merge(small, {"random_collect_size": 0, "learn": {"batch_size": 4}, **EPISODES})
    policy = DQNPolicy(config)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=0, mode="native", max_env_step=300)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    found = rows(datamodule)
    ids, lengths = np.unique(found["episode_id"].numpy(), return_counts=True)
    rounds = policy.progress.train_iter // policy.update_per_collect
    assert len(ids) == 3 * rounds > 3
    assert int((found["terminated"] | found["truncated"]).sum()) == len(ids)
    assert lengths.min() >= 8  # the pole cannot fall sooner
    assert policy.progress.sample == lengths.sum() < policy.progress.env_step
    versions = found["policy_version"].numpy()
    assert any(len(set(versions[found["episode_id"].numpy() == one])) > 1 for one in ids)


def test_steps_of_an_episode_follow_each_other_in_the_buffer(make_trainer: MakeTrainer, small: Config) -> None:
    config = deep_merge(small, {"random_collect_size": 0, "nstep": 2, "learn": {"batch_size": 4}, **EPISODES})
    _, datamodule = fit(make_trainer, config, max_env_step=20)
    drawn = datamodule.buffer.sample(64, replace=True, n_step=2, discount_factor=0.5)
    ends = drawn["discount"] == 0.5  # the last step of an episode has no second reward
    ahead = drawn["next_obs"][:, 2] - drawn["obs"][:, 2]  # numbers of steps
    assert torch.equal(ahead, torch.where(ends, 1.0, 2.0))
    assert ends.any()


def test_buffer_is_filled_with_whole_random_episodes(make_trainer: MakeTrainer, small: Config) -> None:
    config = deep_merge(small, {"random_collect_size": 20, "learn": {"batch_size": 4}, **EPISODES})
    policy, datamodule = fit(make_trainer, config, max_env_step=1000, max_train_iter=1)
    versions = rows(datamodule)
    assert policy.progress.episode % 3 == 0
    assert len(versions["reward"]) > 20
    tight = deep_merge(config, {"random_collect_size": 100, "other": {"replay_buffer": {"replay_buffer_size": 16}}})
    _, datamodule = fit(make_trainer, tight, max_env_step=1000, max_train_iter=1)  # fills it, and ends
    assert datamodule.buffer.count() == 16


@pytest.mark.parametrize("name", ["r2d2", "sac", "ppo_offpolicy", "impala", "qmix"])
def test_other_algorithms_learn_from_rounds_of_episodes(name: str, make_trainer: MakeTrainer) -> None:
    policy: Any = make_policy(
        name, **deep_merge({"random_collect_size": 0} if name in ("r2d2", "sac") else {}, EPISODES)
    )
    datamodule: Any = make_datamodule(name, max_env_step=60)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    assert policy.progress.train_iter > 0
    assert policy.progress.episode % 3 == 0


def test_resumed_run_of_episodes_has_the_bits_of_one_without_a_break(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    config = deep_merge(small, {"learn": {"batch_size": 4}, **EPISODES})

    def run(folder: Path, epochs: int, path: str | None = None) -> tuple[Any, Any]:
        torch.manual_seed(0)
        policy = DQNPolicy(config)
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=0, rounds_per_epoch=2, max_env_step=10_000)
        trainer = make_trainer(
            limit_val_batches=0, max_epochs=epochs, default_root_dir=folder, enable_checkpointing=True
        )
        trainer.fit(policy, datamodule, ckpt_path=path)
        return policy, datamodule

    straight, data = run(tmp_path / "straight", 4)
    run(tmp_path / "broken", 2)
    resumed, again = run(tmp_path / "broken", 4, "last")
    assert plain(resumed.state_dict()) == plain(straight.state_dict())
    assert resumed.progress == straight.progress
    assert torch.equal(rows(again)["obs"], rows(data)["obs"])


@pytest.mark.parametrize(
    ("collect", "message"),
    [
        ({"n_episode": 2}, "collect.n_sample must be >= 1 without collect.n_episode, .* got 8"),
        ({"n_sample": None}, "collect.n_sample must be >= 1 without collect.n_episode, .* got None"),
        ({"n_episode": 0, "n_sample": None}, r"collect.n_sample must be .* \(it is 0\), got None"),
    ],
)
def test_either_transitions_or_episodes_are_counted(collect: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DQNPolicy({"collect": collect})


def test_modes_without_whole_episodes_say_so(make_trainer: MakeTrainer, small: Config) -> None:
    config = deep_merge(small, EPISODES)
    fit_with = partial(fit, make_trainer, max_env_step=10)
    with pytest.raises(ValueError, match=r"collect.n_episode must be set with a collector of whole episodes, .* None"):
        fit_with(deep_merge(small, {"collect": {"collector": {"type": "episode"}}}))
    with pytest.raises(ValueError, match=r"collect.n_episode must be set with a collector of whole episodes, .* got 3"):
        fit_with(deep_merge(config, {"collect": {"collector": {"type": "sample"}}}))
    with pytest.raises(ValueError, match="overlap must be False unless a collector of the type 'sample'"):
        fit_with(config, "async", overlap=True)
    with pytest.raises(ValueError, match=r"collect.collector.type must be .sample. with mode=.tensor., got 'episode'"):
        make_trainer(limit_val_batches=0).fit(DQNPolicy(config), ReplayDataModule(CartPole, num_envs=2, mode="tensor"))
    policy = {"type": "dqn", **EPISODES}
    with pytest.raises(ValueError, match=r"main.policy.collect.n_episode must be None in a distributed run .* got 3"):
        check_policy(policy)
    with pytest.raises(ValueError, match=r"^collect.n_episode must be None in a distributed run, .* got 3"):
        RemoteReplayDataModule._check_policy(None, create_policy(policy))  # type: ignore[arg-type]
