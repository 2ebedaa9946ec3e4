"""IQN: Q-learning with values of the return at sampled quantile levels, double Q-learning and n-step returns.

Paper: Dabney et al. 2018b, eq. 3 (https://arxiv.org/abs/1806.06923); the other parts are those of ``qrdqn``.

Where this differs: an action's value, in acting and in choosing the next action, is the mean over the middles of
``model.num_quantiles`` equal parts of [0, 1], instead of as many random levels, so that evaluations are deterministic;
the levels of the loss are random. The online network chooses the next action; set ``double_q`` to false to follow the
paper. The embedding leaves out the cosine with frequency 0, which is constant, as in Dopamine. The remaining
differences are those of QR-DQN.

Shapes: B batch, U minibatches of a round, A actions, N levels of a prediction, M of a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.q_learning import QBatch
from lightning_ding.policy.qrdqn import QRDQNConfig, QRDQNLearnConfig, QRDQNModelConfig, QRDQNPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class IQNModelConfig(QRDQNModelConfig):
    """The Q-network: an encoder, an embedding of quantile levels, and a head."""

    num_quantiles: int = 32
    """Number of quantile levels whose mean is an action's value, >= 1; K in the paper."""
    quantile_embedding_size: int = 64
    """Number of cosines that describe a quantile level, >= 1."""
    head_layer_num: int | None = None
    """Number of hidden layers between the embedded quantile level and the values, >= 0; None means 1."""

    @staticmethod
    def from_separate(section: dict[str, Any]) -> dict[str, Any]:
        """Return a saved section of a version that had no hidden layer after the embedding by default."""
        sizes = (section["head_layer_num"], section["head_hidden_size"])
        layers = 0 if sizes == (None, None) and not section["dueling"] else section["head_layer_num"]
        return QRDQNModelConfig.from_separate(section) | {"head_layer_num": layers}

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.quantile_embedding_size
        require(size >= 1, "model.quantile_embedding_size", ">= 1", size)


@dataclass(frozen=True, kw_only=True)
class IQNLearnConfig(QRDQNLearnConfig):
    """Options for updates."""

    num_quantiles: int = 8
    """Number of random levels at which a return is predicted, >= 1; N in the paper."""
    num_target_quantiles: int = 8
    """Number of random levels of the target, >= 1; N' in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_quantiles", "num_target_quantiles"):
            require(getattr(self, name) >= 1, f"learn.{name}", ">= 1", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class IQNConfig(QRDQNConfig):
    """Everything that can be set of IQN; the numbers of levels and cosines are those of the paper."""

    model: IQNModelConfig = field(default_factory=IQNModelConfig)
    """The Q-network."""
    learn: IQNLearnConfig = field(default_factory=IQNLearnConfig)
    """Options for updates."""


class IQNBatch(QBatch, total=False):
    """A minibatch of IQN, leading axis B."""

    tau: Tensor
    """Random levels of the prediction, shape (B, N)."""
    tau_t: Tensor
    """Random levels of the target, shape (B, M)."""


@POLICY_REGISTRY.register("iqn")
class IQNPolicy(QRDQNPolicy):
    """IQN for discrete actions; vector, image and dict observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations, and optionally levels ``tau`` (B, N), to
    ``logit`` (B, A), ``q`` (B, A, N) and ``tau`` (B, N).

    Example:
        >>> import torch
        >>> policy = IQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = IQNConfig
    config: IQNConfig
    divides_by_kappa: ClassVar[bool] = True

    def _noise(self, shape: Sequence[int]) -> dict[str, NDArray[Any]]:
        sizes = {"tau": self.config.learn.num_quantiles, "tau_t": self.config.learn.num_target_quantiles}
        source: Any = self.noise_source or rl.TensorDraws(self.device)
        return {name: source.random((*shape, size), dtype=np.float32) for name, size in sizes.items()}

    def target_outputs(self, batch: Any) -> dict[str, Any]:
        """Return the target network's quantiles of the next observations at ``tau_t``, and values at fixed levels."""
        output = self.target_model(batch["next_obs"], batch["tau_t"])
        chooser = output if self.config.learn.double_q else self.target_model(batch["next_obs"])
        return {"q": output["q"], "logit": chooser["logit"]}

    def _prediction(self, batch: IQNBatch) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q = self.model(batch["obs"], batch["tau"])["q"]
        return rl.take_action_distribution(q, batch["action"]), batch["tau"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "iqn", ["lightning_ding.model.iqn"]
