from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer

Config = dict[str, Any]


class Listener(Callback):
    """Counts the hooks around backward and step."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def on_before_backward(self, *args: Any) -> None:
        self.calls["on_before_backward"] += 1

    def on_after_backward(self, *args: Any) -> None:
        self.calls["on_after_backward"] += 1

    def on_before_optimizer_step(self, *args: Any) -> None:
        self.calls["on_before_optimizer_step"] += 1


class Path(Callback):
    """Notes whether the updates go past Lightning's hooks."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.is_fast = pl_module.updater.steps_directly


class BeforeBackward(Callback):
    """Has the first hook only."""

    def on_before_backward(self, *args: Any) -> None: ...


class AfterBackward(Callback):
    """Has the second hook only."""

    def on_after_backward(self, *args: Any) -> None: ...


class BeforeStep(Callback):
    """Has the third hook only."""

    def on_before_optimizer_step(self, *args: Any) -> None: ...


class HookedPolicy(DQNPolicy):
    """A policy that has a hook itself."""

    def on_before_optimizer_step(self, optimizer: Any) -> None: ...


class OwnBackward(DQNPolicy):
    """A policy that counts its backward passes."""

    passes = 0

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self.passes += 1
        super().backward(loss, *args, **kwargs)


class OwnSteps(SingleDeviceStrategy):
    """A strategy that counts the steps of optimizers."""

    steps = 0

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        return super().optimizer_step(*args, **kwargs)


def fit(trainer: Trainer, config: Config, policy_class: type[DQNPolicy] = DQNPolicy) -> DQNPolicy:
    """Make 24 updates from the same start."""
    torch.manual_seed(0)
    policy = policy_class(config)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, seed=1, max_train_iter=24))
    return policy


def takes_fast_path(
    make_trainer: MakeTrainer, small: Config, *callbacks: Callback, policy: type[DQNPolicy] = DQNPolicy, **flags: Any
) -> bool:
    path = Path()
    fit(make_trainer(callbacks=[path, *callbacks], limit_val_batches=0, **flags), small, policy)
    return bool(path.is_fast)


@pytest.mark.parametrize("grad_clip_norm", [None, 0.1])
def test_updates_past_the_hooks_are_bit_identical_to_those_through_them(
    make_trainer: MakeTrainer, small: Config, grad_clip_norm: float | None
) -> None:
    config = deep_merge(small, {"learn": {"grad_clip_norm": grad_clip_norm}})
    fast = fit(make_trainer(limit_val_batches=0), config)
    slow = fit(make_trainer(limit_val_batches=0, callbacks=[Listener()]), config)
    torch.testing.assert_close(dict(fast.state_dict()), dict(slow.state_dict()), rtol=0, atol=0)


def test_hooks_of_a_callback_are_called_once_for_each_update(make_trainer: MakeTrainer, small: Config) -> None:
    listener = Listener()
    fit(make_trainer(limit_val_batches=0, callbacks=[listener]), small)
    assert listener.calls == {"on_before_backward": 24, "on_after_backward": 24, "on_before_optimizer_step": 24}


@pytest.mark.parametrize("callbacks", [[], [Listener()]])
def test_global_step_counts_updates_on_both_paths(
    make_trainer: MakeTrainer, small: Config, callbacks: list[Callback]
) -> None:
    trainer = make_trainer(limit_val_batches=0, callbacks=callbacks)
    policy = fit(trainer, small)
    assert trainer.global_step == policy.progress.train_iter == 24


def test_a_run_without_listeners_skips_the_hooks(make_trainer: MakeTrainer, small: Config) -> None:
    assert takes_fast_path(make_trainer, small)


@pytest.mark.parametrize("callback", [BeforeBackward(), AfterBackward(), BeforeStep()])
def test_any_hook_of_a_callback_is_heard(make_trainer: MakeTrainer, small: Config, callback: Callback) -> None:
    assert not takes_fast_path(make_trainer, small, callback)


def test_hook_of_the_policy_is_heard(make_trainer: MakeTrainer, small: Config) -> None:
    assert not takes_fast_path(make_trainer, small, policy=HookedPolicy)


def test_backward_of_the_policy_is_called_for_each_update(make_trainer: MakeTrainer, small: Config) -> None:
    policy: Any = fit(make_trainer(limit_val_batches=0), small, OwnBackward)
    assert policy.passes == 24


def test_step_of_a_strategy_of_the_user_is_called_for_each_update(make_trainer: MakeTrainer, small: Config) -> None:
    strategy = OwnSteps(device=torch.device("cpu"))
    fit(make_trainer(limit_val_batches=0, strategy=strategy), small)
    assert strategy.steps == 24


def test_profiler_times_every_update(make_trainer: MakeTrainer, small: Config) -> None:
    profiler = SimpleProfiler()
    assert not takes_fast_path(make_trainer, small, profiler=profiler)
    assert len(profiler.recorded_durations["optimizer_step"]) == 24


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_precision_that_does_nothing_to_a_loss_goes_past_the_hooks(
    make_trainer: MakeTrainer, small: Config, precision: str
) -> None:
    assert takes_fast_path(make_trainer, small, precision=precision)
