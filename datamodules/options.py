"""The options of a datamodule that are read once, when it is made."""

from __future__ import annotations

from typing import Any

FIXED = frozenset(
    {
        *("env_id", "mode", "wrappers", "env_kwargs", "env_timeout", "train_wrappers", "eval_wrappers", "eval_env_id"),
        *("eval_env_kwargs", "import_names", "info_keys", "monitor", "eval_every", "checkpoint_every"),
        *("norm_obs", "norm_reward", "demonstrations"),
    }
)
"""Options that are checked or translated by the constructor, so that a later value would have no effect or only half
of it. Others, such as ``max_env_step``, may be set between two fits."""
NOT_KEPT = frozenset({"demonstrations"})
"""Those of them that are no attributes."""


class FixedOptions:
    """Refuses to set an option that is read once, instead of ignoring it."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises:
            AttributeError: For an option that only the constructor takes.
        """
        if name in FIXED and (name in vars(self) or name in NOT_KEPT):
            raise AttributeError(
                f"{name} cannot be set later: pass it to the constructor of a new {type(self).__name__}"
            )
        super().__setattr__(name, value)
