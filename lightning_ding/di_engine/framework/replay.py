"""Middleware between collectors and learners: storing, drawing and changing transitions.

A buffer is DI-engine's ``DequeBuffer``, or one of :mod:`lightning_ding.di_engine.worker`, which sums the rewards of n
steps itself. A policy with memory learns from sequences: for it, a ``DequeBuffer`` is the name of a sequence buffer of
the same size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from lightning_ding.config import require
from lightning_ding.di_engine.data import DequeBuffer
from lightning_ding.di_engine.framework.buffer_middleware import PriorityExperienceReplay
from lightning_ding.di_engine.worker import Rows
from lightning_ding.utils.attributes import policy_of
from lightning_ding.worker import NotEnoughError, SequenceReplayBuffer

Middleware = Callable[[Any], Any]
logger = logging.getLogger(__name__)
SUMS = frozenset({"n_step", "discount_factor"})
"""Settings of a policy's buffer that ``nstep_reward_enhancer`` takes over."""
_sequences: WeakKeyDictionary[Any, tuple[Any, dict[str, Any]]] = WeakKeyDictionary()
"""The sequence buffer of a ``DequeBuffer``, and the arguments of its ``sample``."""


# ---------------------------------------------------------------------- storing


def store(buffer_: Any, rows: Sequence[Any], group_by_env: bool = False) -> None:
    """Put transitions into a buffer.

    Args:
        buffer_: The buffer.
        rows: The transitions.
        group_by_env: Note the env of each transition, by which ``sample`` groups them.

    Raises:
        ValueError: If the policy asks for what the buffer does not do, or the rewards were summed for a buffer that
            sums them itself.
    """
    options = getattr(rows, "options", {})
    if not isinstance(buffer_, DequeBuffer):
        is_summed = bool(rows) and "discount" in rows[0]
        require(not is_summed, "nstep_reward_enhancer", "left out with a buffer that sums the rewards", buffer_)
        buffer_.push(rows)
    elif "sequence" in options:
        if buffer_ not in _sequences:
            _sequences[buffer_] = (SequenceReplayBuffer({"replay_buffer_size": buffer_.size}), options)
        _sequences[buffer_][0].push(list(map(dict, rows)))
    else:
        unknown = sorted(options.keys() - SUMS)
        require(not unknown, "buffer", f"one of ding.worker, as the policy asks for {unknown}", "a DequeBuffer")
        is_summed = options.get("n_step", 1) == 1
        require(is_summed, "policy.nstep", "1 without nstep_reward_enhancer before the buffer", options.get("n_step"))
        for row in rows:
            buffer_.push(row, {"env": f"{row.get('env_id')}_{row.get('episode_id')}"} if group_by_env else None)


def data_pusher(cfg: Any, buffer_: Any, group_by_env: bool | None = None) -> Middleware:
    """Return a middleware that moves ``trajectories`` or ``episodes`` into a buffer.

    Args:
        cfg: Config of the run, which is not read.
        buffer_: The buffer.
        group_by_env: Note the env of each transition.
    """

    def push(ctx: Any) -> None:
        if ctx.trajectories is not None:
            store(buffer_, ctx.trajectories, bool(group_by_env))
            ctx.trajectories = None
        elif ctx.episodes is not None:
            for episode in ctx.episodes:
                buffer_.push(episode)
            ctx.episodes = None
        else:
            raise RuntimeError("data_pusher needs ctx.trajectories or ctx.episodes, of a collector before it")

    return push


def sqil_data_pusher(cfg: Any, buffer_: Any, expert: bool) -> Middleware:
    """Return a middleware that moves ``trajectories`` into a buffer with the reward 1 for an expert's, and else 0."""

    def push(ctx: Any) -> None:
        for row in ctx.trajectories:
            row["reward"] = float(expert)
        store(buffer_, ctx.trajectories)
        ctx.trajectories = None

    return push


# ---------------------------------------------------------------------- drawing


def offpolicy_data_fetcher(cfg: Any, buffer_: Any, data_shortage_warning: bool = False) -> Middleware:
    """Return a middleware that draws ``policy.learn.batch_size`` transitions into ``train_data``.

    After the update it gives the priorities of ``train_output`` to the buffer, if the buffer draws by priority. Where
    there are too few transitions, ``train_data`` is None.

    Args:
        cfg: Config of the run.
        buffer_: A buffer; a list of pairs of a buffer and its share of the minibatch; or a dict of buffers, for a dict
            of minibatches.
        data_shortage_warning: Warn where there are too few.
    """
    size = int(cfg.policy.learn.batch_size)

    def fetch(ctx: Any) -> Generator[None]:
        try:
            if isinstance(buffer_, Mapping):
                ctx.train_data = {name: _draw(one, size)[0] for name, one in buffer_.items()}
                return
            if isinstance(buffer_, Sequence):
                ctx.train_data = [row for one, share in buffer_ for row in _draw(one, int(size * share))[0]]
                return
            ctx.train_data, give_back = _draw(buffer_, size)
        except NotEnoughError as error:
            if data_shortage_warning:
                logger.warning(f"no minibatch: {error}")
            ctx.train_data = None
            return
        yield
        output = ctx.train_output[-1] if isinstance(ctx.train_output, list) else ctx.train_output
        if output and output.get("priority") is not None:
            give_back(output["priority"])

    return fetch


def _draw(buffer_: Any, size: int) -> tuple[Any, Callable[[Any], None]]:
    """Return a minibatch, and a function that takes its priorities.

    Raises:
        NotEnoughError: If there are too few transitions.
    """
    if isinstance(buffer_, DequeBuffer) and buffer_ in _sequences:
        sequences, options = _sequences[buffer_]
        return sequences.sample(size, **options), lambda priority: None
    if not isinstance(buffer_, DequeBuffer):
        rows = buffer_.sample(size)
        if rows is None:
            raise NotEnoughError("the buffer has too few transitions")

        def update(priority: Any) -> None:
            ids = {name: [row[name] for row in rows] for name in ("replay_buffer_idx", "replay_unique_id")}
            buffer_.update({**ids, "priority": priority})

        return rows, update if "replay_unique_id" in rows[0] else lambda priority: None
    if buffer_.count() < size:
        raise NotEnoughError(f"the buffer has {buffer_.count()} of {size} transitions")
    entries = buffer_.sample(size)
    by_priority = any(isinstance(one, PriorityExperienceReplay) for one in buffer_.middleware)

    def set_priority(priority: Any) -> None:
        for entry, value in zip(entries if by_priority else [], priority, strict=by_priority):
            buffer_.update(entry.index, None, {**entry.meta, "priority": float(value)})

    return [entry.data for entry in entries], set_priority


def her_data_enhancer(cfg: Any, buffer_: Any, her_reward_model: Any) -> Middleware:
    """Return a middleware that draws episodes and sets ``train_data`` to their transitions with other goals.

    Args:
        cfg: Config of the run; ``policy.learn.batch_size`` is the number of episodes if the reward model names none.
        buffer_: A ``DequeBuffer`` of episodes.
        her_reward_model: A :class:`~lightning_ding.di_engine.reward_model.HerRewardModel`.
    """

    def fetch(ctx: Any) -> None:
        size = her_reward_model.episode_size or int(cfg.policy.learn.batch_size)
        ctx.train_data = None
        if buffer_.count() >= size:
            made = [new for entry in buffer_.sample(size) for new in her_reward_model.estimate(entry.data)]
            ctx.train_data = [row for episode in made for row in episode]

    return fetch


# ---------------------------------------------------------------------- changing


def nstep_reward_enhancer(cfg: Any) -> Middleware:
    """Return a middleware that sums the rewards of ``policy.nstep`` steps of each transition in ``trajectories``.

    ``next_obs``, ``terminated``, ``truncated`` and ``done`` become those of the last step, and ``discount`` is gamma to
    the power of the steps. A window ends with its episode, and where the collection ends. A policy that sums the
    rewards itself, such as R2D2, gets its transitions unchanged.
    """

    def enhance(ctx: Any) -> None:
        rows = ctx.trajectories
        options = dict(getattr(rows, "options", {}))
        n_step = int(options.get("n_step", cfg.policy.get("nstep", 1)))
        if n_step == 1 or "sequence" in options:
            return
        gamma = float(options.get("discount_factor", cfg.policy.get("discount_factor")))
        ctx.trajectories = Rows(_summed(rows, n_step, gamma), {**options, "n_step": 1})

    return enhance


def _summed(rows: Sequence[Any], n_step: int, gamma: float) -> list[Any]:
    """Return transitions with the rewards of n steps; those of an episode are in chronological order and together."""
    made = []
    for place, row in enumerate(rows):
        reward, discount, last = row["reward"], gamma, row
        for following in rows[place + 1 : place + n_step]:
            same = all(following.get(name) == row.get(name) for name in ("env_id", "episode_id"))
            if last["done"] or not same:
                break
            reward, discount, last = reward + discount * following["reward"], discount * gamma, following
        ends = {name: last[name] for name in ("next_obs", "terminated", "truncated", "done") if name in last}
        made.append(type(row)({**row, **ends, "reward": reward, "discount": discount}))
    return made


def gae_estimator(cfg: Any, policy: Any, buffer_: Any = None) -> Middleware:
    """Return a middleware that moves ``trajectories`` into ``train_data``, or into a buffer.

    Policies compute their advantages themselves when they learn, or when they collect if they learn from replay.

    Args:
        cfg: Config of the run.
        policy: Collect mode of the policy.
        buffer_: A buffer; None for ``train_data``.

    Raises:
        ValueError: If the config has another discount factor or lambda than the policy.
    """
    config = getattr(policy_of(policy), "config", None)
    for name in ("discount_factor", "gae_lambda"):
        asked, own = cfg.policy.get("collect", {}).get(name), getattr(config, name, None)
        own = getattr(getattr(config, "collect", None), name, None) if own is None else own
        require(asked is None or own in (None, asked), f"policy.collect.{name}", f"that of the policy, {own}", asked)

    def estimate(ctx: Any) -> None:
        if buffer_ is None:
            ctx.train_data = ctx.trajectories
        else:
            store(buffer_, ctx.trajectories)
        ctx.trajectories = None

    return estimate


def priority_calculator(priority_calculation_fn: Callable[[Any], Any]) -> Middleware:
    """Return a middleware that sets ``priority`` of each of ``trajectories`` by a function of all of them."""

    def calculate(ctx: Any) -> None:
        for row, priority in zip(ctx.trajectories, priority_calculation_fn(ctx.trajectories), strict=True):
            row["priority"] = priority

    return calculate


def reward_estimator(cfg: Any, reward_model: Any) -> Middleware:
    """Return a middleware that lets a reward model replace the rewards of ``train_data``."""

    def estimate(ctx: Any) -> None:
        made = reward_model.estimate(ctx.train_data)
        ctx.train_data = ctx.train_data if made is None else made

    return estimate
