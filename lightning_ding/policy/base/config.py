"""The sections of a config that every algorithm has: the network, updates and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from lightning_ding.config import MARK, deep_merge, moved, require, to_dict
from lightning_ding.model.encoder import is_described
from lightning_ding.policy.base.optimizers import OptimizerConfig
from lightning_ding.reward_model.config import RewardModelConfig
from lightning_ding.utils.schedules import ScheduleConfig
from lightning_ding.worker.evaluator.config import EvaluatorConfig

CHANGED_BY: ContextVar[Callable[[Any, type], Any] | None] = ContextVar("CHANGED_BY", default=None)
"""Function that changes the config of a policy of a class, set while policies are made of a file; otherwise None."""
WITHOUT_SDE = moved(
    use_sde="ppo, a2c, ppg, trpo, sac, cql, tqc and mbpo explore with state-dependent noise, with continuous actions",
)
"""The hint of networks without state-dependent exploration."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The network of every algorithm: the spaces of its env, and its encoder."""

    MOVED: ClassVar[dict[str, str]] = WITHOUT_SDE | moved(
        core="only r2d2, from replay of discrete actions, and recurrent_ppo, from rollouts, have recurrent layers",
    )

    obs_shape: Any = None
    """Size or shape of an observation, or a dict of them; None means that it is taken from the env."""
    action_shape: Any = None
    """Number of actions; None means that it is taken from the env."""
    encoder: str | None = None
    """Registered encoder (mlp, conv, impala, dict or your own); None chooses by the shape of observations."""
    encoder_hidden_size_list: Sequence[int] | None = None
    """Widths of the encoder; None means the encoder's default: 128, 128, 64 for vectors."""
    encoder_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the encoder by name: layer_norm, activation; of images channels, feature_size, kernel_size and
    stride; of dicts fusion_size and image_encoder; see the page on networks."""
    dict_encoder: Literal["joined", "separate"] = "joined"
    """How entries of dict observations are encoded: ``joined`` makes one vector of vectors and features of images,
    which the encoder's layers follow; ``separate`` has layers for each entry and one more, as earlier versions had."""
    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """Activation function after every hidden layer."""
    layer_norm: bool = False
    """Normalise every hidden layer before its activation."""

    @staticmethod
    def from_separate(section: dict[str, Any]) -> dict[str, Any]:
        """Return a saved section of a version that had layers for each entry of a dict observation."""
        shape, encoder = section["obs_shape"], section.get("encoder")
        is_dict = isinstance(shape, Mapping) and not is_described(shape) and encoder in (None, "dict")
        return section | {"encoder": None if is_dict else encoder, "dict_encoder": "separate" if is_dict else "joined"}

    @staticmethod
    def from_older(section: dict[str, Any]) -> dict[str, Any]:
        """Return a saved section of a version in which a list of any length had the channels and then the features."""
        from lightning_ding.policy.base.older_configs import with_channels

        return with_channels(section)


class GradClip(NamedTuple):
    """Limits of the gradient of an update; None means no limit."""

    norm: float | None = None
    """Largest norm of the whole gradient, > 0."""
    value: float | None = None
    """Largest absolute value of each of its entries, > 0."""


NO_CLIP = GradClip()


@dataclass(frozen=True, kw_only=True)
class LearnConfig:
    """Options for updates, in every algorithm."""

    MOVED: ClassVar[dict[str, str]] = moved(
        eps="set optimizer.eps",
        weight_decay="set optimizer.weight_decay",
        momentum="set optimizer.momentum",
        optim="set optimizer.type, eps, weight_decay and momentum",
        grad_clip_type="set grad_clip_norm to clip by the norm, or grad_clip_value to clip each entry",
        grad_norm="set grad_clip_norm",
        clip_value="set grad_clip_value",
    )

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The class of the optimizers."""
    lr_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    """A factor of all step sizes that changes during the run."""
    grad_clip_norm: float | None = None
    """Largest norm of the gradient that an optimizer steps with, > 0; None for no limit."""
    grad_clip_value: float | None = None
    """Largest absolute value of each entry of the gradient, > 0; None for no limit. Needs grad_clip_norm None."""

    def __post_init__(self) -> None:
        for name in ("grad_clip_norm", "grad_clip_value"):
            clip = getattr(self, name)
            require(clip is None or clip > 0, f"learn.{name}", "> 0 or None", clip)
        one = self.grad_clip_norm is None or self.grad_clip_value is None
        allowed = f"None unless grad_clip_norm ({self.grad_clip_norm}) is set to None"
        require(one, "learn.grad_clip_value", allowed, self.grad_clip_value)
        self.lr_scheduler.check("learn.lr_scheduler")

    @property
    def grad_clip(self) -> GradClip:
        """How gradients are clipped."""
        return GradClip(self.grad_clip_norm, self.grad_clip_value)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Options for evaluation."""

    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    """The evaluator."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Base of every policy's config; an algorithm adds its sections."""

    MOVED: ClassVar[dict[str, str]] = moved(
        cuda="choose the device with Trainer(accelerator=..., devices=...)",
        multi_gpu='use Trainer(strategy="ddp", devices=...)',
        bp_update_sync="gradients are always synchronised before the optimizer steps",
        on_policy="it is a property of the algorithm",
        traj_len_inf="collecting in pieces never cuts an n-step return",
    )
    IS_MARKED: ClassVar[bool] = True  # a whole config without the mark is of an older version

    compile: bool | Literal["auto", "cuda_graphs"] = False
    """Compile the loss of an update and its gradient with TorchInductor, and acting in tensor envs; eager where that
    fails. ``auto`` compiles in fits that make at least 20,000 updates, and not convolutions on a CPU. ``cuda_graphs``
    compiles and records the calls as CUDA graphs; experimental, only on a CUDA device."""
    on_non_finite: Literal["raise", "warn", "skip_update"] = "raise"
    """How an update whose loss or gradient is NaN or infinite is treated: ``raise`` skips it and raises an error;
    ``warn`` makes it and logs a warning; ``skip_update`` skips it, up to 100 times in a row. Files that reproduce
    the first one are written."""
    learn: LearnConfig = field(default_factory=LearnConfig)
    """Options for updates."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Options for evaluation."""
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    """The model of the rewards that the policy learns from."""


def to_save(policy: Any) -> dict[str, Any]:
    """Return the config of a policy as a checkpoint holds it: builtins, and ``cfg_type``."""
    own: Mapping[str, Any] | None = vars(policy).get("_cfg")  # of a policy with a dict config
    return {**(to_dict(policy.config) if own is None else deep_merge(own, {})), MARK: f"{type(policy).__name__}Dict"}
