"""The config section ``reward_model`` that every policy has; each reward model extends it in its own file.

This module is below policies and reward models: a policy finds its reward model by name in the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lightning_ding.config import require, require_type, to_dict, type_hints, without_defaults
from lightning_ding.registry import REWARD_MODEL_REGISTRY, import_modules


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig:
    """Keys of every reward model."""

    type: str | None = None
    """Registered name of the reward model: rnd, icm, gail, trex, drex, guided_cost, red, pdeil, pwil or your own;
    None learns from the rewards of the env."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, which register further reward models."""
    learning_rate: float = 1e-3
    """Step size of the reward model's Adam, > 0."""
    batch_size: int = 64
    """Transitions of each of its minibatches on each rank, >= 1."""
    update_per_collect: int | None = None
    """Its updates after each collection, >= 1; None makes as many as it takes to learn from each collected transition
    once, as soon as there are enough of them for a minibatch. Those of trex, drex and red are before the policy's
    first update, and None makes one pass through what they learn from."""
    hidden_size_list: Sequence[int] | None = None
    """Widths of its layers; None means 128, 128, 64, or the default of an encoder of images."""
    clear_buffer_per_iters: int = 1
    """Rounds with updates after which the collected transitions that it learns from are discarded, >= 1."""

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "reward_model.learning_rate", "> 0", self.learning_rate)
        for name in ("batch_size", "clear_buffer_per_iters"):
            require(getattr(self, name) >= 1, f"reward_model.{name}", ">= 1", getattr(self, name))
        updates = self.update_per_collect
        require(updates is None or updates >= 1, "reward_model.update_per_collect", ">= 1 or None", updates)
        sizes = self.hidden_size_list
        require(sizes is None or len(sizes) >= 1, "reward_model.hidden_size_list", "None or at least one width", sizes)
        if self.type is None:
            for field in [one for one in fields(self) if one.name != "type"]:
                value, default = getattr(self, field.name), field.default
                value = tuple(value) if isinstance(value, list) else value  # as it is read from a file
                allowed = f"left at its default ({default!r}) without reward_model.type"
                require(value == default, f"reward_model.{field.name}", allowed, value)

    def refuse(self, where: str) -> None:
        """Raise if there is a reward model, for a datamodule ``where`` it has no effect because it does not collect.

        Raises:
            ValueError: Naming the datamodules that have one.
        """
        allowed = f"None in a {where}; a ReplayDataModule or a RolloutDataModule trains it"
        require(self.type is None, "reward_model.type", allowed, self.type)

    @classmethod
    def for_section(cls, section: Mapping[str, Any], path: str) -> tuple[Any, Mapping[str, Any]]:
        """Return the config class of the reward model that a section's ``type`` names, and the section's keys for it.

        Args:
            section: Keys and values.
            path: Start of the section's keys in error messages, such as ``"reward_model."``.

        Raises:
            KeyError: If no reward model of this type is registered.
            ValueError: If a key of another reward model is not at its default.
            TypeError: If a value has the wrong type.
        """
        shared = {one.name for one in fields(RewardModelConfig)}
        selection = {"type": cls.type, "import_names": (), **section}
        for key in ("type", "import_names"):
            require_type(f"{path}{key}", selection[key], type_hints(cls)[key])
        if selection["type"] is None and section.keys() <= shared:
            return RewardModelConfig, section
        import_modules(selection["import_names"])
        name = selection["type"]
        chosen: Any = RewardModelConfig if name is None else REWARD_MODEL_REGISTRY.get(name).config_class
        own = {one.name for one in fields(chosen)}
        kept = without_defaults(section, own, cls.variants())
        for key in [key for key in kept if key not in own]:
            owner = next((one for one in cls.variants() if key in to_dict(one())), None)
            if owner is not None:  # otherwise it is an unknown key, which raises later
                keys = ", ".join(sorted(own - {"type", "import_names"}))
                raise ValueError(
                    f"config key '{path}{key}' does nothing with reward_model.type {name!r}, got {kept[key]!r}; its "
                    f"keys: {keys}"
                )
        return chosen, kept

    @staticmethod
    def variants() -> set[Any]:
        """Return the config classes of all registered reward models."""
        return set(REWARD_MODEL_REGISTRY.config_classes())
