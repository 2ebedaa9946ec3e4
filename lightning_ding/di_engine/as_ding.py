"""Let ``import ding...`` find the names of this package, so that code for DI-engine runs without an edit.

Importing this module once is enough: ``ding.policy``, ``ding.envs`` and the other packages of ``PACKAGES``, with all
their modules, then have the names of :mod:`lightning_ding.di_engine` ``.policy``, ``.envs`` and so on. A name that is
not available here is one ``ImportError`` that says so; nothing is replaced by a stub.

Raises:
    ImportError: If DI-engine itself is imported already.
"""

from lightning_ding.di_engine.ding_finder import PACKAGES, find, home_of, install

__all__ = ["PACKAGES", "find", "home_of", "install"]

install()
