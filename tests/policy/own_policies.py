"""Policies as a user writes them outside the package."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_ding.policy import DQNPolicy


class DrawsByItself(DQNPolicy):
    """Acts at random, by the global generators of torch, numpy and Python."""

    def _forward_collect(self, obs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        draws = [np.random.randint(2) + int(random.random() < 0.5) for _ in obs]
        return {"action": (torch.randint(2, (len(obs),)) + torch.tensor(draws)) % 2}


class OwnUpdates(DQNPolicy):
    """Makes its updates without the updater."""

    averages = False

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        loss, report = self.loss(batch)
        self.updater.optimizers[0].zero_grad()
        loss.backward()
        if self.averages:
            self.sync_gradients(self.model)
        self.updater.optimizers[0].step()
        return report


class AveragedUpdates(OwnUpdates):
    """Makes its updates without the updater, from the mean gradient of the ranks."""

    averages = True


class Boltzmann(DQNPolicy):
    """Has a temperature in place of an epsilon, and reports numbers while it collects."""

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {"temperature": 1 / (1 + command_info["envstep"])}

    def _forward_collect(self, obs: Any, *, temperature: float = 1.0) -> dict[str, Tensor]:  # type: ignore[override]
        self.collect_metrics.add({"envs": torch.tensor(float(len(obs))), "half": torch.full((len(obs),), 0.5)})
        return {"action": self.model(obs)["logit"].argmax(1)}


def with_tenfold(columns: Mapping[str, Any], obs: Any) -> dict[str, Any]:
    """Return the columns of a transition with ten times the first number of the observation."""
    return {**columns, "tenfold": 10 * obs[:, 0]}
