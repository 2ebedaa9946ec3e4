"""Datamodules whose runs can be stopped and go on as if they had not been."""

from __future__ import annotations

import gc
import logging
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from gymnasium.vector import VectorEnv
from lightning.pytorch import Trainer

from lightning_ding.checkpoints import find_rank_folder, save_object
from lightning_ding.config import require
from lightning_ding.datamodules.epoch import EpochPosition
from lightning_ding.datamodules.noise import Noise
from lightning_ding.datamodules.rank_state import read_collecting, restore_collecting
from lightning_ding.datamodules.rng import rng_state, set_rng_state
from lightning_ding.datamodules.seeds import Seeds
from lightning_ding.datamodules.told_trainer import ToldTrainer
from lightning_ding.envs.vector import seed_envs
from lightning_ding.worker import InteractionSerialEvaluator, ISerialCollector

logger = logging.getLogger(__name__)

SCHEMA = 4
"""Of the datamodule's part of a checkpoint."""


class ResumableDataModule(ToldTrainer):
    """Begins to collect when the first round is asked for, at the start of a run or where a checkpoint was."""

    seed: int
    norm_obs: bool
    norm_reward: bool
    _collector_env: VectorEnv
    _rng: dict[str, Any] | None
    _collecting: dict[str, Any] | None
    """Of a checkpoint, until the first round."""

    def __init__(self) -> None:
        super().__init__()
        self.collector: ISerialCollector | None = None
        self.evaluator: InteractionSerialEvaluator | None = None
        self.rank_folder: str | None = None
        """Name of the folder of the checkpoint being written that holds what each rank keeps for itself."""
        self._policy: Any = None
        self._noise = Noise()
        self._begin_anew()

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _next_round(self) -> Any:
        """Collect with the newest weights, and return what ``training_step`` learns from."""

    def _begin(self) -> None:
        """Do what comes before the first round of a fit; the envs are reset."""

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks have in common, and where the state of each of them lies (Lightning hook).

        The latter is too large for a ``.ckpt``.
        """
        evaluator = self.evaluator.state_dict() if self.evaluator is not None else None
        ranks = {"rank_folder": self.rank_folder, "world_size": cast(Trainer, self.trainer).world_size}
        own = {"norm_obs": self.norm_obs, "norm_reward": self.norm_reward, "evaluator": evaluator}
        where = {"round": self._epoch.round, "env_step": self._policy.progress.env_step}
        return {"schema": SCHEMA, **own, **where, **ranks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what belongs to the policy, and when training goes on the state of the run (Lightning hook).

        Raises:
            ValueError: If it is of another version, or what was normalised then and what is now differ.
        """
        got = state.get("schema")
        if got != SCHEMA:
            raise ValueError(
                f"the checkpoint's datamodule state must have schema {SCHEMA}, got {got!r}: it was written by another "
                "version; load its weights with load_from_checkpoint and begin a new run"
            )
        trainer = cast(Trainer, self.trainer)
        if not trainer.training and trainer.state.fn != "fit":
            return
        for name in ("norm_obs", "norm_reward"):
            then = state[name]
            require(
                getattr(self, name) == then, name, f"{then}, as when the checkpoint was written", getattr(self, name)
            )
        if self.evaluator is not None and state["evaluator"] is not None:
            self.evaluator.load_state_dict(state["evaluator"])
        self._epoch.resume(state["round"])
        folder = None
        if state["rank_folder"] is not None:
            folder = find_rank_folder(Path(str(trainer.ckpt_path)), state["rank_folder"])
        if folder is None:
            self._miss_rank_state(str(trainer.ckpt_path))
        elif state["world_size"] == trainer.world_size:
            self.load_rank_state(folder / f"rank_{trainer.global_rank}")
        else:
            self._share_out(folder, state["world_size"], state["env_step"])

    def _share_out(self, folder: Path, saved: int, env_step: int) -> None:
        """Take over what another number of ranks left: of rank i, or of several of them, what they kept."""
        trainer = cast(Trainer, self.trainer)
        rank, now = trainer.global_rank, trainer.world_size
        if trainer.is_global_zero:
            logger.warning(
                "%s was written by %d ranks and goes on with %d: counters go on, buffers are shared out, and episodes "
                "and random numbers begin anew", folder, saved, now,
            )  # fmt: skip
        shares = range(rank, saved, now) if now < saved else [rank % saved]
        self._take_over([folder / f"rank_{share}" for share in shares], Seeds(self.seed, rank, env_step))

    def _take_over(self, folders: Sequence[Path], seeds: Seeds) -> None:
        """Take over what ranks of a run of another size left in their folders."""

    def _miss_rank_state(self, checkpoint: str) -> None:
        """Say what a run misses that goes on without the ranks' state."""

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write what this rank keeps for itself: where collecting is, random numbers, and what a subclass has.

        Args:
            folder: Of this rank.
            with_buffer: Whether to write what is large and can be collected again.

        Raises:
            OSError: If the disk does not take it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        save_object(rng_state(self._policy.rng), folder / "rng.pt")
        save_object(self._collecting or read_collecting(*self._collecting_parts()), folder / "collecting.pt")

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote; envs and collector are put there when collecting begins."""
        rng: dict[str, Any] = torch.load(folder / "rng.pt", weights_only=True)
        self._rng, self._collecting = rng, torch.load(folder / "collecting.pt", weights_only=True)
        set_rng_state(rng, self._policy.rng)

    def _begin_anew(self) -> None:
        """Let the next round be the first of a fit."""
        self._starts = True
        self._epoch = EpochPosition()
        self._forget_rank_state()

    def _forget_rank_state(self) -> None:
        self._rng = self._collecting = None
        self._first_episode_id = 0

    def _collecting_parts(self) -> tuple[Any, ISerialCollector, VectorEnv, VectorEnv]:
        evaluation_env = cast(VectorEnv, cast(InteractionSerialEvaluator, self.evaluator).env)
        return self._policy, cast(ISerialCollector, self.collector), self._collector_env, evaluation_env

    # ------------------------------------------------------------------ beginning

    def _started_round(self) -> Any:
        self._noise.end()
        if self._starts:
            self._start()
        self._epoch.count()
        return self._next_round()

    def _start(self) -> None:
        """Begin collecting: go on where a checkpoint was, else seed the envs and the exploration."""
        self._starts = False
        gc.freeze()  # what is here lives as long as the run; looking through it again and again took 3 % of the time
        if self._collecting is None:
            self._policy.seed(self._seeds().exploration)
            self._begin_episodes()
        else:
            self._go_on(self._collecting)
        if self._rng is not None:  # what came since must not count
            set_rng_state(self._rng, self._policy.rng)
        self._forget_rank_state()
        self._begin()

    def _begin_episodes(self) -> None:
        collector: Any = self.collector
        if self._first_episode_id and hasattr(collector, "skip_episode_ids"):
            collector.skip_episode_ids(self._first_episode_id)
        seed_envs(self._collector_env, self._seeds().collector_envs)
        collector.reset_env()

    def _go_on(self, state: dict[str, Any]) -> None:
        """Put envs, collector and policy where a checkpoint was."""
        self._begin_episodes()
        missing = restore_collecting(state, *self._collecting_parts())
        if missing is not None:
            if cast(Trainer, self.trainer).is_global_zero:
                logger.warning("the envs begin new episodes, because their state is not in the checkpoint: %s", missing)
            self._begin_episodes()

    def _seeds(self) -> Seeds:
        return Seeds(self.seed, cast(Trainer, self.trainer).global_rank, self._policy.progress.env_step)
