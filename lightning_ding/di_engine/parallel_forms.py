"""Transitions, batches, reports and hooks of distributed runs in DI-engine's form.

Shapes: B transitions of a minibatch, U minibatches of a round, n steps of a return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.callbacks.remote import LearningReporter
from lightning_ding.config import require
from lightning_ding.datamodules.remote_feed import RemoteData
from lightning_ding.worker import LearnerHook
from lightning_ding.worker.learner.hooks import Position
from lightning_ding.worker.learner.priority import DEFAULT_PRIORITY

METADATA = frozenset(
    {
        "cur_episode",
        "cur_sample",
        "cur_step",
        "eval_flag",
        "get_data_time",
        "policy_iter",
        "priority",
        "unroll_len",
        "collect_iter",
        "use",
        "staleness",
        "replay_unique_id",
        "replay_buffer_idx",
        "IS",
        "null",
    }
)
"""Entries that are not part of a transition, but of its metadata or of the buffer."""
NEEDED = ("obs", "action", "reward")

SINGLE = "one that learns from single transitions where batches are lists of transitions, as in DI-engine"


def as_columns(batch: Sequence[Any] | Mapping[str, Any], discount_factor: float = 1.0) -> dict[str, Any]:
    """Return a batch as columns, leading axis B, in the form that policies learn from.

    Args:
        batch: Columns; or transitions, or functions that load one. A transition may have DI-engine's ``done`` in place
            of ``terminated``, and a ``reward`` of n steps, which are summed; texts and None are left out.
        discount_factor: gamma of the sum, in [0, 1].

    Raises:
        TypeError: If a transition is not a mapping.
    """
    if isinstance(batch, Mapping):
        return _converted(cast("dict[str, Any]", nested.to_tensor(dict(batch))), discount_factor, batch_axes=1)
    samples = [sample() if callable(sample) else sample for sample in batch]
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise TypeError(f"transitions must be mappings, got {type(sample).__name__}: {sample!r}")
    rows = [_converted(_numbers(sample), discount_factor, batch_axes=0) for sample in samples]
    return cast("dict[str, Any]", nested.stack(rows))


def transitions_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the transitions of a round with one minibatch, leading axes (1, B), as a list of B dicts.

    Raises:
        ValueError: If the minibatch has sequences, which a list of transitions cannot represent.
    """
    require("learn_mask" not in data, "the policy", SINGLE, "one that learns from sequences")
    return [cast("dict[str, Any]", row) for row in nested.unbind(nested.index(dict(data), 0))]


def rows_for_buffer(data: Mapping[str, Any] | Sequence[Mapping[str, Any]], policy_version: int, episode: int) -> Any:
    """Return transitions with the columns that a coordinator's buffer needs, leading axis B.

    Args:
        data: One transition, or a list of transitions that follow each other.
        policy_version: Version of the weights for a transition without ``policy_iter`` or ``collect_iter``.
        episode: ``episode_id`` of transitions that have none.

    Raises:
        ValueError: If a transition lacks an entry, such as the metadata of a file, or has several rewards.
        TypeError: If a transition is not a mapping.
    """
    samples = [data] if isinstance(data, Mapping) else list(data)
    for sample in samples:
        missing = [name for name in NEEDED if name not in sample]
        allowed = "a transition: the buffer of a coordinator stores transitions, not the names of files"
        require(not missing, "data", f"{allowed}; it lacks {missing}", sorted(sample))
        steps = torch.as_tensor(sample["reward"]).numel()
        require(steps == 1, "reward", "one number: returns of n steps are computed when sampling", sample["reward"])
    size = len(samples)
    versions = [sample.get("policy_iter", sample.get("collect_iter", policy_version)) for sample in samples]
    rows = as_columns([{name: sample[name] for name in sample if name not in METADATA} for sample in samples])
    false = torch.zeros(size, dtype=torch.bool)
    return {
        "terminated": false,
        "truncated": false,
        "env_id": torch.zeros(size, dtype=torch.int64),
        "episode_id": torch.full((size,), episode),
        "policy_version": torch.tensor(versions, dtype=torch.int64),
        **rows,
    }


def _numbers(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a transition that a policy may learn from, as tensors."""
    kept = {name: value for name, value in sample.items() if not (value is None or isinstance(value, (str, bytes)))}
    return cast("dict[str, Any]", nested.to_tensor(kept))


def _converted(sample: dict[str, Any], gamma: float, batch_axes: int) -> dict[str, Any]:
    """Return transitions with ``terminated`` in place of ``done``, and rewards of n steps summed."""
    done = sample.pop("done", None)
    if done is not None and "terminated" not in sample:
        sample["terminated"] = done.bool().squeeze(-1) if done.ndim > batch_axes else done.bool()
    gamma_n = sample.pop("value_gamma", None)
    if sample["reward"].ndim > batch_axes:
        steps = sample["reward"].shape[-1]
        powers = gamma ** torch.arange(steps, dtype=torch.float32)
        sample["reward"] = (sample["reward"] * powers).sum(-1)
        if steps > 1 and "discount" not in sample:
            shape = sample["reward"].shape
            sample["discount"] = torch.full(shape, gamma**steps) if gamma_n is None else gamma_n.reshape(shape)
    return sample


GetData = Callable[[int], "Sequence[Any] | Mapping[str, Any] | None"]


class BatchSource:
    """A source of rounds that calls a function of the batch size once for each minibatch.

    Args:
        get_data: Returns a batch: a list of B transitions, or of functions that load one, or a dict of columns; None
            or an empty list ends the run.
        progress: Returns ``env_step``, ``episode`` and ``sample`` of all collectors, if they are known.
    """

    def __init__(self, get_data: GetData, progress: Callable[[], Mapping[str, int]] = dict) -> None:
        self._get_data = get_data
        self._progress = progress

    def get_data(
        self, batch_size: int, num_batches: int, cur_learner_iter: int, options: Mapping[str, Any], rank: int
    ) -> RemoteData:
        """Return a round; see :meth:`lightning_ding.datamodules.remote.DataSource.get_data`.

        Raises:
            ValueError: If a batch does not have ``batch_size`` transitions, or has rewards of one step for a policy
                that learns from returns of several.
        """
        batches = []
        for _ in range(num_batches):
            batch = self._get_data(batch_size)
            if batch is None or len(batch) == 0:
                return RemoteData(stop=True, progress=self._progress())
            batches.append(as_columns(batch, options.get("discount_factor", 1.0)))
            check_steps(batches[-1], int(options.get("n_step", 1)))
            size = nested.length(batches[-1])
            if size != batch_size:
                raise ValueError(f"get_data must return {batch_size} transitions, got {size}")
        return RemoteData(data=cast("dict[str, Any]", nested.stack(batches)), progress=self._progress())


class ColumnsOf:
    """Returns the batches of a function as columns, in the form that policies learn from.

    Args:
        get_data: See :class:`BatchSource`.
        discount_factor: Discount factor of returns of several steps, in [0, 1].
        n_step: Steps of the returns that the policy learns from, >= 1.
    """

    def __init__(self, get_data: GetData, discount_factor: float, n_step: int = 1) -> None:
        self._get_data = get_data
        self._discount_factor = discount_factor
        self._n_step = n_step

    def __call__(self, batch_size: int) -> dict[str, Any] | None:
        """Return the next batch; None after the last one.

        Raises:
            ValueError: If the batch has rewards of one step for a policy that learns from returns of several.
        """
        batch = self._get_data(batch_size)
        if not batch:
            return None
        columns = as_columns(batch, self._discount_factor)
        check_steps(columns, self._n_step)
        return columns


def check_steps(batch: Mapping[str, Any], n_step: int) -> None:
    """Check that a batch has returns of several steps if the policy learns from them.

    Args:
        batch: Columns that :func:`as_columns` returned; ``discount`` is gamma to the power of the steps of a return.
        n_step: Steps of the returns that the policy learns from, >= 1.

    Raises:
        ValueError: If the rewards are those of one step, and ``n_step`` is more.
    """
    allowed = (
        f"returns of nstep = {n_step} steps: {n_step} numbers as the 'reward' of each transition and the 'next_obs' "
        "after them, as get_nstep_return_data makes them, or what the base class's get_data returns; or set nstep to 1"
    )
    require(n_step == 1 or "discount" in batch, "the batch of get_data", allowed, "rewards of one step")


class InfoForm(LearningReporter):
    """Passes reports to a function in DI-engine's form, and one more with ``learner_done`` at the end of the run.

    ``priority_info`` has a list for each of ``priority``, ``replay_unique_id`` and ``replay_buffer_idx``; it is empty
    without priorities. See the base class for the arguments.
    """

    def __init__(self, send_learn_info: Callable[[Mapping[str, Any]], None], every_n_rounds: int = 1) -> None:
        super().__init__(lambda info: send_learn_info({**info, "priority_info": _lists(info["priority_info"])}))
        self.every_n_rounds = every_n_rounds

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Report the end of the run."""
        if trainer.is_global_zero:
            done = {"learner_step": pl_module.progress.train_iter, "learner_done": True, "priority_info": None}
            self.send_learn_info(done)


class _EveryFewUpdates(LearnerHook):
    name_of_kind: ClassVar[str]
    option: ClassVar[str]

    def __init__(
        self,
        name: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        position: Position = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(self.name_of_kind if name is None else name, priority, position, ext_args)
        self.every = int(self.ext_args.get(self.option, 1))
        require(self.every >= 1, f"ext_args.{self.option}", "a number of updates >= 1", self.every)


class SendPolicyHook(_EveryFewUpdates):
    """Calls ``engine.send_policy`` with ``model``, the weights by name, and ``iter``, the number of updates.

    Only rank zero sends. ``ext_args`` has ``send_policy_freq``, updates between two calls, >= 1; 1 by default.
    """

    name_of_kind, option = "send_policy", "send_policy_freq"

    def __call__(self, engine: Any) -> None:
        """Send the weights if they are due."""
        is_due = self.position != "after_iter" or engine.crossed(self.every)
        if engine.rank == 0 and is_due:
            engine.send_policy({"model": engine.policy.state_dict()["model"], "iter": engine.train_iter})


class SendLearnInfoHook(_EveryFewUpdates):
    """Calls ``engine.send_learn_info`` with ``engine.learn_info``: after each iteration, and at the end of the run.

    ``ext_args`` has ``freq``, updates between two lines for debugging in Python's logging, >= 1; 1 by default.
    """

    name_of_kind, option = "send_learn_info", "freq"

    def __call__(self, engine: Any) -> None:
        """Send the info."""
        engine.send_learn_info(engine.learn_info)
        if engine.crossed(self.every):
            engine.debug(f"sent the learn info of update {engine.train_iter}")


def hooks_of_comm_learner(send_policy_freq: int = 1) -> list[LearnerHook]:
    """Return the hooks that a comm learner adds to a plain learner."""
    return [
        SendPolicyHook(position="before_run"),
        SendPolicyHook(position="after_iter", ext_args={"send_policy_freq": send_policy_freq}),
        SendLearnInfoHook(position="after_iter"),
        SendLearnInfoHook(position="after_run"),
    ]


def _lists(priorities: Mapping[str, Tensor] | None) -> dict[str, list[Any]]:
    return {} if priorities is None else {name: column.tolist() for name, column in priorities.items()}
