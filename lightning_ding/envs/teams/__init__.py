"""Envs of teams: adapters of other packages' envs, and small games with known returns."""

from lightning_ding.utils.foreign import attach

__getattr__, __dir__, __all__ = attach(__name__, {}, __file__)
