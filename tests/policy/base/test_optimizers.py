"""What ``configure_optimizers`` of a subclass returns is stepped: in a fit, with a listener, compiled, alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.nn.utils import parameters_to_vector
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy, SACPolicy
from lightning_ding.policy.base.optimizers import read_configuration
from tests.conftest import MakeTrainer

Config = dict[str, Any]
Configure = Callable[[Any], Any]


class OwnDQN(DQNPolicy):
    """DQN with what ``configure`` returns."""

    configure: Configure

    def configure_optimizers(self) -> Any:
        return self.configure(self)


class OwnSAC(SACPolicy):
    """SAC with one optimizer for everything."""

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


class Listener(Callback):
    """Lets every update go through Lightning's hooks."""

    def on_before_optimizer_step(self, *args: Any) -> None: ...


def own(small: Config, configure: Configure, **change: Any) -> OwnDQN:
    torch.manual_seed(0)
    policy = OwnDQN(deep_merge(small, change))
    policy.configure = partial(configure)
    return policy


def fit(trainer: Trainer, policy: Any, updates: int = 8, **kwargs: Any) -> torch.Tensor:
    """Train for so many updates, two a round and four an epoch; return the weights."""
    data = ReplayDataModule("CartPole-v1", num_envs=2, seed=1, max_train_iter=updates, rounds_per_epoch=2)
    trainer.fit(policy, data, **kwargs)
    return weights(policy)


def weights(policy: Any) -> torch.Tensor:
    return parameters_to_vector(policy.model.parameters()).detach().clone()


def batch() -> Config:
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(2, 8, 4, generator=generator)
    numbers = {"action": torch.arange(8) % 2, "reward": torch.arange(8.0), "terminated": torch.arange(8) % 3 == 0}
    return {"obs": obs[0], "next_obs": obs[1], **numbers}


def sgd(policy: Any, lr: float = 0.5) -> SGD:
    return SGD(policy.model.parameters(), lr=lr)


@pytest.mark.parametrize("callbacks", [[], [Listener()]])
@pytest.mark.parametrize("compiles", [False, True])
def test_an_optimizer_of_rate_zero_moves_nothing(
    make_trainer: MakeTrainer, small: Config, callbacks: list[Callback], compiles: bool
) -> None:
    shapes = {"obs_shape": 4, "action_shape": 2}
    policy = own(small, lambda policy: sgd(policy, lr=0.0), compile=compiles, model=shapes)
    before = weights(policy)
    assert torch.equal(fit(make_trainer(limit_val_batches=0, callbacks=callbacks), policy), before)
    assert policy.cur_lr() == 0.0


def test_a_listener_changes_no_weights(make_trainer: MakeTrainer, small: Config) -> None:
    alone, heard, plain = (
        fit(make_trainer(limit_val_batches=0, callbacks=callbacks), own(small, configure))
        for callbacks, configure in (([], sgd), ([Listener()], sgd), ([], DQNPolicy.configure_optimizers))
    )
    assert torch.equal(alone, heard)
    assert not torch.equal(alone, plain)


def test_a_loop_without_a_trainer_steps_it_too(small: Config) -> None:
    policy = own(deep_merge(small, {"model": {"obs_shape": 4, "action_shape": 2}}), lambda policy: sgd(policy, lr=0.0))
    before = weights(policy)
    policy.learn_mode.forward(batch())
    assert torch.equal(weights(policy), before)
    assert policy.learn_mode.state_dict()["optimizer"][0]["param_groups"][0]["lr"] == 0.0


def scheduled(policy: Any, interval: str = "step", frequency: int = 1, **kwargs: Any) -> Any:
    """Return the policy's own Adam, whose rate a StepLR halves."""
    (optimizer,), _ = DQNPolicy.configure_optimizers(policy)
    scheduler = {"scheduler": StepLR(optimizer, 1, 0.5), "interval": interval, "frequency": frequency, **kwargs}
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


@pytest.mark.parametrize(
    ("interval", "frequency", "halvings"),
    # 8 updates, 2 epochs of 4
    [("step", 1, 8), ("step", 4, 2), ("step", 3, 2), ("epoch", 1, 2), ("epoch", 2, 1)],
)
@pytest.mark.parametrize("callbacks", [[], [Listener()]])
def test_a_scheduler_is_stepped_in_its_unit(
    make_trainer: MakeTrainer,
    small: Config,
    interval: str,
    frequency: int,
    halvings: int,
    callbacks: list[Callback],
    recwarn: pytest.WarningsRecorder,
) -> None:
    policy = own(small, partial(scheduled, interval=interval, frequency=frequency))
    fit(make_trainer(limit_val_batches=0, callbacks=callbacks), policy)
    assert policy.cur_lr() == pytest.approx(1e-3 * 0.5**halvings)
    assert not [one for one in recwarn if "lr_scheduler.step" in str(one.message)]


def test_a_scheduler_without_a_dict_is_stepped_once_an_epoch(make_trainer: MakeTrainer, small: Config) -> None:
    def configure(policy: Any) -> Any:
        optimizer = sgd(policy, lr=1.0)
        return [optimizer], [StepLR(optimizer, 1, 0.5)]

    policy = own(small, configure)
    fit(make_trainer(limit_val_batches=0), policy)
    assert policy.cur_lr() == 0.25


def test_a_loop_without_a_trainer_steps_schedulers_of_updates(small: Config, caplog: pytest.LogCaptureFixture) -> None:
    shapes = deep_merge(small, {"model": {"obs_shape": 4, "action_shape": 2}})
    policy, other = own(shapes, scheduled), own(shapes, partial(scheduled, interval="epoch"))
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        for one in (policy, other):
            for _ in range(3):
                one.learn_mode.forward(batch())
    assert (policy.cur_lr(), other.cur_lr()) == (1e-3 * 0.5**3, 1e-3)
    assert caplog.text.count("without a Trainer there are no epochs, so nothing steps the StepLR") == 1


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_resumed_run_continues_the_schedule(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, interval: str
) -> None:
    def run(name: str, updates: int, **kwargs: Any) -> tuple[torch.Tensor, float]:
        policy = own(small, partial(scheduled, interval=interval))
        saver = RunCheckpoint(tmp_path / name)
        trainer = make_trainer(limit_val_batches=0, enable_checkpointing=True, callbacks=[saver])
        return fit(trainer, policy, updates, **kwargs), policy.cur_lr()

    whole = run("whole", 12)
    run("half", 6)  # ends within an epoch
    resumed = run("half", 12, ckpt_path=tmp_path / "half" / "last.ckpt")
    assert torch.equal(resumed[0], whole[0])
    assert resumed[1] == whole[1] < 1e-3


def test_learning_rate_monitor_writes_the_scheduled_rate(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy, monitor = own(small, partial(scheduled, name="rate")), LearningRateMonitor()
    flags: Config = {"logger": CSVLogger(tmp_path), "log_every_n_steps": 1, "limit_val_batches": 0}
    fit(make_trainer(callbacks=[monitor], **flags), policy)
    assert monitor.lrs["rate"] == [1e-3 * 0.25**number for number in range(4)]  # before each round of two updates


def plateau(policy: Any) -> Any:
    optimizer = sgd(policy)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "x"}}


REFUSED: dict[str, tuple[Configure, str]] = {
    "a plateau": (plateau, "must not return ReduceLROnPlateau.*on_validation_epoch_end"),
    "LBFGS": (lambda policy: LBFGS(policy.model.parameters()), "without LBFGS"),
    "two optimizers": (
        lambda policy: [sgd(policy), sgd(policy)],
        r"returns 1, one for each loss, got \['SGD', 'SGD'\]",
    ),
    "foreign parameters": (lambda policy: SGD([torch.zeros(1)], lr=1.0), "optimizers of the policy's parameters"),
    "another interval": (partial(scheduled, interval="round"), 'interval must be "step" or "epoch" for StepLR'),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("has_trainer", [True, False])
def test_what_cannot_work_is_refused_by_name(
    make_trainer: MakeTrainer, small: Config, case: str, has_trainer: bool
) -> None:
    configure, message = REFUSED[case]
    policy = own(deep_merge(small, {"model": {"obs_shape": 4, "action_shape": 2}}), configure)
    with pytest.raises(ValueError, match=message):
        fit(make_trainer(limit_val_batches=0), policy) if has_trainer else policy.learn_mode.forward(batch())


def test_one_optimizer_for_three_losses_is_refused() -> None:
    policy = OwnSAC({"model": {"obs_shape": 3, "action_shape": 1}})
    with pytest.raises(ValueError, match=r"OwnSAC must be one that returns 3, one for each loss, got \['SGD'\]"):
        policy.learn_mode.state_dict()


def test_mistakes_are_named(make_trainer: MakeTrainer, small: Config) -> None:
    with pytest.raises(ValueError, match="configure_optimizers of OwnDQN must be one that returns"):
        fit(make_trainer(limit_val_batches=0), own(small, lambda policy: None))
    learn = {"lr_scheduler": {"type": "linear", "unit": "env_step", "decay": 100}}
    with pytest.raises(ValueError, match=r"learn\.lr_scheduler must be of type constant with a scheduler"):
        fit(make_trainer(limit_val_batches=0), own(small, scheduled, learn=learn))


def test_every_form_of_lightning_is_read() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    first, second = SGD([parameter], lr=1.0), SGD([parameter], lr=1.0)
    rate = LambdaLR(first, lambda number: 1.0)
    described = {"scheduler": rate, "interval": "step", "monitor": "x", "unknown": 1}
    forms: list[tuple[Any, list[Any], list[str]]] = [
        (None, [], []),
        (first, [first], []),
        ([first, second], [first, second], []),
        ((first, second), [first, second], []),
        (([first], [rate]), [first], ["epoch"]),
        (([first], rate), [first], ["epoch"]),
        (([first], [described]), [first], ["step"]),
        ({"optimizer": first}, [first], []),
        ({"optimizer": first, "lr_scheduler": rate}, [first], ["epoch"]),
        ([{"optimizer": first, "lr_scheduler": described}, {"optimizer": second}], [first, second], ["step"]),
    ]
    for returned, optimizers, intervals in forms:
        found, configs = read_configuration(returned)
        assert found == optimizers
        assert [(config.scheduler, config.interval) for config in configs] == [(rate, one) for one in intervals]
