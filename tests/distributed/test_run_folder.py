from __future__ import annotations

from pathlib import Path

import pytest

from lightning_ding.distributed.run_folder import check_folder, holds_run

STATE, RESULT, LEARNER = "coordinator/state.json", "result.json", "learner/metrics.csv"
OVER, NONE, RUNS = "holds a run that is over", "holds no run to go on with", "holds a run: --resume goes on with it"


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
    assert _refusal(tmp_path, resume=False) == of_new
    assert _refusal(tmp_path, resume=True) == of_resumed


def _refusal(folder: Path, resume: bool) -> str | None:
    """Return the known reason for which a folder is refused, None if it is not."""
    try:
        check_folder(folder, resume)
    except ValueError as error:
        assert str(error).startswith(f"main.exp_name={str(folder)!r} holds ")
        return next(reason for reason in (OVER, NONE, RUNS) if reason in str(error))
    return None
