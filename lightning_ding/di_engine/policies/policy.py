"""The base of policies that are written as DI-engine's documentation describes.

Such a class has a dict ``config`` as a class attribute, makes its optimizers in ``_init_learn``, and steps them in
``_forward_learn``. Its methods receive lists of dicts and ``{env_id: ...}``; the workers and the Trainer of this
project use batches with leading axes. The conversion takes time for each transition; a class with a ``config_class``
does not need it.

Shapes: N envs, B batch.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from easydict import EasyDict
from gymnasium import spaces
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_ding import nested
from lightning_ding.config import MARK, deep_merge, require, resolve
from lightning_ding.di_engine.policies import data as forms
from lightning_ding.di_engine.policies.names import BASE_CONFIG, METHODS
from lightning_ding.model.layers import InEvalMode
from lightning_ding.policy.base.acting import ActionSelector
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.ddp import sync_gradients
from lightning_ding.policy.base.policy import Policy
from lightning_ding.policy.base.trainer import count_optimizer_step
from lightning_ding.utils.attributes import PolicyAttributes
from lightning_ding.utils.modes import CollectMode, LearnMode, not_implemented
from lightning_ding.utils.private_api import MODULES
from lightning_ding.worker.config import CollectorConfig, ReplayBufferConfig


def adopt(policy_class: type) -> None:
    """Replace :class:`Policy` in the bases of a class in DI-engine's form, and of its bases, by the class for it."""
    for one in policy_class.__mro__:
        if Policy in one.__bases__ and not one.__module__.startswith("lightning_ding."):
            replaced = (ReferencePolicy if parent is Policy else parent for parent in one.__bases__)
            one.__bases__ = tuple(dict.fromkeys(replaced))


@dataclass(frozen=True, kw_only=True)
class ReferenceCollectConfig:
    """Options for collecting that the workers read."""

    n_sample: int | None = None
    """Transitions of a round on each rank; None with n_episode."""
    n_episode: int | None = None
    """Episodes of a round on each rank; None with n_sample."""
    unroll_len: int = 1
    """Steps of a training sample."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """The collector."""


@dataclass(frozen=True, kw_only=True)
class ReferenceOtherConfig:
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(default_factory=ReplayBufferConfig)
    """The replay buffer."""


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(PolicyConfig):
    """The sections that workers and datamodules read of a dict; all other keys belong to the policy's class."""

    collect: ReferenceCollectConfig = field(default_factory=ReferenceCollectConfig)
    """Options for collecting."""
    other: ReferenceOtherConfig = field(default_factory=ReferenceOtherConfig)
    """Replay."""


READ = {"collect": ("n_sample", "n_episode", "unroll_len", "collector"), "eval": ("evaluator",)}
"""Keys of each section that workers read, in addition to ``other.replay_buffer``."""


def read_by_workers(cfg: Mapping[str, Any]) -> ReferenceConfig:
    """Return what workers read of a config in DI-engine's form.

    Raises:
        ValueError: If a key of a worker is unknown or a value out of range, or ``traj_len_inf`` is set.
        TypeError: If a value has the wrong type.
    """
    require(not cfg.get("traj_len_inf"), "traj_len_inf", "False: collect whole episodes with collect.n_episode", True)
    found: dict[str, Any] = {}
    for name, keys in READ.items():
        section = cfg.get(name) or {}
        found[name] = {key: _without_mark(section[key]) for key in keys if key in section}
    collect = {key: cfg[key] for key in ("n_sample", "n_episode") if key in cfg} | found["collect"]
    kind = "episode" if collect.get("n_episode") and not collect.get("n_sample") else "sample"
    makes_samples = {"get_train_sample": True} if kind == "episode" and cfg.get("on_policy") else {}
    collect["collector"] = {"type": kind, **makes_samples, **collect.get("collector", {})}
    buffer = _without_mark((cfg.get("other") or {}).get("replay_buffer", {}))
    buffer = {"type": "advanced" if cfg.get("priority") else "naive", **buffer}
    return resolve(ReferenceConfig, {**found, "collect": collect, "other": {"replay_buffer": buffer}})


def _without_mark(section: Any) -> Any:
    return {key: value for key, value in section.items() if key != MARK} if isinstance(section, Mapping) else section


class PerEnvSelector(ActionSelector):
    """Calls ``_forward_collect`` or ``_forward_eval`` with ``{env_id: observation}``."""

    action_shape: tuple[int, ...] | None = None
    """Shape of one env's action, if it is known."""

    def use(self, model: nn.Module) -> InEvalMode:
        """Return what switches nothing: these policies switch their networks themselves."""
        return InEvalMode(nn.Identity(), where_it_matters=True)

    def __call__(self, function: Any, obs: Any, device: torch.device | str, /, **kwargs: Any) -> Any:
        """Return the policy's outputs by env, or for B observations an :class:`EnvOutputs`."""
        is_by_env = isinstance(obs, dict) and bool(obs) and isinstance(next(iter(obs)), int)
        if is_by_env:
            by_env = {env_id: self._prepared(one, device) for env_id, one in obs.items()}
        else:
            rows = nested.unbind(self._prepared(obs, device))
            by_env = dict(enumerate(rows))
        with torch.no_grad(), self.precision():
            output = function(by_env, **kwargs)
        if is_by_env:
            return output
        ordered = [output[env_id] for env_id in by_env]
        return forms.EnvOutputs({"action": forms.stacked_actions(ordered, self.action_shape)}, ordered)

    def of_batch(self, function: Any, batch: Any, device: torch.device | str) -> Any:
        """Return the result of ``function`` for a batch of inputs, which it gets as it is, as tensors."""
        tensors = nested.to(nested.to_tensor(nested.as_dicts(batch)), device)
        with torch.no_grad(), self.precision():
            return function(self._normaliser.normalise_obs(tensors))

    def _prepared(self, obs: Any, device: torch.device | str) -> Any:
        tensors = obs if isinstance(obs, Tensor) else nested.to_tensor(nested.as_dicts(obs))
        return self._normaliser.normalise_obs(nested.to(forms.as_floats(tensors), device))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)


class ReferencePolicy(Policy[ReferenceConfig]):
    """The base of a policy in DI-engine's form; a subclass of :class:`Policy` with a dict ``config`` gets it.

    A subclass implements ``_init_learn``, ``_forward_learn(list)``, ``_init_collect``, ``_forward_collect({env_id:
    obs})``, ``_process_transition(obs, output, timestep)`` of one env, ``_get_train_sample(list)``, ``_init_eval``,
    ``_forward_eval({env_id: obs})`` and ``default_model``. A ``MetricSerialEvaluator`` passes ``_forward_eval`` a whole
    batch, as in DI-engine. ``self._cfg`` is its config as an ``EasyDict``, and
    ``self._model`` its network. Optimizers that ``_init_learn`` assigns to attributes are part of checkpoints, and
    average their gradients over all ranks before they step.

    Args:
        cfg: Keys to merge over ``default_config()``.
        model: The network; None makes the one that ``cfg["model"]`` and ``default_model()`` describe.
        enable_field: The modes to initialise, among learn, collect, eval and command; None means all.

    Raises:
        ValueError: If a key of a worker is unknown, or a value is out of range.
        TypeError: If ``model`` is not an ``nn.Module``.
    """

    config_class: ClassVar[type[PolicyConfig]] = ReferenceConfig
    has_dict_config: ClassVar[bool] = True
    shape_names: ClassVar[tuple[str, ...]] = ()
    _selector_class = PerEnvSelector
    _action_selector: PerEnvSelector
    _cfg: EasyDict
    _create_model: Any
    _learn_model: Any
    _optimizer: Any

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the ``config`` of the class, merged over those of its bases, as a new ``EasyDict``."""
        merged: Mapping[str, Any] = copy.deepcopy(BASE_CONFIG)
        for one in reversed(cls.__mro__):
            own = vars(one).get("config")
            merged = deep_merge(merged, copy.deepcopy(own)) if isinstance(own, Mapping) else merged
        return EasyDict(merged, cfg_type=f"{cls.__name__}Dict")

    def _read_config(self, cfg: Any) -> ReferenceConfig:
        if cfg is not None and not isinstance(cfg, Mapping):
            raise TypeError(f"cfg must be a mapping or None, got {type(cfg).__name__}: {cfg!r}")
        given = {key: value for key, value in (cfg or {}).items() if key != MARK}
        self.__dict__["_cfg"] = EasyDict(deep_merge(self.default_config(), given))
        self.__dict__["on_policy"] = bool(self._cfg.on_policy)
        return read_by_workers(self._cfg)

    @property
    def cfg(self) -> EasyDict:
        """The config, the policy's own ``self._cfg``."""
        return self._cfg

    def _model_section(self) -> dict[str, Any]:
        return dict(self._cfg.get("model") or {})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a network in a wrapper is a part of the policy all the same, for its device and state."""
        modules = self.__dict__.get(MODULES, {})
        if value is not None and not isinstance(value, nn.Module):
            if name in modules:
                modules[f"{name}_wrapped"] = modules.pop(name)
            network = _network_in(value) if name.endswith("_model") else None
            if network is not None and all(one is not network for one in modules.values()):
                modules[f"{name}_wrapped"] = network
        super().__setattr__(name, value)

    # ------------------------------------------------------------------ learning

    @property
    def learn_mode(self) -> LearnMode:
        """The methods that a learner uses."""
        return super().learn_mode._replace(forward=self._learn_list)

    def _learn(self, data: Any, is_raw: bool = True) -> dict[str, Any]:
        """Make the updates of one call, and return the means of the numbers that they report, as tensors.

        A ``priority``, shape (B,), is that of the last one.
        """
        report = self._learn_list(data, is_raw)
        reports: Sequence[Mapping[str, Any]] = [report] if isinstance(report, Mapping) else report or []
        numbers = [{name: float(value) for name, value in one.items() if _is_number(value)} for one in reports]
        names = dict.fromkeys(name for one in numbers for name in one)
        means = {name: torch.tensor([one[name] for one in numbers if name in one]).mean() for name in names}
        is_kept = bool(reports) and self.priority
        priority = reports[-1].get("priority") if is_kept else None
        return means if priority is None else means | {"priority": torch.as_tensor(priority).detach().float()}

    def _learn_list(self, data: Any, is_raw: bool = True) -> Any:
        """Return what the policy's ``_forward_learn`` returns for a list of samples, or for a batch."""
        self._require_field("learn")
        if not self.training:
            self.train()
        samples = data
        if isinstance(data, dict):
            samples = forms.rows_of(self.normaliser.normalise_batch(data) if is_raw else data)
        report: Any = self._forward_learn(samples)
        number = len(report) if isinstance(report, Sequence) else 1
        trainer = self.updater.fitting_trainer()
        if trainer is not None:
            for _ in range(number):
                count_optimizer_step(trainer)
        self.progress.train_iter += number
        if self.on_policy and self.normaliser.is_on and isinstance(data, dict):
            self.normaliser.update(data)
        return report

    # ------------------------------------------------------------------ making the modes

    def _initialise(self, model: nn.Module | None) -> None:
        if self.needs_model:
            self.model = self._create_model(self._cfg, model)
        for name in self.enable_field:
            getattr(self, f"_init_{name}")()
        optimizers = {id(one): one for one in vars(self).values() if isinstance(one, Optimizer)}.values()
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(_average_before_step)
        own = set(map(id, self.parameters()))  # a tensor such as SAC's temperature is none of them
        self.updater.optimizers = [one for one in optimizers if own & set(map(id, _parameters(one)))]
        self._is_built = True

    def build(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Policy[ReferenceConfig]:
        """Take note of the spaces; the network was made by the constructor."""
        self.env_spaces = (observation_space, action_space)
        shape = action_space.shape
        self._action_selector.action_shape = None if shape is None else tuple(shape)
        return self

    def configure_model(self) -> None:
        """Do nothing: the network was made by the constructor (Lightning hook)."""

    # ------------------------------------------------------------------ to implement

    def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> dict[str, Any]:
        """Return the transition of one env.

        Args:
            obs: The observation, tensors.
            policy_output: The output of ``_forward_collect`` for the env.
            timestep: The step of the env: ``obs``, ``reward`` (1,), ``done`` and ``info``.
        """
        raise not_implemented(self, "_process_transition")

    def _get_train_sample(self, transitions: list[dict[str, Any]]) -> Any:
        """Return the training samples of a list of transitions, those of one episode in chronological order."""
        raise not_implemented(self, "_get_train_sample")

    # ------------------------------------------------------------------ modes

    @property
    def collect_mode(self) -> CollectMode:
        """The methods that a collector uses."""
        return super().collect_mode._replace(get_train_sample=self._train_sample)

    def _transition(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        if not hasattr(timestep, "next_obs"):  # of one env
            return self._process_transition(obs, output, timestep)
        return forms.transitions_of(self._process_transition, obs, output, timestep)

    def _train_sample(self, transitions: Any) -> Any:
        """Return the samples of a list of transitions, or of columns of them."""
        if isinstance(transitions, Mapping):
            return forms.samples_of(self._get_train_sample, transitions)
        return self._get_train_sample(transitions)

    def forward(self, obs: Any) -> Tensor:
        """Return the greedy action for each of B observations."""
        action: Tensor = self._evaluate(obs)["action"]
        return action

    # ------------------------------------------------------------------ attributes and state

    def get_attribute(self, name: str) -> Any:
        """Return an attribute: the result of ``_get_<name>()``, or ``_<name>``, or what workers read of the config.

        Raises:
            NotImplementedError: If the policy has none of them; the message names the attribute.
        """
        if hasattr(type(self), f"_get_{name}"):
            return getattr(self, f"_get_{name}")()
        if f"_{name}" in vars(self):
            return vars(self)[f"_{name}"]
        if name in FROM_CONFIG:
            return FROM_CONFIG[name](self._cfg)
        return getattr(super(), name) if name in BY_NAME else super().get_attribute(name)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set ``_<name>``."""
        setattr(self, f"_{name}", value)

    def _get_batch_forward(self) -> Callable[[Any], Any]:
        """Return the function of an evaluator of supervised learning: ``_forward_eval`` gets a batch as it is."""

        def forward(batch: Any) -> Any:
            self._require_field("eval")
            return self._action_selector.of_batch(self._forward_eval, batch, self.device)

        return forward

    def _get_batch_size(self) -> int:
        cfg = self._cfg
        return int(cfg.batch_size if "batch_size" in cfg else cfg.learn.batch_size)

    def _get_nstep(self) -> int:
        """Return the steps whose rewards a buffer sums: one, because ``_get_train_sample`` of the class sums them."""
        return 1

    def cur_lr(self) -> float:
        """Return the learning rate of the first optimizer, 0 without one."""
        return super().cur_lr() if self.updater.optimizers else 0.0

    def _state_dict_learn(self) -> dict[str, Any]:
        self._require_field("learn")
        return {"model": self._learn_model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        self._require_field("learn")
        self._learn_model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the counters, and what ``_state_dict_learn`` of the class returns (Lightning hook)."""
        super().on_save_checkpoint(checkpoint)
        if type(self)._state_dict_learn is not ReferencePolicy._state_dict_learn:
            checkpoint["learn_mode"] = self._state_dict_learn()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counters, and the state of the learn mode (Lightning hook)."""
        super().on_load_checkpoint(checkpoint)
        if "learn_mode" in checkpoint and "learn" in self.enable_field:
            self._load_state_dict_learn(copy.deepcopy(checkpoint["learn_mode"]))


def _network_in(wrapper: Any) -> nn.Module | None:
    """Return the network that a wrapper, or a wrapper of one, has as ``_model``; None without one."""
    inner = wrapper
    while inner is not None and not isinstance(inner, nn.Module):
        inner = getattr(inner, "__dict__", {}).get("_model")
    return inner


FROM_CONFIG: dict[str, Any] = {
    "discount_factor": lambda cfg: float(cfg.get("discount_factor", cfg.collect.get("discount_factor", 0.99))),
    "priority": lambda cfg: bool(cfg.get("priority", False)),
    "random_collect_size": lambda cfg: int(cfg.get("random_collect_size", 0)),
    "unroll_len": lambda cfg: int(cfg.collect.get("unroll_len", 1)),
    "update_per_collect": lambda cfg: int(cfg.learn.get("update_per_collect", 1)),
}
"""Attributes that workers read, where the class has neither a method nor an attribute for them."""
BY_NAME = {name for name, member in vars(PolicyAttributes).items() if isinstance(member, property)} - {"module"}


def _read(policy: ReferencePolicy, name: str) -> Any:
    return policy.get_attribute(name)  # of the subclass


for _name in ("_create_model", "_get_attribute", "_set_attribute"):
    setattr(ReferencePolicy, _name, METHODS[_name])  # which a class may call with super()
for _name in BY_NAME:
    if f"_get_{_name}" not in vars(ReferencePolicy):
        setattr(ReferencePolicy, _name, property(functools.partial(_read, name=_name)))


def _average_before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Average the gradients of an optimizer over all ranks; a step on one rank alone would let the ranks diverge."""
    sync_gradients(_parameters(optimizer))


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]
