"""The command compare: results of seeds by hand, statistics by hand and by SciPy, logs of both kinds, errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_ding.entry.compare import compare, read_curves
from lightning_ding.entry.compare_command import main
from lightning_ding.entry.compare_tasks import compare_tasks


def write_csv(folder: Path, rows: dict[int, float], name: str = "eval/return_mean") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name},learn/loss,step", *(f"{value},,{step}" for step, value in rows.items()), ",0.5,7"]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")


def write_events(folder: Path, rows: dict[int, float]) -> None:
    with SummaryWriter(str(folder)) as writer:
        for step, value in rows.items():
            writer.add_scalar("eval/return_mean", value, step)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed in range(4):
        write_csv(Path(f"new/seed_{seed}"), {50: 1.0, 95: 10.0 * seed, 100: 10.0 * seed + 2})
        write_events(Path(f"old/seed_{seed}/version_0"), {50: 100.0, 95: 5.0, 100: 5.0 + seed})
    return tmp_path


def test_result_of_a_seed_is_the_mean_of_its_last_tenth(runs: Path) -> None:
    assert [curve.result for curve in read_curves("new")] == [1.0, 11.0, 21.0, 31.0]
    assert [curve.result for curve in read_curves("old")] == [5.0, 5.5, 6.0, 6.5]
    assert read_curves("old")[2].step.tolist() == [50, 95, 100]


def test_runs_are_compared_with_the_first_one(runs: Path) -> None:
    new, old = compare({"new": ["new"], "old": ["old"]})
    assert (new.results, new.mean, new.improvement) == ((1.0, 11.0, 21.0, 31.0), 16.0, None)
    assert new.interval[0] < 16.0 < new.interval[1]
    assert (old.mean, old.improvement) == (5.75, 0.25)  # each seed of old is better than one of four
    # (1 * 50 + (1 + 10 s) / 2 * 45 + (20 s + 2) / 2 * 5) / 100 = 0.775 + 2.75 s; the mean of seeds 1 and 2
    assert new.mean_over_run == pytest.approx(4.9)
    assert old.mean_over_run == pytest.approx(73.875 + 0.025 * 1.5)
    assert old.improvement_interval is not None
    assert 0.0 <= old.improvement_interval[0] < 0.25 < old.improvement_interval[1] <= 1.0


def test_table_and_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "ours=new", "theirs=old"])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.endswith("  better than ours")
    assert first.split()[:3] == ["ours", "4", "16.0"]
    assert second.split()[:3] == ["theirs", "4", "5.750"]
    main(["compare", "new", "--json", "--plot", "curves.png"])
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"] == [1.0, 11.0, 21.0, 31.0]
    assert Path("curves.png").read_bytes()[1:4] == b"PNG"


def test_scores_of_tasks_lie_between_the_lowest_and_the_highest_result(runs: Path) -> None:
    tasks = {"x": {"a": ["new"], "b": ["old"]}, "y": {"a": ["old"], "b": ["old"]}}
    found = compare_tasks(tasks, ranges={"y": (0.0, 10.0)})
    assert found.ranges == {"x": (1.0, 31.0), "y": (0.0, 10.0)}
    assert found.scores("a") == [[0.0, 1 / 3, 2 / 3, 1.0], [0.5, 0.55, 0.6, 0.65]]
    assert found.scores("b")[0] == pytest.approx([4 / 30, 4.5 / 30, 5 / 30, 5.5 / 30])


def test_tasks_have_a_table_each_and_a_profile(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "a@x=new", "a@y=old", "b@x=old", "b@y=old"]
    main([*arguments, "--range", "y=0:10", "--profile", "profile.png"])
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[5]] == ["x", "y"]
    # a in x: 0, 1/3, 2/3, 1; in y: 0.5 to 0.65. At least 0.5: (2 + 4) / 8; at least 0.9: 1 / 8.
    assert lines[-4].split() == ["a", "0.57", *lines[-4].split()[2:5], "88%", "88%", "75%", "12%", "12%"]
    assert lines[-2:] == ["x: 0 is 1.000, 1 is 31.0", "y: 0 is 0.000, 1 is 10.0"]
    assert Path("profile.png").read_bytes()[1:4] == b"PNG"
    main([*arguments, "--json"])
    assert json.loads(capsys.readouterr().out)["scores"]["a"]["x"][3] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "run must be a folder with the logs of a run, got 'nowhere'"),
        (["new", "--metric", "eval/return_mea"], "did you mean 'eval/return_mean'?"),
        (["empty"], "no metrics.csv and no file of TensorBoard"),
        (["a=new", "a=old"], "runs must be different names, got ['a', 'a']"),
        (["new", "--profile", "x.png"], "--profile must be left out, or runs of the form NAME@TASK=FOLDER, got"),
        (["a@x=new", "old"], "runs must be all of the form NAME@TASK=FOLDER, or none, got 'old'"),
        (["a@x=new", "b@y=old"], "runs must be each algorithm on each task, got 'nothing for b@x, a@y'"),
        (["a@x=new", "b@x=old", "--range", "z=0:1"], "range must be of one of the tasks x, got 'z'"),
        (["a@x=new", "b@x=old", "--range", "x=2:1"], "range must be LOW:HIGH with LOW < HIGH (task x), got '2:1'"),
        (["a@x=new", "--range", "x"], "--range must be TASK=LOW:HIGH, got 'x'"),
        (["a@x=new", "--plot", "x.png"], "--plot must be left out with several tasks; --profile draws them, got"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_mistake_ends_in_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("empty").mkdir()
    with pytest.raises(SystemExit) as code:
        main(["compare", *arguments])
    assert code.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_later_row_of_a_step_replaces_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,eval/return_mean\n100,1.0\n50,2.0\n100,3.0\n")
    (curve,) = read_curves(tmp_path)
    assert (curve.step.tolist(), curve.value.tolist()) == ([50, 100], [2.0, 3.0])


def test_cancelled_evaluation_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,eval/return_mean\n100,1.0\n110,nan\n")
    (curve,) = read_curves(tmp_path)
    assert (curve.step.tolist(), curve.result) == ([100], 1.0)


def test_seed_of_a_sweep_counts_once_by_its_newest_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = tmp_path / "seed_0" / "lightning_logs", tmp_path / "seed_1" / "lightning_logs"
    for folder, value, age in ((first / "version_0", 1.0, 0), (first / "version_1", 2.0, 9), (second, 3.0, 0)):
        write_csv(folder, {100: value})
        os.utime(folder / "metrics.csv", (age, age))
    assert [curve.result for curve in read_curves(tmp_path)] == [1.0, 2.0, 3.0]  # not a sweep
    for folder in (tmp_path, tmp_path / "seed_0"):
        (folder / "sweep.json").write_text("{}")
    assert [curve.result for curve in read_curves(tmp_path)] == [2.0, 3.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'seed_1'} has not ended: its result is that of step 100"
    ]


def test_name_of_a_folder_may_contain_an_equals_sign(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("new").rename("lr=0.1")
    main(["compare", "lr=0.1"])
    assert capsys.readouterr().out.splitlines()[1].startswith("lr=0.1  4 ")


def test_one_seed_has_no_interval(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "new/seed_1", "old/seed_1"])
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["new/seed_1", "1", "11.0", "-", "3.525", "-"]
    assert second.split() == ["old/seed_1", "1", "5.500", "-", "73.9", "0.00"]
