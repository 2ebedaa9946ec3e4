from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.distributed.coordinator.resume_config import check_folder, holds_run

STATE, RESULT, LEARNER = "coordinator/state.json", "result.json", "learner/metrics.csv"
OVER = "a finished run: choose another folder"
NONE = "no run to resume: start without --resume, or correct main.exp_name"
RUNS = "a run: --resume continues it, or choose another folder"


@pytest.mark.parametrize(
    ("files", "of_new", "of_resumed"),
    [
        ([], None, NONE),
        (["config.json"], None, NONE),
        ([STATE], RUNS, None),
        ([STATE, RESULT, LEARNER], RUNS, None),  # it was given up
        ([RESULT], OVER, OVER),
        ([LEARNER], OVER, NONE),
    ],
)
def test_folder_takes_a_new_run_only_without_another_and_resuming_needs_one_that_is_not_over(
    tmp_path: Path, files: list[str], of_new: str | None, of_resumed: str | None
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()

    assert holds_run(tmp_path) == (STATE in files)
    with _refusal(tmp_path, of_new):
        check_folder(tmp_path, resume=False)
    with _refusal(tmp_path, of_resumed):
        check_folder(tmp_path, resume=True)


def _refusal(folder: Path, reason: str | None) -> Any:
    """Return what expects an error with a reason, or none."""
    if reason is None:
        return nullcontext()
    return pytest.raises(ValueError, match=f"^{re.escape(f'main.exp_name={str(folder)!r} contains {reason}')}$")
