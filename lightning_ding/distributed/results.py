"""What a run came to, gathered while it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

EVALUATION_KEYS = ("train_iter", "reward_mean", "reward_std", "reward_raw", "real_episode_count", "opponent", "result")
KEPT_EVALUATIONS = 10_000


class Results:
    """Evaluations, what learners reported, and for how long the run went on."""

    def __init__(self) -> None:
        self.train_iter = 0
        self.evaluations: list[dict[str, Any]] = []
        self.learner: dict[str, float] = {}
        """What the learner said at its end."""
        self._seconds_before = 0.0
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """For which a coordinator worked on the run."""
        return self._seconds_before + time.monotonic() - self._since

    def note_learner(self, info: Mapping[str, Any]) -> None:
        """Take what a learner reports."""
        self.train_iter = max(self.train_iter, int(info.get("learner_step", 0)))
        self.learner |= info.get("results", {})

    def note_evaluation(self, info: Mapping[str, Any], env_step: int) -> None:
        """Take the finish info of an evaluation that was made when there were so many env steps."""
        told = {name: info[name] for name in EVALUATION_KEYS if name in info}
        self.evaluations = [*self.evaluations, {"env_step": env_step, **told}][-KEPT_EVALUATIONS:]

    def state_dict(self) -> dict[str, Any]:
        """Return everything as builtins."""
        return {
            "train_iter": self.train_iter,
            "evaluations": self.evaluations,
            "learner": self.learner,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self.train_iter, self.evaluations = state["train_iter"], list(state["evaluations"])
        self.learner, self._seconds_before = dict(state["learner"]), state["seconds"]
