"""An env whose infos hold numbers that are known in advance."""

from __future__ import annotations

from typing import Any

from tests.toys.envs import CountingEnv

WAVE = (3.0, 1.0, 2.0)
"""``info["wave"]`` of the steps of an episode, again and again."""


class InfoEnv(CountingEnv):
    """A counting env that stays in its episode when it is reset before the first step of it, with numbers in its infos.

    ``wave`` is 3, 1, 2 in the steps of an episode, ``number`` the episode, ``laps`` only in the last step of every
    second episode the episode, ``text`` a text, ``broken`` NaN. A reset gives 99 for each, which must not count.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._episode -= self._episode >= 0 and self._step == 0
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"wave": 99.0, "number": 99}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"wave": WAVE[(self._step - 1) % 3], "number": self._episode, "text": "far", "broken": float("nan")}
        if terminated and self._episode % 2 == 0:
            info["laps"] = float(self._episode)
        if terminated:
            info["is_success"] = self._episode % 2 == 1
        return obs, reward, terminated, truncated, info
