"""Callbacks: stopping, saving, logging and evaluating around the rounds of a run."""

import lazy_loader

if __name__ != "lightning_ding.callbacks":  # the folder is also importable from the repository root, as a second copy
    raise ImportError("import lightning_ding.callbacks, not callbacks")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
