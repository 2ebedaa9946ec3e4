"""DataModules: collect, store and serve data for a policy's ``training_step``."""

import lazy_loader

if __name__ != "lightning_ding.datamodules":  # the folder is also importable from the repository root, as a second copy
    raise ImportError("import lightning_ding.datamodules, not datamodules")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
