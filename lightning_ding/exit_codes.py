"""Exit codes of a process that trains, beside Python's own: 0 at the end, 1 after an error, 2 for a wrong command.

A shell gives 128 + the signal's number to what a signal ended; a run that ends itself because of one says the same.
"""

from __future__ import annotations

import signal

BY_SIGNAL = 128
"""Added to the number of the signal that ended a run."""
INTERRUPTED = BY_SIGNAL + signal.SIGINT
"""130: Ctrl-C."""
TERMINATED = BY_SIGNAL + signal.SIGTERM
"""143: SIGTERM, such as before a machine is taken away."""
STALLED = 124
"""Nothing went on for too long, and the watchdog ended the run; 1 if the whole interpreter stood still."""
ORPHANED = 125
"""What a process belongs to is gone: a rank's rank zero, a worker's coordinator."""
GIVEN_UP = 3
"""A coordinator gave the run up, because its tasks failed again and again; it is not started again."""
