"""A run that was translated from a pair of DI-engine's configs, and the parts of it that no policy decides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RolloutDataModule
from lightning_ding.di_engine.configs import Config, Missing, flat
from lightning_ding.di_engine.data_sets import check_there
from lightning_ding.di_engine.env_section import Need
from lightning_ding.di_engine.env_types import BASE_ENV, TranslatedEnvs
from lightning_ding.di_engine.shared_keys import HOOK, Notes, hooks_of, is_hook
from lightning_ding.policy import Policy

UNLIMITED = int(1e10)
"""Env steps or updates from which on DI-engine's limits mean no limit."""
NEVER = 1e9  # stop values from here on are never reached
SAVE_EVERY, LOG_EVERY = 10_000, 100  # updates, DI-engine's defaults
DEVICE_KEYS = ("cuda", "multi_gpu")
LEARNER_KEYS = {
    f"{HOOK}load_ckpt_before_run": "the checkpoint that is loaded first",
    f"{HOOK}log_show_after_iter": "MetricsLogger(log_every_n_rounds)",
    f"{HOOK}save_ckpt_after_iter": "RunCheckpoint(every_n_epochs)",
    f"{HOOK}save_ckpt_after_run": "RunCheckpoint, which always writes the last checkpoint",
    "learn.resume_training": "the checkpoint also restores counters, optimizers and the buffer",
    "learn.learner.load_path": "the checkpoint of eval",
    "learn.learner.log_policy": "Lightning's summary of the model",
    "load_path": "the checkpoint of eval",
}
"""Keys that the run reads apart from the policy, and what they become."""
READ_BY_RUN = (*LEARNER_KEYS, *DEVICE_KEYS)
ITERATIONS = "learn.learner.train_iterations"
REGISTERED = ("type", "import_names", "on_policy", "learn.learner.import_names", "eval.evaluator.import_names")
"""Keys of the registries, and of the algorithm itself."""
Named = dict[str, Any]
"""A class: ``class_path``, its dotted path or the class itself, and ``init_args``."""


@dataclass(frozen=True)
class Times:
    """DI-engine's numbers of updates as numbers of our rounds, epochs and updates."""

    log_every_n_rounds: int
    save_every_n_epochs: int
    eval_every_updates: int | None
    rounds_per_epoch: int | None

    @classmethod
    def of(cls, keys: Mapping[str, Any], eval_freq: int, updates: int | None, counts_rounds: bool = False) -> Times:
        """Return the times of a run.

        Args:
            keys: The policy's config in DI-engine's format, with dotted keys.
            eval_freq: Our ``eval.evaluator.eval_freq``.
            updates: Updates of a round; None if their number is not known.
            counts_rounds: Whether ``eval_freq`` counts rounds of an unknown number of updates.
        """
        log = keys.get(f"{HOOK}log_show_after_iter", LOG_EVERY)
        save = keys.get(f"{HOOK}save_ckpt_after_iter", SAVE_EVERY)
        unknown = updates is None
        return cls(
            log_every_n_rounds=1 if updates is None else max(1, round((log or SAVE_EVERY) / updates)),
            save_every_n_epochs=max(1, round((save or NEVER) / eval_freq)),
            eval_every_updates=eval_freq if unknown and not counts_rounds else None,
            rounds_per_epoch=eval_freq if counts_rounds else 1 if unknown else None,
        )


@dataclass(frozen=True)
class Run:
    """A run of this package, translated from a pair of DI-engine's configs."""

    family: str
    """The policy among DI-engine's whose keys and defaults apply; empty for a class in DI-engine's form."""
    policy: str
    """Registered name of the policy, or the dotted path of a class of the user."""
    policy_class: type[Policy[Any]]
    on_policy: bool
    """Whether the policy learns from rollouts."""
    policy_config: Config
    """The policy's config, as a nested dict of what differs from its defaults, or is given."""
    data: Config
    """Arguments of the datamodule; callables where there are no names."""
    trainer: Config
    """Arguments of the Trainer, apart from its logger and callbacks."""
    exp_name: str
    """Folder of the run, which has not been created."""
    seed: int
    log_every_n_rounds: int
    """Rounds between two reports of metrics."""
    save_every_n_epochs: int
    """Evaluations between two checkpoints from which the run can be resumed."""
    eval_every_updates: int | None = None
    """Updates between two evaluations where a round has an unknown number of them; None counts rounds."""
    checkpoint: str = ""
    """Checkpoint to load at the start of training; empty for none."""
    resumes: bool = False
    """Whether training continues: with the counters, the optimizers and the buffer of the checkpoint."""
    evaluated: str = ""
    """Checkpoint that ``eval`` loads; empty for none."""
    hooks: tuple[Named, ...] = ()
    """Hooks of the learner that the pair describes in full form."""
    network: Config | None = None
    """``type`` and arguments of a registered network of the user; None for that of the policy."""
    translated: tuple[str, ...] = ()
    """One line for each key of the pair: what it became."""
    warnings: tuple[str, ...] = ()
    """One line for each key or value without the effect that a reader may expect."""
    needs: tuple[Need, ...] = ()
    """The packages that the envs need and this project does not bring."""

    def check_needs(self, installed: bool = True) -> None:
        """Check that the envs can run, and that the data sets are there.

        Args:
            installed: Whether the packages of the envs, the data sets and the first checkpoint have to be on this
                machine.

        Raises:
            Missing: If an env does not run with this package, or anything is not there.
        """
        for need in self.needs:
            if not need.is_met and (installed or not need.module):
                raise Missing(need.text, "env")
        rewards = self.policy_config.get("reward_model", {})
        for path in (self.data.get("dataset"), self.data.get("demonstrations"), rewards.get("data_path")):
            if installed and isinstance(path, str):
                check_there(path)
        if installed and self.checkpoint and not Path(self.checkpoint).is_file():
            text = f"path must be a checkpoint, *.ckpt or *.pth.tar, but there is no file {self.checkpoint!r}"
            raise Missing(text, "checkpoint")

    @property
    def logger(self) -> Named:
        """The logger, which writes below the folder of the run."""
        where = {"save_dir": self.exp_name, "name": "log", "version": "serial"}
        return {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": where}

    @property
    def callbacks(self) -> list[Named]:
        """The callbacks that write metrics and checkpoints, that load the first weights, and the learner's hooks."""
        home, folder = "lightning_ding.callbacks.", os.path.join(self.exp_name, "ckpt")
        options: dict[str, Config] = {
            "MetricsLogger": {"log_every_n_rounds": self.log_every_n_rounds},
            "BestCheckpoint": {"dirpath": folder},
            "RunCheckpoint": {"dirpath": folder, "every_n_epochs": self.save_every_n_epochs},
        }
        if self.eval_every_updates is not None:
            options["EvaluationInterval"] = {"train_iter": self.eval_every_updates}
        if self.checkpoint and not self.resumes:
            options["InitialWeights"] = {"path": self.checkpoint}
        made: list[Named] = [{"class_path": f"{home}{name}", "init_args": given} for name, given in options.items()]
        return [*made, *self.hooks]

    @property
    def datamodule_class(self) -> type[OfflineDataModule] | type[ReplayDataModule] | type[RolloutDataModule]:
        """Class of the datamodule."""
        if "dataset" in self.data:
            return OfflineDataModule
        return RolloutDataModule if self.on_policy else ReplayDataModule


def make_run(
    policy: Mapping[str, Any],
    cfg: Mapping[str, Any],
    given: set[str],
    envs: TranslatedEnvs,
    data: Config,
    times: Times,
    notes: Notes,
) -> Run:
    """Return a run of which the policy and the envs are translated already.

    Args:
        policy: ``family``, ``policy``, ``policy_class``, ``policy_config``, ``on_policy`` and ``network`` of the run.
        cfg: The merged pair, with the ``seed`` of ``main_config``.
        given: Dotted keys of the policy that the pair sets.
        envs: The envs.
        data: Further arguments of the datamodule, with ``seed``.
        times: Times of the run.
        notes: Lines about the policy's keys, to which more are added.
    """
    hooks = hooks_of(cfg["policy"].get("learn", {}).get("learner", {}))
    notes.translated += [f"policy.{HOOK}{key} -> the callback {one['class_path'].__name__}" for key, one in hooks]
    keys = dict(flat(cfg["policy"]))
    _note_learner_keys(keys, given, notes)
    if cfg["seed"] != data["seed"]:
        notes.warnings.append(f"seed = {cfg['seed']!r} has no effect: the seed of the run is {data['seed']}")
    trainer = _trainer(keys, given, notes)
    return Run(
        **policy,
        data=_data(envs, data),
        trainer=trainer,
        exp_name=str(cfg["exp_name"]),
        seed=data["seed"],
        log_every_n_rounds=times.log_every_n_rounds,
        save_every_n_epochs=times.save_every_n_epochs,
        eval_every_updates=times.eval_every_updates,
        checkpoint=str(keys.get(f"{HOOK}load_ckpt_before_run") or ""),
        resumes=bool(keys.get("learn.resume_training", False)),
        evaluated=str(keys.get("learn.learner.load_path") or keys.get("load_path") or ""),
        hooks=tuple(one for _, one in hooks),
        translated=(*notes.translated, *envs.translated),
        warnings=(*notes.warnings, *envs.warnings),
        needs=envs.needs,
    )


def _data(envs: TranslatedEnvs, further: Config) -> Config:
    """Return the arguments of the datamodule."""
    data = {**envs.datamodule_kwargs(), **further}
    if data["stop_value"] >= NEVER:
        data["stop_value"] = None
    return {name: value for name, value in data.items() if value is not None}


def _trainer(keys: Config, given: set[str], notes: Notes) -> Config:
    """Return the arguments of the Trainer."""
    cuda = bool(keys.get("cuda", False))
    if cuda and not torch.cuda.is_available():
        notes.warnings.append("policy.cuda = True, but there is no GPU: training on the CPU")
    trainer: Config = {"accelerator": "auto" if cuda else "cpu", "max_epochs": -1}
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if keys.get("multi_gpu", False) or world > 1:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
        devices = local if world > 1 else max(1, torch.cuda.device_count())
        trainer |= {"strategy": "ddp", "devices": devices, "num_nodes": max(1, world // local)}
    else:
        trainer["devices"] = 1
    for name, option in zip(DEVICE_KEYS, ("accelerator", "strategy"), strict=True):
        if name in given:
            notes.translated.append(f"policy.{name} -> trainer.{option} = {trainer.get(option, 'auto')!r}")
    return trainer


def _note_learner_keys(keys: Config, given: set[str], notes: Notes) -> None:
    for name in sorted(given & set(LEARNER_KEYS)):
        notes.translated.append(f"policy.{name} -> {LEARNER_KEYS[name]}")
    if ITERATIONS in given:
        notes.warnings.append(f"policy.{ITERATIONS} has no effect: max_train_iter limits the updates of a serial run")
    if keys.get(f"{HOOK}save_ckpt_after_run") is False:
        notes.warnings.append(f"policy.{HOOK}save_ckpt_after_run = False has no effect: a run always saves its end")


def with_frames(envs: TranslatedEnvs, evaluator: Mapping[str, Any]) -> TranslatedEnvs:
    """Return the envs of a run whose evaluator, a section of our config, may make videos."""
    renders = evaluator.get("render", {}).get("render_freq", -1) > 0
    return envs.with_rendering() if renders and envs.env != BASE_ENV else envs


def limit(value: int) -> int | None:
    """Return a limit of DI-engine, with None for no limit."""
    return None if value >= UNLIMITED else value


def is_consumed(name: str) -> bool:
    """Return whether a key is read elsewhere than by the policy, or belongs to the registries."""
    last = name.rpartition(".")[2]
    is_learner = name in LEARNER_KEYS or name in (ITERATIONS, "learn.learner.type")
    return is_learner or is_hook(name) or name in (*DEVICE_KEYS, *REGISTERED) or last == "cfg_type"
