"""Decision Transformer: supervised learning of the actions that led to a given return.

Paper: Chen et al. 2021, algorithm 1 (https://arxiv.org/abs/2106.01345).

Where this differs: an encoder reads the observation before its token; a sub-sequence that is shorter than the context,
at an episode's end, is followed by padding, not preceded by it, which attention to earlier tokens never reads. The
context of an env is one row of a tensor. The loss is a sum over the real steps divided by ``context_len`` times the
number of sub-sequences, not their mean, so a step has the same weight in all minibatches. Options are named as in
DI-engine and have its defaults, but for ``wt_decay``, ``clip_grad_norm_p`` and ``warmup_steps``, which are
``learn.optimizer.weight_decay``, ``learn.grad_clip_norm`` and ``learn.lr_scheduler`` here. If ``rtg_target`` is None,
evaluations ask for the return ``rtg_scale``. Continuous actions are in normalised units, [-1, 1] in every dimension.

Shapes: B batch, T steps of a sub-sequence, K steps of a context, N envs, A actions or dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import moved, require, searched
from lightning_ding.policy.base.action_bounds import ActionBounds
from lightning_ding.policy.base.config import LearnConfig, NetworkConfig, PolicyConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig, make_optimizer
from lightning_ding.policy.base.predict import Way
from lightning_ding.policy.on_policy import ActorPolicy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.schedules import ScheduleConfig
from lightning_ding.worker.config import CollectorConfig, ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class DTModelConfig(NetworkConfig):
    """The network: an encoder of observations and a causal transformer."""

    MOVED: ClassVar[dict[str, str]] = NetworkConfig.MOVED | moved(
        core="the memory of this algorithm is its last context_len steps; r2d2 and recurrent_ppo have recurrent layers",
    )

    action_shape: int | None = None
    """Number of actions or dimensions; None means that it is taken from the env."""
    action_space: Literal["discrete", "continuous"] | None = None
    """Kind of action; None means that it is taken from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension in the env; None means the env's, or -1 without an env."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension in the env; None means the env's, or 1 without an env."""
    action_integer: bool | None = None
    """Whether continuous actions are rounded, for an env with a Box of integers; None means that it is taken from the
    env."""
    action_start: int | None = None
    """Smallest action of a Discrete space; None means the env's, or 0 without an env."""
    n_blocks: int = 3
    """Blocks of the transformer, >= 1."""
    embed_dim: int = 128
    """Width of a token, a multiple of n_heads."""
    n_heads: int = 1
    """Heads of the attention, >= 1."""
    dropout_p: float = 0.1
    """Share of zeroed weights and outputs in training, in [0, 1)."""


@dataclass(frozen=True, kw_only=True)
class DTLearnConfig(LearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = LearnConfig.MOVED | moved(
        wt_decay="set optimizer.weight_decay",
        clip_grad_norm_p="set grad_clip_norm",
        warmup_steps="set lr_scheduler.points to [[0, 0], [warmup_steps, 1]]",
    )

    update_per_collect: int = 10
    """Updates of a round, >= 1."""
    batch_size: int = searched(64, "choice(32, 64, 128, 256)")
    """Sub-sequences of a minibatch on each rank, >= 1."""
    learning_rate: float = searched(1e-4, "log(1e-5, 1e-2)")
    """Step size, > 0."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(type="adamw", weight_decay=1e-4))
    """The class of the optimizer."""
    lr_scheduler: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(type="piecewise", unit="env_step", points=[[0, 0.0], [10_000, 1.0]])
    )
    """A factor of the step size; on a data set, its unit env_step counts updates."""
    grad_clip_norm: float | None = 0.25
    """Largest norm of the gradient that an optimizer steps with, > 0; None for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("update_per_collect", "batch_size"):
            require(getattr(self, name) >= 1, f"learn.{name}", ">= 1", getattr(self, name))
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class DTCollectConfig:
    """Options for the envs of evaluations; the policy does not collect."""

    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """Its env_fault applies to evaluations."""


@dataclass(frozen=True, kw_only=True)
class DTOtherConfig:
    """The buffer that holds the data set."""

    replay_buffer: ReplayBufferConfig = field(default_factory=lambda: ReplayBufferConfig(type="sequence"))
    """The buffer; its size is that of the data set."""


@dataclass(frozen=True, kw_only=True)
class DTConfig(PolicyConfig):
    """Everything that can be set of the Decision Transformer."""

    context_len: int = 20
    """Steps of a context K, >= 1."""
    rtg_scale: float = 1000.0
    """Returns to go are divided by it, > 0."""
    rtg_target: float | None = None
    """Return that evaluations ask for; None means rtg_scale."""
    max_eval_ep_len: int = 1000
    """Number of steps of an episode that have different embeddings, >= 1; later steps share the last one."""
    model: DTModelConfig = field(default_factory=DTModelConfig)
    """The network."""
    learn: DTLearnConfig = field(default_factory=DTLearnConfig)
    """Options for updates."""
    collect: DTCollectConfig = field(default_factory=DTCollectConfig)
    """Options for the envs of evaluations."""
    other: DTOtherConfig = field(default_factory=DTOtherConfig)
    """The buffer."""

    def __post_init__(self) -> None:
        require(self.context_len >= 1, "context_len", ">= 1", self.context_len)
        require(self.rtg_scale > 0, "rtg_scale", "> 0", self.rtg_scale)
        require(self.max_eval_ep_len >= 1, "max_eval_ep_len", ">= 1", self.max_eval_ep_len)
        is_fixed = not (self.compile and self.model.dropout_p)
        require(
            is_fixed, "model.dropout_p", "0 with compile, whose code would draw other numbers", self.model.dropout_p
        )


@POLICY_REGISTRY.register("dt")
class DTPolicy(ActorPolicy[DTConfig]):
    """The Decision Transformer; discrete and continuous actions, action masks; any observations.

    It learns in an :class:`OfflineDataModule` and acts in evaluations. The arguments are those of :class:`Policy`; a
    ``model`` has the interface of :class:`DecisionTransformer`.

    Example:
        >>> policy = DTPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = DTConfig
    trains_on: ClassVar[str] = "dataset"
    learns_from_sequences: ClassVar[bool] = True
    acts_on_reward: ClassVar[bool] = True
    """Whether the eval mode's ``forward`` takes the rewards of the previous steps as ``reward``, shape (N,)."""
    config: DTConfig

    def _init_learn(self) -> None:
        learn = self.config.learn
        self.updater.optimizers = [make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)]

    def _init_eval(self) -> None:
        self._contexts: Contexts = self.new_memory("eval")["_contexts"]

    def new_memory(self, way: Way) -> dict[str, Any]:
        """Return empty contexts, by the name of their attribute."""
        target = self.config.rtg_scale if self.config.rtg_target is None else self.config.rtg_target
        return {"_contexts": Contexts(self.config.context_len, target)}

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        return self.updater.minimise(self.loss, batch)

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch of sub-sequences and the metrics to report.

        Args:
            batch: ``obs``; ``action`` in the env's units, discrete ones counted from 0; ``return_to_go``, ``timestep``
                and ``mask``, True where a step is real. All with leading axes (T, B).

        Returns:
            The sum over the real steps of the cross entropy of discrete actions, or of the squared error of continuous
            ones in normalised units, divided by ``context_len`` B; and ``total_loss`` to report, a detached scalar.
        """
        names = ("obs", "action", "return_to_go", "timestep", "mask")
        obs, action, return_to_go, timestep, mask = (
            nested.apply(lambda x: x.transpose(0, 1), batch[name]) for name in names
        )
        logit = self._logits(obs, self._normalised(action), return_to_go, timestep)
        if action.is_floating_point():
            error = (logit - self._normalised(action)).square().mean(-1)
        else:
            error = F.cross_entropy(logit.flatten(0, 1), action.flatten(), reduction="none").view_as(timestep)
        loss = (error * mask).sum() / (self.config.context_len * len(mask))
        return loss, {"total_loss": loss.detach()}

    def _logits(self, obs: Any, action: Tensor, return_to_go: Tensor, timestep: Tensor) -> Tensor:
        """Return the network's output, shape (B, T, A), illegal actions at minus infinity."""
        logit: Tensor = self.model(obs, action, return_to_go / self.config.rtg_scale, timestep)["logit"]
        mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
        return logit if mask is None else rl.masked(logit, mask)

    def _normalised(self, action: Tensor) -> Tensor:
        is_scaled = action.is_floating_point() and self.bounds is not None
        return cast(ActionBounds, self.bounds).from_env(action) if is_scaled else action

    def _forward_eval(self, obs: Any, *, reward: Any = None) -> dict[str, Tensor]:
        """Return the likeliest actions.

        Args:
            obs: Observations of B envs, the same envs in each call.
            reward: Rewards of their previous steps, shape (B,); ignored in the first step of an episode.
        """
        section, size = self.config.model, len(nested.leaves(obs)[0])
        is_discrete = section.action_space == "discrete"
        shape, kind = ((), torch.long) if is_discrete else ((cast(int, section.action_shape),), torch.float32)
        none = torch.zeros(size, *shape, dtype=kind, device=self.device)
        seen = self._contexts.observe(obs, reward, none)
        logit = self._contexts.newest(self._logits(**seen))
        action = logit.argmax(-1) if is_discrete else logit
        self._contexts.act(action)
        return {"action": self._to_env(action)}

    def _reset_eval(self, data_id: Sequence[int] | None = None) -> None:
        self._contexts.reset(data_id)

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered transformer."""
        return "dt", ["lightning_ding.model.decision_transformer"]

    def _model_cfg(self) -> dict[str, Any]:
        return super()._model_cfg() | {"max_timestep": self.config.max_eval_ep_len}

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        shapes = super()._shapes_of(observation_space, action_space)
        is_plain = shapes["action_space"] != "hybrid" and isinstance(shapes["action_shape"], int)
        if not is_plain:
            raise TypeError(f"{type(self).__name__} needs a Discrete or Box action space, got {action_space}")
        return shapes

    @property
    def sample_options(self) -> dict[str, Any]:
        """Arguments of a replay buffer's ``sample``."""
        return {"sequence": self.config.context_len}

    @property
    def discount_factor(self) -> float:
        """The discount factor: 1, because returns to go are sums."""
        return 1.0


class Contexts:
    """The last K steps of each of N envs, as tensors with leading axes (N, K). An episode begins at the left.

    Args:
        context_len: K.
        target: Return to go of the first step.

    Example:
        >>> contexts = Contexts(context_len=2, target=9.0)
        >>> for reward in (None, [1.0], [1.0]):
        ...     columns = contexts.observe(torch.ones(1, 1), reward, torch.zeros(1))
        ...     contexts.act(torch.ones(1))
        >>> columns["return_to_go"].tolist(), columns["timestep"].tolist()
        ([[8.0, 7.0]], [[1, 2]])
    """

    def __init__(self, context_len: int, target: float) -> None:
        self.context_len, self.target = context_len, target
        self._columns: dict[str, Tensor] = {}
        self._step: Tensor | None = None  # steps of each env's episode before the current one, (N,)

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Begin new episodes in these envs; None means all."""
        if env_ids is None:
            self._step = None
        elif self._step is not None:
            self._step[list(env_ids)] = 0

    def observe(self, obs: Any, reward: Any, first_action: Tensor) -> dict[str, Any]:
        """Add observations, and the returns to go that the rewards of the previous steps leave; return the contexts.

        Args:
            obs: Nested tensors with leading axis N.
            reward: Rewards of the previous steps, shape (N,); None in the first step of all envs.
            first_action: Placeholder of the actions that follow, shape (N, ...).

        Returns:
            ``obs``, ``action``, ``return_to_go`` and ``timestep``, leading axes (N, K).

        Raises:
            ValueError: If an episode has begun and there is no reward.
        """
        new = nested.flatten({"obs": obs}) | {"action": first_action}
        size, device = len(first_action), first_action.device
        if self._step is None or len(self._step) != size:
            self._step = self._place = torch.zeros(size, dtype=torch.long, device=device)
            new |= {"return_to_go": torch.zeros(size, device=device), "timestep": self._step}
            kept = (size, self.context_len)
            self._columns = {name: x.new_zeros(*kept, *x.shape[1:]) for name, x in new.items()}
        elif reward is None:
            require(not bool(self._step.any()), "reward", "the rewards of the previous steps", None)
        step, left = self._step, self.newest(self._columns["return_to_go"])
        left = left if reward is None else left - torch.as_tensor(reward).to(left)
        target = torch.full_like(left, self.target)
        new |= {"return_to_go": torch.where(step > 0, left, target), "timestep": step}
        self._place = step.clamp(max=self.context_len - 1)
        rows, moves = torch.arange(size, device=device), step >= self.context_len
        for name, column in self._columns.items():
            wide = moves.view(-1, *[1] * (column.ndim - 1))
            self._columns[name] = torch.where(wide, column.roll(-1, 1), column)
            self._columns[name][rows, self._place] = new[name]
        return nested.unflatten(self._columns)

    def newest(self, values: Tensor) -> Tensor:
        """Return the entries of the current step, shape (N, ...), of values with leading axes (N, K)."""
        return values[torch.arange(len(values), device=values.device), self._place]

    def act(self, action: Tensor) -> None:
        """Add the actions of the current step, shape (N, ...), and count it."""
        self._columns["action"][torch.arange(len(action), device=action.device), self._place] = action
        self._step = cast(Tensor, self._step) + 1
