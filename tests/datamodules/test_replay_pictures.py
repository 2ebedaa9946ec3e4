"""Videos and figures of the evaluations of a Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.toys.envs import ChainEnv

Config = dict[str, Any]


class DrawnChain(ChainEnv):
    """A chain that draws itself."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(length=4)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((2, 2, 3), self._position, dtype=np.uint8)


def replay(render_mode: str | None = "rgb_array") -> ReplayDataModule:
    return ReplayDataModule(
        DrawnChain, 2, env_kwargs={"render_mode": render_mode}, max_train_iter=6, rounds_per_epoch=1
    )


def policy_of(small: Config, **evaluator: Any) -> DQNPolicy:
    return DQNPolicy(deep_merge(small, {"eval": {"evaluator": evaluator}}))


def logger_of(tmp_path: Path) -> TensorBoardLogger:
    return TensorBoardLogger(tmp_path, name="", version="")


def images_in(folder: Path) -> dict[str, list[int]]:
    """Return the steps of the images in a TensorBoard folder, by name."""
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    return {name: [event.step for event in events.Images(name)] for name in events.Tags()["images"]}


def test_trainer_films_an_evaluation_every_render_freq(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy = policy_of(small, render={"render_freq": 4})
    make_trainer(logger=[CSVLogger(tmp_path / "csv", "", ""), logger_of(tmp_path)]).fit(policy, replay())

    # 16 random steps, then rounds of n steps and 2 updates, each followed by an evaluation: at updates 2, 4 and 6,
    # the first of which is filmed, and the one 4 updates later.
    steps: Any = policy.config.collect.n_sample
    assert images_in(tmp_path) == {"eval/video": [16 + steps, 16 + 3 * steps]}
    files = sorted(file.name for file in (tmp_path / "csv" / "media").iterdir())
    assert files == [f"eval_video_{16 + steps}.gif", f"eval_video_{16 + 3 * steps}.gif"]


def test_trainer_draws_the_returns_of_every_evaluation(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy = policy_of(small, figure_path=str(tmp_path / "figures"))
    make_trainer(logger=logger_of(tmp_path)).fit(policy, replay(render_mode=None))

    assert sorted(file.name for file in (tmp_path / "figures").iterdir()) == ["eval_2.png", "eval_4.png", "eval_6.png"]
    assert list(images_in(tmp_path)) == ["eval/returns"]


def test_test_stage_has_separate_pictures(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    policy = policy_of(small, render={"render_freq": 1}, figure_path=str(tmp_path / "figures"))
    make_trainer(logger=logger_of(tmp_path)).test(policy, replay(), verbose=False)

    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["test_0.png"]
    assert sorted(images_in(tmp_path)) == ["test/returns", "test/video"]


def test_trainer_says_at_once_that_the_envs_give_no_frames(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy = policy_of(small, render={"render_freq": 4})

    with pytest.raises(ValueError, match=r'in a datamodule: env_kwargs=\{"render_mode": "rgb_array"\}'):
        make_trainer(logger=logger_of(tmp_path)).fit(policy, replay(render_mode=None))
    assert policy.progress.env_step == 0


def test_trainer_says_at_once_that_its_logger_takes_no_films(make_trainer: MakeTrainer, small: Config) -> None:
    policy = policy_of(small, render={"render_freq": 4})

    with pytest.raises(ValueError, match=r"a video needs a SummaryWriter, or a TensorBoardLogger, .*NoneType"):
        make_trainer().fit(policy, replay())


def test_fast_dev_run_works_with_films(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    policy = policy_of(small, render={"render_freq": 4})

    make_trainer(fast_dev_run=True, logger=logger_of(tmp_path)).fit(policy, replay())

    assert policy.progress.train_iter == 2
    assert list(tmp_path.iterdir()) == []


def test_evaluator_that_does_not_act_in_envs_is_refused(make_trainer: MakeTrainer, small: Config) -> None:
    message = r"eval.evaluator.type must be that of an InteractionSerialEvaluator, .*, got 'metric'"
    with pytest.raises(ValueError, match=message):
        make_trainer().fit(policy_of(small, type="metric"), replay())
