"""Entry points: the command line, :func:`parallel_pipeline` for distributed runs, and the serial entries."""

from typing import TYPE_CHECKING

from lightning_ding.utils.foreign import attach

if TYPE_CHECKING:
    from lightning_ding.entry.parallel import parallel_pipeline as parallel_pipeline

_SERIAL = (
    "eval",
    "serial_pipeline",
    *(f"serial_pipeline_{name}" for name in ("dyna", "ngu", "offline", "onpolicy", "onpolicy_ppg")),
)
_IMITATION = tuple(
    f"serial_pipeline_{name}"
    for name in ("bc", "dqfd", "gail", "r2d3", "reward_model_offpolicy", "reward_model_onpolicy", "sqil")
)
_INVERSE = tuple(
    f"serial_pipeline_{name}{end}"
    for name in ("preference_based_irl", "trex", "reward_model_trex")
    for end in ("", "_onpolicy")
)
_HOMES = {
    "parallel_pipeline": "entry.parallel",
    **dict.fromkeys(_SERIAL, "di_engine.serial"),
    **dict.fromkeys(_IMITATION, "di_engine.imitation"),
    **dict.fromkeys((*_INVERSE, "serial_pipeline_guided_cost", "trex_collecting_data"), "di_engine.inverse_rl"),
}
__getattr__, __dir__ = attach(__name__, _HOMES)[:2]  # imported when they are used, so that other commands start faster
