"""Save and restore the state of each rank, so that a stopped run resumes exactly."""

from __future__ import annotations

import gc
import logging
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, cast
from weakref import WeakSet

import torch
from gymnasium.vector import VectorEnv
from lightning.pytorch import LightningDataModule, Trainer

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.checkpoints import find_rank_folder, save_object
from lightning_ding.checkpoints.folder import COLLECTING_FILE, OWN_STATE_FILE, RANK_FOLDER, RNG_FILE
from lightning_ding.datamodules.epoch import EpochPosition, LoaderWarnings
from lightning_ding.datamodules.reports import EpisodeReports
from lightning_ding.datamodules.rng import Seeds, rng_state, set_rng_state
from lightning_ding.envs import NotPlainError, env_state, load_env_state
from lightning_ding.envs.handle import EnvHandles
from lightning_ding.envs.state.state import state_sizes
from lightning_ding.envs.vector import seed_envs
from lightning_ding.worker import InteractionSerialEvaluator, ISerialCollector

logger = logging.getLogger(__name__)

State = dict[str, Any]

SCHEMA = 4
"""Version of the datamodule's part of a checkpoint."""
MEGABYTE = 1e6
SMALLEST = 10 * MEGABYTE  # bytes of the envs' state about which nothing is said


LARGE = 16e6  # bytes
_begun: WeakSet[ResumableDataModule] = WeakSet()
"""Datamodules that have begun a fit in this process."""


def _free_earlier_runs(datamodule: ResumableDataModule) -> None:
    """Free the buffers and networks of earlier fits that nothing uses any more, before another one begins.

    A Trainer, its datamodule and its policy refer to each other, so they wait for the garbage collector, which counts
    objects and not bytes. A collection takes about 0.1 s, so it is made only if earlier fits hold much memory.
    """
    if sum(one.nbytes for one in _begun if one is not datamodule) >= LARGE:
        gc.collect()
    _begun.add(datamodule)


class ResumableDataModule(EpisodeReports, LightningDataModule):
    """A datamodule that starts collecting when Lightning requests the first round of a fit.

    Collecting then starts with new episodes. In a resumed run it continues from the state in the checkpoint.
    """

    has_rank_state = True
    not_shared: ClassVar[str] = (
        "state of envs and random number generators: continuing with new episodes and new random seeds"
    )
    """The end of the message about a checkpoint without the folders of the ranks: its gaps, and their effect."""
    seed: int
    norm_obs: bool
    norm_reward: bool
    _collector_env: VectorEnv
    _epoch: EpochPosition
    _rng: dict[str, Any] | None
    """States of the random number generators from a checkpoint; None after the first round."""
    _settings_then: str
    """What was set in the envs when a checkpoint was written; "" for nothing."""
    _collecting: dict[str, Any] | None
    """State of the collection from a checkpoint; None after the first round."""

    def __init__(self) -> None:
        super().__init__()
        self.collector: ISerialCollector | None = None
        self.evaluator: InteractionSerialEvaluator | None = None
        self._policy: Any = None
        self._loader_warnings = LoaderWarnings()
        self._envs_sizes: Counter[str] = Counter()
        self._handles = EnvHandles()
        self._reset()

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Raise, because the arguments in a checkpoint name code: its env, wrappers and modules.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"{cls.__name__} must be made by its constructor, got the checkpoint {str(checkpoint_path)!r}, whose "
            "arguments name code: pass your own arguments, and the checkpoint to Trainer.fit(ckpt_path=...)"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer and of the policy's parameters."""
        parameters = 0 if self._policy is None else sum(map(attrgetter("nbytes"), self._policy.parameters()))
        return parameters + int(getattr(getattr(self, "buffer", None), "nbytes", 0))

    def env_settings(self) -> str:
        """Return what was set in training and evaluation envs, for collectors in other processes; "" for nothing."""
        return self._handles.text

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _next_round(self) -> Any:
        """Collect with the newest weights, and return the data for ``training_step``."""

    @abstractmethod
    def _resume_normalising(self, saved: Mapping[str, bool]) -> None:
        """Normalise as in a checkpoint, or raise ValueError if the arguments request something else."""

    def _begin(self) -> None:
        """Prepare the first round of a fit, after the envs were reset; a subclass may fill its buffer here."""

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state that all ranks share (Lightning hook).

        The state of each rank is too large for the ``.ckpt`` file; this contains the name of the folder that holds it.
        """
        evaluator = self.evaluator.state_dict() if self.evaluator is not None else None
        ranks = {"rank_folder": self.rank_folder, "world_size": cast(Trainer, self.trainer).world_size}
        own = {"norm_obs": self.norm_obs, "norm_reward": self.norm_reward, "evaluator": evaluator, "seed": self.seed}
        where = {
            "infos_seen": sorted(self.info_check.seen),
            "round": self._epoch.round,
            "env_step": self._policy.progress.position,
        }
        return {"schema": SCHEMA, **own, **where, **ranks, "env_settings": self.env_settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the run if training is resumed (Lightning hook).

        What was set in the envs is set again; in an evaluation, only what is not set yet.

        With another ``seed`` or number of ranks than that of the checkpoint, the random number generators begin with
        new seeds, in new episodes.

        Raises:
            ValueError: If the state has a different schema version, or ``norm_obs`` or ``norm_reward`` has changed.
        """
        got = state.get("schema")
        if got != SCHEMA:
            raise ValueError(
                f"the checkpoint's datamodule state must have schema {SCHEMA}, got {got!r}: it was written by another "
                "version; load its weights with load_from_checkpoint and start a new run"
            )
        trainer = cast(Trainer, self.trainer)
        is_fit = trainer.training or trainer.state.fn == "fit"
        self._settings_then = state.get("env_settings", "")  # not in states of older versions
        self._handles.load(self._settings_then, keeps_own=not is_fit)
        if not is_fit:
            return
        self._resume_normalising({name: state[name] for name in ("norm_obs", "norm_reward")})
        if self.evaluator is not None and state["evaluator"] is not None:
            self.evaluator.load_state_dict(state["evaluator"])
        self._epoch.resume(state["round"])
        self.info_check.seen.update(state.get("infos_seen", ()))  # older ones lack it
        folder = None
        if state["rank_folder"] is not None:
            folder = find_rank_folder(Path(str(trainer.ckpt_path)), state["rank_folder"])
        self._is_restored = True
        if folder is None:
            self._start_without_rank_state(str(trainer.ckpt_path))
            return
        if self._has_same_seed(state, folder) and state["world_size"] == trainer.world_size:
            self.load_rank_state(folder / RANK_FOLDER.format(trainer.global_rank))
        else:
            self._redistribute(folder, state["world_size"], state["env_step"])

    def _has_same_seed(self, state: Mapping[str, Any], folder: Path) -> bool:
        """Return whether the random number generators of a checkpoint continue, and log it if seeds have changed."""
        seed, trained_in = state.get("seed", self.seed), self._policy.trained_in  # older versions did not save it
        of_process, now = trained_in.get("seed_everything"), os.environ.get("PL_GLOBAL_SEED", "")
        is_global_zero = cast(Trainer, self.trainer).is_global_zero
        if seed != self.seed and is_global_zero:
            logger.warning(
                "%s was written with seed %d and is resumed with %d: weights, counters and buffers continue, in new "
                "episodes with new random numbers", folder, seed, self.seed,
            )  # fmt: skip
        elif of_process is not None and now not in ("", str(of_process)) and is_global_zero:
            logger.warning(
                "seed_everything %s has no effect, because the random numbers of %s continue, whose run began with %s; "
                "set another seed of the data to begin new ones", now, folder, of_process,
            )  # fmt: skip
        return bool(seed == self.seed)

    def _redistribute(self, folder: Path, saved: int, env_step: int) -> None:
        """Load from a checkpoint's folder, written by ``saved`` ranks, with new seeds, for any number of ranks."""
        trainer = cast(Trainer, self.trainer)
        rank, now = trainer.global_rank, trainer.world_size
        if trainer.is_global_zero and saved != now:
            logger.warning(
                "%s was written by %d ranks and is resumed by %d: counters continue, buffers are distributed among the "
                "ranks, and all ranks start new episodes with new random seeds", folder, saved, now,
            )  # fmt: skip
        shares = range(rank, saved, now) if now < saved else [rank % saved]
        self._take_over([folder / RANK_FOLDER.format(share) for share in shares], Seeds(self.seed, rank, env_step))

    def _take_over(self, folders: Sequence[Path], seeds: Seeds) -> None:
        """Take over the state that other ranks saved in these folders."""

    def _start_without_rank_state(self, checkpoint: str) -> None:
        """Continue from a checkpoint that contains only what all ranks share, and log what it lacks."""
        self._without_buffer()
        if cast(Trainer, self.trainer).is_global_zero:
            logger.warning("%s contains no %s", checkpoint, self.not_shared)

    def _without_buffer(self) -> None:
        """Begin with an empty buffer."""

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the collection state and the random number states of this rank, and the state that a subclass adds."""
        folder.mkdir(parents=True, exist_ok=True)
        save_object(rng_state(self._policy.rng), folder / RNG_FILE)
        state = self._collecting or read_collecting(*self._collecting_parts())
        self._report_missing(state, "this run's checkpoint does not contain")
        save_object(state, folder / COLLECTING_FILE)
        save_own_state(self._policy, cast(Trainer, self.trainer), folder)
        if (folder / COLLECTING_FILE).stat().st_size > SMALLEST:
            self._envs_sizes = Counter()
            for name in ("envs", "evaluation_envs"):
                self._envs_sizes.update(state_sizes(state[name] or {}))

    def note_written(self, folder: Path) -> None:
        """Log once if most of a checkpoint is the state of its envs."""
        if not self._envs_sizes:
            return
        sizes, self._envs_sizes = self._envs_sizes, Counter()
        rank = folder / RANK_FOLDER.format(cast(Trainer, self.trainer).global_rank)
        files = [file for file in [*folder.iterdir(), *rank.iterdir()] if file.is_file()]
        total, envs = sum(file.stat().st_size for file in files), sizes.total()
        if 2 * envs > total:
            (name, size), *_ = sizes.most_common(1)
            self._warn_once(
                "most of a checkpoint is the state of the envs: %.0f of %.0f MB, of which %s is %.0f MB; an env that "
                "has state_dict() can leave it out",
                *(envs / MEGABYTE, total / MEGABYTE, name, size / MEGABYTE),
                key="sizes",
            )

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote; envs and collector are restored when collecting starts."""
        rng: dict[str, Any] = torch.load(folder / RNG_FILE, weights_only=True)
        self._rng, self._collecting = rng, torch.load(folder / COLLECTING_FILE, weights_only=True)
        set_rng_state(rng, self._policy.rng)
        load_own_state(self._policy, folder)

    def _reset(self) -> None:
        """Make the next round the first one of a fit."""
        self._starts = True
        self._is_restored = False  # whether a checkpoint had a state of this class
        self._epoch = EpochPosition()
        self._reported: set[str] = set()
        self._clear_rank_state()

    def _clear_rank_state(self) -> None:
        self._rng = self._collecting = None
        self._settings_then = ""
        self._first_episode_id = 0

    def _collecting_parts(self) -> tuple[Any, ISerialCollector, VectorEnv, VectorEnv]:
        evaluation_env = cast(VectorEnv, cast(InteractionSerialEvaluator, self.evaluator).env)
        return self._policy, cast(ISerialCollector, self.collector), self._collector_env, evaluation_env

    # ------------------------------------------------------------------ starting

    def _started_round(self) -> Any:
        self._loader_warnings.restore()
        if self._starts:
            self._start()
        self._epoch.count()
        return self._next_round()

    def _start(self) -> None:
        """Start collecting: continue from a checkpoint, or else begin with new seeds for envs and exploration."""
        self._starts = False
        _free_earlier_runs(self)
        gc.freeze()  # these objects live as long as the run, and scanning them repeatedly took 3 % of the time
        own_state, trainer = self._policy.learner.own_state, cast(Trainer, self.trainer)
        if trainer.ckpt_path is not None and not self._is_restored:  # a datamodule of another class wrote it
            self._start_without_rank_state(str(trainer.ckpt_path))
        lost = own_state.restore()
        if self._collecting is None:
            self._policy.seed(self._seeds().of("exploration"))
            self._begin_episodes()
        else:
            self._resume_collecting(self._collecting)
            lost = own_state.restore()  # starting the collection may have changed it
        own_state.forget()
        self._report_lost(lost)
        if self._is_saved():
            self._report_unsaved()
        if self._rng is not None:  # must come last, because starting the collection draws random numbers
            set_rng_state(self._rng, self._policy.rng)
        self._clear_rank_state()
        self._begin()

    def _begin_episodes(self) -> None:
        collector = cast(ISerialCollector, self.collector)
        if self._first_episode_id:
            collector.skip_episode_ids(self._first_episode_id)
        seed_envs(self._collector_env, self._seeds().of("collector_envs"))
        collector.reset_env()

    def _resume_collecting(self, state: dict[str, Any]) -> None:
        """Restore the envs, the collector and the policy to their state in a checkpoint."""
        self._begin_episodes()
        missing = restore_collecting(state, *self._collecting_parts())
        self._handles.make_newer(self._settings_then)  # set since the checkpoint was loaded
        if missing is not None:
            if cast(Trainer, self.trainer).is_global_zero:
                logger.warning("the envs start new episodes, because their state is not in the checkpoint: %s", missing)
            self._begin_episodes()
        elif state.get("lost") and cast(Trainer, self.trainer).is_global_zero:
            logger.warning(
                "this run may continue differently, because the checkpoint does not contain everything that its envs "
                "depend on: %s", "; ".join(state["lost"]),
            )  # fmt: skip

    def _report_lost(self, lost: Sequence[str]) -> None:
        """Log the attributes of the policy that the checkpoint does not contain."""
        if lost and cast(Trainer, self.trainer).is_global_zero:
            logger.warning(
                "this run may continue differently, because the checkpoint does not contain everything that the policy "
                "depends on: %s", "; ".join(lost),
            )  # fmt: skip

    def _report_unsaved(self) -> None:
        """Log what the checkpoints of this run cannot contain."""
        unsaved = self._policy.learner.own_state.missing()
        if unsaved:
            logger.warning(
                "the checkpoints of this run will not contain everything that its policy depends on, so that a resumed "
                "run may continue differently: %s", "; ".join(unsaved),
            )  # fmt: skip
        if self.collector is not None:
            state = read_collecting(*self._collecting_parts())
            self._report_missing(state, "the checkpoints of this run will not contain")

    def _report_missing(self, state: State, subject: str) -> None:
        """Log once what checkpoints cannot contain."""
        if state["missing"] is not None:
            text = "%s the state of its envs, so that a resumed run starts new episodes: %s"
            self._warn_once(text, subject, state["missing"], key="missing")
        elif state.get("lost"):
            text = "%s everything that its envs depend on, so that a resumed run may continue differently: %s"
            self._warn_once(text, subject, "; ".join(state["lost"]), key="lost")

    def _is_saved(self) -> bool:
        """Return whether this run writes checkpoints, and this rank reports what they cannot contain."""
        trainer: Any = self.trainer
        is_saved = any(isinstance(callback, RunCheckpoint) for callback in trainer.callbacks)
        return is_saved and trainer.is_global_zero and not trainer.fast_dev_run

    def _warn_once(self, text: str, *values: Any, key: str) -> None:
        if key not in self._reported and cast(Trainer, self.trainer).is_global_zero:
            self._reported.add(key)
            logger.warning(text, *values)

    def _seeds(self) -> Seeds:
        return Seeds(self.seed, cast(Trainer, self.trainer).global_rank, self._policy.progress.position)


def save_own_state(policy: Any, trainer: Trainer, folder: Path) -> None:
    """Write the attributes of a policy in this rank, unless it is rank zero, whose attributes are in ``run.ckpt``."""
    if not trainer.is_global_zero:
        save_object(policy.learner.own_state.state(whole=True), folder / OWN_STATE_FILE)


def load_own_state(policy: Any, folder: Path) -> None:
    """Restore the attributes of a policy in this rank, after those of rank zero were restored from ``run.ckpt``."""
    if (folder / OWN_STATE_FILE).is_file():
        policy.learner.own_state.load(torch.load(folder / OWN_STATE_FILE, weights_only=True))


def read_collecting(policy: Any, collector: ISerialCollector, env: VectorEnv, evaluation_env: VectorEnv) -> State:
    """Return the state that determines the next collected data, apart from random number generators and weights.

    The entry ``missing`` gives the reason if an env or the collector cannot return its state, and is None otherwise.
    The entry ``lost`` has descriptions of what the envs depend on and their state does not contain.
    """
    state: State = {"memory": policy.collect_memory(), "metrics": policy.metrics.state_dict(), "missing": None}
    state |= {"returns": policy.normaliser.episode_state(), "collect_metrics": policy.collect_metrics.state_dict()}
    state |= {"rewards": policy.learner.rewards.state()} if policy.learner.rewards.is_on else {}
    state |= {"collector": None, "envs": None, "evaluation_envs": None, "lost": []}
    try:
        state["collector"] = collector.state_dict()
        state["envs"] = env_state(env)
        state["evaluation_envs"] = env_state(evaluation_env)
        state["lost"] = sorted({*state["envs"]["lost"], *state["evaluation_envs"]["lost"]})
    except (NotPlainError, NotImplementedError) as error:
        state["missing"] = str(error)
    return state


def restore_collecting(
    state: Mapping[str, Any], policy: Any, collector: ISerialCollector, env: VectorEnv, evaluation_env: VectorEnv
) -> str | None:
    """Restore the state that ``read_collecting`` returned, after the envs were reset.

    If the episodes cannot be continued, return the reason; the caller must then start new ones.
    """
    missing: str | None = state["missing"] or _other_collector(state["collector"], collector)
    policy.metrics.load_state_dict(state["metrics"], policy.device)
    if "collect_metrics" in state:  # older versions did not save them
        policy.collect_metrics.load_state_dict(state["collect_metrics"], policy.device)
    if "rewards" in state:
        policy.learner.rewards.load_state(state["rewards"])
    if missing is None:
        try:
            load_env_state(env, state["envs"])
            load_env_state(evaluation_env, state["evaluation_envs"])
        except NotPlainError as error:
            missing = str(error)
    if state["collector"] is not None:
        collector.load_state_dict(state["collector"], continues=missing is None)
    if missing is None:
        policy.load_collect_memory(state["memory"])
        policy.normaliser.load_episode_state(state["returns"])
    return missing


def _other_collector(saved: Mapping[str, Any] | None, collector: ISerialCollector) -> str | None:
    """Return a message if the state is from a different collector class; None if it is not or names no class."""
    name = type(collector).__name__
    was = name if saved is None else saved.get("class", name)
    return None if was == name else f"the collector was a {was}, now it is a {name}"
