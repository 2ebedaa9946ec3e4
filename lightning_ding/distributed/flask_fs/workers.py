"""The workers over HTTP and a shared folder, whatever ``system.transport`` is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from typing_extensions import override

from lightning_ding.distributed.comm_worker.collector import BaseCommCollector
from lightning_ding.distributed.comm_worker.learner import BaseCommLearner


class FlaskFileSystemCollector(BaseCommCollector):
    """A BaseCommCollector over the transport ``flask_fs``. See the base class for the arguments."""

    transport: ClassVar[str | None] = "flask_fs"


class FlaskFileSystemLearner(BaseCommLearner):
    """A BaseCommLearner over the transport ``flask_fs``. See the base class for the arguments.

    ``get_data`` returns functions, each of which returns a transition.
    """

    transport: ClassVar[str | None] = "flask_fs"

    @override
    def _item(self, transition: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        return functools.partial(dict, transition)
