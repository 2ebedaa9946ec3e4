"""A small parallel game of PettingZoo with agents that differ, leave early and have illegal actions.

Nothing here imports pettingzoo: a class with its methods is a parallel env.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

Numbers = dict[str, int]


class Token:
    """An object that the game makes in each episode, and that refers to the game."""

    def __init__(self, game: Any, place: float) -> None:
        self.game, self.place = game, place


class Camp:
    """Agents ``a``, ``b`` and ``c`` see 2, 3 and 1 numbers and have 2, 3 and 4 actions.

    An agent gets its action as reward, plus the place of a token that moves at random. ``leaves`` gives the step, from
    1, in which an agent terminates, and ``cuts`` the one in which it is truncated. Action 0 is illegal in odd steps.

    Args:
        leaves: Steps of terminations, by agent.
        cuts: Steps of truncations, by agent.
        masks: Where masks are: ``"info"``, ``"obs"`` or ``"none"``.
        has_state: Whether there is a state.
        box: Whether actions are a Box, of 2, 3 and 4 dimensions.
        is_strict: Whether an illegal action raises.
        breaks: Step in which the game raises; 0 for none.
        render_mode: ``"rgb_array"``, or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  # as PettingZoo has it
    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    seen: Numbers = {"a": 2, "b": 3, "c": 1}  # noqa: RUF012
    counts: Numbers = {"a": 2, "b": 3, "c": 4}  # noqa: RUF012

    def __init__(
        self,
        leaves: Numbers | None = None,
        cuts: Numbers | None = None,
        masks: str = "info",
        has_state: bool = True,
        box: bool = False,
        is_strict: bool = False,
        breaks: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.leaves, self.cuts = leaves or {}, {"a": 4, "b": 4, "c": 4} if cuts is None else cuts
        self.masks, self.box, self.breaks, self.render_mode = masks, box, breaks, render_mode
        self.has_state, self.is_strict = has_state, is_strict
        self.agents: list[str] = []
        self.actions: list[dict[str, Any]] = []
        self.closed = False

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        own = spaces.Box(-9, 9, (self.seen[agent],), np.float32)
        mask = spaces.MultiBinary(self.counts[agent])
        return spaces.Dict({"observation": own, "action_mask": mask}) if self.masks == "obs" else own

    def action_space(self, agent: str) -> spaces.Space[Any]:
        count = self.counts[agent]
        return spaces.Box(-2, 2, (count,), np.float32) if self.box else spaces.Discrete(count, start=count)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not hasattr(self, "rng"):
            self.rng, _ = seeding.np_random(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.token = Token(self, float(self.rng.uniform()))
        return self._seen(self.agents), self._infos(self.agents)

    def step(self, actions: dict[str, Any]) -> Any:
        assert list(actions) == self.agents
        if self.is_strict:
            assert all(self._mask(one)[move - self.counts[one]] for one, move in actions.items())
        self.steps += 1
        if self.steps == self.breaks:
            raise ArithmeticError("it broke")
        self.actions.append(actions)
        self.token.place = float(self.rng.uniform())
        acted = list(self.agents)
        amounts = {one: float(np.sum(move)) - (0 if self.box else self.counts[one]) for one, move in actions.items()}
        rewards = {one: amount + self.token.place for one, amount in amounts.items()}
        ends = {one: self.leaves.get(one) == self.steps for one in acted}
        cuts = {one: self.cuts.get(one) == self.steps for one in acted}
        self.agents = [one for one in acted if not (ends[one] or cuts[one])]
        return self._seen(acted), rewards, ends, cuts, self._infos(acted)

    def state(self) -> Any:
        if not self.has_state:
            raise NotImplementedError
        return np.array([self.steps, self.token.place], np.float64)

    def render(self) -> Any:
        return np.full((16, 16, 3), 40 * self.steps, np.uint8)

    def close(self) -> None:
        self.closed = True

    def _mask(self, agent: str) -> Any:
        return np.array([self.steps % 2 == 0, *[True] * (self.counts[agent] - 1)], np.int8)

    def _seen(self, agents: list[str]) -> dict[str, Any]:
        own = {one: np.full(self.seen[one], 1 + self.steps + self.token.place, np.float32) for one in agents}
        if self.masks != "obs":
            return own
        return {one: {"observation": seen, "action_mask": self._mask(one)} for one, seen in own.items()}

    def _infos(self, agents: list[str]) -> dict[str, Any]:
        return {one: {"action_mask": self._mask(one)} if self.masks == "info" else {} for one in agents}


def parallel_env(**kwargs: Any) -> Camp:
    """Return the game, as the modules of PettingZoo do."""
    return Camp(**kwargs)
