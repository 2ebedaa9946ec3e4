"""The base of policies that learn from a replay buffer: their config, the target network, and discounting.

Shapes: B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_ding.config import moved, require, searched
from lightning_ding.model.layers import InEvalMode
from lightning_ding.policy.base.acting import takes_setting
from lightning_ding.policy.base.config import LearnConfig, PolicyConfig
from lightning_ding.policy.base.policy import Policy
from lightning_ding.utils.private_api import tensors_of
from lightning_ding.utils.schedules import EpsConfig
from lightning_ding.worker.config import CollectorConfig


@dataclass(frozen=True)
class TargetUpdate:
    """How a target network is updated: by copies at intervals, or by a soft update after every update.

    Args:
        freq: ``learn.target_update_freq``, updates between two copies, >= 1; None for ``default_freq``, or for no
            copies with ``theta``.
        theta: ``learn.target_theta``, the step size of the soft update after every update, in (0, 1]; None copies the
            network instead.
        default_freq: Updates between two copies if neither is given, >= 1.

    Raises:
        ValueError: If both are given, or one is out of its range.
    """

    freq: int | None
    theta: float | None
    default_freq: int

    def __post_init__(self) -> None:
        freq, theta = self.freq, self.theta
        require(freq is None or theta is None, "learn.target_update_freq", f"None with target_theta ({theta})", freq)
        require(freq is None or freq >= 1, "learn.target_update_freq", ">= 1", freq)
        require(theta is None or 0 < theta <= 1, "learn.target_theta", "in (0, 1]", theta)

    def changes_within(self, train_iter: int, num_updates: int) -> bool:
        """Return whether the target changes before the last of ``num_updates`` updates from number ``train_iter``."""
        if self.theta is not None:
            return True
        freq = self.freq or self.default_freq
        return (train_iter + num_updates - 1) // freq > train_iter // freq

    def apply(self, network: nn.Module, target: nn.Module, train_iter: int) -> None:
        """Update ``target`` from ``network``, if it is due, after the update number ``train_iter``, from 0.

        Raises:
            ValueError: If the parameters of ``network`` are others than when ``target`` was made.
        """
        try:
            if self.theta is not None:
                polyak_update(network, target, self.theta)
            elif (train_iter + 1) % (self.freq or self.default_freq) == 0:
                copy_parameters(network, target)
        except (RuntimeError, ValueError) as error:
            others = sorted(network.state_dict().keys() ^ target.state_dict().keys())
            allowed = "those of the target network (change layers before the network is passed to the policy)"
            require(not others, "the parameters of the trained network", allowed, others)
            raise error


@dataclass(frozen=True, kw_only=True)
class ReplayLearnConfig(LearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = LearnConfig.MOVED | moved(
        discount_factor="set discount_factor at the top level, like nstep, not in learn"
    )

    default_copy_freq: ClassVar[int] = 100
    """Updates between two copies into the target network if the config does not set it."""
    update_per_collect: int = 1
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = searched(64, "choice(32, 64, 128, 256, 512)")
    """Transitions of a minibatch on each rank, >= 1."""
    target_update_freq: int | None = searched(None, "choice(50, 100, 250, 500, 1000)")
    """Updates between two copies into the target network, >= 1; None means 100, or no copies with target_theta."""
    target_theta: float | None = searched(None, "log(1e-3, 0.1)")
    """Step size of the soft update of the target after every update, in (0, 1]; None copies the network instead."""
    ignore_done: bool = False
    """Bootstrap from terminal states too; for old configs of envs that only a time limit ends."""
    reset_freq: int | None = None
    """Updates between two resets, which initialise networks and their optimizers' state again, >= 1; None for none."""
    reset_at: Sequence[int] = ()
    """Numbers of updates after which there is one more reset, each >= 1."""
    reset_parts: Sequence[str] = ()
    """Modules of the network that are reset, such as actor or critic.head; none means all that is learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.update_per_collect >= 1, "learn.update_per_collect", ">= 1", self.update_per_collect)
        require(self.batch_size >= 1, "learn.batch_size", ">= 1", self.batch_size)
        self.target_update()

    def unsearched(self) -> set[str]:
        """Return the option of the target's update that the other one excludes."""
        return {"target_theta" if self.target_theta is None else "target_update_freq"}

    def target_update(self) -> TargetUpdate:
        """Return how the target network is updated.

        Raises:
            ValueError: If ``target_update_freq`` or ``target_theta`` is out of its range, or both are given.
        """
        return TargetUpdate(self.target_update_freq, self.target_theta, self.default_copy_freq)


@dataclass(frozen=True, kw_only=True)
class ReplayCollectConfig:
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 1
    """Transitions of a round on each rank, >= 1; None with n_episode."""
    n_episode: int | None = None
    """Whole episodes of a round on each rank, >= 1, with the collector episode; None with n_sample."""
    unroll_len: int = 1
    """Steps of a training sample; there is no memory, so only 1."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """The collector."""

    def __post_init__(self) -> None:
        given = [one for one in (self.n_sample, self.n_episode) if one is not None]
        allowed = f">= 1 without collect.n_episode, and None with one >= 1 (it is {self.n_episode})"
        require(len(given) == 1 and given[0] >= 1, "collect.n_sample", allowed, self.n_sample)
        require(self.unroll_len == 1, "collect.unroll_len", "1 for networks without memory", self.unroll_len)


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(PolicyConfig):
    """The config of every algorithm that learns from replay."""

    nstep: int | None = searched(1, "int(1, 5)")
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and 1
    for batches without discount, which do not come from such a buffer."""
    discount_factor: float = searched(0.99, "choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999)")
    """gamma, in [0, 1]."""
    priority: bool = False
    """Pass the size of each error to the buffer as its priority; needs a prioritised buffer."""
    priority_IS_weight: bool = False  # noqa: N815 - a documented name
    """Weigh errors by the buffer's importance-sampling weights; needs priority."""
    random_collect_size: int = 0
    """Transitions collected before the first update on each rank, >= 0: with random actions, or with those of the
    policy if it was trained before."""
    learn: ReplayLearnConfig = field(default_factory=ReplayLearnConfig)
    """Options for updates."""
    collect: ReplayCollectConfig = field(default_factory=ReplayCollectConfig)
    """Options for collecting: the amount and the collector."""

    def __post_init__(self) -> None:
        require(self.nstep is None or self.nstep >= 1, "nstep", ">= 1 or None", self.nstep)
        require(0 <= self.discount_factor <= 1, "discount_factor", "in [0, 1]", self.discount_factor)
        require(self.priority or not self.priority_IS_weight, "priority_IS_weight", "False without priority", True)
        require(self.random_collect_size >= 0, "random_collect_size", ">= 0", self.random_collect_size)
        is_single = self.reward_model.type is None or self.nstep in (1, None)
        require(is_single, "nstep", "1 or None with a reward model, which rewards single steps", self.nstep)

    def unsearched(self) -> set[str]:
        """Return the options that a reward model leaves no choice of."""
        return set() if self.reward_model.type is None else {"nstep"}


NSTEP = 3  # steps of the return where the config leaves them open
NetworkT = TypeVar("NetworkT", bound=nn.Module)
ReplayConfigT = TypeVar("ReplayConfigT", bound=ReplayConfig)


class ReplayPolicy(Policy[ReplayConfigT]):
    """A policy that learns from a replay buffer, with a target network unless ``has_target`` is false.

    ``_init_learn`` of a subclass calls :meth:`_make_target`, and ``_forward_learn`` calls :meth:`_update_target`.
    """

    target_model: Any
    has_target: ClassVar[bool] = True
    """Whether the algorithm has a target network."""
    demonstrations: ClassVar[Literal["optional", "needed", "imitated", "refused"]] = "optional"
    """Whether a datamodule must, can or must not have demonstrations; "imitated" ones have a reward of 1, and all other
    steps 0."""
    rounds_share_at_random: ClassVar[bool] = False
    """Whether the number of demonstrations in a minibatch is rounded up or down at random, so that its mean is exact;
    otherwise it is fixed, and at least 1."""

    def _make_target(self) -> None:
        """Copy the network to ``target_model``, which no optimizer trains, if the algorithm has a target network."""
        if (learn := self.config.learn).reset_freq is not None or learn.reset_at or learn.reset_parts:
            from lightning_ding.policy.base.reset import Resets

            self.updater.resets = Resets(self)
        if not self.has_target:
            return
        self.target_model = make_target(self.model)
        self._target_update = self.config.learn.target_update()
        self._target_in_eval_mode = InEvalMode(self.target_model, where_it_matters=True)

    def _update_target(self, part: str | None = None) -> None:
        """Update the target network from the trained one, if :class:`TargetUpdate` says that it is due.

        Args:
            part: Name of the submodule to update; None for the whole network.
        """
        train_iter = self.progress.train_iter
        if self._target_update.changes_within(train_iter, 2):  # before the next update
            network, target = (one if part is None else getattr(one, part) for one in (self.model, self.target_model))
            self._target_update.apply(network, target, train_iter)

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        """Return epsilon, if a class explores with it: if its ``_forward_collect`` has the argument ``eps``."""
        has_epsilon = hasattr(getattr(self.config, "other", None), "eps")
        is_used = has_epsilon and takes_setting(type(self)._forward_collect, "eps")
        return {"eps": self._epsilon_at(command_info["envstep"])} if is_used else {}

    def _epsilon_at(self, env_step: int) -> float:
        eps: EpsConfig = cast(Any, self.config).other.eps
        return eps.value(self.progress.exploration_step(env_step), self.progress.budget)

    def _noise(self, shape: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Return the random numbers that the losses read, leading axes ``shape``: (B,), or (U, B) for a whole round."""
        return {}

    def _with_discount(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return minibatches, leading axes (B,) or (U, B), with ``discount_t`` and the random numbers of ``_noise``.

        Minibatches of a round that has them are returned unchanged.

        Raises:
            KeyError: If ``discount`` is needed and missing.
            ValueError: If ``reward`` and ``terminated`` have different shapes.
        """
        if "discount_t" in data:
            return dict(data)
        reward, shape = data["reward"], data["terminated"].shape
        if reward.shape != shape:
            raise ValueError(f"reward must have the shape {tuple(shape)}, got {tuple(reward.shape)}")
        found = dict(data)
        for name, value in self._noise(shape).items():
            drawn = torch.as_tensor(value)
            found[name] = drawn.to(reward if drawn.is_floating_point() else reward.device)
        return {**found, "discount_t": self._discount(data)}

    def _discount(self, batch: Mapping[str, Any]) -> Tensor:
        """Return gamma^n * (1 - terminated), shape (B,): the only place where termination enters the targets."""
        gamma: Tensor | float = self.config.discount_factor
        if "discount" in batch:
            gamma = batch["discount"]
        elif (self.config.nstep or 1) > 1:
            raise KeyError("a batch needs 'discount', gamma to the power of the steps taken, when nstep > 1")
        if self.config.learn.ignore_done:
            return torch.ones_like(batch["reward"]) * gamma
        return torch.logical_not(batch["terminated"]) * gamma

    def _state_dict_learn(self) -> dict[str, Any]:
        state = super()._state_dict_learn()
        return state | {"target_model": self.target_model.state_dict()} if self.has_target else state

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        if self.has_target:
            self.target_model.load_state_dict(state["target_model"])

    @property
    def nstep(self) -> int:
        """Steps of the returns that a buffer sums."""
        return self.config.nstep or (NSTEP if self.config.reward_model.type is None else 1)


def make_target(network: NetworkT) -> NetworkT:
    """Return a copy of the network whose parameters need no gradient; pruned layers can be copied too."""
    values = [one for module in network.modules() for one in vars(module).values() if isinstance(one, Tensor)]
    computed = {id(one): cast(Any, one.detach().clone()) for one in values if not one.is_leaf}  # torch cannot copy
    return copy.deepcopy(network, computed).requires_grad_(False)


@torch.no_grad()
def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Copy every parameter and buffer of ``source`` into ``target`` (Mnih et al. 2015)."""
    (parameters, buffers), (new_parameters, new_buffers) = tensors_of(target), tensors_of(source)
    for kept, new in (*zip(parameters, new_parameters, strict=True), *zip(buffers, new_buffers, strict=True)):
        kept.copy_(new)


@torch.no_grad()
def polyak_update(source: nn.Module, target: nn.Module, theta: float) -> None:
    """Move ``target`` towards ``source``: t <- (1 - theta) t + theta s (Lillicrap et al. 2016, algorithm 1).

    Buffers, such as the statistics of a batch norm, are copied.

    Args:
        source: The trained network.
        target: The target network.
        theta: Weight of the source, in (0, 1]; 1 copies it.
    """
    (parameters, buffers), (new_parameters, new_buffers) = tensors_of(target), tensors_of(source)
    for kept, new in zip(parameters, new_parameters, strict=True):
        kept.lerp_(new, theta)
    for kept, new in zip(buffers, new_buffers, strict=True):
        kept.copy_(new)
