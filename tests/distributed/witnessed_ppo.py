"""PPO that writes down which rollouts it learns from, from all learners of a run."""

from __future__ import annotations

import json
import os
from typing import Any

from lightning_ding.policy.ppo import PPOPolicy
from lightning_ding.registry import POLICY_REGISTRY

VARIABLE = "WITNESSED_PPO"
"""Environment variable with the path of the file."""


@POLICY_REGISTRY.register("witnessed_ppo")
class WitnessedPPO(PPOPolicy):
    """Writes a line before it learns: updates so far, versions, transitions, and different ones among them."""

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        parts = (batch["obs"].tolist(), batch["episode_id"].tolist())
        rows = {(*obs, episode) for obs, episode in zip(*parts, strict=True)}
        about = {"train_iter": self.progress.train_iter, "versions": batch["policy_version"].unique().tolist()}
        line = json.dumps({**about, "rows": len(batch["reward"]), "different": len(rows), "process": os.getpid()})
        with open(os.environ[VARIABLE], "a") as file:
            file.write(f"{line}\n")
        return super()._forward_learn(batch)
