"""Keep what a logger has written, so that a resumed run writes each row once.

TensorBoard and CSV files are cut at the position of the checkpoint. MLflow deletes no number, and W&B no row, so a
resumed run leaves out what they have. W&B keeps rows in memory for up to 15 s before it writes or sends them, and loses
these with the process; a checkpoint therefore contains the newest rows, and the resumed run writes those that are
missing.
"""

from __future__ import annotations

import json
import logging
import math
import re
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger
from torch import Tensor
from typing_extensions import override

logger = logging.getLogger(__name__)

Metrics = Mapping[str, Any]
X = "trainer/global_step"
"""Name under which a ``WandbLogger`` writes the env step."""
TIMED = re.compile(r"^time/|per_second")
"""Names of metrics that depend on the speed, so that a resumed run has other values of them."""
UNSENT = 60.0  # seconds after which W&B has written or sent a row
BLOCK, HEADER = 32 * 1024, 7  # bytes of a block in a file of W&B, and of the headers of the file and of each piece


class WrittenRows:
    """The last step of each metric that a logger has written; enough for files, which are cut at the checkpoint.

    Args:
        one: The logger.
    """

    def __init__(self, one: Logger) -> None:
        self._one = ref(one)
        self.steps: dict[str, int] = {}
        """Step of the last number of each metric, by its name."""
        self._until: dict[str, int] = {}

    @property
    def one(self) -> Any:
        """The logger."""
        return self._one()

    def continue_from(self, state: Mapping[str, Any]) -> None:
        """Leave out from now on what was written before a checkpoint."""
        self.steps = dict(state.get("steps", {}))
        self._until = dict(self.steps)

    def begin(self) -> None:
        """Prepare for the first row of a resumed run."""

    def stored_name(self, name: str) -> str:
        """Return the name under which the logger writes a metric: with its ``prefix``."""
        prefix = getattr(self.one, "_prefix", "")
        return f"{prefix}{self.one.LOGGER_JOIN_CHAR}{name}" if prefix else name

    def log_metrics(self, metrics: Metrics, step: int | None = None) -> None:
        """Write the metrics that are not written yet."""
        new = metrics if step is None else self.new(metrics, step)
        if len(new) == 0 and len(metrics) > 0:
            return
        self._write(new, step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Write hyper-parameters."""
        type(self.one).log_hyperparams(self.one, *args, **kwargs)

    def new(self, metrics: Metrics, step: int) -> Metrics:
        """Return the metrics that are not written yet."""
        if not self._until:
            return metrics
        return {name: value for name, value in metrics.items() if step > self._until.get(name, -1)}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds, as plain Python."""
        return {"steps": dict(self.steps)}

    def _write(self, metrics: Metrics, step: int | None) -> None:
        type(self.one).log_metrics(self.one, metrics, step)
        if step is not None:
            self.steps.update(dict.fromkeys(metrics, int(step)))


class MLflowRows(WrittenRows):
    """The numbers in a run of MLflow, which are read for each metric when a resumed run first writes it."""

    def __init__(self, one: MLFlowLogger) -> None:
        super().__init__(one)
        self._is_continued = False
        self._there: dict[str, set[int]] = {}

    @override
    def continue_from(self, state: Mapping[str, Any]) -> None:
        super().continue_from(state)
        self._is_continued = True

    @override
    def begin(self) -> None:
        self.one.experiment.update_run(self.one.run_id, status="RUNNING")

    @override
    def new(self, metrics: Metrics, step: int) -> Metrics:
        if not self._is_continued:
            return metrics
        return {name: value for name, value in metrics.items() if step not in self._steps_of(name)}

    def _steps_of(self, name: str) -> set[int]:
        """Return the steps at which MLflow has a metric."""
        if name not in self._there:
            stored = re.sub("[^a-zA-Z0-9_/. -]+", "", self.stored_name(name))  # as an MLFlowLogger does
            history = self.one.experiment.get_metric_history(self.one.run_id, stored)
            self._there[name] = {int(metric.step) for metric in history}
        return self._there[name]

    @override
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Write hyper-parameters; MLflow keeps those of the start of a run that is resumed with others."""
        if not self._is_continued:
            super().log_hyperparams(*args, **kwargs)
            return
        from mlflow.exceptions import MlflowException

        try:
            super().log_hyperparams(*args, **kwargs)
        except MlflowException as error:
            first = str(error).strip().splitlines()[0]
            logger.warning("the run of MLflow keeps the parameters with which it began: %s", first)


class WandbRows(WrittenRows):
    """The rows in a run of W&B, by its summary: of the server, or of the files of an offline run."""

    def __init__(self, one: WandbLogger) -> None:
        super().__init__(one)
        self._recent: deque[tuple[float, int, dict[str, float]]] = deque()
        self._resent: list[tuple[int, dict[str, float]]] = []
        self._there: dict[str, Any] = {}
        self._steps_there: dict[str, int] | None = None  # last step of each metric; a server does not say it
        self._number = 0  # of the next row, which an offline run would count from 0

    @override
    def continue_from(self, state: Mapping[str, Any]) -> None:
        super().continue_from(state)
        self._resent = [(int(step), dict(metrics)) for step, metrics in state.get("recent", [])]

    @override
    def begin(self) -> None:
        run = self.one.experiment
        if getattr(run, "offline", False):
            earlier = OfflineRows(run)
            self._there, self._steps_there = earlier.summary, earlier.steps
            self._number = self._there.get("_step", -1) + 1
        else:
            self._there = dict(run.summary)
        for step, metrics in self._resent:
            self.log_metrics(metrics, step)
        self._resent = []

    @override
    def new(self, metrics: Metrics, step: int) -> Metrics:
        last = self._there.get(X)
        if last is None or step > last:
            return metrics
        return {} if step < last or self._has_row(metrics, step) else metrics

    def _has_row(self, metrics: Metrics, step: int) -> bool:
        """Return whether W&B has a row of the last step that it has; the process may have ended between two of them."""
        names = {name: self.stored_name(name) for name in metrics}
        if self._steps_there is not None:
            return all(self._steps_there.get(stored) == step for stored in names.values())
        exact = [name for name in names if not TIMED.search(name)] or list(names)
        return all(_is_same(metrics[name], self._there.get(names[name])) for name in exact)

    @override
    def state(self) -> dict[str, Any]:
        return {**super().state(), "recent": [[step, metrics] for _, step, metrics in self._recent]}

    @override
    def _write(self, metrics: Metrics, step: int | None) -> None:
        if self._number:
            self.one.experiment.log({}, step=int(self._number), commit=False)
            self._number = 0
        super()._write(metrics, step)
        if step is None:
            return
        now = time.monotonic()
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (Real, Tensor))}
        self._recent.append((now, int(step), numbers))
        while now - self._recent[0][0] > UNSENT:
            self._recent.popleft()


class OfflineRows:
    """The newest value of each metric, and its step, in the earlier files of an offline run of W&B.

    Args:
        run: The run, whose own file is left out.
    """

    def __init__(self, run: Any) -> None:
        own = Path(run.settings.sync_file)
        self._files = [
            file
            for file in sorted(Path(run.settings.wandb_dir).glob(f"offline-run-*-{run.id}/run-{run.id}.wandb"))
            if file.resolve() != own.resolve()
        ]

        self.summary: dict[str, Any] = {}
        """The newest value by name."""
        self.steps: dict[str, int] = {}
        """The step of each of them."""
        for file in self._files:
            for record in records_of(file):
                if record.HasField("history"):
                    items = record.history.item
                    self._add({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})

    def _add(self, row: dict[str, Any]) -> None:
        self.summary |= row
        if X in row:
            self.steps |= dict.fromkeys(row, int(row[X]))


def records_of(file: Path) -> Iterator[Any]:
    """Yield the whole records of an offline run of W&B, whose file has the format of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, pieces = file.read_bytes(), HEADER, b""
    while position + HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        piece = content[position + HEADER : position + HEADER + length]
        if kind == 0 or len(piece) < length:  # the rest was not written
            return
        pieces += piece
        position += HEADER + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield Record.FromString(pieces)
            pieces = b""


_rows: WeakKeyDictionary[Logger, WrittenRows] = WeakKeyDictionary()


def rows_written_by(one: Logger) -> WrittenRows:
    """Return what a logger has written in this process and, in a resumed run, before the checkpoint."""
    if one not in _rows:
        if isinstance(one, MLFlowLogger):
            _rows[one] = MLflowRows(one)
        else:
            _rows[one] = WandbRows(one) if isinstance(one, WandbLogger) else WrittenRows(one)
    return _rows[one]


def _is_same(value: Any, written: Any) -> bool:
    """Return whether two numbers are equal; W&B writes NaN as a string."""
    try:
        number, other = float(value), float(written)
    except (TypeError, ValueError):
        return False
    return number == other or (math.isnan(number) and math.isnan(other))
