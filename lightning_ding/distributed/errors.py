"""What goes wrong between a worker and the coordinator."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - an answer, not a defect
    """The coordinator's answer to a message that it does not take; the run goes on.

    Args:
        status: As in HTTP: 400 malformed, 401 no or wrong token, 403 wrong channel or a path outside, 404 unknown task
            or policy, 409 a lease that is over, 413 too large, 422 data of a wrong form, 426 another version.
        reason: One line for people.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason


class LeaseLostError(Refusal):
    """A worker's task has gone to another; whatever it still has for it is not wanted."""

    def __init__(self, reason: str) -> None:
        super().__init__(409, reason)


class CoordinatorGoneError(Exception):
    """The coordinator could not be reached for as long as the config allows."""
