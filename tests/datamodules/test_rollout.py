from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.entry.lightning_cli import main
from lightning_ding.policy import A2CPolicy, DQNPolicy, PGPolicy, PPOPolicy
from tests.conftest import MakeTrainer
from tests.toys.bandits import BanditEnv, HybridTargetEnv, TargetEnv
from tests.toys.envs import CountingEnv

Config = dict[str, Any]
SMALL: Config = {
    "model": {"encoder_hidden_size_list": [8]},
    "learn": {"batch_size": 8, "epoch_per_collect": 2},
    "collect": {"n_sample": 24},
    "eval": {"evaluator": {"n_episode": 2, "eval_freq": 60}},
}
EPISODES: Config = {"collect": {"n_sample": None, "n_episode": 5, "collector": {"type": "episode"}}}


class Rollouts(Callback):
    """Keeps every rollout, and the number of updates before it."""

    def __init__(self) -> None:
        self.data: list[Config] = []
        self.train_iter: list[int] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.data.append(dict(batch))
        self.train_iter.append(pl_module.progress.train_iter)


def fit(make_trainer: MakeTrainer, policy: Any, env: Any = "CartPole-v1", rounds: int = 4, **kwargs: Any) -> Rollouts:
    """Learn for some rounds and return the rollouts."""
    rollouts = Rollouts()
    trainer = make_trainer(callbacks=[rollouts], limit_val_batches=0, max_epochs=1)
    trainer.fit(policy, RolloutDataModule(env, **{"num_envs": 3, "rounds_per_epoch": rounds, **kwargs}))
    return rollouts


def ppo(*changes: Config) -> PPOPolicy:
    config = SMALL
    for change in changes:
        config = deep_merge(config, change)
    return PPOPolicy(config)


# Rollouts


@pytest.mark.parametrize("mode", ["sync", "native"])  # CartPole's own vector env resets in the step after an end
@pytest.mark.parametrize("collect", [{}, {"collect": {"n_sample": 25}}])
def test_every_round_is_of_the_newest_weights_and_nothing_is_kept(
    make_trainer: MakeTrainer, mode: str, collect: Config
) -> None:
    policy = ppo(collect)
    rollouts = fit(make_trainer, policy, rounds=6, mode=mode)
    assert len(rollouts.data) == 6
    for data, train_iter in zip(rollouts.data, rollouts.train_iter, strict=True):
        assert set(data["policy_version"].tolist()) == {train_iter}
    sizes = [len(data["reward"]) for data in rollouts.data]
    wanted = policy.config.collect.n_sample or 0
    assert all(wanted <= size <= wanted + 2 for size in sizes)  # 3 envs: up to 2 more
    assert policy.progress.sample == sum(sizes)
    assert policy.progress.env_step == sum(sizes)
    assert policy.progress.train_iter == 6 * 2 * 3  # 2 passes of 3 minibatches


def test_rows_of_a_rollout_continue_where_the_last_one_stopped(make_trainer: MakeTrainer) -> None:
    env = partial(CountingEnv, lengths=(5, 3), truncates=(False, True))
    rollouts = fit(make_trainer, ppo({"collect": {"n_sample": 4}}), env, num_envs=1)
    first = rollouts.data[0]["obs"][0, 1:]
    assert first[1] == 0
    obs = torch.cat([data["obs"] for data in rollouts.data])[:, 1:] - first
    assert obs.tolist()[:10] == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    behind = torch.cat([data["next_obs"] for data in rollouts.data])[:, 1:] - first
    assert behind.tolist()[7] == [1, 3]  # the true final observation of the episode that was cut
    assert torch.cat([data["truncated"] for data in rollouts.data]).nonzero().flatten().tolist() == [7, 15]


@pytest.mark.parametrize("policy_class", [PPOPolicy, PGPolicy])
def test_whole_episodes_are_of_the_newest_weights_alone(make_trainer: MakeTrainer, policy_class: Any) -> None:
    learn = {"learn": {"batch_size": 8}}
    policy = policy_class(deep_merge(EPISODES, learn | {"model": {"encoder_hidden_size_list": [8]}}))
    env = partial(CountingEnv, lengths=(7, 2, 1), truncates=(False, True))
    rollouts = fit(make_trainer, policy, env)
    for data, train_iter in zip(rollouts.data, rollouts.train_iter, strict=True):
        assert set(data["policy_version"].tolist()) == {train_iter}
        ends = (data["terminated"] | data["truncated"]).tolist()
        assert (sum(ends), ends[-1]) == (5, True)
        assert len(set(data["episode_id"].tolist())) == 5
    assert policy.progress.episode == 4 * 5
    assert policy.progress.env_step == policy.progress.sample == sum(len(data["reward"]) for data in rollouts.data)


def test_counters_tell_finished_episodes(make_trainer: MakeTrainer) -> None:
    policy = ppo()
    rollouts = fit(make_trainer, policy, partial(CountingEnv, lengths=(5,)))
    assert policy.progress.episode == sum(int(data["terminated"].sum()) for data in rollouts.data) == 3 * (32 // 5)
    assert policy.progress.env_step == 4 * 24


def test_run_ends_at_the_env_steps_asked_for(make_trainer: MakeTrainer) -> None:
    policy, trainer = ppo(), make_trainer()
    trainer.fit(policy, RolloutDataModule("CartPole-v1", num_envs=3, max_env_step=96))
    assert policy.progress.env_step == 96
    assert "eval/return_mean" in trainer.callback_metrics


def test_epoch_is_as_many_rounds_as_give_the_updates_between_two_evaluations(make_trainer: MakeTrainer) -> None:
    class Length(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            self.rounds = trainer.num_training_batches

    for eval_freq, rounds in [(60, 10), (6, 1), (1, 1)]:  # a round has 6 updates
        length, policy = Length(), ppo({"eval": {"evaluator": {"eval_freq": eval_freq}}})
        trainer = make_trainer(callbacks=[length], limit_val_batches=0)
        trainer.fit(policy, RolloutDataModule("CartPole-v1", num_envs=3, max_env_step=24))
        assert length.rounds == rounds


# Actions


def half_of(box: tuple[float, float]) -> float:
    return (box[1] - box[0]) / 2


@pytest.mark.parametrize("policy_class", [PPOPolicy, A2CPolicy])
def test_continuous_action_reaches_the_env_clipped_and_in_its_units(
    make_trainer: MakeTrainer, policy_class: Any
) -> None:
    policy = policy_class({"model": {"sigma_type": "fixed", "fixed_sigma_value": 2.0}, "collect": {"n_sample": 24}})
    rollouts = fit(make_trainer, policy, partial(TargetEnv, num_dimensions=2, low=-1.0, high=5.0), rounds=2)
    for data in rollouts.data:
        assert (data["action"].abs() > 1).any()
        # the target is x / 2 in units of half the box; what was drawn beyond 1 was clipped
        distance = data["action"].clamp(-1, 1) - data["obs"] / 2
        torch.testing.assert_close(data["reward"], 1 - distance.square().mean(1), rtol=1e-4, atol=1e-5)


def test_hybrid_action_reaches_the_env(make_trainer: MakeTrainer) -> None:
    policy = PPOPolicy({"model": {"sigma_type": "fixed", "fixed_sigma_value": 1.0}, "collect": {"n_sample": 60}})
    rollouts = fit(make_trainer, policy, partial(HybridTargetEnv, num_types=3, num_dimensions=2), rounds=2)
    for data in rollouts.data:
        action, obs = data["action"], data["obs"]
        distance = action["action_args"].clamp(-1, 1) - obs[:, 3:] / 2
        right = action["action_type"] == obs[:, :3].argmax(1)
        assert 0 < int(right.sum()) < 60
        expected = torch.where(right, 1 - distance.square().mean(1), -2.0)
        torch.testing.assert_close(data["reward"], expected, rtol=1e-4, atol=1e-5)


def test_forbidden_actions_are_never_taken(make_trainer: MakeTrainer) -> None:
    rollouts = fit(make_trainer, ppo({"collect": {"n_sample": 90}}), partial(BanditEnv, with_mask=True), rounds=2)
    assert all((data["reward"] >= 0).all() for data in rollouts.data)  # a forbidden one costs 1
    legal = [data["obs"]["action_mask"].gather(1, data["action"].unsqueeze(1)) for data in rollouts.data]
    assert all(one.all() for one in legal)


def test_multi_discrete_action_reaches_the_env(make_trainer: MakeTrainer) -> None:
    rollouts = fit(make_trainer, ppo(), partial(BanditEnv, num_actions=3, num_dimensions=2), rounds=1)
    (data,) = rollouts.data
    right = (data["obs"].argmax(1, keepdim=True) + torch.arange(2)) % 3
    torch.testing.assert_close(data["reward"], (data["action"] == right).float().mean(1))


# What does not fit


def test_policy_that_learns_from_replay_is_refused(make_trainer: MakeTrainer, small: Config) -> None:
    with pytest.raises(
        ValueError,
        match=r"one that learns from rollouts \(use ReplayDataModule for off-policy algorithms\), got 'DQNPolicy'",
    ):
        fit(make_trainer, DQNPolicy(small))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"collector": {"type": "episode"}}, "collect.collector.type must be a different one with collect.n_sample"),
        ({"n_sample": None, "n_episode": 3}, "collect.collector.type must be a different one with collect.n_episode"),
        ({"n_sample": None}, "collect.n_sample must be set when n_episode is None"),
        ({"n_sample": 0}, "collect.n_sample must be >= 1, got 0"),
    ],
)
def test_amount_that_does_not_fit_the_collector_is_refused(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ppo({"collect": config})


def test_mistakes_are_named(make_trainer: MakeTrainer) -> None:
    with pytest.raises(
        ValueError,
        match=r"one that learns from replay \(use RolloutDataModule for on-policy algorithms\), got 'PPOPolicy'",
    ):
        make_trainer().fit(ppo(), ReplayDataModule("CartPole-v1", max_env_step=10))
    with pytest.raises(ValueError, match=r"type must be a collector for one policy.*sample_1v1"):
        fit(make_trainer, ppo({"collect": {"collector": {"type": "sample_1v1"}}}))


# Going on


def everything_of(policy: Any) -> Config:
    state = {"state": policy.state_dict(), "progress": policy.progress.state_dict()}
    optimizers = policy.updater.optimizers
    state |= {"optimizer": optimizers[0].state_dict(), "lr": policy.cur_lr()}
    rngs = {"exploration": policy.rng.bit_generator.state, "torch": torch.get_rng_state().clone()}
    return {**state, **rngs}


class AtStart(Callback):
    """Notes what a run starts with."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        state = everything_of(pl_module)
        self.state = {**state, "state": {name: tensor.clone() for name, tensor in state["state"].items()}}
        self.moments = [one["exp_avg"].clone() for one in state["optimizer"]["state"].values()]


def test_resumed_run_starts_with_everything_that_the_first_ended_with(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    learn = {"learn": {"lr_scheduler": {"type": "linear", "unit": "env_step", "decay": 192}}}

    def run(end: int, *callbacks: Callback, **kwargs: Any) -> PPOPolicy:
        policy, saver = ppo(learn), RunCheckpoint(tmp_path)
        data = RolloutDataModule("CartPole-v1", num_envs=3, seed=3, max_env_step=end)
        make_trainer(enable_checkpointing=True, callbacks=[saver, *callbacks]).fit(policy, data, **kwargs)
        return policy

    first = everything_of(run(96))
    moments = [one["exp_avg"] for one in first["optimizer"]["state"].values()]
    torch.manual_seed(99)
    start = AtStart()
    resumed = run(192, start, ckpt_path=tmp_path / "last.ckpt")
    assert "return_statistics.count" in first["state"]
    torch.testing.assert_close(start.state["state"], first["state"], rtol=0, atol=0)
    torch.testing.assert_close(start.moments, moments, rtol=0, atol=0)
    for name in ("progress", "lr", "exploration"):
        assert start.state[name] == first[name]
    assert torch.equal(start.state["torch"], first["torch"])
    assert first["lr"] == pytest.approx(3e-4 * (1 - 72 / 192))  # of the fourth round of 24
    assert resumed.progress.env_step == 192
    assert resumed.cur_lr() == pytest.approx(3e-4 * (1 - 168 / 192))
    assert resumed.return_statistics.count == 192


def test_same_seed_gives_the_same_run_and_another_seed_another(make_trainer: MakeTrainer) -> None:
    def actions(seed: int) -> Any:
        torch.manual_seed(0)
        rollouts = fit(make_trainer, ppo(), seed=seed)
        np.random.seed(seed)
        torch.manual_seed(seed + 5)  # nothing that is drawn comes from these
        return torch.cat([data["action"] for data in rollouts.data]).tolist()

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)


def test_command_line_chooses_rollouts_for_an_on_policy_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    data = {"env_id": "CartPole-v1", "num_envs": 3, "max_env_step": 48}
    Path("run.yaml").write_text(yaml.safe_dump({"model": {"cfg": SMALL}, "data": data, "trainer": flags}))
    seen: list[Any] = []
    collect = RolloutDataModule._next_round
    monkeypatch.setattr(RolloutDataModule, "_next_round", lambda self: seen.append(self) or collect(self))  # type: ignore[func-returns-value]
    main(["fit", "--policy", "ppo", "--config", "run.yaml"])
    assert len(seen) == 2
    assert seen[0]._policy.progress.env_step == 48


# Faults


class Fails(gym.Wrapper[Any, Any, Any, Any]):
    """Raises in the sixth step of every episode whose number ``every`` divides."""

    def __init__(self, env: gym.Env[Any, Any], every: int = 2) -> None:
        super().__init__(env)
        self.steps = self.episodes = 0
        self.every = every

    def reset(self, **kwargs: Any) -> Any:
        self.steps, self.episodes = 0, self.episodes + 1
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 6 and self.episodes % self.every == 0:
            raise RuntimeError("the engine stalled")
        return self.env.step(action)


DROP: Config = {"collect": {"collector": {"env_fault": "drop"}}}


def test_episodes_that_a_fault_broke_off_are_left_out_of_the_rollout_that_is_learned_from(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: set[int] = set()
    collect = RolloutDataModule._collect

    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        data = collect(self, *args, **kwargs)
        broken.update(set(self._dropped_episodes) & set(data["episode_id"].tolist()))
        return data

    monkeypatch.setattr(RolloutDataModule, "_collect", note)
    rollouts = fit(make_trainer, ppo(DROP, {"collect": {"n_sample": 48}}), num_envs=2, wrappers=[Fails], rounds=1)
    (data,) = rollouts.data
    assert len(broken) >= 1  # collected, with some rows
    assert not broken & set(data["episode_id"].tolist())
    assert len(data["episode_id"]) >= 48
    for env_id in (0, 1):  # in the order of time
        episodes = data["episode_id"][data["env_id"] == env_id].tolist()
        assert episodes == sorted(episodes)


def test_envs_that_fail_in_every_episode_end_the_run(make_trainer: MakeTrainer) -> None:
    with pytest.raises(RuntimeError, match="there are still fewer than 24 transitions of episodes without a fault"):
        fit(make_trainer, ppo(DROP), num_envs=2, wrappers=[partial(Fails, every=1)])
