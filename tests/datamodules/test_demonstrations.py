"""Demonstrations next to a replay buffer: shares, rewards, priorities, pretraining, resuming, ranks, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import nested
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule
from lightning_ding.datamodules.dataset import Dataset
from lightning_ding.datamodules.demonstrations import Demonstrations
from lightning_ding.policy import DQfDPolicy, DQNPolicy, PPOOffPolicy, SACPolicy, SQILPolicy
from lightning_ding.policy.base.spaces import ActionStart
from lightning_ding.worker import create_buffer
from lightning_ding.worker.config import ReplayBufferConfig
from tests.conftest import MakeTrainer
from tests.processes import run_ranks_of_lightning
from tests.toys.datasets import counting_steps

Config = dict[str, Any]
SCRIPT = Path(__file__).with_name("demonstration_ranks_script.py")
SMALL: Config = {
    "nstep": 1,
    "random_collect_size": 0,
    "model": {"encoder_hidden_size_list": [8]},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"n_episode": 2}},
}


def demos(size: int = 40) -> Any:
    """Return steps whose first observation is 100 or more, which CartPole's never is, with reward 7."""
    steps = counting_steps((5,) * (size // 5), (True,) * (size // 5))
    for name in ("obs", "next_obs"):
        steps[name] = np.repeat(steps[name] + 100, 2, axis=1)
    return {**steps, "reward": np.full(size, 7.0, dtype=np.float32)}


def demonstrations(
    config: Any = None, share: float = 0.5, imitation_reward: bool = False, size: int = 40
) -> Demonstrations:
    seed = np.random.SeedSequence(0)
    found = Demonstrations(
        Dataset(demos(size)), share, config or ReplayBufferConfig(), seed, ActionStart(), imitation_reward
    )
    found.fill(keeps_double=False)
    return found


def own_buffer(kind: str = "naive") -> Any:
    buffer = create_buffer({"type": kind, "replay_buffer_size": 50}, seed=0)
    steps = counting_steps((5,) * 4, (True,) * 4)
    wide = {name: np.repeat(steps[name], 2, axis=1) for name in ("obs", "next_obs")}
    buffer.push({**steps, **wide, "env_id": np.zeros(20, dtype=int), "policy_version": np.zeros(20)})
    return buffer


def batches(make_trainer: MakeTrainer, policy_class: Any, config: Config, max_env_step: int = 32, **data: Any) -> Any:
    """Return the minibatches that a policy learns from in CartPole, one dict each."""
    seen: list[Any] = []

    class Noting(policy_class):  # type: ignore[misc]
        def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            seen.append(nested.apply(lambda x: x.clone(), {k: v for k, v in batch.items() if "target" not in k}))
            return super()._forward_learn(batch)  # type: ignore[no-any-return]

    arguments: dict[str, Any] = {"num_envs": 2, "max_env_step": max_env_step, "demonstrations": demos(), **data}
    make_trainer(limit_val_batches=0).fit(Noting(config), ReplayDataModule("CartPole-v1", **arguments))
    return seen


@pytest.mark.parametrize(("share", "number"), [(0.5, 4), (0.25, 2), (0.01, 1), (0.99, 7)])
def test_each_minibatch_has_the_share(make_trainer: MakeTrainer, share: float, number: int) -> None:
    seen = batches(make_trainer, DQNPolicy, SMALL, demonstration_share=share)
    assert len(seen) == 8
    for batch in seen:
        is_demo = batch["obs"][:, 0] > 50
        assert torch.equal(is_demo, batch["is_expert"])
        assert torch.equal(is_demo, torch.arange(8) >= 8 - number)
        assert set(batch["reward"][is_demo].tolist()) == {7.0}
        assert set(batch["reward"][~is_demo].tolist()) == {1.0}


@pytest.mark.parametrize("policy_class", [SQILPolicy, DQNPolicy])
def test_rewards_of_sqil_are_one_and_zero(make_trainer: MakeTrainer, policy_class: Any) -> None:
    config = {**SMALL, "nstep": 2, "discount_factor": 0.5}
    given = {} if policy_class is SQILPolicy else {"imitation_reward": True}
    for batch in batches(make_trainer, policy_class, config, **given):
        is_demo = batch["is_expert"]
        assert set(batch["reward"][~is_demo].tolist()) == {0.0}
        assert set(batch["reward"][is_demo].tolist()) <= {1.0, 1.5}  # one step at an episode's end, else 1 + 0.5


def test_sqil_is_an_option_for_continuous_actions_too(make_trainer: MakeTrainer) -> None:
    steps = demos()
    data = {"obs": steps["obs"][:, :3], "next_obs": steps["next_obs"][:, :3], "action": np.zeros((40, 1), np.float32)}
    config = {"learn": {"batch_size": 8}, "collect": {"n_sample": 8}, "random_collect_size": 0}
    arguments: dict[str, Any] = {"num_envs": 2, "max_env_step": 32, "imitation_reward": True}
    datamodule = ReplayDataModule("Pendulum-v1", demonstrations={**steps, **data}, **arguments)
    make_trainer(limit_val_batches=0).fit(SACPolicy(config), datamodule)
    assert datamodule.buffer is not None
    assert datamodule.buffer.sample(16)["reward"].abs().sum() == 0


def test_returns_that_are_logged_are_those_of_the_env(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(limit_val_batches=0, max_epochs=1)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, demonstrations=demos(), rounds_per_epoch=40)
    trainer.fit(SQILPolicy(SMALL), datamodule)
    assert trainer.callback_metrics["collect/return_mean"] >= 8


def test_entries_of_one_buffer_only_are_left_out() -> None:
    own = own_buffer()
    batch = demonstrations().mixed_with(own).sample(10)
    assert "policy_version" in own.sample(2)
    assert "policy_version" not in batch
    assert {"obs", "action", "reward", "next_obs", "terminated", "discount", "is_expert"} <= batch.keys()


def test_many_minibatches_are_drawn_at_once() -> None:
    batch = demonstrations().mixed_with(own_buffer()).sample(10, num_batches=3, n_step=2, discount_factor=0.5)
    assert batch["obs"].shape == (3, 10, 4)
    assert torch.equal(batch["is_expert"], (torch.arange(10) >= 5).expand(3, 10))
    assert torch.equal(batch["obs"][..., 0] >= 100, batch["is_expert"])


def test_priorities_go_to_their_own_buffer() -> None:
    config = create_buffer({"type": "advanced"}).config
    demo, own = demonstrations(config, share=0.3), own_buffer("advanced")
    mixed = demo.mixed_with(own)
    assert mixed.is_prioritised
    batch = mixed.sample(10)
    mixed.update({**batch, "priority": torch.arange(10.0) + 1})
    for buffer, expected in ((own, torch.arange(7.0) + 1), (demo.buffer, torch.arange(7.0, 10.0) + 1)):
        state = buffer.state_dict()["tensors"]["own/priority"]
        rows = batch["replay_buffer_idx"][:7] if buffer is own else batch["replay_buffer_idx"][7:]
        np.testing.assert_allclose(state[rows], expected, rtol=1e-4)


def test_demonstrations_never_leave_their_buffer() -> None:
    config = create_buffer({"type": "advanced", "max_use": 1, "max_staleness": 5, "replay_buffer_size": 9}).config
    buffer = demonstrations(config).buffer
    for _ in range(5):
        buffer.sample(40, 100)
    assert buffer.count() == 40


@pytest.mark.parametrize("limit", [{"push_sample_rate_limit": {"min": 1.0}}, {"sample_min_limit_ratio": 9.0}])
def test_draws_of_demonstrations_do_not_wait_for_new_ones(limit: Config) -> None:
    controller = {**limit, "timeout_seconds": 0.1}
    config = create_buffer({"type": "advanced", "thruput_controller": controller}).config
    buffer = demonstrations(config).buffer
    for _ in range(5):
        assert len(buffer.sample(20)["reward"]) == 20


@pytest.mark.parametrize("unit", ["env_step", "budget"])
def test_importance_weights_of_both_parts_have_one_exponent(make_trainer: MakeTrainer, unit: str) -> None:
    own = {"type": "advanced", "beta": 0.2, "anneal_unit": unit, "anneal_step": 128 if unit == "env_step" else 1.0}
    config = {**SMALL, "priority": True, "other": {"replay_buffer": own}}
    config["learn"] = {**SMALL["learn"], "per_train_iter_k": 4}  # whose draws need the budget too
    arguments: Config = {"num_envs": 2, "max_env_step": 128, "demonstrations": demos()}
    policy, datamodule = DQfDPolicy(config), ReplayDataModule("CartPole-v1", **arguments)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    parts: Any = (datamodule.buffer, datamodule._demonstrations.buffer)  # type: ignore[union-attr]
    betas = [buffer.beta for buffer in parts]
    assert betas[0] == betas[1] == pytest.approx(0.2 + 0.8 * 120 / 128)  # the last round began after 120 steps


@pytest.mark.parametrize("kind", ["naive", "advanced"])
@pytest.mark.parametrize("num_batches", [None, 2])
def test_first_of_several_steps(kind: str, num_batches: int | None) -> None:
    buffer = own_buffer(kind)
    batch = buffer.sample(20, num_batches=num_batches, n_step=3, discount_factor=1.0, first_step=True)
    number = batch["obs"][..., 0] % 10  # reward t + 1 in step t of five
    torch.testing.assert_close(batch["reward_1"], number + 1)
    torch.testing.assert_close(batch["next_obs_1"][..., 0], batch["obs"][..., 0] + 1)
    assert torch.equal(batch["terminated_1"], number == 4)
    assert torch.equal(batch["terminated"], number >= 2)
    assert not torch.equal(batch["reward"], batch["reward_1"])


def test_pretraining_learns_from_demonstrations_before_the_first_step(make_trainer: MakeTrainer) -> None:
    config = {**SMALL, "learn": {**SMALL["learn"], "per_train_iter_k": 5}, "nstep": 3}
    seen = batches(make_trainer, DQfDPolicy, config, max_env_step=8)
    shares = [float(batch["is_expert"].float().mean()) for batch in seen]
    assert shares == [1.0] * 5 + [0.5] * 2  # rounds of 2, 2 and 1 updates without collecting, then a usual one
    assert all("reward_1" in batch for batch in seen)


def test_statistics_of_observations_begin_with_the_demonstrations(make_trainer: MakeTrainer) -> None:
    config = {**SMALL, "learn": {**SMALL["learn"], "per_train_iter_k": 2}}
    seen = batches(make_trainer, DQfDPolicy, config, max_env_step=8, norm_obs=True)
    assert seen[0]["obs"].abs().max() < 3
    assert seen[0]["next_obs_1"].abs().max() < 3


def test_episodes_of_the_envs_do_not_continue_those_of_the_demonstrations(make_trainer: MakeTrainer) -> None:
    policy = DQNPolicy({**SMALL, "discount_factor": 1.0, "collect": {"n_sample": 2}, "learn": {"batch_size": 2}})
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=2, demonstrations=demos(), norm_reward=True)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    assert policy.normaliser.episode_state()["value"].tolist() == [1.0, 1.0]  # one step of each env, not 7 * 5 + 1


# ---------------------------------------------------------------------- errors


def test_policy_that_needs_demonstrations_says_so(make_trainer: MakeTrainer) -> None:
    for policy in (SQILPolicy(SMALL), DQfDPolicy(SMALL)):
        name = type(policy).__name__
        with pytest.raises(ValueError, match=f"demonstrations must be a data set, because {name} learns from"):
            make_trainer().fit(policy, ReplayDataModule("CartPole-v1", num_envs=2))
    with pytest.raises(ValueError, match="policy must be one that learns from a data set alone, got 'DQfDPolicy'"):
        make_trainer().fit(DQfDPolicy(SMALL), OfflineDataModule(demos()))


def test_policy_that_computes_advantages_when_it_collects_refuses_other_data(make_trainer: MakeTrainer) -> None:
    config: Config = {"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}}
    allowed = "demonstrations must be None, because PPOOffPolicy learns from .* what only it collects, got 'a data set'"
    with pytest.raises(ValueError, match=allowed):
        make_trainer().fit(PPOOffPolicy(config), ReplayDataModule("CartPole-v1", demonstrations=demos()))
    with pytest.raises(ValueError, match="policy must be one that learns from a data set alone, got 'PPOOffPolicy'"):
        make_trainer().fit(PPOOffPolicy(config), OfflineDataModule(demos(), env_id="CartPole-v1"))


def test_arguments_without_demonstrations_are_refused() -> None:
    for arguments in ({"demonstration_share": 0.25}, {"imitation_reward": True}):
        with pytest.raises(ValueError, match="demonstrations must be a data set with demonstration_share"):
            ReplayDataModule("CartPole-v1", **arguments)
    with pytest.raises(ValueError, match=r"demonstration_share must be in \(0, 1\), got 1"):
        ReplayDataModule("CartPole-v1", demonstrations=demos(), demonstration_share=1)
    with pytest.raises(ValueError, match=r"an \.npz or \.hdf5 file.* of a replay buffer"):
        ReplayDataModule("CartPole-v1", demonstrations="missing.txt")


def test_demonstrations_that_do_not_fit_are_refused(make_trainer: MakeTrainer) -> None:
    other = {**demos(), "obs": np.zeros((40, 3)), "next_obs": np.zeros((40, 3))}
    with pytest.raises(ValueError, match="dataset's obs"):
        make_trainer().fit(DQNPolicy(SMALL), ReplayDataModule("CartPole-v1", num_envs=2, demonstrations=other))
    one = ReplayDataModule("CartPole-v1", num_envs=2, demonstrations=demos(5))
    with pytest.raises(ValueError, match=r"demonstrations must be one with at least 8 transitions, .* got 5"):
        make_trainer().fit(DQNPolicy({**SMALL, "learn": {"batch_size": 16}}), one)
    with pytest.raises(ValueError, match=r"learn\.batch_size must be at most the 5 demonstrations"):
        make_trainer().fit(DQfDPolicy(SMALL), one)


# ---------------------------------------------------------------------- resuming


def fit(
    make_trainer: MakeTrainer, config: Config, max_env_step: int, folder: Path, file: Any = None, **data: Any
) -> Any:
    torch.manual_seed(1 if file else 0)
    policy = DQfDPolicy(config)
    arguments: dict[str, Any] = {"num_envs": 2, "max_env_step": max_env_step, "demonstrations": demos(), **data}
    datamodule = ReplayDataModule("CartPole-v1", **arguments)
    trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0, callbacks=[RunCheckpoint(folder)])
    trainer.fit(policy, datamodule, ckpt_path=file, weights_only=True if file else None)
    return policy


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    kind: str, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    is_prioritised = kind == "advanced"
    config = {**SMALL, "priority": is_prioritised, "priority_IS_weight": is_prioritised}
    config |= {"other": {"replay_buffer": {"type": kind}, "eps": {"start": 0.5, "end": 0.5}}}
    straight = fit(make_trainer, config, 64, tmp_path / "straight")
    fit(make_trainer, config, 32, tmp_path / "half")
    resumed = fit(make_trainer, config, 64, tmp_path / "half", tmp_path / "half" / "last.ckpt")
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_resuming_with_other_demonstrations_is_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    fit(make_trainer, SMALL, 16, tmp_path)
    with pytest.raises(ValueError, match="demonstrations must be those of the checkpoint"):
        fit(make_trainer, SMALL, 32, tmp_path, tmp_path / "last.ckpt", demonstrations=demos(50))


def test_two_ranks_draw_different_demonstrations_and_keep_the_same_weights(tmp_path: Path) -> None:
    run_ranks_of_lightning(SCRIPT, tmp_path)
    one, other = (torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2))
    assert one["is_expert"].float().mean() == 0.5
    assert not torch.equal(one["rows"][one["is_expert"]], other["rows"][other["is_expert"]])
    assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
