"""The base of every policy: a LightningModule with a learn, a collect and an eval mode.

Shapes: B batch (transitions when learning, envs when acting).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from easydict import EasyDict
from gymnasium import spaces
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_ding import nested
from lightning_ding.config import ConfigLike, nearest, require, resolve, to_dict, to_easydict
from lightning_ding.model import create_model
from lightning_ding.policy.action_start import ActionStart
from lightning_ding.policy.compiled import Compiler
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.episodes import log_episodes
from lightning_ding.policy.eval_mode import InEvalMode
from lightning_ding.policy.forked import HANDED_OVER, is_forked
from lightning_ding.policy.metrics import MeanMetrics
from lightning_ding.policy.modes import CollectMode, EvalMode, LearnMode
from lightning_ding.policy.non_finite import NonFiniteGuard
from lightning_ding.policy.normaliser import Normaliser, check_holds_statistics
from lightning_ding.policy.optimisation import acting_precision, attached_trainer, warn_of_other_rates
from lightning_ding.policy.rank_statistics import number_of_ranks
from lightning_ding.policy.round import Batch, Round
from lightning_ding.policy.scheduling import Schedules
from lightning_ding.policy.trainer_fast_path import nobody_listens
from lightning_ding.policy.trainer_flags import check_callbacks, check_trainer
from lightning_ding.policy.updates import PolicyUpdates
from lightning_ding.progress import Progress

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)

ACTION_UNITS = ("action_low", "action_high", "action_integer", "action_start")
"""Entries of the config's ``model`` that say how the env counts and measures actions; networks do not see them."""


class Policy(PolicyUpdates, Generic[ConfigT]):
    """An algorithm: what it learns, how it acts, and what a transition of it holds.

    A subclass names its ``config_class`` and implements ``_init_learn``, ``_forward_learn``, ``_forward_collect``,
    ``_forward_eval`` and ``default_model``. A mode that it does not implement raises ``NotImplementedError`` when it is
    used. Workers use ``learn_mode``, ``collect_mode`` and ``eval_mode`` only.

    The network is built in the constructor if the config says its shapes or ``model`` is given; otherwise from the
    env's spaces, by :meth:`build`, which a Trainer's datamodule gives rise to.

    Args:
        cfg: The policy's config dataclass, or a mapping to merge over its defaults.
        model: A network to use instead of the one that the config describes.
        enable_field: Which of learn, collect and eval to initialise; None means all.

    Raises:
        ValueError: If a config key is unknown or a value out of range, or a field is unknown.
        TypeError: If ``model`` is not an ``nn.Module``, or a config value has the wrong type.
    """

    config_class: ClassVar[type[PolicyConfig]]
    on_policy: ClassVar[bool] = False
    shape_names: ClassVar[tuple[str, ...]] = ("obs_shape", "action_shape")
    """Entries of the config's ``model`` that must be known before the network can be made."""
    total_field: ClassVar[tuple[str, ...]] = ("learn", "collect", "eval")
    _collect_data: bool = True  # an attribute for collectors of several policies, which pass over one that is fixed

    def __init__(
        self,
        cfg: ConfigLike[ConfigT] = None,
        model: nn.Module | None = None,
        enable_field: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if isinstance(cfg, Mapping):
            cfg = {key: value for key, value in cfg.items() if key != "cfg_type"}  # default_config() writes it
        self.config: ConfigT = resolve(cast(type[ConfigT], self.config_class), cfg)
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module or None, got {type(model).__name__}")
        unknown = set(enable_field or ()) - set(self.total_field)
        if unknown:
            raise ValueError(f"enable_field must be among {self.total_field}, got {sorted(unknown)}")
        self.enable_field = tuple(f for f in self.total_field if enable_field is None or f in enable_field)
        self.progress = Progress()
        self.metrics = MeanMetrics()
        self.normaliser = Normaliser()
        """By what observations and rewards are normalised, if they are; a datamodule's ``norm_obs`` begins it."""
        self.rng = np.random.default_rng()
        self.model: nn.Module = nn.Identity()
        self._optimizer_list: list[Optimizer] = []
        self._scheduler_list: list[LRScheduler] = []
        self._is_built = False
        self._schedules = Schedules(getattr(self.config, "learn", None))
        self._step_directly = False
        self._hands_over = False
        self._acting_precision: Callable[[], AbstractContextManager[None]] = nullcontext
        self.action_start = ActionStart()
        """Where the env's discrete actions begin; the network's begin at 0."""
        self._round_env_step = 0
        self.guard = NonFiniteGuard(self, self.config.on_non_finite)
        """Sees that no update is made of what is not finite."""
        self._compiler = Compiler(self, self.guard) if self.config.compile else None
        self.save_hyperparameters({"cfg": to_dict(self.config)})
        if model is not None or self._has_shapes() or not self._needs_model():
            self._initialise(model)

    # ------------------------------------------------------------------ to implement

    def _init_learn(self) -> None:
        """Make what learning needs: target networks, ``self._optimizer_list`` and ``self._scheduler_list``."""

    def _init_spaces(self) -> None:
        """Take from ``config.model`` what depends on the env's spaces beside the network.

        Called when the network is made, and again when an env fills in what the config had left open.
        """
        self.action_start = ActionStart(to_dict(self.config)["model"].get("action_start"))

    def _init_collect(self) -> None:
        """Make what collecting needs beyond the model."""

    def _init_eval(self) -> None:
        """Make what evaluating needs beyond the model."""

    def _forward_learn(self, batch: Batch) -> dict[str, Any]:
        """Make one update from a minibatch with leading axis B; return detached tensors to report.

        A ``priority``, shape (B,), goes back to a prioritised buffer; of everything else the mean is logged.
        """
        raise not_implemented(self, "_forward_learn")

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return an ``action`` for each of B observations, with exploration, and what a transition keeps beside it."""
        raise not_implemented(self, "_forward_collect")

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        """Return the greedy ``action`` for each of B observations; a subclass may take more arguments."""
        raise not_implemented(self, "_forward_eval")

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered name of the network and the modules whose import registers it."""
        raise not_implemented(self, "default_model")

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        """Return ``obs_shape`` and ``action_shape`` of the spaces of one env.

        Raises:
            TypeError: If the algorithm cannot work with such a space.
        """
        raise not_implemented(self, "_shapes_of")

    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the columns of a transition; every leaf has the leading axis B. Discrete actions count from 0.

        Args:
            obs: Observations acted on.
            output: What ``_forward_collect`` returned for them.
            timestep: With ``next_obs`` (the true final observation at an episode's end), ``reward``, ``terminated``,
                ``truncated``.
        """
        return {
            "obs": obs,
            "action": self.action_start.from_env(output["action"]),
            "reward": timestep.reward,
            "next_obs": timestep.next_obs,
            "terminated": timestep.terminated,
            "truncated": timestep.truncated,
        }

    def _get_train_sample(self, transitions: Any) -> Any:
        """Return what is stored of collected transitions; here they are stored as they are."""
        return transitions

    def _prepare_round(self, data: Batch) -> Batch:
        """Return the minibatches of a round with what can be computed for all of them at once; leading axes (U, B)."""
        return data

    def _forward_round(self, data: Batch) -> dict[str, Any] | None:
        """Make the updates of a round, leading axes (U, B), by ``minimise_together``; None to make them one by one."""
        return None

    def _reset_learn(self, data_id: Sequence[int] | None = None) -> None:
        """Forget the learner's state of these slots (None: all)."""

    def _reset_collect(self, data_id: Sequence[int] | None = None) -> None:
        """Forget the collecting state, such as an RNN's, of these envs (None: all)."""

    def _reset_eval(self, data_id: Sequence[int] | None = None) -> None:
        """Forget the evaluating state of these envs (None: all)."""

    def collect_memory(self) -> dict[str, Any]:
        """Return what collecting remembers of the episodes under way, as tensors and builtins; of this rank."""
        return {}

    def load_collect_memory(self, memory: Mapping[str, Any]) -> None:
        """Take what ``collect_memory`` returned."""

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss"]

    # ------------------------------------------------------------------ building

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults as an ``EasyDict``, independent of any other.

        Raises:
            RuntimeError: On a base class, which has no algorithm.
        """
        if not hasattr(cls, "config_class"):
            raise RuntimeError(f"{cls.__name__} is a base class and has no default config")
        return EasyDict(to_easydict(cls.config_class()), cfg_type=f"{cls.__name__}Dict")

    @property
    def is_built(self) -> bool:
        """Whether the network exists."""
        return self._is_built

    def build(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Policy[ConfigT]:
        """Make the network for an env, or check that the one there is fits it.

        Args:
            observation_space: Of one env.
            action_space: Of one env.

        Returns:
            The policy itself.

        Raises:
            TypeError: If the algorithm cannot work with such a space.
            ValueError: If the config says other shapes.
        """
        found = self._shapes_of(observation_space, action_space)
        asked = to_dict(self.config)["model"]
        for name in ACTION_UNITS:
            useless = asked.get(name) is not None and name not in found
            require(not useless, f"model.{name}", f"None for an env with the actions {action_space}", asked.get(name))
        for name, shape in found.items():
            plain = plain_shape(shape)
            given = plain_shape(asked[name])
            if given is not None and given != plain and not (name == "obs_shape" and _stands_for(given, plain)):
                hint = "" if name != "obs_shape" else "; leave it None to take it from the env"
                raise ValueError(f"model.{name} is {asked[name]} in the config, but the env has {plain}{hint}")
        missing = {name: value for name, value in found.items() if asked[name] is None}
        if missing:
            self.config = resolve(type(self.config), {**to_dict(self.config), "model": {**asked, **missing}})
            self.hparams["cfg"] = to_dict(self.config)
            if self._is_built:
                self._init_spaces()
        if not self._is_built:
            self._initialise(None)
        return self

    def configure_model(self) -> None:
        """Build the network from the spaces of the Trainer's datamodule (Lightning hook).

        Raises:
            RuntimeError: If there is nothing to learn the spaces from.
        """
        trainer = attached_trainer(self)
        self._acting_precision = acting_precision(trainer)
        datamodule: Any = getattr(trainer, "datamodule", None)
        if hasattr(datamodule, "single_observation_space"):
            self.build(datamodule.single_observation_space, datamodule.single_action_space)
        elif not self._is_built:
            raise RuntimeError(
                f"{type(self).__name__} does not know its spaces: set model.obs_shape and model.action_shape in its "
                "config, call build(observation_space, action_space), or use a datamodule that has an env"
            )

    def teardown(self, stage: str) -> None:
        """Act in full precision from now on, and let a forked rank hand over its state (Lightning hook)."""
        trainer = attached_trainer(self)
        self._hands_over = stage == "fit" and trainer is not None and is_forked(trainer)
        self._acting_precision = nullcontext

    def _initialise(self, model: nn.Module | None) -> None:
        if self._needs_model():
            self.model = create_model(self._model_cfg()) if model is None else model
            self._init_spaces()
        self._in_eval_mode = InEvalMode(self.model)
        for field in self.enable_field:
            getattr(self, f"_init_{field}")()
        self._is_built = True

    def _model_cfg(self) -> dict[str, Any]:
        name, import_names = self.default_model()
        section = {key: value for key, value in to_dict(self.config)["model"].items() if key not in ACTION_UNITS}
        return {"type": name, "import_names": import_names, **section}

    def _has_shapes(self) -> bool:
        model = to_dict(self.config)["model"]
        return all(model[name] is not None for name in self.shape_names)

    def _needs_model(self) -> bool:
        return any(field in self.enable_field for field in ("learn", "collect", "eval"))

    # ------------------------------------------------------------------ modes

    @property
    def learn_mode(self) -> LearnMode:
        """What a learner sees."""
        return LearnMode(
            self._learn_and_look,
            self._reset_learn,
            self.__repr__,
            self._monitor_vars_learn,
            self.get_attribute,
            self.set_attribute,
            self._state_dict_learn,
            self._load_state_dict_learn,
        )

    @property
    def collect_mode(self) -> CollectMode:
        """What a collector sees."""
        return CollectMode(
            self._collect,
            self._process_transition,
            self._get_train_sample,
            self._reset_collect,
            self.get_attribute,
            self.set_attribute,
            self._state_dict_collect,
            self._load_state_dict_collect,
        )

    @property
    def eval_mode(self) -> EvalMode:
        """What an evaluator sees."""
        return EvalMode(
            self._evaluate,
            self._reset_eval,
            self.get_attribute,
            self.set_attribute,
            self._state_dict_eval,
            self._load_state_dict_eval,
        )

    def _learn_and_look(self, data: Batch | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make one update, and see at once whether all was finite, which waits for the device; see ``_learn``."""
        self._apply_schedules(self.progress.env_step)
        output = self._learn(data)
        self.guard.look()
        return output

    def _learn(self, data: Batch | Sequence[Mapping[str, Any]], is_raw: bool = True) -> dict[str, Any]:
        """Make one update; of a rollout, the normaliser learns behind it, by what the policy acted with until then.

        Args:
            data: A minibatch, or on-policy a whole rollout, with leading axis B, or a list of B transitions.
            is_raw: Whether it has to be normalised.

        Raises:
            NonFiniteError: If loss or gradient is not finite, and ``on_non_finite`` of the config says so.
        """
        self._require_field("learn")
        batch = cast(Batch, data if isinstance(data, dict) else nested.stack(cast("Sequence[Any]", data)))
        if not self.training:
            self.train()
        normal = self.normaliser.normalise_batch(batch) if is_raw else batch
        self.guard.begin(normal)
        output = self._forward_learn(normal)
        self.guard.end()
        if self.on_policy and self.normaliser.is_on:
            self.normaliser.update(batch)
        self.progress.train_iter += not self.on_policy  # who learns from a rollout counts its updates itself
        if "priority" in output and not self.guard.look():  # the buffer waits for them anyway
            del output["priority"]  # which are not finite either: the transitions keep those they had
        return output

    def _collect(self, obs: Any, **kwargs: Any) -> Any:
        """Act with exploration on B observations, or on ``{env_id: observation}``."""
        self._require_field("collect")
        return self._act(self._forward_collect, obs, **kwargs)

    def _evaluate(self, obs: Any, **kwargs: Any) -> Any:
        """Act greedily on B observations, or on ``{env_id: observation}``."""
        self._require_field("eval")
        return self._act(self._forward_eval, obs, **kwargs)

    def _act(self, function: Any, obs: Any, **kwargs: Any) -> Any:
        ids = list(obs) if isinstance(obs, dict) and obs and isinstance(next(iter(obs)), int) else None
        obs = obs if isinstance(obs, (Tensor, np.ndarray)) else nested.as_dicts(obs)  # of a Tuple space
        batch = nested.to_tensor(obs) if ids is None else nested.stack([obs[i] for i in ids])
        if torch.device(self.device).type != "cpu":
            batch = nested.to(batch, self.device)
        with torch.no_grad(), self._in_eval_mode, self._acting_precision():
            output = function(self.normaliser.normalise_obs(batch), **kwargs)
        return output if ids is None else {env_id: nested.index(output, row) for row, env_id in enumerate(ids)}

    def _require_field(self, field: str) -> None:
        if field not in self.enable_field:
            raise RuntimeError(f"the field {field!r} is not enabled, enable_field is {self.enable_field}")
        if not self._is_built:
            self.configure_model()

    # ------------------------------------------------------------------ states

    def _state_dict_learn(self) -> dict[str, Any]:
        self._require_field("learn")
        self._taken()
        return self._network_state() | {
            "optimizer": [optimizer.state_dict() for optimizer in self._optimizer_list],
            "lr_scheduler": [scheduler.state_dict() for scheduler in self._scheduler_list],
        }

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        self._require_field("learn")
        self._taken()
        self._load_network_state(state)
        for optimizer, saved in zip(self._optimizer_list, state["optimizer"], strict=True):
            optimizer.load_state_dict(copy.deepcopy(saved))  # torch would keep the very tensors of another optimizer
        for scheduler, saved in zip(self._scheduler_list, state["lr_scheduler"], strict=True):
            scheduler.load_state_dict(saved)

    def _state_dict_collect(self) -> dict[str, Any]:
        return self._network_state()

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        self._load_network_state(state)

    def _state_dict_eval(self) -> dict[str, Any]:
        return self._network_state()

    def _load_state_dict_eval(self, state: dict[str, Any]) -> None:
        self._load_network_state(state)

    def _network_state(self) -> dict[str, Any]:
        """Return what acting needs: the network, and what observations are normalised by, if they are."""
        state: dict[str, Any] = {"model": self.model.state_dict()}
        return state | ({"normaliser": self.normaliser.state_dict()} if self.normaliser.is_on else {})

    def _load_network_state(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.normaliser.load_state_dict(state.get("normaliser", {}))

    # ------------------------------------------------------------------ Lightning

    def check_callbacks(self, trainer: Trainer) -> None:
        """Raise for a callback that cannot work, before a datamodule brings its own; see ``trainer_flags``."""
        check_callbacks(trainer)

    def configure_callbacks(self) -> list[Callback]:
        """Refuse what cannot work, and bring the callbacks that the datamodule needs (Lightning hook)."""
        check_trainer(self.trainer)
        if self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.trainer.fit_loop.epoch_loop.max_steps = -1  # it is the number of rounds, of several steps each
        bring = getattr(getattr(self.trainer, "datamodule", None), "default_callbacks", None)
        return cast("list[Callback]", bring(self.trainer)) if bring is not None else []

    def forward(self, obs: Any) -> Tensor:
        """Return the greedy action for each of B observations."""
        return self._forward_eval(self.normaliser.normalise_obs(obs))["action"]

    def on_train_start(self) -> None:
        """Take the optimizers that Lightning was given, and see whether its hooks are listened to (Lightning hook)."""
        self._take_optimizers()
        self._round_env_step = self.progress.env_step
        self._apply_schedules(self._round_env_step)  # one that cannot work is refused before anything is collected
        self._step_directly = nobody_listens(self.trainer, self)
        if self.trainer.ckpt_path is not None and self.trainer.is_global_zero:
            warn_of_other_rates(self._optimizer_list, self._schedules.sets_learning_rate or bool(self._scheduler_list))

    def training_step(self, batch: Round | Batch | Sequence[Mapping[str, Any]], batch_idx: int) -> dict[str, Any]:
        """Make one update for each minibatch of a round, and report the last one (Lightning hook).

        Args:
            batch: A round of minibatches; a single minibatch, or a list of transitions, counts as a round of one.
            batch_idx: Number of the round in its epoch.

        Returns:
            The last update's report, without its priorities; Lightning hands it to the callbacks.
        """
        skipped_before = self.guard.skipped_updates
        self._apply_schedules(self._round_env_step)
        if isinstance(batch, (Mapping, Sequence)):
            output = self._learn(batch)
            output.pop("priority", None)
        else:
            batch.prepare(lambda data: self._prepare_round(self.normaliser.normalise_batch(data)))
            output = self._learn_at_once(batch) or self._learn_in_turn(batch)
        if self.guard.look() or self.config.on_non_finite == "warn":
            self.metrics.add(output)
        if self.config.on_non_finite == "skip_update":
            skipped = self.guard.skipped_updates - skipped_before
            self.metrics.add({"skipped_updates": torch.tensor(float(skipped))})
        self._round_env_step = self.progress.env_step
        if self._taken().per_epoch and batch_idx + 1 >= self.trainer.num_training_batches:
            self._taken().after_epoch(self.current_epoch)
        return output

    def _learn_at_once(self, batch: Round) -> dict[str, Any] | None:
        """Make all updates of a round in one piece of compiled code; return the last report, None if that cannot be."""
        if self._compiler is None or batch.drawn is None or number_of_ranks() > 1:
            return None
        self.guard.begin(batch.drawn)
        output = self._forward_round(batch.drawn)
        self.guard.end()
        return output

    def _learn_in_turn(self, batch: Round) -> dict[str, Any]:
        is_raw = getattr(batch, "drawn", None) is None  # else it was prepared
        for minibatch in batch:
            output = self._learn(minibatch, is_raw)
            priority = output.pop("priority", None)
            if priority is not None:
                batch.update_priority(minibatch, priority)
        return output

    def check_means(self, means: Mapping[str, float]) -> None:
        """Look at the means of what updates reported since the last log; an algorithm warns here of what is wrong.

        Args:
            means: Means over updates and ranks by the name of the report. They are on the host already.
        """

    def validation_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        """Log the episodes of an evaluation (Lightning hook); see :func:`log_episodes`."""
        log_episodes(self, "eval", batch)

    def test_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        """Log the episodes of a test (Lightning hook); see :func:`log_episodes`."""
        log_episodes(self, "test", batch)

    def seed(self, seed: int | np.random.SeedSequence) -> None:
        """Seed the exploration; every rank needs a seed of its own."""
        self.rng = np.random.default_rng(seed)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return parameters and buffers by name, and when a forked rank ends also what :mod:`forked` names."""
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        if self._hands_over:
            state[HANDED_OVER] = {"cfg": to_dict(self.config)}
            self.on_save_checkpoint(state[HANDED_OVER])
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take what ``state_dict`` returned; a state that was handed over makes the network if there is none."""
        weights = {name: value for name, value in state_dict.items() if name != HANDED_OVER}
        if HANDED_OVER in state_dict:
            handed_over = state_dict[HANDED_OVER]
            self.config = resolve(type(self.config), handed_over["cfg"])
            self.hparams["cfg"] = to_dict(self.config)
            if not self._is_built:
                self._initialise(None)
            self.on_load_checkpoint(handed_over)
        return super().load_state_dict(weights, strict=strict, assign=assign)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the counters (Lightning hook)."""
        checkpoint["progress"] = self.progress.state_dict()
        checkpoint["non_finite"] = self.guard.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counters (Lightning hook)."""
        if "progress" not in checkpoint:
            raise KeyError(f"the checkpoint holds no progress; {nearest('progress', checkpoint)}")
        check_holds_statistics(checkpoint)
        self.progress.load_state_dict(checkpoint["progress"])
        if "non_finite" in checkpoint:  # older ones do not hold it
            self.guard.load_state_dict(checkpoint["non_finite"])


def not_implemented(policy: object, method: str) -> NotImplementedError:
    """Return the error of a method that a subclass must implement; ``nn.Module`` has no abstract methods."""
    return NotImplementedError(f"{type(policy).__name__} must implement {method} to be used like this")


def plain_shape(shape: Any) -> Any:
    """Return a shape with sequences as lists and one-element sequences as numbers, so that two can be compared."""
    if isinstance(shape, Mapping):
        return {name: plain_shape(below) for name, below in shape.items()}
    if isinstance(shape, (list, tuple)):
        return list(shape) if len(shape) != 1 else shape[0]
    return shape


def _stands_for(size: Any, shape: Any) -> bool:
    """Return whether a config's observation is the env's made flat, as an encoder of vectors does."""
    if isinstance(size, Mapping) and isinstance(shape, Mapping):
        return size.keys() == shape.keys() and all(_stands_for(size[name], shape[name]) for name in shape)
    return bool(size == shape or (isinstance(shape, list) and size == math.prod(shape)))
