"""The typed attributes of a policy that gives them by name alone, with ``get_attribute``."""

from __future__ import annotations

from typing import Any

from lightning_ding.utils.attributes import PolicyAttributes
from lightning_ding.utils.modes import is_unknown_attribute

DEFAULTS: dict[str, Any] = {
    "acts_on_reward": False,
    "batch_forward": None,
    "collect_data": True,
    "device": None,
    "has_memory": False,
    "keeps_double": False,
    "keeps_noise": False,
    "module": None,
    "n_episode": None,
    "n_sample": None,
    "on_policy": False,
    "progress": None,
    "sample_options": {},
    "unroll_len": 1,
}
"""Values where a policy does not have an attribute; the others are needed."""
OURS = ("acts_on_reward", "keeps_double")
"""Attributes that only policies of this package have, so that no error of another one matters."""


class ByName(PolicyAttributes):
    """The attributes of the policy of a mode.

    Args:
        mode: An object with ``get_attribute``.
    """

    config = None

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.get_attribute = getattr(mode, "get_attribute", None)

    def read(self, name: str) -> Any:
        """Return an attribute of the policy, or its default.

        Raises:
            NotImplementedError: If there is neither; or the KeyError that the policy raises then.
        """
        try:
            return self.mode.get_attribute(name)
        except (NotImplementedError, KeyError, AttributeError) as error:
            is_unknown = not isinstance(error, AttributeError) and is_unknown_attribute(error, name)
            if name in OURS or (is_unknown and name in DEFAULTS):
                return DEFAULTS[name]
            raise


for _name in (*DEFAULTS, "batch_size"):
    setattr(ByName, _name, property(lambda self, name=_name: self.read(name)))
