"""Settings of envs in a distributed run: from the learner's handle to the envs of collectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.distributed import MarineParallelCollector
from lightning_ding.envs.handle import EnvHandles
from tests.distributed.collector.test_zergling import Around, make
from tests.distributed.comm_worker.fake_coordinator import FakeCoordinator
from tests.distributed.comm_worker.learning_coordinator import TRAINER, Learner, LearningCoordinator
from tests.distributed.comm_worker.test_collector import run, task
from tests.distributed.weight_policy import WeightEnv


class Levels(WeightEnv):
    """Shows its level and the reset option "start"."""

    level = start = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.start = (options or {}).get("start", 0.0)
        return super().reset(seed=seed)

    def _observe(self) -> Any:
        return np.array([self.level, self.start], np.float32)


ENV = {"env_id": "tests.distributed.test_env_settings.Levels", "env_kwargs": {"length": 4}}


def text(level: float, start: float | None = None, evaluation: float | None = None) -> str:
    handles = EnvHandles()
    handles.training.set_attr("level", level)
    if start is not None:
        handles.training.set_reset_options({"start": start})
    if evaluation is not None:
        handles.evaluation.set_attr("level", evaluation)
    return handles.text


class WithSettings(Around):
    """Publishes settings with some versions of the weights."""

    def __init__(self, settings: dict[int, str], num_messages: int = 4) -> None:
        super().__init__(num_messages)
        self.settings = settings

    def get_policy_update_info(self, path: str, serial: int) -> dict[str, Any] | None:
        found = super().get_policy_update_info(path, serial)
        given = {} if self.version not in self.settings else {"env_settings": self.settings[self.version]}
        return None if found is None else {**found, **given}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_collector_that_starts_later_has_the_settings_in_its_first_episode(mode: str) -> None:
    around = WithSettings({1: text(2.0, start=3.0), 2: text(2.0, start=3.0)}, num_messages=2)
    make(around, env={**ENV, "mode": mode}).start()
    rows = torch.cat([data["obs"] for data in around.data])
    assert rows.unique(dim=0).tolist() == [[2, 3]]
    assert [said["cur_step"] for said in around.said] == [0, 6, 12]


def test_settings_come_with_the_weights_between_two_messages() -> None:
    around = WithSettings({3: text(5.0), 4: text(6.0)})
    make(around, env=ENV).start()
    levels = [data["next_obs"][:, 0].unique().tolist() for data in around.data]
    assert levels == [[0.0], [0.0], [5.0], [6.0]]
    assert [data["policy_version"].unique().tolist() for data in around.data] == [[1], [2], [3], [4]]


def test_evaluation_has_the_settings_of_evaluation_envs() -> None:
    around = WithSettings({5: text(1.0, evaluation=9.0)})
    around.version = 5
    collector = make(around, eval_flag=True, n_episode=2, env=ENV)
    seen = []
    collector._evaluate = lambda: seen.append(collector._env.call("level"))  # type: ignore[method-assign]
    collector.start()
    assert seen == [(9.0, 9.0)]


def test_settings_travel_in_the_metadata_of_published_weights() -> None:
    coordinator = FakeCoordinator([task(env={**ENV, "collector_env_num": 2, "evaluator_env_num": 2})])
    coordinator.publish("mine", 1)
    model = coordinator.store.get(coordinator.policies["mine"][0]).tensors
    handle = coordinator.store.put("policy", model, {"env_settings": text(7.0)})
    coordinator.policies["mine"] = (handle, 1, 1)
    run(coordinator)
    assert [block["obs"][:, 0].unique().tolist() for block in coordinator.blocks()] == [[7.0]] * 3


def test_level_of_a_learner_is_published_and_continues_in_a_new_learner(tmp_path: Path) -> None:
    arguments = {"name": "gravity", "levels": [5.0, 10.0, 20.0], "threshold": [1.0, 1e9], "min_episodes": 1}
    callbacks = [{"class_path": "lightning_ding.callbacks.Curriculum", "init_args": arguments}]
    trainer = {**TRAINER, "log_every_n_steps": 1, "callbacks": callbacks}
    learner = {"validate": False, "prefetch": 0, "trainer": trainer, "rounds_per_epoch": 1}
    coordinator = LearningCoordinator(tmp_path, rounds=3, learner=learner, tasks=2)
    assert Learner(channel=coordinator.channel).start() == 0
    levels: dict[str, list[float]] = {"r1": [], "r2": []}
    for message in coordinator.said("learner_send_policy"):
        settings = json.loads(coordinator.store.get(message["data_id"]).metadata["env_settings"])
        levels[message["run_id"]].append(json.loads(settings["training"])[0][2])
    assert levels["r1"][0] == 5.0  # the returns of the rounds are 0, 1 and 2
    assert levels["r1"][-1] == 10.0
    assert set(levels["r2"]) == {10.0}  # from its checkpoint


def test_callback_of_a_learner_that_does_not_exist_is_named(tmp_path: Path) -> None:
    learner = {"validate": False, "trainer": {**TRAINER, "callbacks": ["lightning_ding.callbacks.Curriculun"]}}
    coordinator = LearningCoordinator(tmp_path, rounds=1, learner=learner)
    Learner(channel=coordinator.channel).start()
    (failed,) = coordinator.said("fail")
    assert "did you mean 'lightning_ding.callbacks.Curriculum'" in json.dumps(failed)


def test_game_has_no_such_settings() -> None:
    cfg = {"type": "marine", "policy_update_path": ["mine"]}
    assert MarineParallelCollector(cfg)._apply_settings() is False
