"""The parts of a policy's config that every algorithm has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_ding.config import moved
from lightning_ding.worker_config import EvaluatorConfig


@dataclass(frozen=True)
class PolicyConfig:
    """Base of every policy's config; an algorithm adds its sections."""

    MOVED: ClassVar[dict[str, str]] = moved(
        cuda="choose the device with Trainer(accelerator=..., devices=...)",
        multi_gpu='use Trainer(strategy="ddp", devices=...)',
        bp_update_sync="gradients are always synchronised before the optimizer steps",
        on_policy="it is a property of the algorithm",
        traj_len_inf="collecting in pieces never cuts an n-step return",
    )

    compile: bool = False
    """Compile loss, gradient, clipping and optimizer of an update with torch.compile; eager where that fails."""


@dataclass(frozen=True)
class EvalConfig:
    """How the policy is evaluated."""

    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    """The evaluator."""
