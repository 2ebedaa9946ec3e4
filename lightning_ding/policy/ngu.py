"""Never Give Up: R2D2 with a family of policies that explore, each with its share of a reward for what is new.

Paper: Badia et al. 2020 (https://arxiv.org/abs/2002.06038). Policy j of J learns from r + beta_j r_i with the discount
factor gamma_j (section 3, appendix A), where the intrinsic reward r_i is that of eq. 1 to 3. Each episode is played by
a policy that is drawn at random. Policy 0, whose beta is 0, acts in evaluations.

The network gets j as a one-hot vector after its encoder. It gets the last action and the last reward of the env from
the observations, which the wrapper ``previous_step`` of the envs adds.

Where this differs: without that wrapper, a run warns, and the network reads observations only. With it, last action and
reward are part of the encoder's input; the last intrinsic reward is not an input. The intrinsic reward of a transition
is that of its next observation, and is 0 until an episode has K of them. It is computed with the networks that collect,
and stored. The running statistics of the rewards belong to each rank, and are averages over all of its envs. Embeddings
and predictor learn from all real steps of the minibatches. The weight of a policy in the loss does not depend on j, the
targets are those of R2D2, not of Retrace, and all envs explore with one epsilon.

Shapes: T steps of a sequence, B sequences or envs, J policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.model.layers import InEvalMode
from lightning_ding.model.novelty import PREVIOUS
from lightning_ding.policy.base.config import NO_CLIP, PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.base.recurrent import EnvStates, RecurrentSelector
from lightning_ding.policy.r2d2 import R2D2Batch, R2D2Config, R2D2LearnConfig, R2D2ModelConfig, R2D2Policy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.modes import IS_FIRST, STATE

ENV = "env_row"  # entry of an output: the number of the env
REWARD = "intrinsic_reward"  # column of a transition


@dataclass(frozen=True, kw_only=True)
class NGUModelConfig(R2D2ModelConfig):
    """The Q-network of all policies, and the networks of the novelty."""

    num_policies: int = 8
    """J, number of policies of the family, >= 2."""
    embedding_size: int = 32
    """Size of the embeddings that are compared, >= 1."""
    novelty_hidden_size_list: Sequence[int] | None = None
    """Widths of the encoders of embeddings and random features; None for encoder_hidden_size_list."""

    def __post_init__(self) -> None:
        require(self.num_policies >= 2, "model.num_policies", ">= 2", self.num_policies)
        require(self.embedding_size >= 1, "model.embedding_size", ">= 1", self.embedding_size)
        require(not self.core.residual, "model.core.residual", "False with ngu", self.core.residual)


@dataclass(frozen=True, kw_only=True)
class NGULearnConfig(R2D2LearnConfig):
    """Options for updates."""

    learning_rate_novelty: float = 5e-4
    """Step size of the embeddings and of the predictor, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.learning_rate_novelty > 0, "learn.learning_rate_novelty", "> 0", self.learning_rate_novelty)


@dataclass(frozen=True, kw_only=True)
class NGUConfig(R2D2Config):
    """Everything that can be set of NGU."""

    discount_factor: float = 0.997
    """gamma of the first policy, which does not explore, in [0, 1)."""
    discount_factor_last: float = 0.99
    """gamma of the last policy, in [0, 1)."""
    beta: float = 0.3
    """Weight of the intrinsic reward for the last policy, >= 0."""
    num_neighbours: int = 10
    """Number of nearest neighbours in the memory of an episode, >= 1."""
    memory_size: int = 30_000
    """Largest number of embeddings in the memory of an episode, >= num_neighbours."""
    cross_mixture_ratio: float = 0.5
    """Share of the sequences of a minibatch that another policy than the one that collected them learns from, in
    [0, 1]; that policy is drawn at random."""
    lifelong_max: float = 5.0
    """L, largest factor of the episodic reward for what is new in the whole run, >= 1; 1 for no such factor."""
    model: NGUModelConfig = field(default_factory=NGUModelConfig)
    """The Q-network and the networks of the novelty."""
    learn: NGULearnConfig = field(default_factory=NGULearnConfig)
    """Options for updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        first, last, neighbours = self.discount_factor, self.discount_factor_last, self.num_neighbours
        require(first < 1, "discount_factor", "in [0, 1) with ngu", first)
        require(0 <= last < 1, "discount_factor_last", "in [0, 1)", last)
        require(self.beta >= 0, "beta", ">= 0", self.beta)
        require(neighbours >= 1, "num_neighbours", ">= 1", neighbours)
        allowed = f">= num_neighbours ({neighbours})"
        require(self.memory_size >= neighbours, "memory_size", allowed, self.memory_size)
        ratio = self.cross_mixture_ratio
        require(0 <= ratio <= 1, "cross_mixture_ratio", "in [0, 1]", ratio)
        require(self.lifelong_max >= 1, "lifelong_max", ">= 1", self.lifelong_max)


class NGUBatch(R2D2Batch, total=False):
    """A minibatch of B sequences of T steps; those after the end of an episode are padding."""

    intrinsic_reward: Tensor
    """Intrinsic rewards of single steps, shape (T, B)."""


class FamilyStates(EnvStates):
    """The states of the envs, where each episode begins with the number of a policy that is drawn at random.

    Args:
        policy: The policy, whose random numbers are used.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self._policy = policy

    def read(self, env_ids: Sequence[int] | None, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of envs, and whether each is that at the start of an episode."""
        state, is_first = super().read(env_ids, first)
        drawn = self._policy.rng.integers(self._policy.config.model.num_policies, size=len(state))
        state[:, -1] = torch.where(is_first, torch.from_numpy(drawn).to(state), state[:, -1])
        return state, is_first


@POLICY_REGISTRY.register("ngu")
class NGUPolicy(R2D2Policy):
    """Never Give Up for discrete actions; all kinds of observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` has the methods of :class:`NGU`, and its ``novelty``. The
    memory of each env's episode is kept between the calls of ``collect_mode``.

    Example:
        >>> policy = NGUPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = NGUConfig
    reads_weights_after_step: ClassVar[bool] = True
    config: NGUConfig
    model: Any
    _novelty: rl.EpisodicMemory

    def _init_learn(self) -> None:
        self._make_target()
        learn = self.config.learn
        self._random_in_eval_mode = InEvalMode(self.model.novelty.target, where_it_matters=True)
        own = [one for one in self.model.novelty.parameters() if one.requires_grad]
        others = {id(one) for one in self.model.novelty.parameters()}
        values = [one for one in self.model.parameters() if id(one) not in others]
        self.updater.optimizers = [
            make_optimizer(learn.optimizer, values, learn.learning_rate),
            make_optimizer(learn.optimizer, own, learn.learning_rate_novelty),
        ]

    # ------------------------------------------------------------------ collecting

    def new_memory(self, way: Any) -> dict[str, Any]:
        """Return empty memory for acting as in training or in evaluations, by the attribute that holds it."""
        if way == "eval":
            return dict(super().new_memory(way))
        config = self.config
        memory = rl.EpisodicMemory(config.num_neighbours, config.memory_size, config.lifelong_max)
        return {"_collecting": FamilyStates(self), "_novelty": memory}

    def collect_memory(self) -> dict[str, Any]:
        """Return this rank's collecting state of unfinished episodes, as tensors and builtins."""
        return {**super().collect_memory(), "novelty": self._novelty.state_dict()}

    def load_collect_memory(self, memory: Mapping[str, Any]) -> None:
        """Restore the state that ``collect_memory`` returned."""
        super().load_collect_memory(memory)
        self._novelty.load_state_dict(memory["novelty"], self.device)

    def _forward_collect(self, obs: Any, *, eps: float | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        """Return what R2D2 returns, and the numbers of the envs."""
        output = super()._forward_collect(obs, eps=eps)
        ids = cast(RecurrentSelector, self._action_selector).env_ids
        return {**output, ENV: torch.arange(len(output[IS_FIRST])) if ids is None else torch.tensor(ids)}

    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """Return the columns of B transitions, with the intrinsic reward of the next observations."""
        columns = super()._process_transition(obs, output, timestep)
        is_first = columns[IS_FIRST]
        rows = output.get(ENV)
        is_single = is_first.ndim == 0  # of one env
        rows = torch.arange(is_first.numel()) if rows is None else rows.reshape(-1)

        def seen(given: Any) -> Any:
            return self._action_selector(
                lambda x: self.model.novelty(nested.apply(lambda part: part[None], x) if is_single else x),
                given,
                self.device,
            )

        self._novelty.add(rows, seen(obs)[0], is_first.reshape(-1))
        reward = self._novelty.rewards(rows, *seen(timestep.next_obs))
        return {**columns, REWARD: reward[0] if is_single else reward}

    # ------------------------------------------------------------------ learning

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = super()._forward_learn(batch)
        with self._random_in_eval_mode:
            return report | self.updater.minimise(self.novelty_loss, batch, 1, NO_CLIP)

    def prepare(self, data: Mapping[str, Any]) -> Any:
        """Return the minibatch, where ``cross_mixture_ratio`` of the sequences have the number of another policy."""
        batch, number = dict(data), self.config.model.num_policies
        state, size = batch[STATE], len(batch[STATE])
        moves = self.rng.integers(1, number, size=size) * (self.rng.random(size) < self.config.cross_mixture_ratio)
        other = (state[:, -1].round() + torch.from_numpy(moves).to(state)) % number
        return {**batch, STATE: torch.cat([state[:, :-1], other.unsqueeze(1)], 1)}

    def novelty_loss(self, batch: NGUBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the inverse model and of the predictor, means over all real steps, and both to report."""
        real = batch["mask"].flatten().float()
        size = real.sum().clamp(min=1)
        steps = [nested.apply(lambda x: x.flatten(0, 1), batch[name]) for name in ("obs", "next_obs")]
        inverse = self.model.novelty.inverse_error(*steps, batch["action"].flatten())
        error = self.model.novelty.error(steps[1])
        inverse_loss, predictor_loss = ((real * one).sum() / size for one in (inverse, error))
        report = {"inverse_loss": inverse_loss.detach(), "predictor_loss": predictor_loss.detach()}
        return inverse_loss + predictor_loss, report

    def _rewards(self, batch: NGUBatch) -> Tensor:  # type: ignore[override]
        weights = rl.exploration_weights(self.config.model.num_policies, self.config.beta)
        return batch["reward"] + self._of_policy(weights, batch) * batch["intrinsic_reward"]

    def _discount_factors(self, batch: NGUBatch) -> Tensor:  # type: ignore[override]
        ends = self.config.discount_factor, self.config.discount_factor_last
        return self._of_policy(rl.exploration_discounts(self.config.model.num_policies, *ends), batch)

    def _of_policy(self, values: Tensor, batch: NGUBatch) -> Tensor:
        """Return those of J values that belong to the policies of B sequences, shape (B,)."""
        return values.to(batch["reward"])[batch["recurrent_state"][:, -1].round().long()]

    def _report(self, batch: Any, *args: Any) -> dict[str, Tensor]:
        intrinsic = (batch["intrinsic_reward"] * batch["mask"]).sum() / batch["mask"].sum().clamp(min=1)
        return super()._report(batch, *args) | {"intrinsic_reward": intrinsic}

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered network."""
        return "ngu", ["lightning_ding.model.ngu"]

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "intrinsic_reward", "inverse_loss", "predictor_loss"]

    def _shapes_of(self, observation_space: Any, action_space: Any) -> dict[str, Any]:
        shapes = super()._shapes_of(observation_space, action_space)
        if not set(PREVIOUS) <= set(getattr(observation_space, "spaces", ())):
            rank_zero_warn(
                "ngu: the observations have no entries previous_action and previous_reward, which the paper's network "
                "reads; the wrapper previous_step adds them"
            )
        return shapes
