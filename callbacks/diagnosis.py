"""Symptoms of a run that does not learn, found in its metrics: what is wrong, the evidence, and where to read on.

A symptom is a function of the metrics and of the facts of a run, so a running Trainer and the command ``doctor``, which
reads files, find the same. Thresholds are wide: a run that learns has none of these symptoms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lightning_ding.utils.run_facts import Facts

Row = Mapping[str, float]
"""Metrics that were written at the same time, by name, such as ``learn/grad_norm``."""
PAGE = "docs/guides/not_learning.md"
"""The page whose sections are named like the symptoms."""
HEAVY = 0.2  # weight of the entropy that competes with standardised advantages
FEW_STEPS = 10_000  # until which a healthy actor may still be random
EARLY = 0.2  # share of the budget until which a run may not have seen much
LATE = 0.6  # share of the budget from which a run should have learned something


class Symptom(NamedTuple):
    """Something that a run that learns does not have."""

    name: str
    """Name of the symptom, and of its section in the page."""
    evidence: str
    """The measured value, and the usual one."""

    @property
    def page(self) -> str:
        """The section to read."""
        return f"{PAGE}#{self.name.replace('_', '-')}"

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}; see {self.page}"


class Seen(NamedTuple):
    """The metrics so far."""

    row: Row
    """The newest value of each metric."""
    largest_reward: float
    """Largest size of a reward so far; 0 if there was none."""
    progress: float
    """Share of the budget that is used up; NaN without a budget, which is neither early nor late."""
    returns: tuple[float, float]
    """Returns of the worst and of the best evaluation so far."""

    def get(self, name: str) -> float | None:
        """Return a metric if it was written and is finite."""
        value = self.row.get(name)
        return value if value is not None and math.isfinite(value) else None

    def all(self, *names: str) -> list[float] | None:
        """Return several metrics if all of them were written and are finite."""
        found: list[Any] = list(map(self.get, names))
        return None if None in found else found


# ---------------------------------------------------------------------- symptoms: the evidence, or None


def constant_observations(seen: Seen, facts: Facts) -> str | None:
    """No entry of an observation differs between the transitions of a round."""
    changing = seen.get("learn/obs_changing")
    if changing is None or changing > 0:
        return None
    return "no entry of the observations changes (learn/obs_changing 0), so all states look the same"


def large_steps(seen: Seen, facts: Facts) -> str | None:
    """The learning rate is about as large as the weights."""
    rate = facts.learning_rate
    if rate is None or rate <= 0.05:
        return None
    return f"the learning rate is {rate:g}: an update changes each weight by about that much; 1e-4 to 3e-3 is usual"


def values_out_of_reach(seen: Seen, facts: Facts) -> str | None:
    """The values are larger than the sum of the largest rewards."""
    values = seen.all("learn/value_mean", "learn/value_std")
    if values is None or facts.horizon is None or seen.largest_reward == 0:
        return None
    entropy = abs(seen.get("learn/alpha") or 0.0) * abs(seen.get("learn/log_prob") or 0.0)
    bound = (seen.largest_reward + facts.bonus + entropy) * facts.horizon
    bound = max(bound, abs(seen.get("collect/return_mean") or 0.0))
    size = abs(values[0]) + values[1]
    if size <= 3 * bound:
        return None
    return (
        f"values are about {size:.3g} (learn/value_mean, learn/value_std), and rewards of at most "
        f"{seen.largest_reward:.3g} with discount factor {facts.discount_factor:g} allow {bound:.3g}"
    )


def rewards_too_small(seen: Seen, facts: Facts) -> str | None:
    """Rewards vanish against the values and errors of a new network."""
    is_early = seen.progress < EARLY  # the first large reward may be rare
    if facts.normalises_rewards or is_early or not 0 < seen.largest_reward < 1e-2:
        return None
    return (
        f"no reward was larger than {seen.largest_reward:.3g} (learn/reward_abs_max), which vanishes against the "
        "values of a new network, about 0.1"
    )


def rewards_too_large(seen: Seen, facts: Facts) -> str | None:
    """Rewards are far larger than what a network outputs."""
    rewards = seen.all("learn/reward_mean", "learn/reward_std")
    if facts.normalises_rewards or facts.scales_values or rewards is None or math.hypot(*rewards) <= 100:
        return None
    return (
        f"rewards are about {math.hypot(*rewards):.3g} (learn/reward_mean, learn/reward_std), far more than the "
        "outputs of a new network, about 0.1"
    )


def random_actor(seen: Seen, facts: Facts) -> str | None:
    """The actor still acts at random after most of the budget."""
    share, spread = seen.get("learn/entropy_share"), seen.get("learn/action_std")
    if not seen.progress >= LATE or facts.entropy_is_chosen or (seen.get("step") or 0) < FEW_STEPS:
        return None
    used = f"after {100 * seen.progress:.0f} % of the budget"
    is_heavy = facts.entropy_weight > HEAVY
    if share is not None and share > (0.9 if is_heavy else 0.97):
        cause = (
            f", and the entropy weighs {facts.entropy_weight:g} in the loss; at most 0.01 is usual" if is_heavy else ""
        )
        return f"the actor has {100 * share:.1f} % of the largest entropy (learn/entropy_share) {used}{cause}"
    if spread is not None and spread > 3:
        return f"actions have a standard deviation of {spread:.3g} half ranges (learn/action_std) {used}"
    return None


def greedy_worse_than_collected(seen: Seen, facts: Facts) -> str | None:
    """Evaluations have far lower returns than the exploring policy."""
    returns = seen.all("eval/return_mean", "collect/return_mean")
    if returns is None or not seen.progress >= LATE or facts.changes_rewards:
        return None
    greedy, collected = returns
    if collected - greedy <= 0.5 * max(abs(greedy), abs(collected)):
        return None
    return (
        f"evaluations return {greedy:.4g} and collecting {collected:.4g} (eval/return_mean, collect/return_mean): the "
        "greedy policy is far worse than the exploring one"
    )


def lost_policy(seen: Seen, facts: Facts) -> str | None:
    """After most of the budget, evaluations are a third of their range below the best one."""
    score, spread, (worst, best) = seen.get("eval/return_mean"), seen.get("learn/action_std"), seen.returns
    is_noise = best - worst < 0.5 * max(abs(best), abs(worst))
    if score is None or not seen.progress >= LATE or is_noise or best - score <= (best - worst) / 3:
        return None
    cause = f", and actions have a standard deviation of {spread:.3g} half ranges" if spread and spread < 0.03 else ""
    return f"evaluations return {score:.4g}, and returned {best:.4g} before (eval/return_mean){cause}"


def saturated_actions(seen: Seen, facts: Facts) -> str | None:
    """The actor gives the same action at an end of the range in all states."""
    found = seen.all("learn/saturated_actions", "learn/action_spread")
    if found is None or found[0] < 0.95 or found[1] > 0.05:
        return None
    return (
        f"{100 * found[0]:.0f} % of the greedy actions are at an end of the range, and the same in all states "
        "(learn/saturated_actions, learn/action_spread): the tanh of the actor has no gradient there"
    )


def dead_units(seen: Seen, facts: Facts) -> str | None:
    """Nearly all units of a layer of the network that acts are constant."""
    share = seen.get("learn/dead_units")
    if share is None or share < 0.98:
        return None
    return (
        f"{100 * share:.0f} % of the units of a layer of the network that acts have the same output for all "
        "observations (learn/dead_units)"
    )


def endless_episodes(seen: Seen, facts: Facts) -> str | None:
    """No episode has ended."""
    episodes, envs = seen.get("progress/episode"), facts.num_envs
    steps = seen.get("step")
    if episodes is None or episodes > 0 or steps is None or envs is None or facts.axis != "env_step":
        return None
    if steps / envs < max(5_000, 1.5 * (facts.time_limit or 0)):
        return None
    return f"no episode has ended in {steps / envs:.0f} env steps of each env (progress/episode 0)"


def short_time_limit(seen: Seen, facts: Facts) -> str | None:
    """Episodes are cut after less than 500 env steps, and before the rewards that the discount counts."""
    limit, horizon, length = facts.time_limit, facts.horizon, seen.get("collect/length_mean")
    if limit is None or horizon is None or length is None or limit >= min(0.9 * horizon, 500) or length < 0.9 * limit:
        return None
    return (
        f"a time limit cuts the episodes after {limit} env steps, and the discount factor {facts.discount_factor:g} "
        f"looks {horizon:.0f} steps ahead: values depend on states that are never visited"
    )


def short_horizon(seen: Seen, facts: Facts) -> str | None:
    """The discount hides what happens later in an episode."""
    horizon, length = facts.horizon, seen.get("collect/length_mean")
    if horizon is None or length is None or horizon >= 5 or length <= 3 * horizon:
        return None
    return (
        f"the discount factor {facts.discount_factor:g} looks {horizon:.1f} steps ahead, and episodes have "
        f"{length:.0f} steps (collect/length_mean): what happens later does not count"
    )


def jumping_policy(seen: Seen, facts: Facts) -> str | None:
    """The policy is another one after each rollout."""
    moved = seen.get("learn/approx_kl")
    if moved is None or moved <= 1:
        return None
    return f"the policy moves by {moved:.3g} nats in a round (learn/approx_kl); 0.003 to 0.05 is usual"


class Check(NamedTuple):
    """A symptom, and in how many rows one after another it has to be found."""

    find: Callable[[Seen, Facts], str | None]
    rows: int
    needs: tuple[str, ...] = ()
    """Metrics of which a row must have one to count; empty counts all rows."""


CHECKS = (
    Check(constant_observations, 1, ("learn/obs_changing",)),
    Check(large_steps, 1),
    Check(short_horizon, 1, ("collect/length_mean",)),
    Check(rewards_too_small, 1, ("learn/reward_abs_max",)),
    Check(rewards_too_large, 2, ("learn/reward_mean",)),
    Check(values_out_of_reach, 2, ("learn/value_mean",)),
    Check(jumping_policy, 3, ("learn/approx_kl",)),
    Check(random_actor, 2, ("learn/entropy_share", "learn/action_std")),
    Check(saturated_actions, 2, ("learn/saturated_actions",)),
    Check(dead_units, 2, ("learn/dead_units",)),
    Check(greedy_worse_than_collected, 5, ("eval/return_mean",)),
    Check(lost_policy, 5, ("eval/return_mean",)),
    Check(endless_episodes, 1, ("progress/episode",)),
    Check(short_time_limit, 3, ("collect/length_mean",)),
)
"""All symptoms, the most likely cause first."""


@dataclass
class Diagnosis:
    """Looks at the rows of a run in turn, and finds each symptom once."""

    facts: Facts
    found: dict[str, str] = field(default_factory=dict)
    """Evidence of each symptom that was found, by name."""
    last_row: dict[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    _in_a_row: dict[str, int] = field(default_factory=dict)
    _largest_reward: float = 0.0
    _returns: tuple[float, float] = (math.inf, -math.inf)

    def see(self, row: Row) -> list[Symptom]:
        """Return the symptoms that are new with a row."""
        self.last_row.update(row)
        size = row.get("learn/reward_abs_max", 0.0)
        if math.isfinite(size):
            self._largest_reward = max(self._largest_reward, size)
        if math.isfinite(score := row.get("eval/return_mean", math.nan)):
            self._returns = (min(self._returns[0], score), max(self._returns[1], score))
        position, budget = self.last_row.get("step"), self.facts.budget
        progress = math.nan if position is None or not budget else position / budget
        seen, new = Seen(self.last_row, self._largest_reward, progress, self._returns), []
        for check in CHECKS:
            name = check.find.__name__
            if name in self.found or (check.needs and row.keys().isdisjoint(check.needs)):
                continue
            evidence = check.find(seen, self.facts)
            self._in_a_row[name] = 0 if evidence is None else self._in_a_row.get(name, 0) + 1
            if evidence is not None and self._in_a_row[name] >= check.rows:
                self.found[name] = evidence
                new.append(Symptom(name, evidence))
        return new

    def state_dict(self) -> dict[str, Any]:
        """Return what was found, and what later rows are compared with."""
        counts = {"in_a_row": dict(self._in_a_row), "largest_reward": self._largest_reward, "returns": self._returns}
        return {"found": dict(self.found), "last_row": dict(self.last_row), **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was called."""
        self.found, self.last_row = dict(state["found"]), dict(state["last_row"])
        self._in_a_row, self._largest_reward = dict(state["in_a_row"]), state["largest_reward"]
        self._returns = tuple(state.get("returns", self._returns))
