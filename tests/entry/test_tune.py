from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lightning_ding.entry.tune import main
from tests.tune.test_study import RUN


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    section = {"trials": 1, "candidates": 0, "spaces": {"nstep": "choice(1,2)"}}
    Path("run.yaml").write_text(yaml.safe_dump({**RUN, "tune": section}))
    return "run.yaml"


def test_spaces_of_the_command_line_replace_those_of_the_section(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tune", "-c", file, "--space", "discount_factor", "--space", "nstep=int(1,4)", "--list_spaces"])
    assert capsys.readouterr().out.splitlines() == [
        "discount_factor: choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999)",
        "nstep: int(1, 4)",
    ]


def test_command_searches_and_prints_the_summary(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tune", "--config", file, "--data.max_env_step", "24", "--metric", "best"])
    shown = capsys.readouterr().out
    assert "best trials (best mean return)" in shown
    assert "searched:\n  nstep: choice(1, 2)\nbest" in shown  # of the section
    assert "train with it: lightning-ding fit --config runs/tune/run/best.yaml" in shown
    assert yaml.safe_load(Path("runs/tune/run/best.yaml").read_text())["data"]["max_env_step"] == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--space", "learn.lr=log(1e-5,1e-2)"], "error: unknown config key 'learn.lr'; did you mean"),
        (["--trials", "0"], "error: tune.trials must be >= 1, got 0"),
        (["--data.max_env_stp", "5"], "error: unknown option 'data.max_env_stp'; did you mean 'data.max_env_step'?"),
    ],
)
def test_mistake_is_an_error_of_one_line(
    file: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--config", file, *options])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)
