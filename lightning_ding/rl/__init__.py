"""The mathematics of reinforcement learning: pure functions on tensors, one file for each idea."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
