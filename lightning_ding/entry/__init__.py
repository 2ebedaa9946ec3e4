"""Entry points: the command line, :func:`parallel_pipeline` for distributed runs, and DI-engine's serial entries."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_ding.entry.parallel import parallel_pipeline as parallel_pipeline
    from lightning_ding.entry.serial import (
        eval as eval,
        serial_pipeline as serial_pipeline,
        serial_pipeline_offline as serial_pipeline_offline,
        serial_pipeline_onpolicy as serial_pipeline_onpolicy,
    )

_HOMES = {
    "eval": "serial",
    "parallel_pipeline": "parallel",
    "serial_pipeline": "serial",
    "serial_pipeline_offline": "serial",
    "serial_pipeline_onpolicy": "serial",
}


def __getattr__(name: str) -> Any:
    """Import an entry when it is used, so that other commands start faster."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
