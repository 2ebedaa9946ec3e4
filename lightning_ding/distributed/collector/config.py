"""What a task says to a parallel collector: the ``collector_cfg`` of its ``task_info``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_ding.config import require
from lightning_ding.distributed.config import EnvConfig


@dataclass(frozen=True)
class CollectorTaskConfig:
    """One task of a collector."""

    type: str = "zergling"
    """Registered name: zergling, marine."""
    import_names: tuple[str, ...] = ()
    """Modules to import first."""
    eval_flag: bool = False
    """Evaluate ``n_episode`` episodes; otherwise collect until the task is closed."""
    policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "dqn"})
    """``type`` and the policy's config."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Where to act."""
    n_sample: int = 1
    """Transitions of a message at least, of each player that learns."""
    n_episode: int | None = None
    """Episodes of an evaluation, or after which collecting ends; None collects until the task is closed."""
    policy_update_path: tuple[str, ...] = ("policy",)
    """Policy id of each player, the main player's first; ``"random"`` moves at random."""
    policy_update_flag: tuple[bool, ...] = (True,)
    """Which players learn: their weights are renewed during the task, and their transitions sent."""
    collect_setting: dict[str, Any] = field(default_factory=dict)
    """Arguments of the policy's forward, as far as answers do not bring others."""
    update_policy_second: float = 0.0
    """Seconds between two looks for newer weights, at least."""
    print_freq: int = 100
    """Messages between two lines in the log."""
    env_fault: Literal["raise", "drop"] = "raise"
    """What becomes of an episode whose env reports a fault."""
    seed: int = 0
    """Of envs and exploration."""
    exp_name: str = "runs/parallel"
    """Folder of the run."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("n_sample", "print_freq"):
            require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))
        require(self.seed >= 0, "seed", ">= 0", self.seed)
        require(self.n_episode is None or self.n_episode >= 1, "n_episode", ">= 1 or None", self.n_episode)
        require(not self.eval_flag or self.n_episode is not None, "n_episode", "set with eval_flag", self.n_episode)
        flags, paths = self.policy_update_flag, self.policy_update_path
        require(len(flags) == len(paths) >= 1, "policy_update_flag", f"one for each of {len(paths)} paths", flags)
        require(flags[0], "policy_update_flag", "true for the main player, the first one", flags)
