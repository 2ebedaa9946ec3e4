from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.policy.base.trainer import SilentProfiler

MakeTrainer = Callable[..., Trainer]
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


def test_profiler_times_every_update(make_trainer: MakeTrainer, small: Config) -> None:
    profiler = SimpleProfiler()
    assert not takes_fast_path(make_trainer, small, profiler=profiler)
    assert len(profiler.recorded_durations["optimizer_step"]) == 24


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_precision_that_does_nothing_to_a_loss_goes_past_the_hooks(
    make_trainer: MakeTrainer, small: Config, precision: str
) -> None:
    assert takes_fast_path(make_trainer, small, precision=precision)


class Transfers(DQNPolicy):
    """A policy that counts the batches before their transfer."""

    seen = 0

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        type(self).seen += 1
        return batch


class TransfersData(ReplayDataModule):
    """A datamodule that counts the batches after their transfer."""

    seen = 0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        type(self).seen += 1
        return batch


def rounds_and_transfers(
    trainer: Trainer, config: Config, policy_class: type[DQNPolicy], data_class: type[ReplayDataModule]
) -> tuple[int, int, bool]:
    """Return the rounds of a fit, the batches that a hook saw, and whether the hooks were skipped."""
    policy_class.seen = data_class.seen = 0  # type: ignore[attr-defined]
    policy = policy_class(config)
    skips: list[bool] = []
    rounds = Rounds(skips)
    trainer.callbacks.append(rounds)  # type: ignore[attr-defined]
    trainer.fit(policy, data_class("CartPole-v1", num_envs=2, seed=1, max_train_iter=24))
    return len(skips), policy_class.seen + data_class.seen, all(skips)  # type: ignore[attr-defined]


class Rounds(Callback):
    """Notes for each round whether the hooks of the transfer are skipped."""

    def __init__(self, skips: list[bool]) -> None:
        self.skips = skips

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.skips.append("_call_batch_hook" in vars(pl_module))


def test_hooks_of_the_transfer_are_skipped_if_nothing_implements_them(make_trainer: MakeTrainer, small: Config) -> None:
    trainer = make_trainer(limit_val_batches=0)
    rounds, _, skips = rounds_and_transfers(trainer, small, DQNPolicy, ReplayDataModule)
    assert rounds
    assert skips
    assert "_call_batch_hook" not in vars(trainer.lightning_module)  # another Trainer may have to call them


@pytest.mark.parametrize(("policy", "data"), [(Transfers, ReplayDataModule), (DQNPolicy, TransfersData)])
def test_hooks_of_the_transfer_see_each_round(
    make_trainer: MakeTrainer, small: Config, policy: type[DQNPolicy], data: type[ReplayDataModule]
) -> None:
    rounds, seen, skips = rounds_and_transfers(make_trainer(limit_val_batches=0), small, policy, data)
    assert rounds == seen
    assert not skips


def test_a_profiler_measures_the_hooks_of_the_transfer(make_trainer: MakeTrainer, small: Config) -> None:
    trainer = make_trainer(limit_val_batches=0, profiler=SimpleProfiler())
    assert not rounds_and_transfers(trainer, small, DQNPolicy, ReplayDataModule)[2]


class OwnProfiler(PassThroughProfiler):
    """A profiler that counts what it is asked to profile."""

    started = 0

    def start(self, action_name: str) -> None:
        self.started += 1


def test_only_the_default_profiler_is_replaced(make_trainer: MakeTrainer, small: Config) -> None:
    default, own = make_trainer(limit_val_batches=0), make_trainer(limit_val_batches=0, profiler=OwnProfiler())
    rounds = [rounds_and_transfers(one, small, DQNPolicy, ReplayDataModule)[0] for one in (default, own)]
    profilers: Any = [one.profiler for one in (default, own)]  # type: ignore[attr-defined]
    assert list(map(type, profilers)) == [SilentProfiler, OwnProfiler]
    assert profilers[1].started > 10 * rounds[1]
