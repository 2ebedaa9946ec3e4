"""Entry points: the command line, :func:`parallel_pipeline` for distributed runs, and the serial entries."""

from typing import TYPE_CHECKING

from lightning_ding.utils.foreign import attach

if TYPE_CHECKING:
    from lightning_ding.entry.parallel import parallel_pipeline as parallel_pipeline

_SERIAL = ("eval", "serial_pipeline", "serial_pipeline_offline", "serial_pipeline_onpolicy")
_HOMES = {"parallel_pipeline": "entry.parallel", **dict.fromkeys(_SERIAL, "di_engine.serial")}
__getattr__, __dir__ = attach(__name__, _HOMES)[:2]  # imported when they are used, so that other commands start faster
