"""R2D3: R2D2 that learns from demonstrations too, a share of each minibatch.

Paper: Paine et al. 2019 (https://arxiv.org/abs/1909.01387), section 3: recurrent double Q-learning with n-step returns
from two prioritised buffers. The demo ratio rho is the probability that a sequence comes from the demonstrations. The
other losses are those of DQfD, Hester et al. 2018, eq. 2 (https://arxiv.org/abs/1704.03732); without them, with
``lambda2``, ``lambda3`` and ``lambda_one_step_td`` of 0, the loss is that of the paper.

Where this differs from the paper: rho is ``demonstration_share`` of the datamodule. In each minibatch the number of
demonstrations is rho B rounded up or down at random, so that rho is their mean share, with a smaller variance than that
of B separate draws. A sequence of a demonstration has no stored state: it begins with zeros and is burned in, unless
its first step is that of an episode, where zeros are exact. Importance-sampling weights are those of each buffer. The
other parts are those of ``r2d2``, where its page says how they differ.

The weight of ``lambda3`` belongs to the sum of the squared parameters, as for ``dqfd``. A priority is made of the
n-step errors only.

Shapes: T steps of a sequence, B sequences, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from lightning_ding import rl
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.dqfd import check_weights, half_square
from lightning_ding.policy.r2d2 import R2D2Batch, R2D2Config, R2D2LearnConfig, R2D2Policy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.modes import IS_FIRST, STATE


@dataclass(frozen=True, kw_only=True)
class R2D3LearnConfig(R2D2LearnConfig):
    """Options for updates."""

    lambda1: float = 1.0
    """Weight of the loss of the n-step return, >= 0."""
    lambda2: float = 1.0
    """Weight of the margin loss of the demonstrations, >= 0."""
    lambda3: float = 1e-5
    """Weight of half the sum of the squared parameters, >= 0."""
    margin_function: float = 0.8
    """Least distance of the demonstrated action's value to the others, >= 0."""
    per_train_iter_k: int = 10
    """Updates from demonstrations only, before the first collection, >= 0."""
    lambda_one_step_td: float = 1.0
    """Weight of the loss of the one-step return, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self, "lambda_one_step_td")


@dataclass(frozen=True, kw_only=True)
class R2D3Config(R2D2Config):
    """Everything that can be set of R2D3."""

    random_collect_size: int = 0
    """Transitions collected before the first update on each rank, >= 0: with random actions, or with those of the
    policy if it was trained before."""
    learn: R2D3LearnConfig = field(default_factory=R2D3LearnConfig)
    """Options for updates."""


class R2D3Batch(R2D2Batch, total=False):
    """A minibatch of B sequences of T steps; those after the end of an episode are padding."""

    is_expert: Tensor
    """Whether a sequence is a demonstration, shape (B,)."""


@POLICY_REGISTRY.register("r2d3")
class R2D3Policy(R2D2Policy):
    """R2D3 for discrete actions; all kinds of observations; action masks.

    It needs a :class:`ReplayDataModule` with ``demonstrations``. The arguments are those of :class:`Policy`; a
    ``model`` has the methods of :class:`DRQN`.

    Example:
        >>> import torch
        >>> policy = R2D3Policy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = R2D3Config
    demonstrations: ClassVar[Literal["optional", "needed", "imitated", "refused"]] = "needed"
    rounds_share_at_random: ClassVar[bool] = True
    config: R2D3Config

    @property
    def pretraining_updates(self) -> int:
        """Updates from demonstrations only, before the first collection."""
        return self.config.learn.per_train_iter_k

    def dataset_columns(self, dataset: Any, reward: Any) -> dict[str, Any]:
        """Return a state of zeros for each step, shape (N, S), and which steps are the first of their episode, (N,)."""
        episode_id = dataset.columns["episode_id"]
        is_first = np.append(True, episode_id[1:] != episode_id[:-1])
        network: Any = self.model
        return {STATE: np.zeros((len(is_first), network.state_size), dtype=np.float32), IS_FIRST: is_first}

    def loss(self, batch: R2D3Batch) -> tuple[Tensor, dict[str, Tensor]]:  # type: ignore[override]
        """Return the loss of a minibatch of sequences and its metrics, with ``margin_loss``; see R2D2's loss."""
        learn = self.config.learn
        learned, (output, value) = self._learned(batch), self._unrolled(batch)
        one_step, target = (self._targets(batch, value, nstep) for nstep in (1, self.config.nstep))
        q, action = output.flatten(0, 1), batch["action"].flatten()
        prediction = rl.take_action_value(q, action).view_as(target)
        weight = self._step_weights(batch, learned, target)
        margin = self._margin(batch, q, action).view_as(target) * batch["is_expert"]
        margin_loss = (weight * margin).mean()
        long, short = (
            rl.td_loss(prediction.flatten(), one.flatten(), weight.flatten(), learn.loss) for one in (target, one_step)
        )
        scale = weight.shape[0] / self.config.learn_unroll_len  # of a mean over all T steps
        steps = learn.lambda1 * long + learn.lambda_one_step_td * short + learn.lambda2 * margin_loss
        given = self._weight(batch)
        decay = half_square(self.model) if given is None else given.mean() * half_square(self.model)
        loss = scale * steps + learn.lambda3 * decay
        report = self._report(batch, loss, prediction, target, learned)
        return loss, report | {"margin_loss": scale * margin_loss.detach()}

    def _margin(self, batch: R2D3Batch, q: Tensor, action: Tensor) -> Tensor:
        """Return the margin losses of all steps, shape (T * B,); illegal actions have none."""
        obs = batch["obs"]
        mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
        legal = q if mask is None else rl.masked(q, mask.flatten(0, 1))
        return rl.large_margin(legal, action, self.config.learn.margin_function)

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "margin_loss"]
