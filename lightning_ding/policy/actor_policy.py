"""The base of policies whose network gives a distribution over actions: its config, acting and spaces.

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from gymnasium import spaces

from lightning_ding import rl
from lightning_ding.config import moved, require
from lightning_ding.policy.base.config import NetworkConfig
from lightning_ding.policy.base.policy import ConfigT, Policy
from lightning_ding.policy.base.spaces import ActionBounds, actor_shapes, obs_shape


@dataclass(frozen=True, kw_only=True)
class ActorModelConfig(NetworkConfig):
    """The network of an actor, with or without a critic."""

    MOVED: ClassVar[dict[str, str]] = NetworkConfig.MOVED | moved(
        core="this algorithm has no memory; recurrent_ppo is PPO with recurrent layers",
    )

    action_shape: Any = None
    """Number of actions or dimensions; one number for each dimension of a multi-discrete action; action_type_shape
    and action_args_shape of a hybrid one; None means that it is taken from the env."""
    action_space: Literal["discrete", "continuous", "hybrid"] | None = None
    """Kind of action; None means that it is taken from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension in the env; None means the env's, or -1 without an env."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension in the env; None means the env's, or 1 without an env."""
    action_integer: bool | None = None
    """Whether continuous actions are rounded, for an env with a Box of integers; None means that it is taken from the
    env."""
    action_start: int | Sequence[int] | None = None
    """Smallest action of a Discrete space, or of each dimension; None means the env's, or 0 without an env."""
    actor_head_hidden_size: int | None = None
    """Width of the actor head's hidden layers; None means the encoder's last width."""
    actor_head_layer_num: int | None = None
    """Number of hidden layers of the actor's head, >= 0; None means 1 with actor_head_hidden_size, else 0."""
    actor_hidden_size_list: Sequence[int] | None = None
    """Width of each layer of the actor's head, >= 1, in place of the two options above; a vector then has no encoder
    layers unless an option of the encoder is set. With a critic, needs critic_hidden_size_list."""
    sigma_type: Literal["independent", "conditioned", "fixed"] = "independent"
    """Standard deviation of continuous actions: learned for each dimension, by the network, or fixed."""
    fixed_sigma_value: float = 0.3
    """The standard deviation with sigma_type fixed, > 0, in units of half the action's range."""
    log_std_init: float | None = None
    """Logarithm of the initial standard deviation with sigma_type independent; None means -0.5, and 0 with
    state-dependent noise."""
    bound_type: Literal["tanh"] | None = None
    """Squash the mean of continuous actions; None means that the mean is not bounded, and the action is clipped."""

    def __post_init__(self) -> None:
        """Check that no option is set that has no effect with the kind of action."""
        kind, start = self.action_space, self.action_start
        require(
            kind != "discrete" or not self.action_integer, "model.action_integer", "None for discrete actions", True
        )
        require(kind != "continuous" or start is None, "model.action_start", "None for continuous actions", start)


class ActorPolicy(Policy[ConfigT]):
    """A policy that acts by a distribution over actions.

    Actions are discrete, multi-discrete, continuous or hybrid, as the config's ``model.action_space`` or the env says.
    Networks give continuous actions in units of half the env's range; what leaves the range is clipped for the env
    only, so that probabilities stay those of the action drawn.
    """

    shape_names: ClassVar[tuple[str, ...]] = ("obs_shape", "action_shape", "action_space")
    config: Any

    def _forward_eval(self, obs: Any) -> dict[str, Any]:
        return {"action": self._to_env(self._distribution(self._logit(obs), obs).mode())}

    def _logit(self, obs: Any) -> Any:
        """Return the parameters of the distribution over actions, see :func:`rl.distribution_of`."""
        return self.model(obs)["logit"]

    def _distribution(self, logit: Any, obs: Any) -> rl.Distribution:
        return rl.distribution_of(logit, obs.get("action_mask") if isinstance(obs, Mapping) else None)

    def _to_env(self, action: Any) -> Any:
        if isinstance(action, Mapping):
            return self.action_start.to_env({**action, "action_args": self._to_env(action["action_args"])})
        if not action.is_floating_point():
            return self.action_start.to_env(action)
        section, names = self.config.model, "model.action_space and model.action_shape"
        needed = "set if a custom network has continuous actions and there is no env"
        require(self.bounds is not None, names, needed, (section.action_space, section.action_shape))
        return cast(ActionBounds, self.bounds).to_env(action)

    def _init_spaces(self) -> None:
        super()._init_spaces()
        self.bounds: ActionBounds | None = None
        section = self.config.model
        shape, low, high = section.action_shape, section.action_low, section.action_high
        if section.action_space in ("discrete", None) or shape is None:  # a custom network's size is known from the env
            return
        size = shape["action_args_shape"] if isinstance(shape, Mapping) else shape
        self.bounds = ActionBounds(size, allow_unbounded=True).to(self.device)
        self.bounds.set(low or [-1.0] * size, high or [1.0] * size, bool(section.action_integer))

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return {"obs_shape": obs_shape(observation_space), **actor_shapes(action_space, type(self).__name__)}
