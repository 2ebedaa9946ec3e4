"""A policy with one weight, and learners that train it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_ding.policy import DQNPolicy
from lightning_ding.utils.modes import LearnMode
from lightning_ding.utils.progress import Progress
from lightning_ding.worker import BaseLearner, LearnerEngine, LearnerHook
from tests.policy.base.small_dqn import make_batch

Batch = dict[str, Any]
BATCH_SIZE = 8
OFF = {"log_show_after_iter": False, "save_ckpt_after_iter": False, "save_ckpt_after_run": False}


def policy_of(**cfg: Any) -> DQNPolicy:
    model = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16], "dueling": False}
    torch.manual_seed(0)
    return DQNPolicy({"model": model, "learn": {"batch_size": BATCH_SIZE, "target_update_freq": 3}, **cfg})


def batch_of(seed: int) -> Batch:
    batch = make_batch(seed, BATCH_SIZE)
    return batch | {"action": batch["action"] % 2}


def as_list(batch: Batch) -> list[Batch]:
    return [{name: value[row] for name, value in batch.items()} for row in range(BATCH_SIZE)]


class FakePolicy:
    """Returns given reports, one for each call; counts nothing itself unless it has a ``progress``."""

    def __init__(self, *reports: Any, progress: Progress | None = None, device: str = "cpu") -> None:
        self.reports = list(reports)
        self.attributes = {"batch_size": BATCH_SIZE, "device": torch.device(device)}
        self.attributes |= {"progress": progress} if progress is not None else {}
        self.calls: list[tuple[Any, Mapping[str, Any]]] = []
        self.loaded: dict[str, Any] | None = None

    def forward(self, data: Any, **kwargs: Any) -> Any:
        self.calls.append((data, kwargs))
        report = self.reports.pop(0) if self.reports else {}
        return report() if callable(report) else report

    def get_attribute(self, name: str) -> Any:
        if name not in self.attributes:
            raise NotImplementedError(name)
        return self.attributes[name]

    def load(self, state: dict[str, Any]) -> None:
        self.loaded = state

    @property
    def learn_mode(self) -> LearnMode:
        def nothing(*_: Any) -> None:
            raise AssertionError("a learner must not touch this")

        state = {"weight": torch.ones(2)}
        mode = (self.forward, nothing, lambda: "a fake policy", lambda: ["total_loss"], self.get_attribute, nothing)
        return LearnMode(*mode, lambda: state, self.load)


class NoteHook(LearnerHook):
    """Notes what ``look`` returns of the engine."""

    def __init__(self, position: Any, notes: list[Any], look: Callable[[Any], Any], priority: int = 100) -> None:
        super().__init__("note", priority, position)
        self.notes = notes
        self.look = look

    def __call__(self, engine: LearnerEngine) -> None:
        self.notes.append(self.look(engine))


def learner_of(policy: Any, *hooks: LearnerHook, **kwargs: Any) -> BaseLearner:
    """Return a learner whose hooks are these alone; further config keys among the arguments."""
    cfg = {key: kwargs.pop(key) for key in list(kwargs) if key in BaseLearner.config_keys}
    learner = BaseLearner({**cfg, "hook": {**OFF, **cfg.get("hook", {})}}, policy, **kwargs)
    for hook in hooks:
        learner.register_hook(hook)
    return learner


def weights(policy: DQNPolicy) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def saved_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
