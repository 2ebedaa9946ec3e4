"""How the observations of a model of Stable-Baselines3 reach its first layers, and what differs here.

There, images with bytes up to 255 are divided by 255, all else that is no image is flattened as it is, and the entries
of a dict are joined in the order of the space. Here bytes that are no image are scaled too, and entries are in
alphabetical order. The first layers of a translated network make up for that.

Shapes: F features of an observation, that is, the inputs of the first layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding.config import require

BYTE = 255


class FeatureEntry(NamedTuple):
    """An entry of an observation; the only one of an observation that is no dict has the name "" ."""

    name: str
    is_image: bool
    """Whether convolutions encode it."""
    size: int
    """Number of its features; of an image, of its encoder's."""
    factor: float
    """Factor of the weights of its first layer."""


class Features(NamedTuple):
    """The inputs of a network's first layers."""

    entries: tuple[FeatureEntry, ...]
    """In the order of the model."""
    obs_shape: Any
    """``model.obs_shape`` for the config; None takes it from the env."""
    only_entry: str = ""
    """Name here of an observation that is no dict there, and one here; "" for none."""

    @property
    def images(self) -> list[FeatureEntry]:
        """The entries that convolutions encode."""
        return [entry for entry in self.entries if entry.is_image]

    def columns(self) -> tuple[Tensor, Tensor]:
        """Return the index of each feature there, in the order here, and its factor, shapes (F,)."""
        starts = dict(zip([entry.name for entry in self.entries], _starts(self.entries), strict=True))
        parts = [(starts[entry.name], entry) for entry in sorted(self.entries)]
        index = [start + place for start, entry in parts for place in range(entry.size)]
        factors = [1.0 if entry.is_image else entry.factor for _, entry in parts for _ in range(entry.size)]
        return torch.tensor(index), torch.tensor(factors)


def _starts(entries: tuple[FeatureEntry, ...]) -> Iterator[int]:
    place = 0
    for entry in entries:
        yield place
        place += entry.size


def features_of(
    space: spaces.Space[Any], shape: Any, image_features: Mapping[str, int], scales_images: bool
) -> Features:
    """Return how the observations of a space reach the first layers.

    Args:
        space: The observation space of the model.
        shape: The ``model.obs_shape`` of the space here.
        image_features: Number of features of the entries that convolutions encode there.
        scales_images: ``normalize_images`` of the model's policy.

    Raises:
        ValueError: If an entry is encoded in another way here, whatever the config says.
    """
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
    shapes = shape if isinstance(space, spaces.Dict) else {"": shape}
    entries, overridden = [], {}
    for name, part in parts.items():
        of_image = image_features.get(name)
        entry, own = _entry(name, part, shapes[name], of_image, scales_images)
        entries.append(entry)
        overridden[name] = shapes[name] if own is None else own
    if overridden == dict(shapes):
        return Features(tuple(entries), None)
    return Features(tuple(entries), overridden if isinstance(space, spaces.Dict) else overridden[""])


def _entry(
    name: str, space: spaces.Space[Any], shape: Any, of_image: int | None, scales_images: bool
) -> tuple[FeatureEntry, int | None]:
    """Return an entry, and its shape if it differs from the one here."""
    divisor_there = BYTE if scales_images and _is_image(space) else 1
    is_described = isinstance(shape, Mapping)
    if of_image is not None:
        what = f"the image {name!r} of the observation space" if name else "the observation space"
        require(not is_described, what, "an image of bytes up to 255, or of floats", space)
        divisor_here = BYTE if space.dtype == np.uint8 else 1
        return FeatureEntry(name, True, of_image, divisor_here / divisor_there), None
    what = f"the entry {name!r} of the observation space" if name else "the observation space"
    allowed = "made of Box, Discrete, MultiDiscrete and MultiBinary, without bytes in two axes, which are an image here"
    is_plane = is_described and len(shape.get("shape", ())) > 1
    require(not is_plane and not isinstance(space, (spaces.Dict, spaces.Tuple)), what, allowed, space)
    if isinstance(space, spaces.Discrete):
        return FeatureEntry(name, False, int(space.n), 1.0), None
    if isinstance(space, spaces.MultiDiscrete):
        return FeatureEntry(name, False, int(space.nvec.sum()), 1.0), None
    size = math.prod(space.shape or ())
    divisor_here = shape.get("high", BYTE) if is_described else 1
    flat = None if is_described or isinstance(shape, int) else size
    return FeatureEntry(name, False, size, divisor_here / divisor_there), flat


def _is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a space is an image to Stable-Baselines3: three axes of bytes from 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype != np.uint8:
        return False
    return bool((space.low == 0).all() and (space.high == BYTE).all())
