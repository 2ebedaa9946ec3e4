"""Vector envs: creating them, and stepping them in the same way in every autoreset mode.

Names are imported at their first use, so that env processes do not import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
