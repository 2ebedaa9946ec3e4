"""Saving what envs share: attributes of their classes, variables of modules that their code names, and generators.

Values that have changed since the envs were created are saved, and set again in a resumed run. The generators are those
of Python, numpy and torch in an env process; those of the main process belong to the run.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from lightning_ding.envs.state.codec import from_plain, to_plain
from lightning_ding.envs.state.memo import Coded, Memo, NotPlainError
from lightning_ding.envs.state.origins import Origin, origins
from lightning_ding.envs.state.values import SHARED, fingerprint
from lightning_ding.envs.state.variables import GONE, Variable, Variables

State = dict[str, Any]


def attributes_at_creation(layer: Any) -> list[str] | None:
    """Return the names of the attributes of an env or wrapper when it was created; None if they are not known."""
    origin = origins.get(type(layer))
    return None if origin is None else origin.attributes


def read_surroundings(layers: Iterable[Any], memo: Memo) -> State:
    """Return the values of changed variables, by name, in ``values``, and in ``lost`` those that cannot be saved.

    Must be called before the state of the envs is read with the same memo, because they may refer to the same objects.
    """
    values: State = {}
    lost: list[str] = []
    for kind, origin in _origins_of(layers).items():
        for label, variable in {**origin.variables.all(), **Variables(kind).all()}.items():
            value = variable.value
            if label in values or (value is GONE and label not in origin.fingerprints):
                continue
            if fingerprint(value) != origin.fingerprints.get(label):
                try:
                    values[label] = {"kind": "gone"} if value is GONE else to_plain(value, label, memo)
                except NotPlainError as error:
                    lost.append(str(error))
            elif isinstance(value, SHARED):
                with memo.copies():
                    values[label] = memo.once(value, label, lambda: {"kind": "existing"})
    return {"values": values, "lost": list(dict.fromkeys(lost))}


def load_surroundings(layers: Iterable[Any], state: State, decoded: dict[int, Any]) -> None:
    """Set the variables that ``read_surroundings`` returned, and others to their values at the creation of the envs.

    Variables that these envs do not share are left as they are.

    Raises:
        NotPlainError: If the value of a variable refers to something that does not exist now.
    """
    values = state["values"]
    found: dict[str, Variable] = {}
    for kind, origin in _origins_of(layers).items():
        for label, variable in {**origin.variables.all(), **Variables(kind).all()}.items():
            found[label] = variable
            if label not in origin.fingerprints:
                variable.set(GONE)
            elif fingerprint(variable.value) != origin.fingerprints[label] and label in origin.copies:
                _set(variable, origin.copies[label], {})
        new = {label: origin.variables.find(label) for label in values if label not in found}
        found |= {label: one for label, one in new.items() if one is not None}
    for label, coded in values.items():  # in the order in which they were saved
        if label in found:
            _set(found[label], coded, decoded)


def seed_generators(seed: int) -> None:
    """Seed the generators of this process; that of torch if torch is imported."""
    first, second = np.random.SeedSequence(seed).generate_state(2).tolist()
    random.seed(first)
    np.random.seed(second)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(first)


def read_generators() -> State:
    """Return the states of the generators of this process."""
    version, words, gauss = random.getstate()
    state: State = {"python": [version, np.asarray(words, dtype=np.uint32), gauss]}
    torch = sys.modules.get("torch")
    state |= {"numpy": np.random.get_state(legacy=False)}
    state |= {"torch": None if torch is None else torch.get_rng_state().numpy()}
    return {name: to_plain(one, name) for name, one in state.items()}


def load_generators(state: State) -> None:
    """Restore what ``read_generators`` returned."""
    version, words, gauss = from_plain(state["python"])
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(from_plain(state["numpy"]))
    torch, saved = sys.modules.get("torch"), from_plain(state["torch"])
    if torch is not None and saved is not None:
        torch.set_rng_state(torch.from_numpy(saved))


def _origins_of(layers: Iterable[Any]) -> dict[type, Origin]:
    kinds = dict.fromkeys(type(layer) for layer in layers)
    return {kind: origins[kind] for kind in kinds if kind in origins}


def _set(variable: Variable, coded: Coded, decoded: dict[int, Any]) -> None:
    """Set a variable to an encoded value, in the same object if that is possible."""
    old, kind = variable.value, coded["kind"] if isinstance(coded, dict) else None
    if kind == "gone":
        variable.set(GONE)
        return
    value = from_plain(coded, None if old is GONE else old, variable.label, decoded)
    kept = value if kind == "same" else _refilled(old, value)
    if kind is not None and "number" in coded:
        decoded[coded["number"]] = kept
    if kept is not old:
        variable.set(kept)


def _refilled(old: Any, new: Any) -> Any:
    """Give an object the content of another one, for all that refer to it; return the new one if that is impossible."""
    if old is new or type(old) is not type(new):
        return new
    if isinstance(old, (dict, set)):
        old.clear()
        old.update(new)
    elif isinstance(old, list):
        old[:] = new
    elif isinstance(old, deque) and old.maxlen == new.maxlen:
        old.clear()
        old.extend(new)
    elif isinstance(old, np.ndarray) and (old.shape, old.dtype, old.flags.writeable) == (new.shape, new.dtype, True):
        old[...] = new
    else:
        return new
    return old
