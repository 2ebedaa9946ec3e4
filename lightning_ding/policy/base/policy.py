"""The base of every policy: a LightningModule with a learn, a collect, an eval and a command mode.

Shapes: B batch (transitions when learning, envs when acting), U minibatches of a round.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from easydict import EasyDict
from gymnasium import spaces
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from typing_extensions import Self

from lightning_ding.config import MARK, ConfigLike, read_only, resolve, to_dict
from lightning_ding.model import create_model
from lightning_ding.policy.base.acting import ActionSelector, seed_exploration
from lightning_ding.policy.base.attributes import AttributesAndModes
from lightning_ding.policy.base.config import CHANGED_BY, PolicyConfig, to_save
from lightning_ding.policy.base.metrics import MeanMetrics, log_episodes
from lightning_ding.policy.base.normaliser import Normaliser
from lightning_ding.policy.base.round import Batch, Round, RoundLearner
from lightning_ding.policy.base.spaces import ActionStart, MissingNetwork, missing_shapes, network_section, no_network
from lightning_ding.policy.base.trainer import build_for_trainer, check_callbacks, is_forked_rank, prepare_trainer
from lightning_ding.policy.base.update import Updater
from lightning_ding.utils.foreign import POLICY_NAMES, foreign
from lightning_ding.utils.modes import CollectMode, CommandMode, EvalMode, LearnMode, enabled_fields, not_implemented
from lightning_ding.utils.private_api import call_batch_hook, only_on_class, set_attribute
from lightning_ding.utils.progress import Progress

if TYPE_CHECKING:
    from lightning_ding.policy.base.export import Format
    from lightning_ding.policy.base.predict import Actor, Spaces, Way

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)


class Policy(LightningModule, AttributesAndModes, Generic[ConfigT]):
    """An algorithm: how it acts, what a transition contains, and how it learns.

    A subclass sets ``config_class`` and implements ``_init_learn``, ``_forward_learn``, ``_forward_collect``,
    ``_forward_eval``, ``default_model`` and ``_shapes_of``. A mode whose method is missing raises an error when it is
    used. A subclass with a dict ``config`` in place of ``config_class`` gets its base from :class:`ReferencePolicy`.

    The constructor makes the network if ``model`` or the shapes in the config are given. Otherwise :meth:`build` makes
    it from the env's spaces, which a Trainer takes from its datamodule.

    Args:
        cfg: The policy's config dataclass, or a mapping to merge over its defaults.
        model: A network to use instead of the one that the config describes.
        enable_field: The modes to initialise, among learn, collect, eval and command; None means all.

    Raises:
        ValueError: If a config key is unknown or a value out of range, or if ``enable_field`` has an unknown mode.
        TypeError: If ``model`` is not an ``nn.Module``, or a config value has the wrong type.
    """

    config_class: ClassVar[type[PolicyConfig]]
    on_policy: ClassVar[bool] = False
    learns_from_sequences: ClassVar[bool] = False
    """Whether a replay buffer has to give sequences instead of transitions."""
    trains_on: ClassVar[str] = "envs"  # or "dataset": what the command line trains it on
    shape_names: ClassVar[tuple[str, ...]] = ("obs_shape", "action_shape")
    """Entries of the config's ``model`` section that must be known before the network can be made."""
    parts_of_model: ClassVar[tuple[str, ...]] = ()
    """Methods and modules of a network that a fit uses."""
    learn_function, collect_function, eval_function, command_function = LearnMode, CollectMode, EvalMode, CommandMode
    total_field: ClassVar[tuple[str, ...]] = ("learn", "collect", "eval", "command")
    _selector_class: ClassVar[type[ActionSelector]] = ActionSelector
    __setattr__, _call_batch_hook = set_attribute, call_batch_hook

    def __init__(
        self, cfg: ConfigLike[ConfigT] = None, model: nn.Module | None = None, enable_field: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        change = CHANGED_BY.get()  # of a policy that is made of a file
        self.config: ConfigT = self._read_config(cfg if change is None else change(cfg, type(self)))
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module or None, got {type(model).__name__}")
        self.enable_field = enabled_fields(self.total_field, enable_field)
        self.needs_model = bool(set(self.enable_field) - {"command"})
        self.progress = Progress()
        self.metrics, self.collect_metrics = MeanMetrics(), MeanMetrics()  # of updates, and of _forward_collect
        self.normaliser = Normaliser()  # switched on by norm_obs and norm_reward of a datamodule
        self.rng = np.random.default_rng()
        self.env_spaces: Spaces | None = None  # of one env, for predict; set by build, and part of a checkpoint
        self.trained_in: dict[str, Any] = {}  # arguments of the datamodule, from the checkpoint that was loaded
        self.model: nn.Module = MissingNetwork(no_network(self))
        self.updater = Updater(self, self.config, self.progress)
        self.learner, self.action_start = RoundLearner(self), ActionStart()
        self._action_selector = self._selector_class(self.normaliser)
        self._is_built = self._hands_over = self.has_loaded_weights = False  # weights without their counters
        self.save_hyperparameters({"cfg": to_save(self)})
        section = self._model_section()
        if model is not None or not self.needs_model or None not in map(section.get, self.shape_names):
            self._initialise(model)

    def _read_config(self, cfg: ConfigLike[ConfigT]) -> ConfigT:
        if isinstance(cfg, Mapping) and {"compile", MARK} & cfg.keys():  # which every saved config has
            from lightning_ding.policy.base.older_configs import renewed

            cfg = renewed(self.config_class, cfg)
        return cast(ConfigT, resolve(self.config_class, cfg))

    def _init_learn(self) -> None:
        """Make what learning needs: target networks, and one optimizer for each loss in ``self.updater.optimizers``."""

    def _init_spaces(self) -> None:
        """Read from ``config.model`` what depends on the env's spaces, whenever some of them become known."""
        self.action_start = ActionStart(self._model_section().get("action_start"))

    def _init_collect(self) -> None:
        """Make what collecting needs in addition to the model."""

    _init_eval = _init_command = _init_collect  # what the other modes need

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        """Make one update from a minibatch of :meth:`prepare`; return detached tensors to report.

        A ``priority``, shape (B,), is returned to a prioritised buffer; the means of the others are logged.
        """
        raise not_implemented(self, "_forward_learn")

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return an exploring ``action`` for each of B observations, and what else a transition stores.

        ``kwargs`` are what ``_get_setting_collect`` returned. ``rng`` is this rank's generator. Means of the tensors
        given to ``collect_metrics.add`` are logged as ``collect/<name>``.
        """
        raise not_implemented(self, "_forward_collect")

    def _forward_eval(self, obs: Any) -> dict[str, Tensor]:
        """Return the greedy ``action`` for each of B observations; a subclass may take more arguments."""
        raise not_implemented(self, "_forward_eval")

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered name of the network, and the modules to import first."""
        raise not_implemented(self, "default_model")

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        """Return the entries of ``config.model`` that an env's spaces determine; raise TypeError for unfit spaces."""
        raise not_implemented(self, "_shapes_of")

    def sync_gradients(self, model: nn.Module) -> None:
        """Average the gradients of a network over all ranks, for a ``_forward_learn`` with its own backward pass."""
        from lightning_ding.policy.base.ddp import sync_gradients

        sync_gradients(model.parameters())

    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the columns of B transitions; discrete actions count from 0.

        ``output`` is what ``_forward_collect`` returned for the observations, and ``timestep`` the result of the envs'
        step, whose ``next_obs`` is the final observation at an episode's end.
        """
        action = self.action_start.from_env(output["action"])
        ends = {"terminated": timestep.terminated, "truncated": timestep.truncated}
        return {"obs": obs, "action": action, "reward": timestep.reward, "next_obs": timestep.next_obs, **ends}

    def _get_train_sample(self, transitions: Any) -> Any:
        """Return the samples to store for collected transitions; here the transitions themselves."""
        return transitions

    def _prepare_round(self, data: Batch) -> Batch:
        """Return the minibatches of a round, leading axes (U, B), with what can be computed for all of them at once."""
        return data

    def prepare(self, data: Batch) -> Any:
        """Return a minibatch in the form in which ``_forward_learn`` and the losses read it, leading axis B."""
        return data

    def _reset_collect(self, data_id: Sequence[int] | None = None) -> None:
        """Reset the collecting state of these envs (None: all), such as that of an RNN."""

    _reset_learn = _reset_eval = _reset_collect  # the state of the learner's slots, and that of evaluations

    def collect_memory(self) -> dict[str, Any]:
        """Return this rank's collecting state of unfinished episodes, as tensors and builtins."""
        return {}

    def load_collect_memory(self, memory: Mapping[str, Any]) -> None:
        """Restore the state that ``collect_memory`` returned."""

    def _monitor_vars_learn(self) -> list[str]:
        return ["cur_lr", "total_loss"]

    def check_means(self, means: Mapping[str, float]) -> None:
        """Warn if the mean metrics of updates since the last log, over all ranks, show an unsuitable setting."""

    def _get_setting_learn(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of ``_forward_collect``, from ``envstep`` and ``learner_step``; numbers are logged."""
        return {}

    _get_setting_eval = _get_setting_learn

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        """Return a parameter or a module, or an attribute by a private name that other frameworks have for it."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            known = getattr(type(self), name, None)
            if isinstance(known, property):  # the error is not that the policy lacks it, but one inside of it
                return known.__get__(self)  # type: ignore[no-any-return]
            if name not in POLICY_NAMES:
                raise
        return cast(nn.Module, foreign("policies.names").named(self, name))

    @property
    def cfg(self) -> EasyDict:
        """The config as an ``EasyDict`` that cannot be changed; ``copy.deepcopy`` of it can, for another policy."""
        return read_only(to_save(self), "policy.cfg")

    @property
    def is_built(self) -> bool:
        """Whether the network exists."""
        return self._is_built

    def build(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Policy[ConfigT]:
        """Make the network for the spaces of one env, or check that the existing one fits; return the policy itself.

        It raises TypeError for spaces that the algorithm does not support, ValueError for other shapes in the config.
        """
        known, section = self._model_section(), cast(Any, self.config).model
        missing = missing_shapes(known, self._shapes_of(observation_space, action_space), action_space)
        if missing:
            section = resolve(type(section), {**known, **missing})
            self.config = dataclasses.replace(self.config, model=section)  # type: ignore[call-arg]
            self.hparams["cfg"] = to_save(self)
            if self._is_built:
                self._init_spaces()
                self.learner.build_rewards()
        if not self._is_built:
            self._initialise(None)
        self.env_spaces = (observation_space, action_space)
        return self

    def configure_model(self) -> None:
        """Build the network from the spaces of the Trainer's datamodule, or raise RuntimeError (Lightning hook)."""
        build_for_trainer(self, self._action_selector)

    def _initialise(self, model: nn.Module | None) -> None:
        if self.needs_model:
            self.model = create_model(self._model_cfg()) if model is None else model
            self._init_spaces()
        self._in_eval_mode = self._action_selector.use(self.model)
        for field in self.enable_field:
            getattr(self, f"_init_{field}")()
        self.learner.build_rewards()
        self._is_built = True

    def _model_cfg(self) -> dict[str, Any]:
        name, import_names = self.default_model()
        return {"type": name, "import_names": import_names, **network_section(self._model_section())}

    def _model_section(self) -> dict[str, Any]:
        return to_dict(cast(Any, self.config).model)

    def cur_lr(self) -> float:
        """Return the current learning rate of the first optimizer."""
        return float(self.updater.optimizers[0].param_groups[0]["lr"])

    def training_step(self, batch: Round | Batch | Sequence[Mapping[str, Any]], batch_idx: int) -> dict[str, Any]:
        """Make one update for each minibatch of a round, and return the last one's report (Lightning hook)."""
        minibatches, is_raw = self.learner.begin_round(batch)
        for minibatch in minibatches:
            if is_raw and self.updater.notes is not None:
                self.updater.notes.data = minibatch
            report = self._learn(minibatch, is_raw)
            priority = report.pop("priority", None)
            if priority is not None and type(minibatches) is not list:
                batch.update_priority(minibatch, priority)  # type: ignore[union-attr]
        self.learner.end_round(batch, report, batch_idx)
        return report

    def _learn(self, data: Batch | Sequence[Mapping[str, Any]], is_raw: bool = True) -> dict[str, Any]:
        """Make one update from a minibatch, rollout or list of transitions, raw or as ``learner.seen`` returned it."""
        self._require_field("learn")
        if not self.training:
            self.train()
        batch = data if isinstance(data, dict) else foreign("policies.data").columns_of(data)
        seen, guard = self.learner.seen(batch) if is_raw else batch, self.updater.guard
        guard.begin(seen)
        try:
            report = self._forward_learn(self.prepare(seen))
        finally:
            guard.end()
        if self.on_policy and self.normaliser.is_on:
            self.normaliser.update(batch)  # after the update, because the policy acted without it
        self.progress.train_iter += not self.on_policy  # on-policy algorithms count their minibatches themselves
        if self.updater.resets is not None:
            self.updater.resets.after_update()
        if "priority" in report and not guard.look():  # the buffer waits for the device anyway
            del report["priority"]  # it is not finite either; the transitions keep their priorities
        return report

    def _collect(self, obs: Any, **kwargs: Any) -> Any:
        """Act with exploration on B observations, or on ``{env_id: observation}``."""
        self._require_field("collect")
        return self._action_selector(self._forward_collect, obs, self.device, **kwargs)

    def _evaluate(self, obs: Any, **kwargs: Any) -> Any:
        """Act greedily on B observations, or on ``{env_id: observation}``."""
        self._require_field("eval")
        return self._action_selector(self._forward_eval, obs, self.device, **kwargs)

    def _transition(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        """Return the columns of B transitions, or the transition of one env from ``obs, reward, done, info``."""
        step = timestep if hasattr(timestep, "next_obs") else foreign("policies.data").step_of(timestep)
        return self._process_transition(obs, output, step)

    def predict(self, obs: Any, *, deterministic: bool = True) -> Any:
        """Return the action for an observation, or those for a batch, as ``env.step`` takes them; see ``predict``."""
        from lightning_ding.policy.base.predict import predict

        return predict(self, obs, deterministic)

    def actor(self, *, deterministic: bool = True) -> Actor:
        """Return an object that acts and remembers what it saw, as in evaluations or, with exploration, in training."""
        from lightning_ding.policy.base.predict import Actor

        return Actor(self, deterministic)

    def export(self, path: str | os.PathLike[str], format: Format = "onnx", agent: int | None = None) -> Path:
        """Write the policy, or an agent of a team, for use elsewhere, as a graph or safetensors; see :func:`export`."""
        from lightning_ding.policy.base.export import export

        return export(self, path, format, agent)

    def new_memory(self, way: Way) -> dict[str, Any]:
        """Return empty memory for acting as in training or in evaluations, by the attribute that holds it."""
        return {}

    def forward(self, obs: Any) -> Tensor:
        """Return the greedy action for each of B observations."""
        return self._forward_eval(self.normaliser.normalise_obs(obs))["action"]

    def seed(self, seed: int | np.random.SeedSequence) -> None:
        """Seed ``rng``, and the global generators of torch, numpy and Python; every rank needs a different seed."""
        self.rng = seed_exploration(seed)

    def _require_field(self, field: str) -> None:
        if field not in self.enable_field:
            raise RuntimeError(f"the field {field!r} is not enabled, enable_field is {self.enable_field}")
        if not self._is_built:
            self.configure_model()

    def _network_state(self) -> dict[str, Any]:
        """Return the state for acting: the network, and the statistics that observations are normalised by, if any."""
        statistics = {"normaliser": self.normaliser.state_dict()} if self.normaliser.is_on else {}
        return {"model": self.model.state_dict(), **statistics}

    def _load_network_state(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.normaliser.load_state_dict(state.get("normaliser", {}))

    _state_dict_collect, _load_state_dict_collect = _network_state, _load_network_state

    def _state_dict_learn(self) -> dict[str, Any]:
        self._require_field("learn")
        return self._network_state() | self.updater.state_dict() | self.learner.network_state()

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        self._require_field("learn")
        self._load_network_state(state)
        self.learner.load_network_state(state)
        self.updater.load_state_dict(state)

    def scheduled_values(self) -> dict[str, float]:
        """Return the current scheduled weights of the loss, by their names in ``learn``."""
        return self.updater.schedules.values

    def configure_callbacks(self) -> list[Callback]:
        """Refuse what cannot work, and return the callbacks that the datamodule needs (Lightning hook)."""
        return prepare_trainer(self.trainer)

    def check_callbacks(self, trainer: Trainer) -> None:
        """Raise for a callback that cannot work; called before the datamodule adds its own."""
        check_callbacks(trainer)

    def configure_optimizers(self) -> Any:
        """Return the optimizers and schedulers that ``_init_learn`` made (Lightning hook).

        A subclass may return others in any form that Lightning takes: one optimizer for each loss, in the same order.
        Updates step them with and without a Trainer. A scheduler is stepped after each update of its optimizer with
        ``interval="step"``, and after the last round of each epoch with ``interval="epoch"``.
        """
        return self.updater.made

    def on_fit_start(self) -> None:
        """Check the network, and note the settings of the optimizers before those of a checkpoint (Lightning hook)."""
        self.learner.note_start()

    def on_train_start(self) -> None:
        """Take over the Trainer's optimizers, and set the scheduled values (Lightning hook)."""
        self.learner.begin_fit()

    def validation_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        """Log the episodes of an evaluation (Lightning hook); see :func:`log_episodes`."""
        log_episodes(self, "eval", batch)

    def test_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        """Log the episodes of a test (Lightning hook); see :func:`log_episodes`."""
        log_episodes(self, "test", batch)

    @only_on_class
    def load_from_checkpoint(
        cls,  # noqa: N805 - the decorator makes it a class method
        /,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = True,
        **kwargs: Any,
    ) -> Self:
        """Return the policy of a checkpoint, without importing or calling anything that the file names.

        The arguments are those of Lightning's method. Further arguments are those of the constructor, and replace those
        in the file; a mapping ``cfg`` is merged over the config in the file, so that it only needs what changes.
        ``weights_only=False`` runs code that the file holds: pass it only for a file that you wrote.

        Raises:
            NotRegisteredError: If the config names a class that is not registered, maybe of a module to import.
            UnpicklingError: If the file contains other objects than tensors and builtins.
        """
        from lightning_ding.policy.base.saved_state import load_policy

        kwargs |= {"hparams_file": hparams_file, "strict": strict, "weights_only": weights_only}
        return cast(Self, load_policy(super().load_from_checkpoint, checkpoint_path, map_location, **kwargs))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the counters and the spaces (Lightning hook)."""
        from lightning_ding.policy.base import saved_state

        saved_state.save(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counters and the spaces (Lightning hook)."""
        from lightning_ding.policy.base import saved_state

        saved_state.load(self, checkpoint)

    def teardown(self, stage: str) -> None:
        """Act in full precision again, and let a forked rank hand over its state (Lightning hook)."""
        self._hands_over = stage == "fit" and is_forked_rank(self)
        self._action_selector.precision = nullcontext

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return parameters and buffers by name; at the end of a forked rank also what the main process needs."""
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        if self._hands_over:
            from lightning_ding.policy.base.saved_state import hand_over

            state = state | hand_over(self)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Restore the state that ``state_dict`` returned; a handed-over state makes the network if there is none."""
        from lightning_ding.policy.base import saved_state

        return saved_state.load_tensors(self, super().load_state_dict, state_dict, strict=strict, assign=assign)


CommandModePolicy = Policy  # every policy has a command mode
