"""The needs of a policy in its network, and the stand-in until the network can be made."""

from __future__ import annotations

from typing import Any

from torch import nn


class MissingNetwork(nn.Module):
    """Raises an error wherever a policy without a network uses it.

    Args:
        text: The error, which says what is missing.

    Example:
        >>> MissingNetwork("there is no network").compute_actor
        Traceback (most recent call last):
        ...
        AttributeError: there is no network
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise RuntimeError."""
        raise RuntimeError(self.text)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(self.__dict__.get("text", name), name=name, obj=self) from None


def no_network(policy: Any) -> str:
    """Return why a policy has no network, and how it gets one."""
    name = type(policy).__name__
    if not policy.needs_model:
        return f"{name} has no network, because its enable_field is {policy.enable_field}"
    section = policy._model_section()
    missing = " and ".join(f"model.{one}" for one in policy.shape_names if section[one] is None)
    return (
        f"{name} has no spaces: set {missing} in its config, call build(observation_space, action_space), or use a "
        "datamodule that has an env"
    )


def check_network(policy: Any) -> None:
    """Raise if the network of a policy lacks a part that learning uses.

    Raises:
        TypeError: Naming the parts that are needed, and those that are missing.
    """
    needed, model = policy.parts_of_model, policy.model
    missing = [part for part in needed if not hasattr(model, part)]
    if missing:
        allowed = f"have {', '.join(needed)} to learn"
        got = f"a {type(model).__name__} without {', '.join(missing)}"
        raise TypeError(f"the model of {type(policy).__name__} must {allowed}, got {got}")
