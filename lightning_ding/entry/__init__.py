"""Entry points: the command line, and :func:`parallel_pipeline` for distributed runs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_ding.entry.parallel import parallel_pipeline as parallel_pipeline


def __getattr__(name: str) -> Any:
    """Import ``parallel_pipeline`` when it is used, so that other commands start faster."""
    if name == "parallel_pipeline":
        from lightning_ding.entry.parallel import parallel_pipeline

        return parallel_pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
