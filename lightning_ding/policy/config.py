"""The parts of a policy's config that every algorithm has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

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
    on_non_finite: Literal["raise", "warn", "skip_update"] = "raise"
    """What becomes of an update whose loss or gradient is NaN or infinite: it is not made and raises an error; is made
    with a warning; or is left out, up to 100 times in a row. What reproduces the first one is written in any case."""


@dataclass(frozen=True)
class EvalConfig:
    """How the policy is evaluated."""

    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    """The evaluator."""
