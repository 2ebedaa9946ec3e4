"""Processing of collectors' messages: changes of a buffer and its counts, and the settings of the buffer.

A message has the same effect when it arrives and when it is read from the journal after a restart.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from lightning_ding import nested
from lightning_ding.config import require, to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.journal import Entry, renamed
from lightning_ding.distributed.coordinator.sample_ratio import SampleRatio
from lightning_ding.distributed.coordinator.schema import Announced, check_rows, described, episode_of_attempt, renumber
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.vector import MODES, SEPARATE_MODES
from lightning_ding.policy import create_policy, get_policy_cls
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.modes import IS_FIRST, STATE
from lightning_ding.worker import create_buffer, get_buffer_cls
from lightning_ding.worker.buffer.base import IBuffer, check_samples
from lightning_ding.worker.config import ReplayBufferConfig

logger = logging.getLogger(__name__)

BUFFER_FILE = "buffer.safetensors"
KEPT_EPISODES = 10_000  # episodes that wait for the learner to log them


class Intake:
    """A buffer, its sample ratio and its counts; must not be used from several threads at once.

    Args:
        cfg: Config of the buffer; empty to use the buffer config of the policy.
        settings: Settings for filling and reading the buffer.
    """

    def __init__(self, cfg: Mapping[str, Any], settings: ReplaySettings) -> None:
        self.settings = settings
        self._config = coordinator = settings.config.system.coordinator
        self._buffer_config = dict(cfg) or settings.buffer
        self._env: Any = None
        self.buffer = self._make_buffer()
        self._announced: Announced | None = None
        self._held: Announced | None = None  # columns of the first block of the buffer
        self.ratio = SampleRatio(
            settings.samples_per_insert, settings.warm_up, coordinator.tolerance, settings.round_size
        )
        self.counts = Counts()
        self.is_starved = False
        """Whether the buffer could not give a minibatch although it holds enough transitions, and got none since."""
        self._episodes: deque[tuple[float, int, dict[str, float]]] = deque(maxlen=KEPT_EPISODES)
        self._dropped = 0  # episodes

    def read(self, tensors: dict[str, Any], entry: Entry) -> dict[str, Any]:
        """Return the transitions of a block with the env and episode ids that they have in the buffer.

        Raises:
            Refusal: 422, if the block does not have the form of transitions.
        """
        check_rows(tensors, self.settings.envs, self.settings.columns)
        if self._announced is not None:
            tensors = self._announced.check(tensors)
        return renumber(tensors, entry.slot, entry.run_number, self.settings.envs)

    def reread(self, tensors: dict[str, Any], entry: Entry) -> dict[str, Any] | None:
        """Return the transitions of an entry of the journal as :meth:`read` does.

        It is None, with one line in the log, if they came before the learner and do not have its columns.
        """
        rows, columns = check_rows(tensors, self.settings.envs, self.settings.columns), self._announced
        why = None if columns is None else columns.misfit(described(tensors))
        if why is not None:
            logger.error("%d transitions of the journal that the learner cannot use are dropped: %s", rows, why)
            return None
        return self.read(tensors, entry)

    def announce(self, columns: Announced) -> None:
        """Hold later blocks against the columns that the learner learns from; drop transitions that do not fit.

        Such transitions can only be here if their collector did not wait for weights, which a learner publishes after
        its columns.
        """
        self._announced = columns
        why = None if self._held is None else columns.misfit(self._held)
        if why is not None:
            logger.error("%d transitions that the learner cannot use are dropped: %s", self.buffer.count(), why)
            self.buffer, self._held, self.is_starved = self._make_buffer(), None, False

    def apply(self, entry: Entry, rows: dict[str, Any] | None) -> None:
        """Push transitions, drop episodes and update the counts.

        Raises:
            ValueError: If the buffer does not accept the transitions; then nothing has changed.
        """
        counts, about = self.counts, entry.metadata
        env_step = counts.env_step + about["env_step"]
        if rows is not None:
            self._push(rows, entry, env_step)
        if about["dropped_episodes"]:
            dropped = [episode_of_attempt(local, entry.run_number) for local in about["dropped_episodes"]]
            self.buffer.drop_episodes(dropped)
            self._dropped += len(dropped)
            counts.dropped_episodes += len(dropped)
        counts.env_step = env_step
        counts.sample += about.get("samples_elsewhere", 0)
        counts.episode += len(about["returns"])
        counts.collector_wait += about["wait_time"]
        infos = about.get("infos", [{}] * len(about["returns"]))
        self._episodes.extend(zip(about["returns"], about["lengths"], infos, strict=True))
        counts.accepted = max(counts.accepted, entry.number)  # entries are written in parallel
        counts.next_seq[entry.run_id] = entry.seq + 1

    def lacks_data(self, policy_version: int, batch_size: int) -> bool:
        """Return whether there are too few or too old data for a round, regardless of the sample ratio.

        After resuming from a checkpoint, data produced by newer weights are treated as if produced by the current ones.

        Args:
            policy_version: Version of the newest weights.
            batch_size: Transitions of a minibatch.
        """
        limit = self._config.max_policy_lag
        waits = limit is not None and self._config.on_policy_lag == "wait"
        newest = min(self.counts.data_policy_version, policy_version)
        self.counts.data_policy_version = newest
        is_old = waits and policy_version - newest > (limit or 0)
        return self.is_starved or is_old or self.buffer.count() < batch_size

    def pop_episodes(self) -> dict[str, Any]:
        """Return the returns and lengths of episodes that ended since the last call, and the number of dropped ones.

        If an env gave numbers in its infos, ``infos`` has those of each episode by name.
        """
        episodes, dropped = list(self._episodes), self._dropped
        self._episodes.clear()
        self._dropped = 0
        returns, lengths, infos = ([one[part] for one in episodes] for part in range(3))
        found = {"returns": returns, "lengths": lengths, "dropped": dropped}
        return found | ({"infos": infos} if any(infos) else {})

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the columns of the buffer as builtins."""
        held = None if self._held is None else self._held.state_dict()
        return {"counts": asdict(self.counts), "ratio": self.ratio.state_dict(), "held": held}

    def close(self) -> None:
        """Close the env whose functions the buffer uses, if there is one."""
        if self._env is not None:
            self._env.close()

    def save_buffer(self, folder: Path) -> None:
        """Write the buffer into a folder."""
        self.buffer.save_data(folder / BUFFER_FILE)

    def load(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Load a snapshot.

        Args:
            folder: Folder of the snapshot, with the file of :meth:`save_buffer`.
            state: State that :meth:`state_dict` returned.
        """
        earlier = dict.fromkeys(("newest_version", "data_version"), "data_policy_version")
        self.counts = Counts(**renamed(state["counts"], **earlier))
        self.ratio.load_state_dict(state["ratio"])
        self.buffer.load_data(folder / BUFFER_FILE)
        self._held = Announced.of(state["held"]) if state.get("held") is not None else None

    def _make_buffer(self) -> IBuffer:
        buffer = create_buffer(self._buffer_config, seed=self.settings.config.main.seed)
        buffer.budget = self.settings.config.main.max_env_step
        if buffer.needs_env:
            self._env = self._env or self.settings.make_env()
            buffer.use_env(self._env.envs[0])
        return buffer

    def _push(self, rows: dict[str, Any], entry: Entry, env_step: int) -> None:
        """Push the transitions that are not too old, and count all of them."""
        counts, limit = self.counts, self._config.max_policy_lag
        versions = rows["policy_version"].numpy().astype(np.int64)  # (K,)
        lag = entry.policy_version - versions
        size = kept = len(lag)
        if limit is not None and self._config.on_policy_lag == "drop":
            rows = nested.index(rows, torch.from_numpy(lag <= limit))
            kept = nested.length(rows)
        if kept:
            self.buffer.push(rows, env_step)
            self._held = self._held or described(rows)
        self.ratio.insert(kept)
        self.is_starved = False
        counts.sample += size
        counts.too_old += size - kept
        counts.lag_sum += int(np.maximum(lag, 0).sum())
        counts.lag_max = max(counts.lag_max, int(lag.max()))
        newest = min(int(versions.max()), entry.policy_version)
        counts.data_policy_version = max(counts.data_policy_version, newest)


class Sender(NamedTuple):
    """The attempt at a task that sent a message."""

    run_id: str
    slot: int
    run_number: int


@dataclass
class Counts:
    """Counts of the data that a buffer received."""

    env_step: int = 0
    episode: int = 0
    sample: int = 0
    """Accepted transitions, including those that were too old, and those that comm workers exchange themselves."""
    too_old: int = 0
    """Transitions that were not pushed because they were too old."""
    dropped_episodes: int = 0
    lag_sum: int = 0
    """Updates between the weights that collected a transition and the newest ones, summed over ``sample``."""
    lag_max: int = 0
    data_policy_version: int = 0
    """Version of the newest weights that data were collected with."""
    accepted: int = 0
    """Number of the newest entry of the journal."""
    refused: int = 0
    collector_wait: float = 0.0
    learner_wait: float = 0.0
    next_seq: dict[str, int] = field(default_factory=dict)
    """Expected number of the next message, by the id of each current attempt."""


@dataclass(frozen=True)
class ReplaySettings:
    """Settings for filling and reading a buffer, from the configs of the run and the policy."""

    config: ParallelConfig
    buffer: dict[str, Any]
    """The buffer's section of the policy's config."""
    warm_up: int
    """Transitions that are collected before the first round."""
    random: int
    """Transitions that are collected with random actions."""
    batch_size: int
    round_size: int
    """Transitions or sequences of a round: all its minibatches together."""
    samples_per_insert: float
    envs: int
    """Number of env ids of each collector."""
    sample_options: dict[str, Any]
    """Options of the policy for the buffer's ``sample``, such as ``n_step`` and ``discount_factor``."""
    in_sequences: bool
    """Whether the policy learns from sequences."""
    columns: tuple[str, ...]
    """Columns that each block needs in addition to those of all transitions."""

    @classmethod
    def of(cls, config: ParallelConfig) -> ReplaySettings:
        """Return the settings of a run.

        Raises:
            ValueError: If a distributed run cannot train the policy, or its buffer does not fit it or a distributed
                run.
        """
        check_policy(config.main.policy)
        name, policy = str(config.main.policy["type"]), create_policy(config.main.policy, enable_field=["command"])
        players = 2 if config.system.collector.type == "marine" else 1
        has_memory = policy.has_memory
        require(players == 1 or not has_memory, "main.policy", "one without memory with marine collectors", name)
        keeps_noise = players == 2 and policy.keeps_noise
        require(not keeps_noise, "main.policy.model.use_sde", "False with marine collectors", True)
        buffer, in_sequences = policy.config.other.replay_buffer, bool(policy.learns_from_sequences)
        check_buffer(buffer, policy.priority, in_sequences)
        try:
            options = policy.sample_options
        except NotImplementedError:  # there is no discount factor
            options = {"n_step": 1, "discount_factor": 1.0}
        if get_buffer_cls(buffer).needs_env:
            check_env(config, buffer.type, options.get("n_step", 1))
        coordinator, batch_size = config.system.coordinator, policy.batch_size
        size, fits = buffer.replay_buffer_size, f"at least learn.batch_size ({batch_size})"
        require(size >= batch_size, "other.replay_buffer.replay_buffer_size", fits, size)
        random, round_size = policy.random_collect_size, policy.update_per_collect
        round_size *= batch_size
        return cls(
            config=config,
            buffer=to_dict(buffer),
            warm_up=max(batch_size, random),
            random=random,
            batch_size=batch_size,
            round_size=round_size,
            samples_per_insert=coordinator.samples_per_insert or round_size / cast(int, policy.n_sample),
            envs=config.main.env.collector_env_num * players,
            sample_options=options,
            in_sequences=in_sequences,
            columns=(STATE, IS_FIRST) if policy.stores_memory else (),
        )

    def make_env(self) -> Any:
        """Return a vector env with one env for collecting, which is not stepped."""
        env = self.config.main.env
        env_id, kwargs, wrappers = env.collecting
        return make_vector_env(env_id, 1, "sync", None, wrappers, kwargs, import_names=env.import_names)


def check_env(config: ParallelConfig, kind: str, n_step: int) -> None:
    """Check that a run can use a buffer that needs an env.

    Args:
        config: Config of the run.
        kind: Type of the buffer.
        n_step: Steps of the returns that the policy learns from, >= 1.

    Raises:
        ValueError: If it cannot.
    """
    mode, collector = config.main.env.mode, config.system.collector.type
    needed = f"with other.replay_buffer.type {kind!r}"
    require(collector == "zergling", "system.collector.type", f'"zergling" {needed}', collector)
    require(MODES[mode].has_separate_envs, "main.env.mode", f"one of {SEPARATE_MODES} {needed}", mode)
    require(n_step == 1, "nstep", f"1 {needed}: rewards of several steps have no new goal", n_step)


def check_buffer(cfg: ReplayBufferConfig | Mapping[str, Any], priority: bool, in_sequences: bool = False) -> None:
    """Check that a buffer can be used in a distributed run.

    Args:
        cfg: Config of the buffer.
        priority: Whether the policy computes priorities.
        in_sequences: Whether the policy learns from sequences.

    Raises:
        ValueError: If the buffer cannot be used.
    """
    check_samples(cfg, in_sequences, priority)
    path, config = "other.replay_buffer", get_buffer_cls(cfg).resolve_config(cfg)
    instead = "left at its default: use coordinator.samples_per_insert and tolerance in a distributed run"
    limits = getattr(config, "thruput_controller", None)  # the advanced buffer has them
    require(limits is None or not limits.is_active, f"{path}.thruput_controller", instead, limits)
    tracks = config.enable_track_used_data
    require(not tracks, f"{path}.enable_track_used_data", "False in a distributed run", tracks)


NAME = "main.policy"
TAKEN = ("optional", "refused")
"""Values of a policy's ``demonstrations`` with which it learns without any."""


def check_policy(policy: Mapping[str, Any]) -> None:
    """Check that a distributed run can train a policy.

    Args:
        policy: ``type`` and config of the policy.

    Raises:
        ValueError: If it cannot; the message names those that it can train, or what to do instead.
    """
    found, kind = get_policy_cls(policy), str(policy["type"])
    others = " or ".join(repr(name) for name in _like_on_policy())
    require(not found.on_policy, NAME, f"one that learns from replay, such as {others} of the on-policy family", kind)
    these = f"one of {', '.join(known_policies())} in a distributed run (`lightning-ding fit` trains this one on "
    require(found.trains_on == "envs", NAME, f"{these}its data set)", kind)
    require(_demonstrations(found) in TAKEN, NAME, f"{these}data.demonstrations)", kind)
    require(not _imagines(found), NAME, f"{these}a model of the env, which a replay buffer next to it trains)", kind)
    made = create_policy(policy, enable_field=["command"])
    counted = "None in a distributed run, which counts transitions"
    require(made.n_episode is None, f"{NAME}.collect.n_episode", counted, made.n_episode)
    require(made.n_sample is not None, NAME, "one that collects", kind)
    model, allowed = made.config.reward_model.type, "None in a distributed run, which trains no reward model"
    require(model is None, f"{NAME}.reward_model.type", allowed, model)


def known_policies() -> list[str]:
    """Return the names of the registered policies that a distributed run can train, sorted.

    Example:
        >>> {"dqn", "impala", "sac"} <= set(known_policies())
        True
        >>> {"bc", "cql", "dqfd", "ppo"} & set(known_policies())
        set()
    """
    fits = {name for name, one in _classes().items() if not one.on_policy and one.trains_on == "envs"}
    kinds = {name: _classes()[name] for name in fits}
    return sorted(name for name, one in kinds.items() if _demonstrations(one) in TAKEN and not _imagines(one))


def _like_on_policy() -> list[str]:
    """Return the registered policies that belong to the on-policy family and nevertheless learn from replay."""
    return [name for name in known_policies() if issubclass(_classes()[name], OnPolicyPolicy)]


def _imagines(found: Any) -> bool:
    return bool(getattr(found, "imagines", False))


def _demonstrations(found: Any) -> str:
    return str(getattr(found, "demonstrations", "optional"))


def _classes() -> dict[str, Any]:
    return {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
