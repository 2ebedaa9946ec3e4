"""MBPO: SAC that learns mostly from short rollouts in a learned model of the env, and so needs few env steps.

Paper: Janner et al. 2019, algorithm 2 (https://arxiv.org/abs/1906.08253); the ensemble: Chua et al. 2018
(https://arxiv.org/abs/1805.12114). Every ``dynamics.fit_freq`` env steps the ensemble is trained on the replay buffer,
and the policy takes a few steps in it from observations of the buffer. Minibatches then have a share of real
transitions, ``learn.real_ratio``, and the rest are imagined ones.

An episode's end in the model is that of ``dynamics.terminated_fn``, a known function of the env, as in the paper.
Without one it is learned: the members predict the probability that a step terminates, and a rollout ends where it
exceeds 0.5. A time limit is no termination in either case.

Where this differs: as in SAC, see ``sac``; the temperature starts at 0.2, and the target entropy is minus the number of
actions, where the authors' code starts at 1 and sets the entropy for each env (Hopper -1, HalfCheetah -3). Every
rollout step divides the rollouts at random into equal parts, one for each elite, instead of drawing the elite of each,
so that elites compute only what is used. All minibatches of the ensemble are full; the last one of an epoch takes rows
twice. ``dynamics.weight_decay`` is the same for all layers. With ``norm_obs`` the policy sees normalised observations,
and the ensemble predicts those of the env.

Shapes: N transitions or rollouts, E members, B batch, U minibatches of a round, O numbers of an observation, A
dimensions of an action.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.dynamics import BestMembers, DynamicsEnsemble
from lightning_ding.policy.base.config import NO_CLIP, PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.qac import QACOtherConfig
from lightning_ding.policy.sac import SACConfig, SACLearnConfig, SACPolicy
from lightning_ding.registry import POLICY_REGISTRY, import_modules
from lightning_ding.utils.ranks import mean_over_ranks, on_any_rank, sum_over_ranks, world_size
from lightning_ding.utils.schedules import Schedule
from lightning_ding.worker.config import ReplayBufferConfig

MOST_HOLDOUT = 5000  # transitions that choose the elites, at the most, as in the authors' code
COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
TerminatedFn = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig:
    """The ensemble of models of the env, and its training."""

    ensemble_num: int = 7
    """Number of members, >= 1."""
    elite_num: int = 5
    """Number of members with the smallest errors on the holdout data, which rollouts use, in [1, ensemble_num]."""
    hidden_size_list: Sequence[int] = (200, 200, 200, 200)
    """Width of each hidden layer, >= 1."""
    learning_rate: float = 1e-3
    """Step size of the ensemble's optimizer, > 0; ``learn.lr_scheduler`` does not change it."""
    weight_decay: float = 5e-5
    """Weight of half the squared norm of the weights in the loss, >= 0."""
    batch_size: int = 256
    """Transitions of a minibatch of each member, >= 1."""
    holdout_ratio: float = 0.2
    """Share of the buffer that no member is trained on, at most 5,000 transitions, in (0, 1)."""
    max_epochs_since_update: int = 5
    """Epochs in a row without a member that improves by 1 % on the holdout data, after which training ends, >= 0."""
    max_epochs: int | None = None
    """Epochs after which training ends in any case, >= 1; None for no limit."""
    fit_freq: int = 250
    """Env steps, over all ranks, between two trainings of the ensemble, >= 1."""
    terminated_fn: str | None = None
    """Dotted path of a function of observations, actions and next observations (tensors of N rows) that returns which
    steps terminate, shape (N,), such as ``lightning_ding.rl.dynamics.never_terminated``; None means that it is
    learned."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, which have ``terminated_fn``."""

    def __post_init__(self) -> None:
        for name in ("ensemble_num", "batch_size", "fit_freq"):
            require(getattr(self, name) >= 1, f"dynamics.{name}", ">= 1", getattr(self, name))
        fits = f"in [1, {self.ensemble_num}], up to dynamics.ensemble_num"
        require(1 <= self.elite_num <= self.ensemble_num, "dynamics.elite_num", fits, self.elite_num)
        widths = self.hidden_size_list
        require(bool(widths) and min(widths) >= 1, "dynamics.hidden_size_list", "widths >= 1, at least one", widths)
        require(self.learning_rate > 0, "dynamics.learning_rate", "> 0", self.learning_rate)
        require(self.weight_decay >= 0, "dynamics.weight_decay", ">= 0", self.weight_decay)
        require(0 < self.holdout_ratio < 1, "dynamics.holdout_ratio", "in (0, 1)", self.holdout_ratio)
        patience, limit = self.max_epochs_since_update, self.max_epochs
        require(patience >= 0, "dynamics.max_epochs_since_update", ">= 0", patience)
        require(limit is None or limit >= 1, "dynamics.max_epochs", ">= 1 or None", limit)
        allowed = "empty without dynamics.terminated_fn"
        require(
            self.terminated_fn is not None or not self.import_names, "dynamics.import_names", allowed, self.import_names
        )


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Rollouts in the model."""

    batch_size: int = 100_000
    """Number of rollouts after each training of the ensemble on each rank, >= dynamics.elite_num, of which the largest
    multiple is taken."""
    length: Sequence[Sequence[float]] = ((0, 1),)
    """Steps of a rollout, >= 1: pairs (env step, length) with increasing env steps, between which the length is
    interpolated and rounded down."""
    retain: int = 4
    """Trainings of the ensemble after which imagined transitions leave the buffer, >= 1."""
    deterministic: bool = False
    """Whether a rollout takes the predicted means, instead of samples."""
    random_action_share: float = 0.0
    """Share of the actions in the model that are drawn uniformly from all actions instead of from the policy, in [0,
    1]; 0 as in the paper. More of them help where the policy's own actions soon are too alike to learn values from."""

    def __post_init__(self) -> None:
        require(self.retain >= 1, "rollout.retain", ">= 1", self.retain)
        are_long = bool(self.length) and all(len(point) == 2 and point[1] >= 1 for point in self.length)
        steps = [point[0] for point in self.length] if are_long else [-1.0]
        fits = steps[0] >= 0 and all(one < other for one, other in pairwise(steps))
        allowed = "pairs (env step, length >= 1) with increasing env steps >= 0"
        require(fits, "rollout.length", allowed, self.length)
        share = self.random_action_share
        require(0 <= share <= 1, "rollout.random_action_share", "in [0, 1]", share)

    def schedule(self) -> Schedule:
        """Return the length as a function of the env steps."""
        return Schedule("piecewise", 0.0, 0.0, points=self.length)


@dataclass(frozen=True, kw_only=True)
class MBPOLearnConfig(SACLearnConfig):
    """Options for updates."""

    update_per_collect: int = 20
    """Updates after each collection of n_sample transitions, >= 1."""
    real_ratio: float = 0.05
    """Share of a minibatch that is drawn from the env's transitions, in (0, 1); at least one of them, and not all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.real_ratio < 1, "learn.real_ratio", "in (0, 1)", self.real_ratio)
        require(self.batch_size >= 2, "learn.batch_size", ">= 2, for both kinds of transitions", self.batch_size)


@dataclass(frozen=True, kw_only=True)
class MBPOOtherConfig(QACOtherConfig):
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(
        default_factory=lambda: ReplayBufferConfig(type="imagination", replay_buffer_size=1_000_000)
    )
    """The replay buffer; its type is ``imagination``, which keeps the transitions of the model too."""


@dataclass(frozen=True, kw_only=True)
class MBPOConfig(SACConfig):
    """Everything that can be set of MBPO."""

    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    """The ensemble of models of the env, and its training."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Rollouts in the model."""
    learn: MBPOLearnConfig = field(default_factory=MBPOLearnConfig)
    """Options for updates."""
    other: MBPOOtherConfig = field(default_factory=MBPOOtherConfig)
    """Replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.nstep == 1, "nstep", "1: imagined transitions are single steps", self.nstep)
        require(not self.priority, "priority", "False: imagined transitions have no priorities", self.priority)
        kind, name = self.reward_model.type, "reward_model.type"
        require(kind is None, name, "None: the ensemble predicts the env's rewards", kind)
        enough, elites = self.rollout.batch_size, self.dynamics.elite_num
        require(enough >= elites, "rollout.batch_size", f">= {elites}, dynamics.elite_num", enough)
        allowed = "'imagination', which keeps the transitions of the model"
        kind = self.other.replay_buffer.type
        require(kind == "imagination", "other.replay_buffer.type", allowed, kind)

    def unsearched(self) -> set[str]:
        """Return the options that have one value here."""
        return {"nstep"}


@POLICY_REGISTRY.register("mbpo")
class MBPOPolicy(SACPolicy):
    """MBPO for continuous actions; vector observations.

    In a fit with a :class:`ReplayDataModule` the ensemble is trained and used before the updates of a round. Without a
    Trainer, call :meth:`learn_dynamics` and :meth:`imagine`; ``learn_mode.forward`` makes SAC's update on a minibatch.
    A network passed as ``model`` is described by :class:`SACPolicy`, and needs ``model.obs_shape``.

    Example:
        >>> policy = MBPOPolicy({"model": {"obs_shape": 3, "action_shape": 1}, "dynamics": {"elite_num": 2}})
        >>> policy.imagine(torch.zeros(4, 3), length=1)["next_obs"].shape
        torch.Size([4, 3])
    """

    config_class: ClassVar[type[PolicyConfig]] = MBPOConfig
    supports_tensors: ClassVar[bool] = False
    demonstrations: ClassVar[Literal["optional", "needed", "imitated", "refused"]] = "refused"
    imagines: ClassVar[bool] = True
    """Whether the policy learns from transitions of a model of the env, which needs the replay buffer."""
    config: MBPOConfig

    def _init_learn(self) -> None:
        super()._init_learn()
        config, model = self.config.dynamics, self.config.model
        shape = [model.obs_shape] if isinstance(model.obs_shape, int) else model.obs_shape
        is_vector = isinstance(shape, Sequence) and len(shape) == 1
        require(is_vector, "model.obs_shape", "that of a vector, which the ensemble predicts", model.obs_shape)
        self._terminated_fn = None if config.terminated_fn is None else _imported(config)
        sizes = (int(shape[0]), self._action_size(), config.ensemble_num, config.elite_num, config.hidden_size_list)
        self.dynamics = DynamicsEnsemble(*sizes, learns_end=config.terminated_fn is None)
        """The ensemble of models of the env."""
        kind, index = dataclasses.replace(self.config.learn.optimizer, weight_decay=0.0), len(self.updater.optimizers)
        self.updater.optimizers.append(make_optimizer(kind, self.dynamics.parameters(), config.learning_rate))
        self.updater.unscheduled.add(index)
        self._dynamics_index = index

    def on_fit_start(self) -> None:
        """Check that the run has a buffer for imagined transitions (Lightning hook)."""
        super().on_fit_start()
        data: Any = getattr(self.trainer, "datamodule", None)
        allowed = f"a ReplayDataModule: {type(self).__name__} trains its model of the env on the replay buffer"
        require(hasattr(getattr(data, "buffer", None), "imagined"), "datamodule", allowed, type(data).__name__)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Train the ensemble and imagine transitions if it is time, then make the updates of a round."""
        if not isinstance(batch, (Mapping, Sequence)):
            self._look_ahead(batch.buffer)
            batch.drawn = self._mixed(batch.drawn, batch.buffer.imagined)
        return super().training_step(batch, batch_idx)

    def _look_ahead(self, buffer: Any) -> None:
        """Train the ensemble on a replay buffer, and add imagined transitions to it, if it is time on any rank.

        A checkpoint that is resumed with another number of ranks leaves some of them without imagined transitions.
        """
        imagined, now, config = buffer.imagined, self.progress.env_step, self.config
        if not on_any_rank(imagined.env_step is None or now >= imagined.env_step + config.dynamics.fit_freq):
            return
        stored = buffer.transitions()
        self.metrics.add(self.learn_dynamics(stored))
        number = config.rollout.batch_size // config.dynamics.elite_num * config.dynamics.elite_num
        start = self._on_device(stored["obs"])[self._rows(len(stored["obs"]), (number,))]
        length = int(config.rollout.schedule().value(now))
        imagined.to(self.device)
        imagined.push(self.imagine(start, length), config.rollout.retain)
        imagined.env_step = now

    def _mixed(self, drawn: Mapping[str, Any], imagined: Any) -> dict[str, Any]:
        """Return the minibatches of a round, leading axes (U, B), whose first transitions are the env's."""
        size, number = drawn["reward"].shape, max(1, round(self.config.learn.real_ratio * self.config.learn.batch_size))
        number = min(number, size[1] - 1)
        made = imagined.sample(size[0], size[1] - number, self.rng)
        return {name: _joined(drawn[name][:, :number], made[name]) for name in COLUMNS}

    # ------------------------------------------------------------------ the model of the env

    def learn_dynamics(self, transitions: Mapping[str, Any]) -> dict[str, Tensor]:
        """Train the ensemble until its errors on holdout data no longer fall; all ranks call it.

        Each member is trained on its own bootstrap sample of the transitions. Afterwards each has the weights with its
        smallest error, and those with the smallest errors of all are the elites.

        Args:
            transitions: Transitions of the env, leading axis N, at least two: ``obs``, ``action`` in the env's units,
                ``reward``, ``next_obs`` and ``terminated``.

        Returns:
            ``dynamics_loss``, of the last update, ``dynamics_error``, the mean squared error of the elites on the
            holdout data, and ``dynamics_epochs``, scalars.

        Raises:
            ValueError: If there are fewer than two transitions.
            NonFiniteError: If the loss or a gradient is not finite, and ``on_non_finite`` is "raise".
        """
        config, data = self.config.dynamics, self._lessons(transitions)
        size = len(data["x"])
        require(size >= 2, "transitions", "at least two", size)
        order = torch.from_numpy(self.rng.permutation(size)).to(self.device)
        number = min(max(1, int(size * config.holdout_ratio)), size - 1, MOST_HOLDOUT)
        holdout, known = ({name: one[rows] for name, one in data.items()} for rows in (order[:number], order[number:]))
        self.dynamics.normalise_by(*_mean_and_std(known["x"]))
        if not self.training:
            self.train()
        batches = -(-int(mean_over_ranks(size - number)) // config.batch_size)
        rows = self._rows(size - number, (config.ensemble_num, batches * config.batch_size)).numpy()
        best, epochs, idle = BestMembers(self.dynamics), 0, 0
        self.updater.guard.begin(known)
        while idle <= config.max_epochs_since_update and epochs != config.max_epochs:
            shuffled = torch.from_numpy(self.rng.permuted(rows, axis=1)).to(self.device)
            for some in shuffled.split(config.batch_size, 1):
                lesson = {name: one[some] for name, one in known.items()}
                report = self.updater.minimise(self.dynamics_loss, lesson, self._dynamics_index, NO_CLIP)
            error = self.dynamics.squared_error(holdout["x"], holdout["target"])
            idle = 0 if best.note(sum_over_ranks(error) / world_size()) else idle + 1
            epochs += 1
        self.updater.guard.look()  # before anything is imagined
        self.updater.guard.end()
        best.restore()
        found = {"dynamics_error": best.error[self.dynamics.elites].mean(), "dynamics_epochs": torch.tensor(epochs)}
        return {**report, **{name: one.float() for name, one in found.items()}}

    def dynamics_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the ensemble, and ``dynamics_loss`` to report.

        Args:
            batch: ``x`` (E, B, O + A), ``target`` (E, B, 1 + O) and ``terminated`` (E, B), see
                :meth:`DynamicsEnsemble.loss`.
        """
        decay = self.config.dynamics.weight_decay
        loss = self.dynamics.loss(batch["x"], batch["target"], batch["terminated"], decay)
        return loss, {"dynamics_loss": loss.detach()}

    @torch.no_grad()
    def imagine(self, obs: Tensor, length: int) -> dict[str, Tensor]:
        """Return the transitions of rollouts of the policy in the ensemble, those after an end left out.

        Args:
            obs: Observations of the env to begin with, shape (N, O), with N a multiple of the number of elites.
            length: Steps of each rollout, >= 1.

        Returns:
            ``obs``, ``action`` in the env's units, ``reward``, ``next_obs``, ``terminated`` and ``truncated``, the
            first steps of all rollouts first.

        Raises:
            ValueError: If N is not a multiple of the number of elites.
        """
        elites = self.config.dynamics.elite_num
        require(len(obs) % elites == 0, "obs", f"a multiple of {elites} rows, dynamics.elite_num", len(obs))
        obs = self._on_device(obs)
        goes_on = torch.ones(len(obs), dtype=torch.bool, device=self.device)
        steps = []
        with self._in_eval_mode.context:
            for _ in range(length):
                step = self._imagined_step(obs)
                steps.append({name: one[goes_on] for name, one in step.items()})
                goes_on, obs = goes_on & ~step["terminated"], step["next_obs"]
        return {name: torch.cat([step[name] for step in steps]) for name in COLUMNS}

    def _imagined_step(self, obs: Tensor) -> dict[str, Tensor]:
        """Return one transition from each observation, shape (N, O)."""
        noise = torch.as_tensor(self._standard_normal([len(obs), self._action_size()])).to(obs)
        normal, _ = self._sample(self.normaliser.normalise_obs(obs), noise)
        if share := self.config.rollout.random_action_share:
            some = self.rng.random((len(obs), 1)) < share, self.rng.uniform(-1, 1, normal.shape)
            is_random, drawn = (torch.from_numpy(one).to(self.device) for one in some)
            normal = torch.where(is_random, drawn.to(normal), normal)
        action = self.action_bounds.to_env(normal)
        order = torch.from_numpy(self.rng.permutation(len(obs))).to(self.device)  # which elite makes which step
        size = [len(obs), self.dynamics.output_size]
        spread = None if self.config.rollout.deterministic else torch.as_tensor(self._standard_normal(size)).to(obs)
        taken = self.action_bounds.from_env(action).to(obs)  # as it was learned: integers are rounded
        found = self.dynamics.step(torch.cat([obs, taken], 1)[order], spread)
        reward, change, end = (one.new_empty(one.shape).index_copy_(0, order, one) for one in found)
        next_obs = obs + change
        terminated = end if self._terminated_fn is None else self._known_end(obs, action, next_obs)
        never = torch.zeros_like(terminated)
        return dict(zip(COLUMNS, (obs, action, reward, next_obs, terminated, never), strict=True))

    def _known_end(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Return which steps end an episode by ``terminated_fn``, shape (N,)."""
        found: Any = self._terminated_fn(obs, action, next_obs)  # type: ignore[misc]
        kind = (getattr(found, "dtype", type(found)), tuple(getattr(found, "shape", ())))
        is_mask = kind == (torch.bool, (len(obs),))
        require(is_mask, "dynamics.terminated_fn", f"a function that returns a bool tensor ({len(obs)},)", kind)
        return found  # type: ignore[no-any-return]

    def _lessons(self, transitions: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what the ensemble learns: ``x`` (N, O + A), ``target`` (N, 1 + O) and ``terminated`` (N,)."""
        obs, next_obs, reward = (self._on_device(transitions[name]) for name in ("obs", "next_obs", "reward"))
        action = self.action_bounds.from_env(torch.as_tensor(transitions["action"]).to(self.device))
        terminated = torch.as_tensor(transitions["terminated"]).to(self.device)
        change = torch.as_tensor(transitions["next_obs"]).double() - torch.as_tensor(transitions["obs"]).double()
        target = torch.cat([reward[:, None], change.to(next_obs)], 1)
        return {"x": torch.cat([obs, action.to(obs)], 1), "target": target, "terminated": terminated}

    def _on_device(self, x: Any) -> Tensor:
        return torch.as_tensor(x).to(self.device, self.dynamics.input_mean.dtype)

    def _rows(self, length: int, size: tuple[int, ...]) -> Tensor:
        """Return uniformly drawn indices in [0, length) of a given shape."""
        return torch.from_numpy(self.rng.integers(length, size=size))

    # ------------------------------------------------------------------ state

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"dynamics": self.dynamics.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.dynamics.load_state_dict(state["dynamics"])

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "dynamics_loss", "dynamics_error", "dynamics_epochs"]


def _imported(config: DynamicsConfig) -> TerminatedFn:
    """Return the function ``terminated_fn``; only ``import_names`` are imported, which no file can change."""
    import_modules((rl.gaussian_nll.__module__, *config.import_names))  # the functions of this package, and own ones
    module, _, name = (config.terminated_fn or "").rpartition(".")
    found: Any = getattr(sys.modules.get(module), name, None)
    allowed = "the dotted path of a function in an imported module, or in one of dynamics.import_names"
    require(callable(found), "dynamics.terminated_fn", allowed, config.terminated_fn)
    return found  # type: ignore[no-any-return]


def _joined(real: Tensor, made: Tensor) -> Tensor:
    """Return minibatches (U, B, ...) of a column of the env's transitions and of imagined ones.

    The ensemble predicts fractions also where the env's observations are integers, which then become fractions too.
    """
    keeps_type = real.is_floating_point() or not made.is_floating_point()
    return torch.cat([real, made.to(real if keeps_type else real.device)], 1)


def _mean_and_std(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each column of ``x`` (N, ...) over all ranks."""
    double = x.double()
    total = sum_over_ranks(torch.cat([double.sum(0), double.new_tensor([len(x)])]))
    mean = total[:-1] / total[-1]
    squares = sum_over_ranks((double - mean).square().sum(0))
    return mean.to(x), (squares / total[-1]).sqrt().to(x)
