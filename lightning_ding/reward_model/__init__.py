"""Reward models: networks whose rewards a policy learns from, in addition to those of the env or in place of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
