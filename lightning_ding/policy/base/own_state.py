"""The state that a subclass of a policy keeps in attributes: generators, tensors, counters and helper objects.

Parameters, buffers, optimizers and the attributes of this package's classes are saved elsewhere. Of the others, and of
those of networks that are not from this package or torch, a checkpoint holds the ones that have changed since the
policy was made. A constant that the code changes between two runs therefore has its new value in the second one.

A file that is loaded sets nothing else: neither the attributes of this package's classes, such as the config, nor
objects that they hold.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from lightning.pytorch import LightningModule
from torch import nn

from lightning_ding.policy.base.trainer import attached_trainer

if TYPE_CHECKING:
    from lightning_ding.policy.base.attribute_codec import Coded

PACKAGES = ("lightning_ding", "lightning", "pytorch_lightning", "torch", "torchmetrics", "builtins", "typing")
"""Packages whose classes keep their state in parameters and buffers, or save it themselves."""


class OwnState:
    """The state that subclasses and networks of a user keep in attributes of a policy.

    Args:
        policy: The policy, a :class:`Policy`.
    """

    def __init__(self, policy: Any) -> None:
        self.saved_config: dict[str, Any] = {}
        """The policy's config in the checkpoint that was loaded last; empty without one."""
        self._policy = policy
        self._made: dict[str, bytes] | None = None  # digests of the attributes that the constructor and hooks made
        self._restored: set[str] = set()
        self._loaded: Mapping[str, Any] | None = None

    def begin(self) -> None:
        """Take note of the attributes that the code has made, once, before training or a checkpoint changes them."""
        if self._made is None:
            coded, _ = self._encode()
            self._made = _digests(coded) if coded else {}

    def missing(self) -> list[str]:
        """Return descriptions of attributes that a checkpoint cannot contain."""
        return self._encode()[1]

    def state(self, whole: bool = False) -> dict[str, Any]:
        """Return the attributes that have changed, as tensors and builtins, and what cannot be saved.

        Args:
            whole: Whether to return the attributes that have not changed, too, with their names in ``unchanged``. If
                another state was loaded before, in which they have changed, :meth:`load` undoes that.
        """
        from lightning_ding.policy.base.attribute_codec import shared_with

        coded, missing = self._encode()
        made, now = self._made or {}, _digests(coded)
        needed = {name for one in coded.values() for name in shared_with(one)} | self._restored
        changed = {name for name in coded if name in needed or made.get(name) != now[name]}
        kept = coded if whole else {name: one for name, one in coded.items() if name in changed}
        deleted = [name for name in made if name not in self._attributes()]
        state = {"attributes": kept, "deleted": deleted, "missing": missing}
        return {**state, "unchanged": sorted(kept.keys() - changed)} if whole else state

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore what ``state`` returned, and keep it for :meth:`restore`; None, of an older version, is ignored."""
        self.begin()
        if state is not None:
            left_out = set(state.get("unchanged", ())) - self._restored
            kept = {name: one for name, one in state["attributes"].items() if name not in left_out}
            state = {**state, "attributes": kept}
        self._loaded = state
        self.restore()

    def restore(self) -> list[str]:
        """Restore the loaded attributes, which hooks at the start of a fit may have set, until :meth:`forget`.

        Returns:
            Descriptions of the attributes that could not be restored, or were not saved.
        """
        if self._loaded is None:
            return []
        from lightning_ding.policy.base.attribute_codec import Decoder, NotSavedError

        missing, decoder = list(self._loaded["missing"]), Decoder(self._policy.device, self._known())
        for key, coded in self._loaded["attributes"].items():
            try:
                owner, name = self._place_of(key)
                value = decoder.decode(coded, vars(owner).get(name), self._described(key))
            except (AttributeError, NotSavedError) as error:
                missing.append(str(error))
                continue
            self._restored.add(key)
            if value is not vars(owner).get(name):
                object.__setattr__(owner, name, value)
        for key in self._loaded["deleted"]:
            with suppress(AttributeError, NotSavedError):
                owner, name = self._place_of(key)
                vars(owner).pop(name, None)
        return missing

    def forget(self) -> None:
        """Forget the loaded attributes, from when training changes them."""
        self._loaded = None

    def _encode(self) -> tuple[dict[str, Coded], list[str]]:
        """Return the attributes that can be saved, by name, and descriptions of the others."""
        attributes = self._attributes()
        if not attributes:  # as of a policy of this package
            return {}, []
        from lightning_ding.policy.base.attribute_codec import EXISTING, Encoder, NotSavedError

        encoder, coded, missing = Encoder(self._known()), {}, []
        for key, value in attributes.items():
            try:
                one = encoder.encode_attribute(key, value, self._described(key))
            except NotSavedError as error:
                missing.append(str(error))
                continue
            if one is not EXISTING:
                coded[key] = one
        return coded, missing

    def _attributes(self) -> dict[str, Any]:
        """Return the attributes of the user's classes: ``:name`` of the policy, ``path:name`` of a network."""
        found: dict[str, Any] = {}
        for path, module in self._policy.named_modules():
            if module is self._policy or not _is_of_package(type(module)):
                others = self._others_of(module)
                for name, value in vars(module).items():
                    if name not in others:
                        found[f"{path}:{name}"] = value
        return found

    def _others_of(self, module: nn.Module) -> frozenset[str]:
        """Return the names of attributes of the policy or of a network that are not those of the user's classes."""
        if module is not self._policy:
            return names_of_modules()
        names, memory = names_of_package(cast(Hashable, type(module))), cast(Any, module).new_memory
        if _is_of_package(memory):  # collect_memory saves it
            names = names.union(memory("collect"), memory("eval"))
        return names

    def _place_of(self, key: str) -> tuple[nn.Module, str]:
        """Return the policy or the network that an attribute in a file belongs to, and the name of the attribute.

        Raises:
            AttributeError: If there is no such network.
            NotSavedError: If the attribute is not one of the user's classes.
        """
        from lightning_ding.policy.base.attribute_codec import NotSavedError

        path, _, name = key.rpartition(":")
        owner: nn.Module = self._policy.get_submodule(path)
        is_own = owner is self._policy or not _is_of_package(type(owner))
        member = getattr(type(owner), name, None)
        hides_code = callable(member) or isinstance(member, property)
        if not is_own or name in self._others_of(owner) or hides_code:
            raise NotSavedError(f"{self._described(key)} is no attribute that a checkpoint may set")
        return owner, name

    def _known(self) -> list[Any]:
        """Return objects whose state is saved elsewhere, which attributes may refer to."""
        policy, names = self._policy, names_of_package(cast(Hashable, type(self._policy)))
        others = [value for name, value in vars(policy).items() if name in names]
        mutable = [one for one in others if not isinstance(one, (type(None), bool, int, float, str, tuple))]
        optimizers = [*policy.updater.optimizers, *policy.updater.made[0], *policy.updater.schedulers]
        trainer = attached_trainer(policy)
        of_run = [trainer, getattr(trainer, "datamodule", None)]
        of_run += [*getattr(trainer, "callbacks", ()), *getattr(trainer, "loggers", ())]
        return [*policy.modules(), *policy.parameters(), *policy.buffers(), *optimizers, *mutable, *of_run]

    def _described(self, key: str) -> str:
        path, _, name = key.rpartition(":")
        return f"{type(self._policy).__name__}.{path}{'.' if path else ''}{name}"


def _is_of_package(code: Any) -> bool:
    """Return whether a class or function is one of this package, Lightning or torch."""
    return str(code.__module__).partition(".")[0] in PACKAGES


def _digests(coded: Mapping[str, Coded]) -> dict[str, bytes]:
    from lightning_ding.policy.base.attribute_codec import digest

    return {name: digest(one) for name, one in coded.items()}


@functools.cache
def names_of_modules() -> frozenset[str]:
    """Return the attributes of every network, which torch makes."""
    return frozenset(vars(nn.Module()))


@functools.cache
def names_of_package(kind: type) -> frozenset[str]:
    """Return the attributes of a policy of some class that methods of this package, Lightning and torch assign."""
    found = set(vars(LightningModule())) | {"_hparams_initial", "_hparams_name"}  # set by a function of Lightning
    for base in kind.__mro__:
        if _is_of_package(base):
            for member in vars(base).values():
                function = member.fset if isinstance(member, property) else getattr(member, "__func__", member)
                if inspect.isfunction(function):
                    found |= _assigned(inspect.unwrap(function).__code__)
    return frozenset(found)


@functools.cache
def _assigned(code: types.CodeType) -> frozenset[str]:
    """Return the names of the attributes that a function assigns, of any object."""
    assigns = dis.opmap["STORE_ATTR"] in code.co_code[::2]  # to disassemble every function takes long
    found = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"} if assigns else set()
    return frozenset(found.union(*(_assigned(one) for one in code.co_consts if isinstance(one, types.CodeType))))
