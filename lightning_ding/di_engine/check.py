"""Which configs of DI-engine run here: the command ``lightning-ding serial --check``.

A config file is run as Python code, so only check files that you trust.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_ding.config import require
from lightning_ding.di_engine.configs import Missing, entry_of, policy_type, read_pair
from lightning_ding.di_engine.translate import translate

IS_PAIR = [re.compile(rf"^{name} *=", re.MULTILINE) for name in ("main_config", "create_config")]
RUNS = "runs"
MISSING = ("env", "data set", "checkpoint")
"""The kinds of things that a config lacks on this machine, and that make it run."""
CAUSES = {
    "several agents": ("several agents",),
    "env": ("env.type must be", "env_id must be", "more packages"),
    "reward model": ("reward_model.", "has no counterpart: there are no such reward models"),
    "policy": ("create_config.policy.type must be",),
    "option": (" here (", "has no counterpart: hindsight", "no argument of the network"),
    "another pipeline": ("has no counterpart", "unknown section", "belong to a distributed run", "serial_pipeline_"),
    "import": ("No module named", "cannot import name", "is not available in lightning_ding"),
}
"""Texts of errors by their cause, in the order in which they are tried."""


@dataclass(frozen=True)
class Checked:
    """The result for a config file."""

    path: Path
    policy: str
    """Name of the policy; empty if the file could not be read."""
    cause: str
    """``"runs"``, ``"missing KIND"`` for what this machine lacks, or one of ``CAUSES`` or ``"other"``."""
    reason: str
    """The first reason why the config does not run, in one line; empty if it runs."""


def config_files(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Yield the given files, and those files of given folders that define a ``main_config`` and a ``create_config``.

    Raises:
        ValueError: If there is no such file or folder.
    """
    for path in map(Path, paths):
        require(path.exists(), "--check", "the path of a config file, or of a folder with some", str(path))
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            text = file.read_text(errors="replace") if path.is_dir() else ""
            if not path.is_dir() or all(pattern.search(text) for pattern in IS_PAIR):
                yield file


def check(path: Path) -> Checked:
    """Translate a config file without training, and return whether it runs on this machine."""
    policy = ""
    try:
        pair = read_pair(path)
        policy = policy_type(*pair)
        translate(pair, entry=entry_of(path)).check_needs()
    except (Exception, SystemExit) as error:  # the code of a file raises anything
        return Checked(path, policy, cause_of(error), one_line(error))
    return Checked(path, policy, RUNS, "")


def cause_of(error: BaseException) -> str:
    """Return the kind of reason for which a config does not run."""
    if isinstance(error, Missing):
        return f"missing {error.kind}"
    return next((cause for cause, texts in CAUSES.items() if any(text in str(error) for text in texts)), "other")


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (ValueError, TypeError)) and text else f"{type(error).__name__}: {text}"


def table(rows: Sequence[Checked]) -> str:
    """Return a line for each config, and the counts of the causes."""
    width = max((len(str(row.path)) for row in rows), default=0)
    lines = [f"{row.path!s:{width}}  {row.policy or '-':14}  {row.reason or RUNS}" for row in rows]
    return "\n".join([*lines, "", summary(rows)])


def summary(rows: Sequence[Checked]) -> str:
    """Return how many configs run, how many lack something on this machine, and the other causes."""
    counts = Counter(row.cause for row in rows)
    order = [RUNS, *(f"missing {kind}" for kind in MISSING)]
    rest = sorted(counts.keys() - set(order), key=lambda cause: (-counts[cause], cause))
    parts = [f"{counts[cause]} {cause}" for cause in (*order, *rest) if counts[cause] or cause == RUNS]
    return f"{len(rows)} configs: {', '.join(parts)}"
