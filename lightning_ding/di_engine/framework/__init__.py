"""DI-engine's middleware style of ``ding.framework``: a task that runs functions of a context in a loop.

The middleware are thin forms of the collectors, evaluators, buffers and learn modes of this package, in one process. A
script uses the names of ``ding.framework``, ``ding.framework.context`` and ``ding.framework.middleware`` from here.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.di_engine.framework.context import Context, OfflineRLContext, OnlineRLContext
from lightning_ding.di_engine.framework.task import ONE_PROCESS, Role, Task, VoidMiddleware, task
from lightning_ding.utils.foreign import attach

_MODULES = {
    "acting": (
        *("EpisodeCollector", "StepCollector", "eps_greedy_handler", "eps_greedy_masker", "interaction_evaluator"),
    ),
    "learning": ("HERLearner", "OffPolicyLearner", "multistep_trainer", "trainer"),
    "offline": ("offline_data_fetcher", "offline_data_saver"),
    "replay": (
        *("data_pusher", "gae_estimator", "her_data_enhancer", "nstep_reward_enhancer", "offpolicy_data_fetcher"),
        *("priority_calculator", "reward_estimator", "sqil_data_pusher"),
    ),
    "reports": (
        *("CkptSaver", "ContextExchanger", "ModelExchanger", "PeriodicalModelExchanger", "ding_init", "epoch_timer"),
        *("final_ctx_saver", "offline_logger", "online_logger", "termination_checker"),
    ),
}
"""The middleware of each module."""
_HOMES = {name: f"di_engine.framework.{module}" for module, names in _MODULES.items() for name in names}
REFUSED = {
    **dict.fromkeys(("Parallel", "Supervisor", "EventLoop", "MQ", "NNGMQ", "RedisMQ", "ditask"), ONE_PROCESS),
    **dict.fromkeys(("Barrier", "BarrierRuntime", "ddp_termination_checker"), ONE_PROCESS),
    **dict.fromkeys(("wandb_online_logger", "wandb_offline_logger"), "online_logger writes for TensorBoard"),
}
"""Names of DI-engine that are refused, and why."""
__all__ = [
    "Context",
    "OfflineRLContext",
    "OnlineRLContext",
    "Role",
    "Task",
    "VoidMiddleware",
    "task",
    *_HOMES,
]
_others = attach(__name__, _HOMES)[0]


def __getattr__(name: str) -> Any:
    if name in REFUSED:
        raise ImportError(f"{name} of ding.framework is not available in lightning_ding: {REFUSED[name]}")
    return _others(name)
