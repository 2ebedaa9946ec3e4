"""Schedules, and the learning rates and weights in the loss that follow them, in every algorithm."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.policy import create_policy
from lightning_ding.policy.base.config import LearnConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.utils.schedules import Schedule, ScheduleConfig
from tests.algorithms.table import ALGORITHMS, DISCRETE_ONLY, make_datamodule, make_policy, state_of, with_actor
from tests.conftest import MakeTrainer

LINEAR = {"type": "linear", "unit": "budget", "decay": None}


DISCRETE: dict[str, Any] = {"obs_shape": 4, "action_shape": 2}
SHAPES: dict[str, dict[str, Any]] = dict.fromkeys(ALGORITHMS, DISCRETE)
SHAPES |= {name: {**DISCRETE, "action_space": "discrete"} for name in with_actor()}


POINTS = [[0.25, 1.0], [0.5, 2.0], [0.75, 0.0]]


@pytest.mark.parametrize(
    ("kind", "step", "expected"),
    [
        ("constant", 10**9, 0.9),
        # from 0.9 to 0.1 with decay 100; linear: 0.9 - 0.8 * x / 100
        ("linear", 0, 0.9),
        ("linear", 25, 0.7),
        ("linear", 50, 0.5),
        ("linear", 100, 0.1),
        ("linear", 10**9, 0.1),
        # exp: 0.1 + 0.8 * e^(-x / 100)
        ("exp", 0, 0.9),
        ("exp", 50, 0.1 + 0.8 * 0.6065306597),
        ("exp", 100, 0.1 + 0.8 * 0.3678794412),
        ("exp", 10**9, 0.1),
        # cosine: 0.1 + 0.8 * (1 + cos(pi * x / 100)) / 2
        ("cosine", 0, 0.9),
        ("cosine", 25, 0.1 + 0.4 * 1.7071067812),
        ("cosine", 50, 0.5),
        ("cosine", 100, 0.1),
        ("cosine", 10**9, 0.1),
    ],
)
@pytest.mark.parametrize("unit", ["env_step", "budget"])
def test_schedule_goes_from_start_to_end(kind: Any, step: int, expected: float, unit: Any) -> None:
    decay = 100 if unit == "env_step" else 0.5  # of a budget of 200
    value = Schedule(kind, start=0.9, end=0.1, decay=decay, unit=unit).value(step, budget=200)
    assert math.isclose(value, expected, rel_tol=1e-9)


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.5), ("exp", 0.9 - 0.8 * 0.6065306597), ("cosine", 0.5)])
def test_schedule_can_rise(kind: Any, middle: float) -> None:
    schedule = Schedule(kind, start=0.1, end=0.9, decay=100)
    assert np.allclose([schedule.value(step) for step in (0, 50, 10**9)], [0.1, middle, 0.9], rtol=1e-9)


def test_piecewise_schedule_interpolates_between_its_points() -> None:
    # flat before 0.25, up by 1 to 0.5, down by 2 to 0.75, flat after it
    schedule = Schedule("piecewise", 1.0, 0.0, unit="budget", points=POINTS)
    found = [schedule.value(step, budget=100) for step in (0, 25, 30, 50, 60, 75, 100, 1000)]
    assert np.allclose(found, [1.0, 1.0, 1.2, 2.0, 1.2, 0.0, 0.0, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "is_over"),
    [
        (Schedule("constant", 1.0, 0.0), [False, False, False]),
        (Schedule("linear", 1.0, 0.0, 100), [False, False, True]),
        (Schedule("cosine", 1.0, 0.0, 0.5, "budget"), [False, False, True]),
        (Schedule("exp", 1.0, 0.0, 10), [False, False, False]),
        (Schedule("piecewise", 1.0, 0.0, points=[[0, 1.0], [100, 0.0]]), [False, False, True]),
    ],
)
def test_schedule_is_over_once_the_run_goes_past_its_end(schedule: Schedule, is_over: list[bool]) -> None:
    assert [schedule.is_over(step, budget=200) for step in (0, 100, 101)] == is_over


@pytest.mark.parametrize("method", ["value", "is_over"])
def test_error_of_a_schedule_without_budget_names_the_option_to_set(method: str) -> None:
    with pytest.raises(ValueError, match=r"set max_env_step on the datamodule .* or use unit='env_step'"):
        getattr(Schedule("linear", 1.0, 0.0, unit="budget"), method)(5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "step"}, "type must be one of 'constant', 'linear', 'exp', 'cosine', 'piecewise', got 'step'"),
        ({"unit": "train_iter"}, "unit must be 'env_step' or 'budget', got 'train_iter'"),
        ({"decay": 0}, "decay must be > 0, got 0"),
        ({"decay": -1}, "decay must be > 0, got -1"),
        ({"type": "piecewise"}, "points must be set with type='piecewise'"),
        ({"points": POINTS}, "points must be set with type='piecewise' and with no other"),
        ({"type": "piecewise", "points": [[0.5, 1.0], [0.25, 0.0]]}, "increasing x >= 0"),
        ({"type": "piecewise", "points": [[0.5, 1.0], [0.5, 0.0]]}, "increasing x >= 0"),
        ({"type": "piecewise", "points": [[-0.5, 1.0], [0.5, 0.0]]}, "increasing x >= 0"),
        ({"type": "piecewise", "points": [[-1.0, 1.0]]}, "increasing x >= 0"),
        ({"type": "piecewise", "points": [[0.0, 1.0, 2.0]]}, "pairs"),
    ],
)
def test_schedule_refuses_what_makes_none(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**{"type": "linear", "start": 1.0, "end": 0.0, **arguments})


OWN_STEPS = {"mbpo": -1, "trpo": -1}  # the last optimizer has a separate section, or takes steps as they are


def shaped(name: str, **learn: Any) -> Any:
    """Return a policy with a network."""
    return make_policy(name, model=SHAPES[name], learn=learn)


class Rates(Callback):
    """Notes where the rounds begin, and the learning rates and weights that they are learned with."""

    def __init__(self) -> None:
        self.starts: list[int] = [0]
        self.rates: list[list[float]] = []
        self.values: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        self.starts.append(pl_module.progress.env_step)
        self.rates.append([one.param_groups[0]["lr"] for one in trainer.optimizers])
        self.values.append(dict(pl_module.scheduled_values()))


def run(
    make_trainer: MakeTrainer, name: str, budget: int | None, learn: Any, *callbacks: Callback, **kwargs: Any
) -> tuple[Any, Rates]:
    """Train for 64 env steps, or up to the budget, and return the policy and the rates of its rounds."""
    rates = Rates()
    arguments: dict[str, Any] = {"max_env_step": budget} if budget else {"max_train_iter": 8}
    torch.manual_seed(0)
    policy = make_policy(name, learn=learn)
    trainer = make_trainer(limit_val_batches=0, callbacks=[rates, *callbacks], enable_checkpointing=bool(callbacks))
    trainer.fit(policy, make_datamodule(name, **arguments), **kwargs)
    return policy, rates


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_default_line_of_every_algorithm_ends_with_the_budget(make_trainer: MakeTrainer, name: str) -> None:
    budget = 96
    default = [one.param_groups[0]["lr"] for one in shaped(name).updater.optimizers]
    _, rates = run(make_trainer, name, budget, {"lr_scheduler": LINEAR})
    assert len(rates.rates) > 2
    for start, found in zip(rates.starts, rates.rates, strict=False):
        learned = slice(OWN_STEPS.get(name))
        assert found[learned] == pytest.approx([rate * (1 - start / budget) for rate in default[learned]])
    assert min(rates.rates[-1]) > 0  # no round is learned from in vain
    assert rates.starts[-1] >= budget


def test_weights_in_the_loss_follow_their_schedules(make_trainer: MakeTrainer) -> None:
    learn = {
        "entropy_weight": 0.5,
        "entropy_weight_scheduler": {"type": "linear", "end": 0.5},
        "clip_ratio_scheduler": {"type": "linear", "unit": "env_step", "decay": 32},
    }
    _, rates = run(make_trainer, "ppo", 64, learn)
    # rounds of 16 begin at 0, 16, 32 and 48
    factors = zip((1, 0.5, 0, 0), (1, 0.875, 0.75, 0.625), strict=True)
    expected = [{"clip_ratio": 0.2 * clip, "entropy_weight": 0.5 * entropy} for clip, entropy in factors]
    assert rates.values == [pytest.approx(values) for values in expected]


def test_what_is_scheduled_is_logged(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    learn = {"entropy_weight": 0.5, "entropy_weight_scheduler": LINEAR, "lr_scheduler": LINEAR}
    config = deep_merge(ALGORITHMS["a2c"].config, {"learn": learn})
    trainer = make_trainer(limit_val_batches=0, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    trainer.fit(create_policy({"type": "a2c", **config}), make_datamodule("a2c", max_env_step=64))
    assert trainer.callback_metrics["learn/entropy_weight"].item() == pytest.approx(0.5 * 0.25)
    assert trainer.callback_metrics["learn/cur_lr"].item() == pytest.approx(1e-3 * 0.25)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_a_resumed_run_continues_the_schedule_bit_for_bit(make_trainer: MakeTrainer, tmp_path: Path, name: str) -> None:
    learn = {"lr_scheduler": {"type": "cosine", "unit": "env_step", "decay": 100, "end": 0.1}}
    whole, rates = run(make_trainer, name, 96, learn, RunCheckpoint(tmp_path / "whole"))
    run(make_trainer, name, 48, learn, RunCheckpoint(tmp_path / "half"))
    saver, last = RunCheckpoint(tmp_path / "half"), tmp_path / "half" / "last.ckpt"
    resumed, rest = run(make_trainer, name, 96, learn, saver, ckpt_path=last)
    assert rest.rates == rates.rates[-len(rest.rates) :]
    found, expected = (state_of(policy, None) for policy in (resumed, whole))
    assert (found["tensors"], found["optimizers"]) == (expected["tensors"], expected["optimizers"])


@pytest.mark.parametrize("scheduler", ["lr_scheduler", "clip_ratio_scheduler"])
def test_a_share_of_no_budget_is_refused_before_training(make_trainer: MakeTrainer, scheduler: str) -> None:
    with pytest.raises(ValueError, match=r"set max_env_step on the datamodule .* or use unit='env_step'"):
        run(make_trainer, "ppo", None, {scheduler: LINEAR})


def test_run_resumed_without_its_schedule_continues_with_the_rate_of_the_config_and_says_so(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(make_trainer, "ppo", 64, {"lr_scheduler": LINEAR}, RunCheckpoint(tmp_path))
    learn, last = {"lr_scheduler": {**LINEAR, "type": "constant"}}, tmp_path / "last.ckpt"

    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        policy, _ = run(make_trainer, "ppo", 96, learn, RunCheckpoint(tmp_path), ckpt_path=last)

    assert policy.cur_lr() == 3e-4
    assert "uses the settings of this run: lr 0.0003, not 7.5" in caplog.text


def test_a_run_that_outlives_its_schedule_says_so_once(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = {"type": "linear", "unit": "env_step", "decay": 20}
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        run(make_trainer, "a2c", 96, {"lr_scheduler": schedule})
    text = "the schedule learn.lr_scheduler has ended; the run continues with its last factor, 0"
    assert caplog.text.count("the schedule") == caplog.text.count(text) == 1


def test_the_end_of_a_warm_up_is_not_warned_of(make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    warm_up = {"type": "piecewise", "unit": "env_step", "points": [[0, 0.1], [20, 1.0]]}
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        policy, _ = run(make_trainer, "dqn", 96, {"lr_scheduler": warm_up})
    assert policy.cur_lr() == policy.config.learn.learning_rate
    assert "the schedule" not in caplog.text


def test_a_run_that_ends_with_its_schedule_says_nothing(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        run(make_trainer, "a2c", 90, {"lr_scheduler": LINEAR})  # the last round goes to 96
    assert "the schedule" not in caplog.text


def test_nothing_is_evaluated_when_nothing_is_scheduled(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("lightning_ding.utils.schedules.ScheduledValues.apply", lambda *args: calls.append(1))
    run(make_trainer, "dqn", 64, {})
    assert calls == []


def test_schedules_are_evaluated_once_a_round(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("lightning_ding.utils.schedules.ScheduledValues.apply", lambda *args: calls.append(1))
    _, rates = run(make_trainer, "dqn", 64, {"lr_scheduler": LINEAR})
    assert len(calls) == 1 + len(rates.rates)  # at the start, too


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"type": "step"}, "learn.lr_scheduler.type' must be one of 'constant', 'linear'"),
        ({"end": 0.5}, "lr_scheduler.end must be left at its default with type constant"),
        ({"unit": "env_step"}, "lr_scheduler.unit must be left at its default with type constant"),
        ({"type": "linear", "end": -0.5}, "lr_scheduler.end must be >= 0"),
        ({"type": "linear", "unit": "env_step"}, "lr_scheduler.decay must be set with unit env_step"),
        ({"type": "linear", "decay": 0.0}, "lr_scheduler.decay must be > 0 or None"),
        ({"type": "linear", "points": [[0.0, 1.0]]}, "lr_scheduler.points must be pairs"),
        ({"type": "piecewise"}, "lr_scheduler.points must be pairs"),
        ({"type": "piecewise", "points": [[0.0, -1.0]]}, "lr_scheduler.points must be factors >= 0"),
        ({"type": "piecewise", "points": [[0.5, 1.0], [0.1, 0.0]]}, "points must be pairs .* with increasing x"),
        ({"type": "piecewise", "points": [[0.0, 1.0]], "end": 0.5}, "left at its default with type piecewise"),
        ({"epoch_num": 3}, "lr_scheduler.epoch_num' does not exist here: set type: linear"),
        ({"min_lr_lambda": 0.1}, "lr_scheduler.min_lr_lambda' does not exist here: set end"),
    ],
)
@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
def test_a_schedule_that_cannot_be_is_refused(name: str, section: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        create_policy({"type": name, "learn": {"lr_scheduler": section}})


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("learn", "message"),
    [
        (
            {"optimizer": {"type": "sgd", "eps": 1e-4}},
            "learn.optimizer.eps must be left at its default with sgd, got 0.0001",
        ),
        ({"optimizer": {"type": "adam", "momentum": 0.9}}, "learn.optimizer.momentum must be 0 with adam, got 0.9"),
        ({"optimizer": {"type": "sgd", "momentum": 1.0}}, r"learn.optimizer.momentum must be in \[0, 1\), got 1.0"),
        ({"optimizer": {"weight_decay": -1.0}}, "learn.optimizer.weight_decay must be >= 0, got -1.0"),
        ({"optimizer": {"eps": 0.0}}, "learn.optimizer.eps must be > 0, got 0.0"),
        ({"optimizer": {"type": "lion"}}, "learn.optimizer.type' must be one of .*, 'laprop', 'rmsprop', 'sgd'"),
        (
            {"grad_clip_norm": 1.0, "grad_clip_value": 1.0},
            r"grad_clip_value must be None unless grad_clip_norm \(1.0\) is set to None",
        ),
        ({"grad_clip_norm": None, "grad_clip_value": 0.0}, "learn.grad_clip_value must be > 0 or None, got 0.0"),
        ({"weight_decay": 0.1}, "'learn.weight_decay' does not exist here: set optimizer.weight_decay"),
        ({"grad_clip_type": "clip_norm"}, "does not exist here: set grad_clip_norm"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(name: str, learn: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        create_policy({"type": name, "learn": learn})


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "sgd"])
def test_every_algorithm_has_the_optimizer_of_its_config(name: str, kind: str) -> None:
    betas = {} if kind.startswith("adam") else {"betas": [0.9, 0.999]}  # the default, which others have no use for
    of_laprop: dict[str, Any] = {"agc": None, "warmup": 0} if name == "dreamerv3" else {}
    policy = shaped(name, optimizer={"type": kind, "weight_decay": 0.25, **betas}, **of_laprop)
    optimizers = policy.updater.optimizers[: OWN_STEPS.get(name)]
    decays = [one.param_groups[0]["weight_decay"] for one in optimizers]
    assert {type(one).__name__.lower() for one in optimizers} == {kind}
    has_temperature = hasattr(policy, "alpha")  # which does not decay
    without = has_temperature + (name == "bro")  # the weights of the explorer's objective do not decay either
    assert sorted(decays) == [0.0] * without + [0.25] * (len(decays) - without)
    eps = policy.config_class().learn.optimizer.eps
    assert eps == 1e-5 or name in DISCRETE_ONLY or not isinstance(policy, OnPolicyPolicy)
    assert all(one.defaults.get("eps", eps) == eps for one in optimizers)


def test_the_shared_section_changes_nothing_by_default() -> None:
    learn = LearnConfig()
    assert (learn.lr_scheduler, learn.optimizer) == (ScheduleConfig(), OptimizerConfig(type="adam", eps=1e-8))
    assert ScheduleConfig().schedule().value(10**9) == 1.0


@pytest.mark.parametrize(("rollout", "expected"), [(0, 1.0), (1, 0.775), (2, 0.55), (4, 0.1), (9, 0.1)])
def test_a_linear_factor_is_that_of_epoch_num_and_min_lr_lambda(rollout: int, expected: float) -> None:
    # DI-engine: max(1 - epoch (1 - min_lr_lambda) / epoch_num, min_lr_lambda), with epoch_num 4 and min_lr_lambda 0.1;
    # an epoch is a rollout, here of 256 env steps
    section = ScheduleConfig(type="linear", unit="env_step", decay=4 * 256, end=0.1)
    assert section.schedule().value(rollout * 256) == pytest.approx(expected)
