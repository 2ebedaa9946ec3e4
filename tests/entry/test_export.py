"""The command ``export``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lightning_ding.entry.cli import main
from lightning_ding.policy import load_policy
from tests.conftest import MakeTrainer
from tests.entry.trained_runs import train


def test_command_writes_a_graph_that_acts_as_the_checkpoint(
    make_trainer: MakeTrainer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    ckpt = train(make_trainer, tmp_path)
    monkeypatch.chdir(tmp_path)
    main(["export", str(ckpt)])
    assert capsys.readouterr().out == "written: policy.onnx\n"
    obs = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    (action,) = onnxruntime.InferenceSession("policy.onnx").run(None, {"obs": obs})
    assert action.tolist() == load_policy(ckpt).predict(obs).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["missing.ckpt"], "ckpt must be the path of a checkpoint, or zoo:NAME, got 'missing.ckpt'"),
        (["missing.ckpt", "--format", "tf"], "argument --format: invalid choice: 'tf'"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", *options])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith(f"error: {message}")
