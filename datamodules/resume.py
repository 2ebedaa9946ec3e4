"""Start the rounds of a fit, and save and restore what every source of rounds needs to resume exactly."""

from __future__ import annotations

import functools
import gc
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from lightning.pytorch import LightningDataModule, Trainer

from lightning_ding.datamodules.trainer_setup import EpochPosition, LoaderWarnings
from lightning_ding.utils.protocols import RunData
from lightning_ding.worker import InteractionSerialEvaluator
from lightning_ding.worker.episodes import InfoCheck

if TYPE_CHECKING:
    from lightning_ding.envs.handle import EnvHandles

logger = logging.getLogger(__name__)

Purpose = Literal["collector_envs", "exploration", "replay", "validate", "test", "demonstrations"]

SCHEMA = 4
"""Version of the datamodule's part of a checkpoint."""
LARGE = 16e6  # bytes
_held: WeakKeyDictionary[ResumableDataModule, int] = WeakKeyDictionary()
"""Bytes that datamodules hold whose fits have ended in this process; 0 during a fit."""


class Seeds(NamedTuple):
    """Seeds by purpose, independent of each other and different on every rank.

    Example:
        >>> Seeds(0, rank=0).of("replay").generate_state(1) == Seeds(0, rank=1).of("replay").generate_state(1)
        array([False])
    """

    seed: int
    """Seed of the run, >= 0."""
    rank: int = 0
    """Global rank, so that two ranks see different data."""
    env_step: int = 0
    """Env steps made so far, so that a resumed run does not repeat its first episodes."""

    def of(self, purpose: Purpose) -> np.random.SeedSequence:
        """Return the seed of the training envs, of exploration, or for drawing minibatches or demonstrations."""
        return np.random.SeedSequence([*self, get_args(Purpose).index(purpose)])

    def evaluation(self, stage: Literal["validate", "test"]) -> int:
        """Return the seed of the evaluation's episodes, the same on every rank."""
        return int(np.random.SeedSequence([self.seed, get_args(Purpose).index(stage)]).generate_state(1)[0])


class ResumableDataModule(RunData, LightningDataModule):
    """A datamodule whose source of rounds starts when Lightning requests the first round of a fit.

    In a resumed run the source continues from its state in the checkpoint.
    """

    has_rank_state = True
    not_shared: ClassVar[str] = "state of random number generators: continuing with new random seeds"
    """The end of the message about a checkpoint without the folders of the ranks: its gaps, and their effect."""
    seed: int
    norm_obs: bool
    norm_reward: bool
    info_check: InfoCheck
    """The check that the env gives the numbers of ``info_keys``, of this rank."""
    _epoch: EpochPosition
    _rng: dict[str, Any] | None
    """States of the random number generators from a checkpoint; None after the first round."""
    _collecting: dict[str, Any] | None
    """State of the collection from a checkpoint; None after the first round."""
    _settings_then: str
    """The settings of the envs when a checkpoint was written; "" for none."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluator: InteractionSerialEvaluator | None = None
        self._policy: Any = None
        self._loader_warnings = LoaderWarnings()
        self._vector_envs: dict[str, VectorEnv] = {}
        self._reset()

    @functools.cached_property
    def _handles(self) -> EnvHandles:
        """The access to the envs, which is made when it is first used."""
        from lightning_ding.envs.handle import EnvHandles

        return EnvHandles(self._vector_envs)

    def _use_env(self, name: Literal["training", "evaluation"], env: VectorEnv) -> None:
        """Use a vector env from now on, with the settings that were made."""
        self._vector_envs[name] = env
        if "_handles" in vars(self):
            self._handles.bind(name, env)

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

    def _end(self) -> None:
        """Let Python's garbage collector see the objects of this fit again, and note how much memory they hold."""
        gc.unfreeze()
        if self in _held:  # adding up the parameters of all earlier fits at each start took the square of their number
            _held[self] = self.nbytes

    def env_settings(self) -> str:
        """Return what was set in training and evaluation envs, for collectors in other processes; "" for nothing."""
        return self._handles.text

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _next_round(self) -> Any:
        """Return the data for ``training_step``."""

    @abstractmethod
    def _resume_normalising(self, saved: Mapping[str, bool]) -> None:
        """Normalise as in a checkpoint, or raise ValueError if the arguments request something else."""

    def _begin_source(self) -> bool:
        """Start the source, before the random number generators are restored; return whether it is resumed."""
        self._policy.seed(self._seeds().of("exploration"))
        return False

    def _begin(self) -> None:
        """Prepare the first round of a fit, last of all; a subclass may fill its buffer here."""

    def _take_over(self, folders: Sequence[Path], seeds: Seeds) -> None:
        """Take over the state that other ranks, or this one with another seed, saved in these folders."""

    def _without_buffer(self) -> None:
        """Begin with an empty buffer."""

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

        The settings of the envs are made again; in an evaluation, only those that are missing.

        With another ``seed`` or number of ranks than that of the checkpoint, the random number generators begin with
        new seeds, in new episodes.

        Raises:
            ValueError: If the state has a different schema version, or ``norm_obs`` or ``norm_reward`` has changed.
        """
        from lightning_ding.checkpoints import find_rank_folder
        from lightning_ding.checkpoints.folder import RANK_FOLDER
        from lightning_ding.datamodules.rank_state import has_same_seed

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
        is_same = has_same_seed(self._policy, state, folder, self.seed, trainer.is_global_zero)
        if is_same and state["world_size"] == trainer.world_size:
            self.load_rank_state(folder / RANK_FOLDER.format(trainer.global_rank))
        else:
            self._redistribute(folder, state["world_size"], state["env_step"])

    def _redistribute(self, folder: Path, saved: int, env_step: int) -> None:
        """Load from a checkpoint's folder, written by ``saved`` ranks, with new seeds, for any number of ranks."""
        from lightning_ding.checkpoints.folder import RANK_FOLDER

        rank, now = cast(Trainer, self.trainer).global_rank, cast(Trainer, self.trainer).world_size
        shares = range(rank, saved, now) if now < saved else [rank % saved]
        self._take_over([folder / RANK_FOLDER.format(share) for share in shares], Seeds(self.seed, rank, env_step))

    def _start_without_rank_state(self, checkpoint: str) -> None:
        """Continue from a checkpoint that contains only what all ranks share, and log what it lacks."""
        self._without_buffer()
        if cast(Trainer, self.trainer).is_global_zero:
            logger.warning("%s contains no %s", checkpoint, self.not_shared)

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the random number states and the policy's own attributes of this rank, and what a subclass adds."""
        from lightning_ding.checkpoints import save_object
        from lightning_ding.checkpoints.folder import RNG_FILE
        from lightning_ding.datamodules.rank_state import rng_state, save_own_state

        folder.mkdir(parents=True, exist_ok=True)
        save_object(rng_state(self._policy.rng), folder / RNG_FILE)
        save_own_state(self._policy, cast(Trainer, self.trainer), folder)

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        from lightning_ding.checkpoints.folder import RNG_FILE
        from lightning_ding.datamodules.rank_state import load_own_state, set_rng_state

        rng: dict[str, Any] = torch.load(folder / RNG_FILE, weights_only=True)
        self._rng = rng
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
        self._rng, self._settings_then = None, ""
        self._collecting, self._first_episode_id = None, 0

    # ------------------------------------------------------------------ starting

    def _started_round(self) -> Any:
        self._loader_warnings.restore()
        if self._starts:
            self._start()
        self._epoch.count()
        return self._next_round()

    def _start(self) -> None:
        """Start the source of rounds: continue from a checkpoint, or else begin with new seeds."""
        self._starts = False
        # A Trainer, its datamodule and its policy refer to each other, so those of earlier fits wait for the garbage
        # collector, which counts objects and not bytes. A collection takes 0.1 s, so they must hold much memory.
        _held[self] = 0
        if sum(_held.values()) >= LARGE:
            gc.collect()
        gc.freeze()  # these objects live as long as the run, and scanning them repeatedly took 3 % of the time
        trainer = cast(Trainer, self.trainer)
        if trainer.ckpt_path is not None and not self._is_restored:  # a datamodule of another class wrote it
            self._start_without_rank_state(str(trainer.ckpt_path))
        own_state = self._policy.learner.own_state
        lost = own_state.restore()
        if self._begin_source():
            lost = own_state.restore()  # starting the collection may have changed it
        own_state.forget()
        if lost and trainer.is_global_zero:
            logger.warning(
                "this run may continue differently, because the checkpoint does not contain everything that the policy "
                "depends on: %s", "; ".join(lost),
            )  # fmt: skip
        if trainer.checkpoint_callbacks and trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._report_unsaved()
        if self._rng is not None:
            from lightning_ding.datamodules.rank_state import set_rng_state

            # must come last, because starting the collection draws random numbers
            set_rng_state(self._rng, self._policy.rng)
        self._clear_rank_state()
        self._begin()

    def _report_unsaved(self) -> None:
        """Log what the checkpoints of this run cannot contain."""
        unsaved = self._policy.learner.own_state.missing()
        if unsaved:
            logger.warning(
                "the checkpoints of this run will not contain everything that its policy depends on, so that a resumed "
                "run may continue differently: %s", "; ".join(unsaved),
            )  # fmt: skip

    def _warn_once(self, text: str, *values: Any, key: str) -> None:
        if key not in self._reported and cast(Trainer, self.trainer).is_global_zero:
            self._reported.add(key)
            logger.warning(text, *values)

    def _seeds(self) -> Seeds:
        return Seeds(self.seed, cast(Trainer, self.trainer).global_rank, self._policy.progress.position)
