"""The options of the evaluators, and the statistics that an evaluation reports.

A new option is a field of :class:`EvaluatorConfig`, and an entry in the keys of the evaluators in which it has an
effect; any other evaluator refuses it. All evaluations, also those of a Trainer, report
:meth:`EvaluatorConfig.summary`.

Shapes: E episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import moved, require
from lightning_ding.worker.episodes import mean_infos, summary

METRIC_KEYS = frozenset({"eval_freq", "stop_value"})
"""Keys that have an effect in a metric evaluator."""
BATTLE_KEYS = METRIC_KEYS | {"n_episode", "fixed_starts", "max_episode_steps"}
"""Keys that have an effect in a battle evaluator."""
INTERACTION_KEYS = BATTLE_KEYS | {"render", "figure_path"}
"""Keys that have an effect in an interaction evaluator."""


@dataclass(frozen=True)
class RenderConfig:
    """The times at which an evaluation makes a video, and its content."""

    render_freq: int = -1
    """Updates or env steps between two videos, >= 1; -1 for none."""
    mode: Literal["train_iter", "envstep"] = "train_iter"
    """Unit of render_freq: updates or env steps."""
    episodes: Literal["first", "all"] = "first"
    """Episodes that are drawn: the first one, which is the video, or all of rank zero, which takes as many times the
    time and gives videos of the worst, the median and the best one."""

    def __post_init__(self) -> None:
        require(self.render_freq == -1 or self.render_freq >= 1, "render_freq", ">= 1 or -1", self.render_freq)


@dataclass(frozen=True)
class EvaluatorConfig:
    """Keys of a serial evaluator."""

    MOVED: ClassVar[dict[str, str]] = moved(multi_gpu="leave it out: the ranks of torch.distributed share the work")

    type: str = "interaction"
    """Registered name: interaction, battle_interaction, metric or your own; a datamodule needs interaction."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, which register further evaluators."""
    eval_freq: int = 1000
    """Updates between two evaluations, >= 1; in a Trainer, the length of an epoch."""
    n_episode: int = 10
    """Episodes of one evaluation over all ranks, >= 1."""
    stop_value: float | Mapping[str, float] | None = None
    """Mean return (metric evaluator: metric, or a mapping of each metric's value) of an evaluation that ends the run;
    None never ends it."""
    fixed_starts: bool = False
    """Interaction evaluators: begin every evaluation with the same seeds. By default each evaluation draws new start
    states, from the evaluator's seed and the updates so far; without a Trainer, the evaluations so far."""
    max_episode_steps: int | None = None
    """Interaction and battle evaluator: env steps after which an evaluation episode is cut off, >= 1; None for none."""
    render: RenderConfig = field(default_factory=RenderConfig)
    """Interaction evaluator: when to make videos, and of which episodes."""
    figure_path: str | None = None
    """Interaction evaluator: folder for a figure of each evaluation's returns; None for none."""

    def __post_init__(self) -> None:
        require(self.eval_freq >= 1, "eval_freq", ">= 1", self.eval_freq)
        require(self.n_episode >= 1, "n_episode", ">= 1", self.n_episode)
        limit = self.max_episode_steps
        require(limit is None or limit >= 1, "max_episode_steps", ">= 1 or None", limit)

    def stop_return(self) -> float | None:
        """Return the mean return that ends the run; None if there is none.

        Raises:
            ValueError: If ``stop_value`` is a mapping, which only a metric evaluator takes.
        """
        is_number = not isinstance(self.stop_value, Mapping)
        require(
            is_number, "stop_value", "a number or None, unless the evaluator is a metric evaluator", self.stop_value
        )
        return cast("float | None", self.stop_value)

    def summary(
        self, returns: Sequence[float] | NDArray[np.float64], infos: Mapping[str, NDArray[np.float64]] | None = None
    ) -> dict[str, float]:
        """Return the metrics of an evaluation by name, from its returns and the numbers of its infos, shape (E,) each.

        Example:
            >>> EvaluatorConfig().summary([1.0, 3.0])
            {'return_mean': 2.0, 'return_std': 1.0, 'return_min': 1.0, 'return_max': 3.0}
        """
        return summary(returns) | mean_infos(infos or {})
