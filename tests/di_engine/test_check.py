"""``lightning-ding serial --check``: which configs run, and the one reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_ding.di_engine.check import RUNS, Checked, check, config_files, summary, table
from lightning_ding.di_engine.serial_cli import main as command
from tests.di_engine.pairs import pair_of


def write(folder: Path, name: str, kind: str, policy: dict[str, Any] | None = None, **env: Any) -> Path:
    main, create = pair_of("dqn", policy)
    create["policy"]["type"] = kind
    create["env"] |= env
    file = folder / f"{name}.py"
    file.write_text(f"main_config = {main!r}\ncreate_config = {create!r}\n")
    return file


@pytest.mark.parametrize(
    ("kind", "policy", "env", "cause", "reason"),
    [
        ("dqn", {}, {}, RUNS, ""),
        ("acer_x", {}, {}, "policy", "create_config.policy.type must be one of"),
        ("dqn", {}, {"type": "gobigger"}, "several agents", "got the game of several agents 'gobigger'"),
        ("dqn", {}, {"type": "unheard_of"}, "env", "env.type must be one of"),
        ("dqn", {}, {"type": "rocket"}, "missing env", "the env 'rocket' does not run here"),
        ("mdqn", {"model": {"noise": True}}, {"type": "rocket"}, "option", "policy.model.noise must be False"),
        ("cql", {}, {}, "missing data set", "policy.collect.data_path must be an .npz"),
        ("cql", {"collect": {"data_path": "a.npz"}}, {}, "missing data set", "dataset must be the path of a file"),
        (
            "dqn",
            {"learn": {"learner": {"hook": {"load_ckpt_before_run": "a.ckpt"}}}},
            {},
            "missing checkpoint",
            "but there is no file 'a.ckpt'",
        ),
    ],
)
def test_cause_and_reason(
    kind: str, policy: dict[str, Any], env: dict[str, Any], cause: str, reason: str, tmp_path: Path
) -> None:
    found = check(write(tmp_path, "a", kind, policy, **env))
    assert (found.policy, found.cause) == (kind, cause)
    assert reason in found.reason
    assert "\n" not in found.reason


def test_file_that_raises_is_a_row_too(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import no_such_package")
    (tmp_path / "b.py").write_text("raise SystemExit(3)")
    rows = [check(tmp_path / name) for name in ("a.py", "b.py")]
    assert [row.cause for row in rows] == ["import", "other"]
    assert rows[0].reason == "ModuleNotFoundError: No module named 'no_such_package'"


def test_folder_gives_its_pairs_alone(tmp_path: Path) -> None:
    first = write(tmp_path, "a", "dqn")
    (tmp_path / "env.py").write_text("x = 1")
    assert list(config_files([tmp_path])) == [first]
    assert list(config_files([tmp_path / "env.py"])) == [tmp_path / "env.py"]
    with pytest.raises(ValueError, match="--check must be the path of a config file"):
        list(config_files([tmp_path / "gone"]))


def test_table_and_summary_count_each_cause() -> None:
    rows = [Checked(Path(f"{number}.py"), "dqn", cause, "why") for number, cause in enumerate(("policy", "policy"))]
    rows += [Checked(Path("2.py"), "sac", RUNS, ""), Checked(Path("3.py"), "", "missing env", "a package")]
    assert summary(rows) == "4 configs: 1 runs, 1 missing env, 2 policy"
    assert table(rows).splitlines()[2].split() == ["2.py", "sac", "runs"]


def test_command_prints_a_table_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "a", "dqn")
    command(["serial", "--check", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[-1] == "1 configs: 1 runs"
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".py"] == ["a.py"]
    with pytest.raises(SystemExit):
        command(["serial"])
    assert "--config must be given, or --check" in capsys.readouterr().err
