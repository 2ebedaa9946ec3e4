"""Each logger of Lightning has the metrics, settings and checkpoints of a run: the tests read its files."""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

CFG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [16], "dueling": False},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 1, "eval_freq": 4, "render": {"render_freq": 1000}}},
}
LEARNING_STEPS = [24, 32, 40, 48, 56, 64]  # env steps at which metrics of learning are written
FIRST_EVALUATION = 32  # the only one with a video


class Written:
    """A run of 64 env steps with four loggers, and the files that these wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mlflow_uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.mlflow = MLFlowLogger(
            "study", tracking_uri=self.mlflow_uri, artifact_location=(folder / "artifacts").as_uri(), log_model=True
        )
        self.wandb = WandbLogger(project="study", save_dir=folder, mode="offline", log_model=True)
        files = [CSVLogger(folder, "csv", ""), TensorBoardLogger(folder, "tensorboard", "")]
        flags: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(accelerator="cpu", logger=[*files, self.mlflow, self.wandb], log_every_n_steps=1, **flags)
        data = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=64, env_kwargs={"render_mode": "rgb_array"})
        trainer.fit(DQNPolicy(CFG), data)
        self.wandb.experiment.finish()
        self.best = torch.load(folder / "csv" / "checkpoints" / "best.ckpt", weights_only=True)
        self.best_return = float(self.best["callbacks"]["BestCheckpoint"]["best_model_score"])


BLOCK, HEADER = 32 * 1024, 7  # bytes of a block in a file of W&B, and of the headers of the file and of each piece


def records_of(file: Path) -> Iterator[Any]:
    """Return the records of an offline run of W&B, whose file has the format of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, pieces = file.read_bytes(), HEADER, b""
    while position < len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        pieces += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield Record.FromString(pieces)
            pieces = b""


class WandbRun:
    """The records of an offline run of W&B."""

    def __init__(self, file: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        """Metrics that were logged together."""
        self.config: dict[str, Any] = {}
        self.x_axes: dict[str, str] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        """Metadata and file of artifacts by alias."""
        for record in records_of(file):
            self._add(record)

    def _add(self, record: Any) -> None:
        if record.HasField("history"):
            items = record.history.item
            self.rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        for update in [*record.run.config.update, *record.config.update]:
            self.config[update.key or ".".join(update.nested_key)] = json.loads(update.value_json)
        if record.HasField("metric"):
            self.x_axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        for alias in record.artifact.aliases:
            (content,) = record.artifact.manifest.contents
            self.artifacts[alias] = {**json.loads(record.artifact.metadata), "file": Path(content.local_path)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp("loggers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_DATA_DIR", str(folder / "wandb_data"))  # otherwise in the home folder
        patch.setenv("WANDB_SILENT", "true")
        yield Written(folder)


@pytest.fixture(scope="module")
def folder(written: Written) -> Path:
    return written.folder


@pytest.fixture(scope="module")
def tensorboard(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


@pytest.fixture(scope="module")
def wandb_run(written: Written) -> WandbRun:
    (file,) = (written.folder / "wandb").glob("offline-run-*/run-*.wandb")
    return WandbRun(file)


def check_video(content: bytes) -> None:
    """Check that bytes are an animation of CartPole."""
    video = Image.open(io.BytesIO(content))
    assert (video.format, video.size) == ("GIF", (300, 200))
    assert video.n_frames > 5  # type: ignore[attr-defined]


# ------------------------------------------------------------------ metrics


def test_csv_file_has_metrics_over_env_steps(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "csv" / "metrics.csv").open()))
    returns = {int(row["step"]): float(row["eval/return_mean"]) for row in rows if row["eval/return_mean"]}
    assert max(returns) == 64
    assert all(step % 8 == 0 and value > 0 for step, value in returns.items())
    assert [int(row["step"]) for row in rows if row["learn/total_loss"]] == LEARNING_STEPS


def test_tensorboard_has_metrics_over_env_steps(tensorboard: EventAccumulator) -> None:
    assert [event.step for event in tensorboard.Scalars("learn/total_loss")] == LEARNING_STEPS
    assert tensorboard.Scalars("eval/return_mean")[-1].step == 64


def test_mlflow_has_metrics_over_env_steps(written: Written) -> None:
    client = written.mlflow.experiment
    losses = client.get_metric_history(written.mlflow.run_id, "learn/total_loss")
    assert [metric.step for metric in losses] == LEARNING_STEPS
    assert client.get_metric_history(written.mlflow.run_id, "eval/return_mean")[-1].step == 64


def test_wandb_has_metrics_over_env_steps(wandb_run: WandbRun) -> None:
    assert [row["trainer/global_step"] for row in wandb_run.rows if "learn/total_loss" in row] == LEARNING_STEPS
    assert [row["trainer/global_step"] for row in wandb_run.rows if "eval/return_mean" in row][-1] == 64
    assert wandb_run.x_axes["*"] == "trainer/global_step"


# ------------------------------------------------------------------ hyper-parameters


@pytest.mark.parametrize("logger", ["csv", "tensorboard"])
def test_hyper_parameters_of_policy_and_data_are_written(folder: Path, logger: str) -> None:
    found = yaml.unsafe_load((folder / logger / "hparams.yaml").read_text())
    assert found["cfg"]["learn"]["batch_size"] == 8
    assert found["env_id"] == "CartPole-v1"
    assert found["max_env_step"] == 64


def test_mlflow_has_hyper_parameters_of_policy_and_data(written: Written) -> None:
    params = written.mlflow.experiment.get_run(written.mlflow.run_id).data.params
    assert params["cfg/learn/batch_size"] == "8"
    assert (params["env_id"], params["max_env_step"]) == ("CartPole-v1", "64")


def test_wandb_has_hyper_parameters_of_policy_and_data(wandb_run: WandbRun) -> None:
    assert wandb_run.config["cfg"]["learn"]["batch_size"] == 8
    assert (wandb_run.config["env_id"], wandb_run.config["max_env_step"]) == ("CartPole-v1", 64)


# ------------------------------------------------------------------ checkpoints and videos


def test_mlflow_has_the_best_checkpoint_as_an_artifact(written: Written) -> None:
    (file,) = (written.folder / "artifacts" / str(written.mlflow.run_id) / "artifacts" / "best").glob("*.ckpt")
    assert torch.load(file, weights_only=True)["progress"] == written.best["progress"]


def test_wandb_has_the_best_checkpoint_as_an_artifact(written: Written, wandb_run: WandbRun) -> None:
    best = wandb_run.artifacts["best"]
    assert best["score"] == written.best_return
    assert best["original_filename"] == "best.ckpt"
    assert torch.load(best["file"], weights_only=True)["progress"] == written.best["progress"]


@pytest.mark.parametrize("where", ["csv/media", "artifacts/{run}/artifacts/media", "wandb"])
def test_first_evaluation_is_written_as_a_video(written: Written, where: str) -> None:
    below = written.folder / where.format(run=written.mlflow.run_id)
    (file,) = below.rglob("*.gif")
    if where != "wandb":  # W&B names files by their content
        assert file.name == f"eval_video_{FIRST_EVALUATION}.gif"
    check_video(file.read_bytes())


def test_wandb_has_the_video_over_env_steps(wandb_run: WandbRun) -> None:
    (row,) = [row for row in wandb_run.rows if "eval/video/videos" in row]
    assert row["trainer/global_step"] == FIRST_EVALUATION
    assert row["eval/video/videos"][0]["_type"] == "video-file"


def test_tensorboard_has_the_video_over_env_steps(tensorboard: EventAccumulator) -> None:
    (event,) = tensorboard.Images("eval/video")
    assert event.step == FIRST_EVALUATION
    check_video(event.encoded_image_string)


# ------------------------------------------------------------------ the order in TensorBoard


def test_returns_sort_before_the_metrics_of_learning(tensorboard: EventAccumulator) -> None:
    groups = sorted({tag.partition("/")[0] for tag in tensorboard.Tags()["scalars"] if "/" in tag})
    assert groups[0] == "Returns"
    assert groups.index("eval") < groups.index("learn") < groups.index("time")
