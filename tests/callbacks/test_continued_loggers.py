"""A resumed run continues the folder, run and id of each logger, and each of its rows is there once."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lightning_ding.callbacks.earlier_runs import is_open, run_name
from lightning_ding.callbacks.tensorboard_returns import write_without_thread
from lightning_ding.callbacks.written_rows import MLflowRows, OfflineRows, WandbRows
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.processes import run

SCRIPT = Path(__file__).with_name("killed_loggers_script.py")
Config = dict[str, Any]


# ------------------------------------------------------------------ killed runs


def check_killed(folder: Path, kind: str, environment: dict[str, str] | None = None, timeout: float = 240) -> None:
    output = run(SCRIPT, folder, kind, environment=environment, timeout=timeout)
    killed, whole = json.loads(output.splitlines()[-1])
    assert killed.keys() == whole.keys()
    for name, numbers in whole.items():
        assert len(numbers) > 100
        assert killed[name] == numbers, name  # none lost, none doubled, in the same order


def test_run_killed_ten_times_leaves_the_files_of_a_whole_run(tmp_path: Path) -> None:
    check_killed(tmp_path, "files")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_run_killed_ten_times_leaves_what_a_whole_run_has_in_a_service(tmp_path: Path, kind: str) -> None:
    pytest.importorskip(kind)
    environment = {"WANDB_SILENT": "true", "WANDB_DATA_DIR": str(tmp_path / "data")}
    check_killed(tmp_path, kind, environment, timeout=580)


# ------------------------------------------------------------------ where a resumed run writes


def fit(trainer: Trainer, config: Config, steps: int, ckpt_path: Any = None) -> None:
    data = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=steps, rounds_per_epoch=2)
    trainer.fit(DQNPolicy(config), data, ckpt_path=ckpt_path)


def rows_of_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def steps_of_csv(folder: Path, name: str) -> list[int]:
    return [int(row["step"]) for row in rows_of_csv(folder) if row[name]]


def checkpoint_of(folder: Path, env_step: int) -> Path:
    return folder / "checkpoints" / f"last-{env_step}" / "run.ckpt"


@pytest.fixture
def logging_run(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that runs with a CSVLogger and five kept checkpoints, and returns the folder of the metrics."""
    from lightning_ding.callbacks import RunCheckpoint

    def fit_with(steps: int, ckpt_path: Any = None, version: Any = None, name: str = "a") -> Path:
        logger = CSVLogger(tmp_path, name, version)
        callbacks = [RunCheckpoint(keep_last=5, save_buffer="always")]
        trainer = make_trainer(logger=logger, callbacks=callbacks, enable_checkpointing=True, log_every_n_steps=1)
        fit(trainer, small, steps, ckpt_path)
        return Path(logger.log_dir)

    return fit_with


def test_run_without_a_version_continues_in_its_folder(logging_run: Callable[..., Path], tmp_path: Path) -> None:
    first, second = logging_run(48), logging_run(80, "last")
    assert first == second == tmp_path / "a" / "version_0"
    assert [one.name for one in (tmp_path / "a").iterdir()] == ["version_0"]
    assert steps_of_csv(first, "learn/total_loss") == [24, 32, 40, 48, 56, 64, 72, 80]
    assert steps_of_csv(first, "eval/return_mean") == [32, 48, 64, 80]


def test_finished_run_that_is_resumed_writes_nothing_twice(logging_run: Callable[..., Path]) -> None:
    folder = logging_run(48)
    before = rows_of_csv(folder)
    assert logging_run(48, "last") == folder
    assert rows_of_csv(folder) == before


def test_older_checkpoint_begins_a_new_run_and_the_rows_of_the_old_one_stay(
    logging_run: Callable[..., Path], tmp_path: Path
) -> None:
    folder = logging_run(64)
    before = rows_of_csv(folder)
    with pytest.warns(
        UserWarning, match=r"CSVLogger begins a new run, because .*last-32.* is not the newest checkpoint"
    ):
        assert logging_run(64, checkpoint_of(folder, 32)) == tmp_path / "a" / "version_1"
    assert rows_of_csv(folder) == before


def test_older_checkpoint_of_a_chosen_version_removes_the_rows_after_it(logging_run: Callable[..., Path]) -> None:
    folder = logging_run(64, version="mine")
    assert logging_run(48, checkpoint_of(folder, 32), version="mine") == folder
    assert steps_of_csv(folder, "learn/total_loss") == [24, 32, 40, 48]


def test_another_name_or_version_of_the_user_is_kept(logging_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = logging_run(48)
    before = rows_of_csv(folder)
    chosen: list[tuple[dict[str, Any], str]] = [({"version": 5}, "a/version_5"), ({"name": "b"}, "b/version_0")]
    for arguments, expected in chosen:
        there = logging_run(64, checkpoint_of(folder, 48), **arguments)
        assert there == tmp_path / expected
        assert steps_of_csv(there, "learn/total_loss") == [56, 64]
    assert rows_of_csv(folder) == before


def test_moved_folder_is_continued(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    for root, steps, ckpt_path in [("old", 48, None), ("new", 64, "last")]:
        logger = CSVLogger(tmp_path / root)
        fit(make_trainer(logger=logger, enable_checkpointing=True, log_every_n_steps=1), small, steps, ckpt_path)
        if root == "old":
            (tmp_path / "old").rename(tmp_path / "new")
    assert steps_of_csv(tmp_path / "new" / "lightning_logs" / "version_0", "learn/total_loss")[-3:] == [48, 56, 64]


def test_evaluation_with_a_chosen_version_deletes_no_rows(
    logging_run: Callable[..., Path], make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    folder = logging_run(48, version="mine")
    before = rows_of_csv(folder)
    trainer = make_trainer(logger=CSVLogger(tmp_path, "a", "mine"))
    data = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=48)
    trainer.test(DQNPolicy(small), data, ckpt_path=folder / "checkpoints" / "last.ckpt", verbose=False)
    rows = rows_of_csv(folder)
    assert [{name: row[name] for name in before[0]} for row in rows[: len(before)]] == before
    assert [row["step"] for row in rows if row.get("test/return_mean")] == ["48"]


def test_tensorboard_hides_what_came_after_the_checkpoint_and_has_its_settings_once(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps in (48, 64):
        trainer = make_trainer(logger=TensorBoardLogger(tmp_path), enable_checkpointing=True, log_every_n_steps=1)
        fit(trainer, small, steps, "last" if steps == 64 else None)
        late: Any = trainer.loggers[0]
        late.experiment.add_scalar("learn/total_loss", -1.0, 56 if steps == 48 else 72)  # after the checkpoint
        late.finalize("success")
    events = EventAccumulator(str(tmp_path / "lightning_logs" / "version_0"))
    events.Reload()
    assert [(one.step, one.value == -1) for one in events.Scalars("learn/total_loss")] == [
        *[(step, False) for step in (24, 32, 40, 48, 56, 64)],
        (72, True),
    ]
    assert [one.step for one in events.Scalars("hp_metric")] == [0, 32, 48, 64]
    assert len(events.Tensors("custom_scalars__config__")) == 1


def test_file_of_events_sorts_after_the_older_ones(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.9999999998.host.1.0").touch()
    logger = TensorBoardLogger(tmp_path, "", "")
    write_without_thread(logger.experiment)
    logger.log_metrics({"x": 1.0}, step=1)
    newest = max(tmp_path.glob("events*"))
    assert newest.name.startswith("events.out.tfevents.9999999999.")
    assert newest.stat().st_size > 0


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_job_id_of_slurm_is_not_a_version_of_the_user(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_ding.callbacks.earlier_runs.SLURMEnvironment.job_id", lambda: 77)
    assert is_open(kind(tmp_path, version=77))
    assert not is_open(kind(tmp_path, version=78))


@pytest.mark.parametrize("kind", ["tensorboard", "csv", "mlflow", "wandb"])
def test_loggers_have_the_attributes_that_decide_their_run(kind: str, tmp_path: Path) -> None:
    """A new version of Lightning without them would begin a new run at each resume."""
    make: dict[str, Callable[[Any], Logger]] = {
        "tensorboard": lambda version: TensorBoardLogger(tmp_path, version=version),
        "csv": lambda version: CSVLogger(tmp_path, version=version),
        "mlflow": lambda version: MLFlowLogger(run_id=version, tracking_uri="http://127.0.0.1:9"),
        "wandb": lambda version: WandbLogger(version=version, save_dir=tmp_path),
    }
    if kind in ("mlflow", "wandb"):
        pytest.importorskip(kind)
    assert is_open(make[kind](None))
    assert not is_open(make[kind]("chosen"))


# ------------------------------------------------------------------ services


class Client:
    """The part of MLflow's client that the rows need."""

    def __init__(self, there: dict[str, Sequence[int]]) -> None:
        self.there, self.status = there, ""

    def get_metric_history(self, run_id: str, name: str) -> list[Any]:
        return [SimpleNamespace(step=step) for step in self.there.get(name, ())]

    def update_run(self, run_id: str, status: str) -> None:
        self.status = status


class Service(Logger):
    """A logger of a service, with the interface of Lightning's, that keeps its rows."""

    name, version = "study", "id"
    LOGGER_JOIN_CHAR = "-"

    def __init__(self, experiment: Any, prefix: str = "") -> None:
        super().__init__()
        self.experiment, self._prefix, self.run_id = experiment, prefix, "id"
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


def test_mlflow_gets_the_numbers_that_it_has_not() -> None:
    one: Any = Service(Client({"p-loss": [8, 16], "p-return": [8]}), "p")
    rows = MLflowRows(one)
    rows.continue_from({"steps": {"loss": 8}})
    rows.begin()
    for step in (8, 16, 24):
        rows.log_metrics({"loss": 1.0, "return": 2.0}, step=step)
    assert one.rows == [(16, {"return": 2.0}), (24, {"loss": 1.0, "return": 2.0})]
    assert one.experiment.status == "RUNNING"


def test_mlflow_run_that_is_resumed_with_other_settings_keeps_the_first_ones_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exceptions = pytest.importorskip("mlflow.exceptions")

    class Refusing(Service):
        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
            raise exceptions.MlflowException("Changing param values is not allowed.\nmore")

    one: Any = Refusing(Client({}))
    rows = MLflowRows(one)
    with pytest.raises(exceptions.MlflowException):  # a run that is not resumed
        rows.log_hyperparams({})
    rows.continue_from({})
    rows.log_hyperparams({})
    assert caplog.messages == [
        "the run of MLflow keeps the parameters with which it began: Changing param values is not allowed."
    ]


def wandb_rows(summary: dict[str, Any], recent: Sequence[Any] = ()) -> tuple[Service, WandbRows]:
    one = Service(SimpleNamespace(summary=summary, offline=False))
    rows = WandbRows(one)  # type: ignore[arg-type]
    rows.continue_from({"steps": {}, "recent": list(recent)})
    rows.begin()
    return one, rows


def test_wandb_gets_the_rows_of_the_checkpoint_that_it_lost_and_no_row_twice() -> None:
    recent = [[step, {"loss": float(step)}] for step in (8, 16, 24)]
    one, rows = wandb_rows({"trainer/global_step": 16, "loss": 16.0}, recent)
    assert one.rows == [(24, {"loss": 24.0})]
    rows.log_metrics({"loss": 32.0}, step=32)
    assert one.rows[1:] == [(32, {"loss": 32.0})]


def test_wandb_does_not_get_the_rows_after_the_checkpoint_that_it_has() -> None:
    one, rows = wandb_rows({"trainer/global_step": 24, "loss": 3.0, "return": "NaN", "time/speed": 9.0})
    rows.log_metrics({"loss": 2.0}, step=16)
    rows.log_metrics({"loss": 3.0, "time/speed": 10.0}, step=24)  # the speed is another one
    rows.log_metrics({"return": float("nan")}, step=24)
    rows.log_metrics({"success": 1.0}, step=24)  # the process was killed before this row
    assert one.rows == [(24, {"success": 1.0})]


def test_checkpoint_has_the_rows_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("lightning_ding.callbacks.written_rows.time.monotonic", lambda: now[0])
    _, rows = wandb_rows({})
    for step in (8, 16, 24):
        rows.log_metrics({"loss": 1.0, "video": object()}, step=step)
        now[0] += 40.0
    assert rows.state() == {
        "steps": {"loss": 24, "video": 24},
        "recent": [[16, {"loss": 1.0}], [24, {"loss": 1.0}]],
    }


def test_file_of_wandb_without_rows_is_read_as_empty(tmp_path: Path) -> None:
    earlier = tmp_path / "offline-run-1-id" / "run-id.wandb"
    earlier.parent.mkdir()
    earlier.write_bytes(b":W&B\x00\x00\x00")  # what SIGKILL leaves within the first seconds
    settings = SimpleNamespace(wandb_dir=str(tmp_path), sync_file=str(tmp_path / "offline-run-2-id" / "run-id.wandb"))
    assert OfflineRows(SimpleNamespace(settings=settings, id="id")).summary == {}


def test_address_of_mlflow_is_not_in_a_checkpoint() -> None:
    pytest.importorskip("mlflow")
    one = MLFlowLogger(run_id="abc", tracking_uri="http://user:secret@127.0.0.1:9")
    one._experiment_id, one._initialized = "1", True
    found = run_name(one)
    assert found is not None
    assert found["version"] == "abc"
    assert "secret" not in str(found)
