"""The commander: the values that it passes to the policy; it keeps no state."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.utils.modes import CommandMode
from lightning_ding.utils.progress import Progress
from lightning_ding.worker import BaseSerialCommander
from tests.conftest import MakeTrainer

EPS = {"eps": {"type": "linear", "start": 1.0, "end": 0.0, "decay": 100}}


def refuse(_: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError("a commander must not ask this")


ECHO = CommandMode(refuse, lambda info: info, refuse)


def test_commander_asks_with_the_counters_of_the_run() -> None:
    progress = Progress(train_iter=3, env_step=40)
    commander = BaseSerialCommander(policy=ECHO, progress=progress)

    assert commander.step() == {"learner_step": 3, "envstep": 40}
    progress.env_step = 48
    assert commander.step()["envstep"] == 48


def test_commander_passes_the_counters_of_its_workers() -> None:
    learner = SimpleNamespace(learn_info={"learner_step": 7, "priority_info": {}, "learner_done": False})
    workers: dict[str, Any] = {"collector": SimpleNamespace(envstep=20), "evaluator": SimpleNamespace(best_return=2.5)}
    buffer = SimpleNamespace(count=lambda: 12)
    commander = BaseSerialCommander({}, learner, replay_buffer=buffer, policy=ECHO, **workers)

    known = {"learner_step": 7, "priority_info": {}, "learner_done": False, "envstep": 20}
    assert commander.step() == {**known, "best_return": 2.5, "buffer_count": 12}


def test_commander_trusts_the_counters_of_all_ranks_more_than_those_of_its_workers() -> None:
    workers: dict[str, Any] = {
        "learner": SimpleNamespace(learn_info={"learner_step": 7}),
        "collector": SimpleNamespace(envstep=20),
    }
    commander = BaseSerialCommander(policy=ECHO, progress=Progress(train_iter=8, env_step=40), **workers)

    assert commander.step() == {"learner_step": 8, "envstep": 40}


def test_commander_begins_at_zero_without_counters() -> None:
    assert BaseSerialCommander(policy=ECHO).step() == {"learner_step": 0, "envstep": 0}


def test_commander_returns_values_of_the_schedule_at_start_middle_and_end() -> None:
    policy = DQNPolicy({"other": EPS}, enable_field=["command"])
    progress = Progress()
    commander = BaseSerialCommander(policy=policy.command_mode, progress=progress)
    found = []
    for env_step in (0, 50, 100, 200):
        progress.env_step = env_step
        found.append(commander.step())

    assert found == [{"eps": 1.0}, {"eps": 0.5}, {"eps": 0.0}, {"eps": 0.0}]


def test_commander_keeps_nothing_from_step_to_step() -> None:
    steps = iter(range(1000))
    learner = SimpleNamespace(learn_info={"learner_step": 0})
    commander = BaseSerialCommander(learner=learner, policy=ECHO)
    before = copy.copy(vars(commander))
    for _ in range(100):
        learner.learn_info = {"learner_step": next(steps), f"key_{next(steps)}": 1}
        commander.step()

    assert vars(commander) == before
    assert len(commander.info()) == 3  # learner_step, envstep and the newest key


def test_commander_needs_a_policy() -> None:
    commander = BaseSerialCommander()
    with pytest.raises(RuntimeError, match="the commander needs a policy's command mode: pass policy, or set"):
        commander.step()
    commander.policy = ECHO

    assert commander.step()["envstep"] == 0


def test_commander_takes_the_command_mode_of_a_whole_policy() -> None:
    whole: Any = SimpleNamespace(command_mode=ECHO)
    given, later = BaseSerialCommander(policy=whole), BaseSerialCommander()
    later.policy = whole

    assert given.policy is later.policy is ECHO


def test_commander_has_no_keys() -> None:
    with pytest.raises(ValueError, match=r"a commander's config must be empty, got the keys \['eps'\]"):
        BaseSerialCommander({"eps": 0.1})


def test_datamodule_collects_as_the_commander_says(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    found = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
            found.append((pl_module.progress.env_step, trainer.datamodule.collect_kwargs))  # type: ignore[attr-defined]

    policy = DQNPolicy({**small, "other": {**small["other"], **EPS}})
    make_trainer(callbacks=[Look()]).fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=6))

    # 16 random steps, then rounds of 8; a round is collected with the epsilon of its beginning
    expected = [(24, 1 - 0.16), (32, 1 - 0.24), (40, 1 - 0.32)]
    assert found == [(env_step, {"eps": pytest.approx(eps, rel=1e-9)}) for env_step, eps in expected]


def test_datamodule_forgets_the_commander_of_an_earlier_policy(
    make_trainer: MakeTrainer, small: dict[str, Any]
) -> None:
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=4)
    first, second = DQNPolicy(small), DQNPolicy(small)
    make_trainer().fit(first, datamodule)
    end_of_first = datamodule.collect_kwargs["eps"]
    make_trainer().fit(second, datamodule)

    # the second policy has taken no steps before, and its buffer is a new one
    assert second.progress.env_step == first.progress.env_step
    assert datamodule.collect_kwargs["eps"] == end_of_first


def test_commander_takes_the_arguments_of_the_reference_in_its_order() -> None:
    learner, collector = SimpleNamespace(learn_info={"learner_step": 3}), SimpleNamespace(envstep=5)
    commander = BaseSerialCommander(BaseSerialCommander.default_config(), learner, collector, object(), None, ECHO)
    assert commander.step() == {"learner_step": 3, "envstep": 5, "best_return": None}
    assert dict(BaseSerialCommander.default_config()) == {"cfg_type": "BaseSerialCommanderDict"}
