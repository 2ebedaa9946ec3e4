"""Replay with ``mode="tensor"``: the data and updates of arrays, nothing read on the host, errors, exact resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs.tensor import CartPole, Pendulum
from lightning_ding.policy import (
    BDQPolicy,
    BROPolicy,
    C51Policy,
    CrossQPolicy,
    D4PGPolicy,
    DDPGPolicy,
    DQNPolicy,
    FQFPolicy,
    IQNPolicy,
    MDQNPolicy,
    PDQNPolicy,
    QRDQNPolicy,
    R2D2Policy,
    RainbowPolicy,
    SACPolicy,
    SQLPolicy,
    TD3Policy,
    TD7Policy,
    TQCPolicy,
    XQCPolicy,
)
from lightning_ding.policy.base import non_finite
from lightning_ding.policy.base.dump import NonFiniteError
from lightning_ding.policy.base.non_finite import NonFiniteGuard
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.worker.buffer.tensor import TensorReplayBuffer
from tests.datamodules.test_tensor_mode import N, NothingIsRead, Opaque, no_scalar, set_up, short_cart_poles, trainer

DISCRETE = [DQNPolicy, BDQPolicy, MDQNPolicy, C51Policy, QRDQNPolicy, IQNPolicy, FQFPolicy]
CONTINUOUS = [
    *(
        SACPolicy,
        TQCPolicy,
        TD3Policy,
        DDPGPolicy,
        D4PGPolicy,
        PDQNPolicy,
        CrossQPolicy,
        XQCPolicy,
        BROPolicy,
        TD7Policy,
    )
]


def short(policy_class: Any = DQNPolicy, **sections: Any) -> Any:
    """Return a policy that learns from returns of three steps after a short warm-up."""
    other = {"replay_buffer": {"type": "naive", "replay_buffer_size": 20 * N}}
    if policy_class in DISCRETE:
        other["eps"] = {"start": 0.5, "end": 0.1, "decay": 200}
    model = {"critic_head_hidden_size": 32} if issubclass(policy_class, (CrossQPolicy, BROPolicy)) else {}
    given = {
        "priority": False,
        "priority_IS_weight": False,
        "nstep": 3,
        "random_collect_size": 4 * N,
        "model": model,
        "other": other,
    }
    learn = {"batch_size": 16, "update_per_collect": 3}
    return policy_class({**given, "learn": learn, "collect": {"n_sample": 2 * N}, **sections})


def env_of(policy_class: Any) -> str:
    return "Pendulum-v1" if policy_class in CONTINUOUS else "CartPole-v1"


def started(policy: Any, env: Any, **kwargs: Any) -> Any:
    datamodule = set_up(policy, "tensor", env, datamodule_class=ReplayDataModule, **kwargs)
    datamodule._start()
    return datamodule


# ---------------------------------------------------------------------- the same data as with arrays


def script(policy: Any, buffer: Any) -> None:
    """Let a policy act and draw numbers that do not depend on the source of its random numbers."""
    rng = np.random.default_rng(0)
    policy._forward_collect = lambda obs, **_: {"action": torch.from_numpy(rng.integers(2, size=N))}

    def draw(num_batches: int, batch_size: int, replace: bool) -> Any:
        rows = rng.integers(buffer.count(), size=(num_batches, batch_size))
        return torch.from_numpy(rows) if isinstance(buffer, TensorReplayBuffer) else rows

    buffer._draw = draw


def of_path(mode: str, env: Any, weights: Any, **kwargs: Any) -> tuple[Any, Any, list[Any]]:
    """Return policy, buffer and three prepared rounds of a run in a mode, which learned from each."""
    policy = short(random_collect_size=0, other={"replay_buffer": {"replay_buffer_size": 12 * N}})
    datamodule: Any = set_up(policy, mode, env, datamodule_class=ReplayDataModule, **kwargs)
    for name in ("model", "target_model"):
        getattr(policy, name).load_state_dict(weights or policy.model.state_dict())
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    datamodule._start()
    seeds, collector = list(range(100, 100 + N)), datamodule.collector
    if mode == "sync":
        collector._stepper.reset(seeds)
    else:
        collector._obs = collector._env.reset(seeds)
    script(policy, datamodule.buffer)
    rounds = []
    for number in range(10):
        rounds.append(datamodule._next_round())
        policy.training_step(rounds[-1], number)
    datamodule.close()
    return (policy, before), datamodule.buffer, rounds


def test_transitions_and_weights_equal_those_with_arrays() -> None:
    (first, weights), arrays, _ = of_path("sync", "CartPole-v1", None, env_kwargs={"max_episode_steps": 14})
    (second, _), tensors, _ = of_path("tensor", short_cart_poles, weights)
    wanted, found = arrays.transitions(), tensors.transitions()
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        assert wanted[name].dtype == found[name].dtype, name
        assert torch.equal(wanted[name], found[name]), name
    assert found["terminated"].any()
    assert found["truncated"].any()
    assert second.progress.train_iter == first.progress.train_iter == 30
    changed = 0
    for (name, one), other in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
        changed += name.startswith("model.") and not torch.equal(one, weights[name.removeprefix("model.")])
    assert changed


def test_final_observation_is_stored_where_an_episode_ended() -> None:
    policy = short()
    datamodule = started(policy, "CartPole-v1", env_kwargs={"max_episode_steps": 5})
    datamodule._next_round()
    datamodule._next_round()
    stored = nested.apply(lambda one: one.unflatten(0, (-1, N)), datamodule.buffer.transitions())
    ended = stored["terminated"] | stored["truncated"]
    assert stored["truncated"][4].all()
    assert torch.equal(stored["next_obs"][:-1][~ended[:-1]], stored["obs"][1:][~ended[:-1]])
    # the next episode begins near 0, and the final observation follows from the last one
    assert (stored["obs"][5].abs() <= 0.05).all()
    x, speed = stored["obs"][4][:, 0], stored["obs"][4][:, 1]
    torch.testing.assert_close(stored["next_obs"][4][:, 0], x + 0.02 * speed)
    datamodule.close()


def test_warm_up_acts_at_random_and_then_the_policy_explores() -> None:
    policy = short(SACPolicy, random_collect_size=5 * N)
    datamodule = started(policy, "Pendulum-v1")
    assert datamodule.buffer.count() == 5 * N == policy.progress.env_step
    action = datamodule.buffer.transitions()["action"]
    assert action.abs().max() > 1.5
    assert action.abs().max() <= 2
    datamodule.close()


def test_noise_of_exploration_is_that_of_the_generator_of_the_device() -> None:
    policy = short(TD3Policy)
    datamodule = started(policy, "Pendulum-v1")
    obs = datamodule.collector._obs
    torch.manual_seed(1)
    found = policy._collect(obs)["action"]
    with torch.no_grad():
        greedy = policy.model.compute_actor(obs)["action"]
    torch.manual_seed(1)
    wanted = (greedy + 0.1 * torch.randn(N, 1)).clamp(-1, 1) * 2
    torch.testing.assert_close(found, wanted)
    datamodule.close()


class Masked(CartPole):
    """Only the first action is legal."""

    def _spaces(self) -> Any:
        from gymnasium import spaces

        box, action = super()._spaces()
        return spaces.Dict({"obs": box, "action_mask": spaces.MultiBinary(2)}), action

    def _observe(self, state: Tensor) -> Any:
        mask = torch.tensor([1, 0], dtype=torch.int8).expand(self.num_envs, 2)
        return {"obs": state.t(), "action_mask": mask}


def test_masked_actions_are_never_taken() -> None:
    policy = short()
    datamodule = started(policy, Masked)
    policy.training_step(datamodule._next_round(), 0)
    stored = datamodule.buffer.transitions()
    assert set(stored["action"].tolist()) == {0}
    assert stored["obs"]["obs"].shape == (6 * N, 4)
    datamodule.close()


# ---------------------------------------------------------------------- nothing is read on the host


@pytest.mark.parametrize("policy_class", [*DISCRETE, *CONTINUOUS])
def test_a_round_reads_nothing_on_the_host(policy_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(non_finite, "READ_AT_ONCE", ())  # as on a device
    looks: list[bool] = []

    def look(self: NonFiniteGuard) -> bool:
        looks.append(True)
        self._unseen.clear()
        return True

    monkeypatch.setattr(NonFiniteGuard, "look", look)
    policy = short(policy_class)
    datamodule = started(policy, env_of(policy_class), env_kwargs={"max_episode_steps": 9})
    policy.training_step(datamodule._next_round(), 0)
    for number in range(1, 9):  # the ring wraps around
        with NothingIsRead(), no_scalar():
            policy.training_step(datamodule._next_round(), number)
    with NothingIsRead(), no_scalar():
        datamodule._collect_and_push(2 * N, 0, random=True)
    assert looks
    assert datamodule.pop_episode_sums()[2] >= N
    datamodule.close()


def test_supported_policies_are_tested() -> None:
    classes = [POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY]
    own = [one for one in classes if one.__module__.startswith("lightning_ding.") and not one.on_policy]
    assert {one for one in own if one.supports_tensors} == {*DISCRETE, *CONTINUOUS}


# ---------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("policy_class", [DQNPolicy, C51Policy, SACPolicy, TD3Policy, CrossQPolicy])
def test_a_fit_collects_learns_and_evaluates(policy_class: Any) -> None:
    policy = short(policy_class)
    datamodule = ReplayDataModule(
        env_of(policy_class), num_envs=N, mode="tensor", max_env_step=40 * N, n_evaluator_episode=2, norm_obs=True,
        env_kwargs={"max_episode_steps": 20},
    )  # fmt: skip
    one = trainer(log_every_n_steps=2)
    one.fit(policy, datamodule)
    assert policy.progress.env_step == 40 * N
    assert policy.progress.train_iter == 3 * 18
    assert policy.progress.episode > 0
    assert int(policy.normaliser.get_submodule("obs").count) == 40 * N
    assert one.callback_metrics["buffer/count"] == 20 * N
    assert torch.isfinite(one.callback_metrics["eval/return_mean"])


def test_a_later_fit_continues_with_its_buffer() -> None:
    policy = short()
    datamodule = ReplayDataModule("CartPole-v1", num_envs=N, mode="tensor", max_env_step=8 * N)
    trainer().fit(policy, datamodule)
    datamodule.max_env_step = 12 * N
    trainer().fit(policy, datamodule)
    stored: Any = datamodule.buffer.transitions()  # type: ignore[union-attr]
    assert len(stored["reward"]) == 12 * N
    episodes = stored["episode_id"].view(-1, N)
    assert (episodes[8:].min() > episodes[:8].max()).all()


@pytest.mark.slow
@pytest.mark.parametrize("policy_class", [DQNPolicy, SACPolicy])
def test_compiled_updates_learn_what_eager_ones_do(policy_class: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        policy = short(policy_class, compile=compiles)
        trainer().fit(policy, ReplayDataModule(env_of(policy_class), num_envs=N, mode="tensor", max_env_step=14 * N))
        assert (policy.updater.compile_seconds > 0) == compiles
        found.append(policy.state_dict())
    assert not [one for one in caplog.records if one.name.startswith("lightning_ding") and "eagerly" in one.message]
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=0, atol=1e-5, msg=name)


class Overflowing(Pendulum):
    """Gives a reward of infinity in its tenth step."""

    def step(self, actions: Tensor) -> Any:
        obs, reward, *rest = super().step(actions)
        return obs, reward.where(self.elapsed != 10, torch.inf), *rest


def test_updates_that_are_not_finite_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the files are that reproduce it
    with pytest.raises(NonFiniteError, match="the optimizer step was skipped"):
        fit(short(SACPolicy), Overflowing, max_env_step=40 * N)


# ---------------------------------------------------------------------- errors


def fit(policy: Any, env: Any = "CartPole-v1", **kwargs: Any) -> None:
    arguments = {"num_envs": N, "mode": "tensor", "max_env_step": 64, **kwargs}
    trainer().fit(policy, ReplayDataModule(env, **arguments))


def buffer(**options: Any) -> Any:
    return {"replay_buffer": {"replay_buffer_size": 100, **options}}


BAD: dict[str, tuple[Callable[[], None], str]] = {
    "algorithm": (
        lambda: fit(RainbowPolicy()),
        "policy must be one of .*crossq, .*dqn, .*sac, .*td3.* got 'RainbowPolicy'",
    ),
    "soft": (lambda: fit(SQLPolicy()), "policy must be one of"),
    "sequences": (lambda: fit(R2D2Policy()), "policy must be one of"),
    "priorities": (
        lambda: fit(DQNPolicy({"priority": True, "other": buffer(type="advanced")})),
        "other.replay_buffer.type must be 'naive' with mode=\"tensor\", got 'advanced'",
    ),
    "hindsight": (lambda: fit(DQNPolicy({"other": buffer(type="her")})), "other.replay_buffer.type must be 'naive'"),
    "stacks": (lambda: fit(DQNPolicy({"other": buffer(frame_stack=4)})), "other.replay_buffer.frame_stack must be 1"),
    "files": (
        lambda: fit(DQNPolicy({"other": buffer(memmap_dir="somewhere")})),
        "other.replay_buffer.memmap_dir must be None",
    ),
    "used data": (
        lambda: fit(DQNPolicy({"other": buffer(enable_track_used_data=True)})),
        "other.replay_buffer.enable_track_used_data must be False",
    ),
    "noise": (
        lambda: fit(TD3Policy({"collect": {"noise_type": "ou"}}), "Pendulum-v1"),
        'collect.noise_type must be "gauss" with mode="tensor", got \'ou\'',
    ),
    "sde": (lambda: fit(SACPolicy({"model": {"use_sde": True}}), "Pendulum-v1"), "model.use_sde must be False"),
    "noisy layers": (lambda: fit(DQNPolicy({"model": {"noise": True}}), "CartPole-v1"), "model.noise must be False"),
    "reward model": (lambda: fit(DQNPolicy({"reward_model": {"type": "rnd"}})), "reward_model.type must be None"),
    "reward": (lambda: fit(DQNPolicy(), norm_reward=True), "norm_reward must be False"),
    "demonstrations": (
        lambda: fit(DQNPolicy(), demonstrations=_demonstrations()),
        "demonstrations must be None with mode=\"tensor\", got 'a data set'",
    ),
}


def _demonstrations() -> Any:
    obs, flags = np.zeros((4, 4), np.float32), np.zeros(4, bool)
    columns = {"obs": obs, "action": np.zeros(4, np.int64), "reward": np.ones(4, np.float32), "next_obs": obs}
    return {**columns, "terminated": flags, "truncated": flags}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_refused_at_the_start(case: str) -> None:
    run, text = BAD[case]
    with pytest.raises(ValueError, match=text):
        run()


# ---------------------------------------------------------------------- exact resume


def run_to(folder: Path, end: int, policy_class: Any, env: Any = None, **kwargs: Any) -> tuple[Any, Any]:
    """Train to an env step with checkpoints in a folder; return the policy and its buffer."""
    torch.manual_seed(0)
    policy = short(policy_class)
    datamodule = ReplayDataModule(
        env or env_of(policy_class), num_envs=N, mode="tensor", seed=3, max_env_step=end, rounds_per_epoch=4,
        n_evaluator_episode=2, env_kwargs={} if env else {"max_episode_steps": 11},
    )  # fmt: skip
    one = trainer(enable_checkpointing=True, default_root_dir=folder, callbacks=[RunCheckpoint(folder)])
    one.fit(policy, datamodule, **kwargs)
    return policy, datamodule.buffer


@pytest.mark.parametrize("policy_class", [DQNPolicy, SACPolicy, TD3Policy])
def test_a_resumed_run_is_exact(policy_class: Any, tmp_path: Path) -> None:
    whole, kept = run_to(tmp_path / "whole", 40 * N, policy_class)
    run_to(tmp_path / "half", 24 * N, policy_class)  # the ring has wrapped around
    last = tmp_path / "half" / "last.ckpt"
    resumed, restored = run_to(tmp_path / "half", 40 * N, policy_class, ckpt_path=last)
    assert resumed.progress.env_step == whole.progress.env_step == 40 * N
    assert resumed.progress.episode == whole.progress.episode
    for (name, one), other in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    states = kept.state_dict(), restored.state_dict()
    assert states[0]["counters"] == states[1]["counters"]
    for name, one in states[0]["tensors"].items():
        assert torch.equal(one, states[1]["tensors"][name]), name


def test_new_episodes_after_a_resume_have_new_numbers(tmp_path: Path) -> None:
    run_to(tmp_path, 8 * N, DQNPolicy, Opaque)
    _, kept = run_to(tmp_path, 12 * N, DQNPolicy, Opaque, ckpt_path=tmp_path / "last.ckpt")
    episodes = kept.transitions()["episode_id"].view(-1, N)
    assert len(episodes) == 12
    assert episodes[8:].min() > episodes[:8].max()


# ---------------------------------------------------------------------- learning


@pytest.mark.slow
def test_dqn_solves_cart_pole() -> None:
    torch.manual_seed(0)
    policy = DQNPolicy(
        {
            "random_collect_size": 2048,
            "model": {"encoder_hidden_size_list": [128, 128], "dueling": False},
            "learn": {"update_per_collect": 4, "batch_size": 256, "learning_rate": 1e-3, "target_update_freq": 100},
            "collect": {"n_sample": 64},
            "other": {
                "eps": {"type": "linear", "start": 1.0, "end": 0.05, "decay": 20_000},
                "replay_buffer": {"replay_buffer_size": 50_000},
            },
        }
    )
    datamodule = ReplayDataModule(
        "CartPole-v1", num_envs=64, mode="tensor", max_env_step=300_000, eval_every=4096, stop_value=475.0,
        n_evaluator_episode=16,
    )  # fmt: skip
    one = trainer(max_epochs=-1)
    one.fit(policy, datamodule)
    assert one.callback_metrics["eval/return_mean"] >= 475


@pytest.mark.slow
def test_sac_swings_up_the_pendulum() -> None:
    torch.manual_seed(0)
    policy = SACPolicy(
        {
            "random_collect_size": 1600,
            "model": {"actor_head_hidden_size": 64, "critic_head_hidden_size": 64},
            "learn": {
                "update_per_collect": 4,
                "batch_size": 256,
                **{f"learning_rate_{name}": 1e-3 for name in ("q", "policy", "alpha")},
            },
            "collect": {"n_sample": 16},
            "other": {"replay_buffer": {"replay_buffer_size": 60_000}},
        }
    )
    datamodule = ReplayDataModule(
        Pendulum, num_envs=16, mode="tensor", max_env_step=60_000, eval_every=4_000, stop_value=-200.0,
        n_evaluator_episode=16,
    )  # fmt: skip
    one = trainer(max_epochs=-1)
    one.fit(policy, datamodule)
    assert one.callback_metrics["eval/return_mean"] >= -200
