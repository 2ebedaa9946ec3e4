"""An agent: a policy, its datamodule and its Trainer in one object, which trains in one line.

:class:`Agent` calls what the commands ``fit``, ``evaluate``, ``enjoy`` and ``collect`` call, with their defaults.
"""

from __future__ import annotations

import copy
import inspect
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.callbacks.stop import StopAt
from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.config import deep_merge, nearest, require
from lightning_ding.datamodules import Dataset, OfflineDataModule, RunDataModule
from lightning_ding.entry.collect import collect
from lightning_ding.entry.enjoy import enjoy
from lightning_ding.entry.evaluate import evaluate
from lightning_ding.entry.lightning_cli import datamodule_class, policy_class
from lightning_ding.entry.trained import check_envs, load, modules_of
from lightning_ding.envs.named import EnvLike
from lightning_ding.policy import Policy
from lightning_ding.policy.base.saved_state import SEED

PlayedT = TypeVar("PlayedT")
RUNS = "runs"
"""Folder of the runs that have a name, as in the recipes."""
BEST = "best.ckpt"
UNTRAINED = "needs a trained policy: call train first, or begin with Agent.load(PATH)"


class _Pause(StopAt):
    """Stop a call of :meth:`Agent.train` before the end of its run; Lightning takes one callback of each class."""


class Agent:
    """A policy with the datamodule and the Trainer that train it.

    It is a view: :attr:`policy`, :attr:`datamodule` and :attr:`trainer` are the objects that one would write by hand,
    and all their options hold.

    Args:
        policy: Name of an algorithm, dotted path of a class, or a class.
        env_id: Env to train in, in any form that a datamodule takes; None for a data set without evaluations.
        exp_name: Name of the run, whose files are in ``runs/NAME/version_0`` and so on; None for the place that the
            Trainer chooses, as ``fit`` does.
        cfg: Config of the policy: a nested dict, dotted keys such as ``{"learn.batch_size": 64}``, or both.
        seed: Seed of the networks, the envs, the exploration and the data, >= 0.
        trainer: Arguments of the Trainer.
        model: A network to use instead of the one that the config describes.
        train_on: ``"envs"`` or ``"dataset"``; None means what the policy is made for.
        data: Arguments of the datamodule, such as ``num_envs``, ``wrappers``, ``norm_obs`` or ``dataset``.

    Raises:
        NotRegisteredError: If there is no such algorithm.
        ValueError: If there is no such env or option, or a value is not allowed.

    Example:
        >>> agent = Agent("dqn", "CartPole-v1", cfg={"learn.batch_size": 64}, num_envs=4)
        >>> agent.policy.config.learn.batch_size, type(agent.datamodule).__name__, agent.datamodule.num_envs
        (64, 'ReplayDataModule', 4)
    """

    policy: Policy[Any]
    """The policy, which acts in this program as well: ``agent.policy.predict(obs)``."""
    datamodule: RunDataModule
    """The envs or the data set, and the limits of the run."""
    trainer: Trainer
    """The Trainer of the last call of :meth:`train`; before it, the one that the first call uses."""
    checkpoint: Path | None = None
    """File from which the next call of :meth:`train` continues; None before the first one."""

    def __init__(
        self,
        policy: str | type[Policy[Any]],
        env_id: EnvLike | None = None,
        exp_name: str | None = None,
        cfg: Any = None,
        *,
        seed: int = 0,
        trainer: Mapping[str, Any] | None = None,
        model: nn.Module | None = None,
        train_on: str | None = None,
        **data: Any,
    ) -> None:
        made = policy if isinstance(policy, type) else policy_class(policy)
        kind = datamodule_class(made, train_on)
        data |= {"seed": seed, **({} if env_id is None else {"env_id": env_id})}
        _check_options(kind, data)
        required = "dataset" if kind is OfflineDataModule else "env_id"
        require(required in data, required, f"given, because {made.__name__} trains with {kind.__name__}", None)
        config = undotted(cfg) if isinstance(cfg, Mapping) else cfg
        network = None if model is None else copy.deepcopy(model)  # as it is before the run
        self._set(made(config, model=model), kind, data, trainer_maker(trainer, exp_name), network)

    def _set(
        self,
        policy: Policy[Any],
        kind: type[RunDataModule],
        data: Mapping[str, Any],
        make_trainer: Callable[[], Trainer],
        network: nn.Module | None,
    ) -> None:
        self.policy, self.datamodule, self._make_trainer = policy, kind(**data), make_trainer
        self._data, self._network, self._trusted, self._best = dict(data), network, modules_of(data), ""
        self.trainer, self._is_used = make_trainer(), False
        self._ends: dict[str, int] = {}  # where the last call of train was to end, by counter

    @classmethod
    def of(
        cls,
        policy: Policy[Any],
        kind: type[RunDataModule],
        data: Mapping[str, Any],
        make_trainer: Callable[[], Trainer] = Trainer,
        network: nn.Module | None = None,
    ) -> Agent:
        """Return an agent of parts that were made elsewhere.

        Args:
            policy: The policy.
            kind: Class of its datamodule.
            data: Arguments of the datamodule.
            make_trainer: Function that returns a new Trainer for each call of :meth:`train`.
            network: A copy of the network that the policy was given, if it was.
        """
        agent = cls.__new__(cls)
        agent._set(policy, kind, data, make_trainer, network)
        return agent

    # ------------------------------------------------------------------ training

    def train(self, env_steps: int | None = None, updates: int | None = None) -> Agent:
        """Train, or continue where the last call ended, and return the agent itself.

        Several calls train the same weights, to the last bit, as one call with the sum. Schedules that depend on the
        length of the run, such as that of epsilon by default, need the whole length for this, ``max_env_step`` of the
        agent. Without it, each call makes the run longer.

        Args:
            env_steps: Further env steps over all ranks, >= 1; the round in which they are reached is completed. None
                means those that are left of ``max_env_step``.
            updates: Further updates of the weights, >= 1; None means those that are left of ``max_train_iter``.

        Raises:
            ValueError: If an argument is out of its range, or nothing limits the run.
            RuntimeError: If there is no checkpoint to continue from.
        """
        data, further = self.datamodule, {"env_step": env_steps, "train_iter": updates}
        for name, number in (("env_steps", env_steps), ("updates", updates)):
            require(number is None or number >= 1, name, ">= 1", number)
        is_offline = data.axis == "train_iter"
        allowed = f"None, because {type(self.policy).__name__} takes no env steps: use updates"
        require(not (is_offline and env_steps is not None), "env_steps", allowed, env_steps)
        name, limits = ("updates", "") if is_offline else ("env_steps", "max_env_step or ")
        is_limited = any(one is not None for one in (data.max_env_step, data.max_train_iter, *further.values()))
        require(is_limited, name, f"a number, unless the agent was made with {limits}max_train_iter", None)
        if self._is_used and self.checkpoint is None:
            raise RuntimeError("train cannot continue, because the run wrote no checkpoint: let the Trainer write some")
        if self._is_used:
            self.trainer = self._make_trainer()
        self._is_used = True
        for counter, more in further.items():
            if more is not None:
                self._limit(counter, more)
        seed_everything(data.seed, verbose=False)
        self.trainer.fit(self.policy.train(), data, ckpt_path=self.checkpoint, weights_only=True)
        self._note_checkpoints()
        return self

    def _limit(self, counter: str, more: int) -> None:
        """Let the next call of ``fit`` end after ``more`` steps of a counter, from the end that the last call had."""
        name, reached = f"max_{counter}", getattr(self.policy.progress, counter)
        limit = getattr(self.datamodule, name)
        end = min(reached, self._ends.get(counter, limit or reached)) + more
        self._ends[counter] = end
        if limit is not None and end < limit:
            self.trainer.callbacks.append(_Pause(counter, end))  # type: ignore[attr-defined]
            return
        setattr(self.datamodule, name, end)
        self.datamodule.hparams[name] = self._data[name] = end

    def _note_checkpoints(self) -> None:
        """Note the files of a run that has ended, and let the policy act in its envs."""
        saving = [one for one in self.trainer.callbacks if isinstance(one, RunCheckpoint)]  # type: ignore[attr-defined]
        newest = next((one.last_model_path for one in saving if one.last_model_path), None)
        self.checkpoint = None if newest is None else Path(newest)
        self._best = str(getattr(self.trainer.checkpoint_callback, "best_model_path", "") or "")

    # ------------------------------------------------------------------ use

    def evaluate(self, episodes: int = 100, **options: Any) -> dict[str, Any]:
        """Play whole episodes, and return the mean of the returns and other statistics.

        Args:
            episodes: Number of episodes, >= 1.
            options: Further arguments of :func:`~lightning_ding.entry.evaluate.evaluate`, such as ``seed``.

        Raises:
            RuntimeError: If the policy is not trained.
        """
        return self._play("evaluate", evaluate, episodes, **options)

    def deploy(
        self, video: str | os.PathLike[str] | None = None, episodes: int = 1, **options: Any
    ) -> list[tuple[float, Path | None]]:
        """Play episodes in a window, or for a video, and return the return and the file of each.

        Args:
            video: Path of a video, which ends in .mp4, .gif or .webp; None shows a window.
            episodes: Number of episodes, >= 1.
            options: Further arguments of :func:`~lightning_ding.entry.enjoy.enjoy`, such as ``seed`` and ``width``.

        Raises:
            RuntimeError: If the policy is not trained.
        """
        file = None if video is None else os.fspath(video)
        return self._play("deploy", enjoy, episodes, file, **options)

    def collect(self, out: str | os.PathLike[str], episodes: int = 100, **options: Any) -> Dataset:
        """Play whole episodes, write them as a data set, and return it.

        Args:
            out: Path that ends in ``.npz``, or id of a new Minari data set.
            episodes: Number of episodes, >= 1.
            options: Further arguments of :func:`~lightning_ding.entry.collect.collect`, such as ``greedy``.

        Raises:
            RuntimeError: If the policy is not trained.
        """
        return self._play("collect", collect, os.fspath(out), episodes, **options)

    def _play(self, method: str, play: Callable[..., PlayedT], *arguments: Any, **options: Any) -> PlayedT:
        """Return the result of a command with the policy, in the env of the run, which may be an object."""
        policy = self._trained(method)
        of_run = policy.trained_in
        names = [*options.pop("import_names", ()), *self._trusted]
        policy.trained_in, was_training = {**of_run, **self._data}, policy.training
        try:
            return play(policy.eval(), *arguments, **options, import_names=names)
        finally:
            policy.trained_in = of_run
            policy.train(was_training)

    def _trained(self, method: str) -> Policy[Any]:
        if not (self._is_used or self.policy.has_loaded_weights):
            raise RuntimeError(f"{method} {UNTRAINED}")
        return self.policy

    # ------------------------------------------------------------------ files

    @property
    def best(self) -> Agent:
        """An agent with the policy of the best evaluation so far; this agent keeps its own.

        Raises:
            RuntimeError: If no evaluation has taken place.
        """
        self._trained("best")
        if not Path(self._best).is_file():
            raise RuntimeError("best needs a run that evaluated its policy and wrote the best one, got none")
        network = {} if self._network is None else {"model": copy.deepcopy(self._network)}
        made = type(self.policy)
        policy = made.load_from_checkpoint(self._best, map_location="cpu", weights_only=True, **cast(Any, network))
        agent = copy.copy(self)
        agent.policy, agent.checkpoint, agent._is_used = policy, Path(self._best), True
        agent._data, agent.datamodule = dict(self._data), type(self.datamodule)(**self._data)
        agent._ends, policy.progress.budget = {}, self.policy.progress.budget
        policy.eval()
        return agent

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the agent to a new folder, and return it: the newest checkpoint, with its buffer, and the best policy.

        Raises:
            RuntimeError: If there is no checkpoint.
            ValueError: If the folder exists and is not empty.
        """
        self._trained("save")
        if self.checkpoint is None:
            raise RuntimeError("save needs a run that writes checkpoints, got none")
        folder = Path(path)
        is_new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        require(is_new, "path", "a new or an empty folder", str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        newest = None if self.checkpoint.name == BEST else last_checkpoint(self.checkpoint.parent)
        if newest is not None:
            shutil.copytree(newest.parent, folder / newest.parent.name)
        best = self.checkpoint if newest is None else Path(self._best)
        if best.is_file():
            shutil.copy2(best, folder / BEST)
        return folder

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        exp_name: str | None = None,
        *,
        policy: str | None = None,
        import_names: Sequence[str] = (),
        trainer: Mapping[str, Any] | None = None,
        **data: Any,
    ) -> Agent:
        """Return the agent of a folder that :meth:`save` wrote, of a run's folder, or of one checkpoint.

        Args:
            path: The folder or the file.
            exp_name: As for the constructor.
            policy: Name or dotted path of the policy; None reads it from the file.
            import_names: Modules to import first, which register the policy, its network or its encoder, or have the
                env and the wrappers of the run.
            trainer: As for the constructor; a file does not hold it.
            data: Arguments of the datamodule that differ from those of the run. An env or a data set that is an object
                of a program has to be given again.

        Raises:
            ValueError: If there is no checkpoint, or it names no policy or no env.
            NotRegisteredError: If the file names code that the program has not imported.
        """
        file = _checkpoint_in(Path(path))
        found = load(file, policy, import_names)
        of_run = {name: value for name, value in found.trained_in.items() if name not in (SEED, *data)}
        check_envs(of_run, import_names)
        merged = {**of_run, **data}
        kind = datamodule_class(type(found), "dataset" if "dataset" in merged else "envs")
        _check_options(kind, merged)
        agent = cls.__new__(cls)
        agent._set(found, kind, merged, trainer_maker(trainer, exp_name), None)
        agent._trusted = [*import_names, *modules_of(data)]
        agent.checkpoint, agent._is_used = file, True
        beside = [folder / BEST for folder in (file.parent, file.parent.parent)]
        agent._best = next((str(one) for one in beside if one.is_file()), "")
        return agent


def _checkpoint_in(path: Path) -> Path:
    """Return the newest checkpoint in a folder, or the file itself."""
    if not path.is_dir():
        return path
    best = path / BEST
    found = last_checkpoint(path) or (best if best.is_file() else None)
    require(found is not None, "path", "a checkpoint, or a folder that has one", str(path))
    return cast(Path, found)


def _check_options(kind: type[RunDataModule], data: Mapping[str, Any]) -> None:
    """Check that a datamodule has these arguments.

    Raises:
        ValueError: If it has not.
    """
    known = inspect.signature(kind).parameters
    unknown = next((name for name in data if name not in known), None)
    if unknown is not None:
        raise ValueError(f"unknown option {unknown!r} of {kind.__name__}; {nearest(unknown, known)}")


def trainer_maker(arguments: Mapping[str, Any] | None, exp_name: str | None) -> Callable[[], Trainer]:
    """Return a function that makes a Trainer.

    Args:
        arguments: Arguments of the Trainer.
        exp_name: Name of the run in the folder ``runs``; None lets the Trainer choose the place.

    Raises:
        ValueError: If the Trainer has no such argument, or a logger is given as well as the name.
    """
    given = dict(arguments or {})
    known = inspect.signature(Trainer).parameters
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise ValueError(f"unknown option {unknown!r} of the Trainer; {nearest(unknown, known)}")
    if exp_name is None:
        return partial(Trainer, **given)
    require("logger" not in given, "exp_name", "None with a logger of your own", exp_name)
    return lambda: Trainer(logger=TensorBoardLogger(RUNS, name=exp_name), **given)


def undotted(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested dict for one with dotted keys.

    Example:
        >>> undotted({"learn.batch_size": 8, "learn": {"learning_rate": 0.1}, "nstep": 1})
        {'learn': {'batch_size': 8, 'learning_rate': 0.1}, 'nstep': 1}
    """
    found: dict[str, Any] = {}
    for path, value in cfg.items():
        *sections, key = str(path).split(".")
        one: dict[str, Any] = {key: undotted(value) if isinstance(value, Mapping) else value}
        for section in reversed(sections):
            one = {section: one}
        found = deep_merge(found, one)
    return found
