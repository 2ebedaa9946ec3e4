"""A counter that can be handed on."""

from __future__ import annotations

from lightning_ding.progress import Progress


class Counter:
    """One counter of a ``Progress``, seen and set through ``val``.

    Example:
        >>> progress = Progress()
        >>> last_iter = Counter(progress, "train_iter")
        >>> last_iter.add(3)
        >>> progress.train_iter, last_iter.val
        (3, 3)
    """

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name

    @property
    def val(self) -> int:
        """The count."""
        return int(getattr(self._progress, self._name))

    def update(self, val: int) -> None:
        """Set the count."""
        setattr(self._progress, self._name, int(val))

    def add(self, add_num: int) -> None:
        """Add to the count."""
        self.update(self.val + int(add_num))
