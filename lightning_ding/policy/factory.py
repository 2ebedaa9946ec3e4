"""Policies by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_ding.policy.base.policy import Policy
from lightning_ding.registry import POLICY_REGISTRY, import_modules


def create_policy(cfg: Mapping[str, Any], **kwargs: Any) -> Policy[Any]:
    """Return the policy that ``cfg`` describes.

    Args:
        cfg: ``type``, a registered name (a trailing ``_command`` is allowed and means nothing here); optional
            ``import_names``, modules to import first; everything else is the policy's config.
        kwargs: Further arguments of the policy: ``model``, ``enable_field``.

    Raises:
        KeyError: If the type is missing or not registered.

    Example:
        >>> create_policy({"type": "dqn", "nstep": 3}).config.nstep
        3
    """
    policy_class = get_policy_cls(cfg)
    config = {key: value for key, value in cfg.items() if key not in ("type", "import_names")}
    return policy_class(config, **kwargs)


def get_policy_cls(cfg: Mapping[str, Any]) -> type[Policy[Any]]:
    """Return the class of the policy that ``cfg`` describes.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    import_modules(cfg.get("import_names", ()))
    if "type" not in cfg:
        raise KeyError(f"a policy config needs a 'type', one of {list(POLICY_REGISTRY)}; got the keys {sorted(cfg)}")
    name = str(cfg["type"])
    found: type[Policy[Any]] = POLICY_REGISTRY.get(name if name in POLICY_REGISTRY else name.removesuffix("_command"))
    return found
