"""Exit codes of a training process, in addition to Python's: 0 on success, 1 after an error, 2 for an invalid command.

A shell reports 128 + the signal's number for a process that a signal has ended. A run that ends itself after a signal
uses the same exit code.
"""

from __future__ import annotations

import signal

BY_SIGNAL = 128
"""Added to the number of the signal that ended a run."""
INTERRUPTED = BY_SIGNAL + signal.SIGINT
"""130: Ctrl-C."""
TERMINATED = BY_SIGNAL + signal.SIGTERM
"""143: SIGTERM, sent for example before a machine is shut down."""
STALLED = 124
"""The run made no progress for too long, and the watchdog ended it. If the interpreter was blocked, the code is 1."""
ORPHANED = 125
"""The rank that started this rank has exited, or the coordinator of this worker cannot be reached."""
GIVEN_UP = 3
"""A coordinator ended the run because its tasks failed repeatedly; it is not restarted."""
