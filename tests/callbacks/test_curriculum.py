"""Raising the level of the training envs by a metric. The reward of each of three steps of an episode is the level."""

from __future__ import annotations

import csv
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.call import _call_callbacks_load_state_dict

from lightning_ding.callbacks import Curriculum, RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.toys.levels import LevelEnv

Config = dict[str, Any]
LEVELS = [1.0, 2.0, 4.0]


class Noted(Callback):
    """Notes the env step, the number of the level and what the envs have after each round."""

    def __init__(self, curriculum: Curriculum, attribute: str = "level") -> None:
        self.curriculum, self.attribute = curriculum, attribute
        self.levels: dict[int, tuple[int, float]] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        (value, _) = trainer.datamodule.training_envs().get_attr(self.attribute)  # type: ignore[attr-defined]
        self.levels[pl_module.progress.env_step] = (self.curriculum.level, value)


def fit(
    make_trainer: MakeTrainer, small: Config, curriculum: Curriculum, max_env_step: int = 64, **flags: Any
) -> Noted:
    noted = Noted(curriculum, flags.pop("attribute", "level"))
    module = ReplayDataModule(
        LevelEnv, num_envs=2, max_env_step=max_env_step, rounds_per_epoch=2, **flags.pop("data", {})
    )
    torch.manual_seed(0)
    make_trainer(**{"callbacks": [curriculum, noted], "log_every_n_steps": 1, **flags}).fit(DQNPolicy(small), module)
    return noted


def test_level_is_raised_when_the_metric_is_high_enough_after_enough_episodes(
    make_trainer: MakeTrainer, small: Config, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lightning_ding")
    curriculum = Curriculum("level", LEVELS, threshold=[3.0, 6.0], min_episodes=4)
    noted = fit(make_trainer, small, curriculum)
    # two episodes end every 6 env steps: 8 until step 24, the end of the first round, at a return of 3. The last two of
    # the 4 until step 36 began at level 0, and two of the 4 in the round until 40 have returns of 6
    assert noted.levels[24] == (0, 1.0)
    assert noted.levels[32] == (1, 2.0)
    assert max(noted.levels.values()) == (2, 4.0)
    assert "level 1 of 2, level=2.0, at env step 24: collect/return_mean 3 reached 3" in caplog.text


def test_level_stays_below_the_threshold(make_trainer: MakeTrainer, small: Config) -> None:
    curriculum = Curriculum("level", LEVELS, threshold=[3.0, 6.1], min_episodes=1)
    assert set(fit(make_trainer, small, curriculum).levels.values()) == {(0, 1.0), (1, 2.0)}


def test_level_waits_for_its_episodes(make_trainer: MakeTrainer, small: Config) -> None:
    curriculum = Curriculum("level", LEVELS, threshold=0.0, min_episodes=9)
    levels = fit(make_trainer, small, curriculum, 96).levels
    # 8 episodes until step 24, 10 until 32; 9 more until step 64; the next round begins at the new level
    assert {step: level for step, (level, _) in levels.items()} == {
        **{24: 0, 32: 0, 40: 1, 48: 1, 56: 1, 64: 1},
        **{72: 2, 80: 2, 88: 2, 96: 2},
    }


@pytest.mark.parametrize(
    ("sets", "name", "attribute"), [("method", "set_wind", "wind"), ("reset_option", "start", "start")]
)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_level_may_be_set_by_a_method_or_an_option_of_resets(
    make_trainer: MakeTrainer, small: Config, sets: Any, name: str, attribute: str, mode: str
) -> None:
    curriculum = Curriculum(name, LEVELS, threshold=0.0, sets=sets, min_episodes=8)
    noted = fit(make_trainer, small, curriculum, 48, attribute=attribute, data={"mode": mode})
    assert {value for _, value in noted.levels.values()} == {1.0, 2.0}


def test_metric_of_evaluations_is_looked_at_after_each(make_trainer: MakeTrainer, small: Config) -> None:
    curriculum = Curriculum("level", LEVELS, threshold=27.0, metric="eval/return_mean", min_episodes=1)
    noted = fit(make_trainer, small, curriculum, data={"eval_env_kwargs": {"level": 9.0}})
    assert {step: level for step, (level, _) in noted.levels.items()} == {24: 0, 32: 0, 40: 1, 48: 1, 56: 2, 64: 2}


@pytest.mark.parametrize("is_opaque", [False, True])
def test_resumed_run_continues_at_its_level(
    is_opaque: bool, make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    config = deep_merge(small, {"learn": {"learning_rate": 0.03}})

    def run(max_env_step: int, file: Path | None = None) -> tuple[torch.Tensor, dict[int, Any]]:
        curriculum, policy = Curriculum("level", LEVELS, threshold=0.0, min_episodes=9), None
        noted = Noted(curriculum)
        torch.manual_seed(0 if file is None else 9)
        policy = DQNPolicy(config)
        module = ReplayDataModule(
            partial(LevelEnv, is_opaque=is_opaque), num_envs=2, max_env_step=max_env_step, rounds_per_epoch=2
        )
        callbacks = [noted, curriculum, RunCheckpoint(tmp_path / str(max_env_step))]
        trainer = make_trainer(enable_checkpointing=True, callbacks=callbacks, log_every_n_steps=1)
        trainer.fit(policy, module, ckpt_path=file, weights_only=True)
        return torch.nn.utils.parameters_to_vector(policy.parameters()).detach(), noted.levels

    whole, levels = run(80)
    _, first = run(40)
    resumed, second = run(80, tmp_path / "40" / "last.ckpt")
    if is_opaque:  # it starts new episodes, at its level
        assert second[48] == (1, 2.0)
        assert second[80][0] == 2
    else:
        assert {**first, **second} == levels
        assert torch.equal(whole, resumed)


def test_two_curricula_set_different_things_and_continue_at_their_own_levels(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    def run(max_env_step: int, file: Path | None = None) -> tuple[list[int], tuple[float, float], Any]:
        pair = [
            Curriculum("level", LEVELS, threshold=0.0, min_episodes=8),
            Curriculum("set_wind", [5.0, 6.0, 7.0], threshold=1e9, sets="method"),
        ]
        module = ReplayDataModule(LevelEnv, num_envs=2, max_env_step=max_env_step, rounds_per_epoch=2)
        seen = (Noted(pair[0]), Noted(pair[1], "wind"))
        logger = CSVLogger(tmp_path / str(max_env_step))
        callbacks = [*pair, *seen, RunCheckpoint(tmp_path / str(max_env_step))]
        trainer = make_trainer(enable_checkpointing=True, callbacks=callbacks, log_every_n_steps=1, logger=logger)
        trainer.fit(DQNPolicy(small), module, ckpt_path=file, weights_only=True)
        _, level = seen[0].levels[max_env_step]
        _, wind = seen[1].levels[max_env_step]
        with (Path(logger.log_dir) / "metrics.csv").open() as rows:
            logged = {name for name in next(csv.reader(rows)) if name.startswith("curriculum/")}
        return [one.level for one in pair], (level, wind), logged

    first = run(32)
    assert first == ([1, 0], (2.0, 5.0), {"curriculum/level", "curriculum/set_wind"})
    levels, in_envs, _ = run(40, tmp_path / "32" / "last.ckpt")
    assert (levels, in_envs) == ([1, 0], (2.0, 5.0))


def test_two_curricula_of_the_same_name_are_refused(make_trainer: MakeTrainer) -> None:
    pair = [Curriculum("level", [0, 1], 1.0), Curriculum("level", [3, 4], 1.0)]
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `Curriculum`"):
        make_trainer(callbacks=pair)


def test_level_of_a_checkpoint_without_the_name_is_read(make_trainer: MakeTrainer) -> None:
    curriculum = Curriculum("level", LEVELS, 1.0)
    trainer = make_trainer(callbacks=[curriculum])
    state = {"pytorch-lightning_version": "2.5.0", "callbacks": {"Curriculum": {"level": 2, "since": 5}}}
    _call_callbacks_load_state_dict(trainer, state)
    assert curriculum.level == 2


def test_unknown_metric_is_named_after_the_first_evaluation(make_trainer: MakeTrainer, small: Config) -> None:
    with pytest.raises(
        ValueError, match=r"metric must be one of \[.*'collect/return_mean'.*\], got 'collect/success_rate'"
    ):
        fit(make_trainer, small, Curriculum("level", LEVELS, threshold=0.5, metric="collect/success_rate"))


def test_metric_of_evaluations_needs_evaluations(make_trainer: MakeTrainer, small: Config) -> None:
    with pytest.raises(ValueError, match="metric must be one of collecting with a Trainer whose validation is off"):
        fit(make_trainer, small, Curriculum("level", LEVELS, 1.0, "eval/return_mean"), limit_val_batches=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"levels": [1]}, "levels must be a list of two or more values, got \\[1\\]"),
        ({"levels": [[1], [2]]}, "levels must be without lists for an attribute"),
        ({"threshold": [1.0]}, "threshold must be one number, or 2 for 3 levels, got \\[1.0\\]"),
        ({"sets": "option"}, "sets must be one of .*'reset_option'"),
        ({"min_episodes": 0}, "min_episodes must be >= 1, got 0"),
    ],
)
def test_argument_out_of_range_is_refused(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Curriculum(**{"name": "level", "levels": LEVELS, "threshold": 1.0, **arguments})


def test_checkpoint_with_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="levels must be at least 3 levels, as the run has reached the last of these"):
        Curriculum("level", [0, 1], 1.0).load_state_dict({"level": 2, "since": 0})


class OwnCurriculum(Curriculum):
    """A curriculum of a user."""


@pytest.mark.parametrize("kind", [Curriculum, OwnCurriculum])
def test_level_continues_from_a_checkpoint_whose_key_is_the_name_of_the_class(
    kind: type[Curriculum], make_trainer: MakeTrainer
) -> None:
    before = kind("level", LEVELS, threshold=0.0)
    before.level = 2
    after = kind("level", LEVELS, threshold=0.0)
    trainer = make_trainer(callbacks=[after])
    _call_callbacks_load_state_dict(trainer, {"callbacks": {kind.__qualname__: before.state_dict()}})
    assert after.level == 2
