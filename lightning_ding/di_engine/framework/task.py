"""The task: a loop over middleware, each a function of a context.

A middleware that is a generator runs to its first ``yield`` in its turn. What follows runs after all middleware of the
step, in reversed order.
"""

from __future__ import annotations

import contextlib
import enum
import fnmatch
import logging
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Any, NamedTuple

from typing_extensions import Self

from lightning_ding.di_engine.framework.context import Context

logger = logging.getLogger(__name__)
Middleware = Callable[[Any], Any]
ONE_PROCESS = "a task runs in one process here; `lightning-ding parallel` trains in several"


class Role(str, enum.Enum):
    """The role of a process in a task of several processes."""

    LEARNER = "learner"
    COLLECTOR = "collector"
    EVALUATOR = "evaluator"
    FETCHER = "fetcher"


class Router(NamedTuple):
    """The connection to other processes, of which there are none."""

    is_active: bool = False
    node_id: int = 0


class VoidMiddleware:
    """A middleware that does nothing, which ``use`` leaves out."""

    def __call__(self, ctx: Any) -> None:
        """Do nothing."""


class FileModelLoader:
    """Refused: it hands weights to other processes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"FileModelLoader hands weights to other processes: {ONE_PROCESS}")


class FileStorageLoader:
    """Refused: it hands data to other processes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"FileStorageLoader hands data to other processes: {ONE_PROCESS}")


class Task:
    """A loop over middleware; a context manager that ends it.

    Example:
        >>> order = []
        >>> def around(ctx):
        ...     order.append("before")
        ...     yield
        ...     order.append("after")
        >>> with Task().start() as one:
        ...     _ = one.use(around).use(lambda ctx: order.append(ctx.total_step))
        ...     one.run(max_step=2)
        >>> order
        ['before', 0, 'after', 'before', 1, 'after']
    """

    role = Role

    def __init__(self) -> None:
        self.router = Router()
        self.finish = False
        """Whether the loop ends after this step; middleware set it."""
        self.ctx: Any = Context()
        self.labels: set[str] = set()
        self.async_mode = False
        self._running = False
        self._middleware: list[Middleware] = []
        self._wrappers: list[Callable[[Middleware], Middleware]] = []
        self._open: list[Generator[Any, Any, Any]] = []
        self._roles: set[Role] = set()
        self._listeners: dict[str, list[Callable[..., Any]]] = {}
        self._at_end: list[Callable[[], Any]] = []

    # ------------------------------------------------------------------ the loop

    def start(
        self,
        async_mode: bool = False,
        n_async_workers: int = 3,
        ctx: Context | None = None,
        labels: Iterable[str] | None = None,
    ) -> Self:
        """Begin a task without middleware and return it.

        Args:
            async_mode: Middleware run one after the other in any case: True is a warning.
            n_async_workers: Without effect.
            ctx: Context of the first step; None makes a :class:`Context`.
            labels: Names that :meth:`match_labels` finds, in addition to ``standalone``.
        """
        if async_mode:
            logger.warning("async_mode: the middleware run in order, one after the other")
        self._clear()
        self.finish, self._running = False, True
        self.ctx = Context() if ctx is None else ctx
        self.labels = {"standalone", *(labels or ())}
        return self

    def use(self, fn: Middleware, lock: Any = False) -> Self:
        """Add a middleware: a function or generator function of the context; ``lock`` has no effect."""
        if not callable(fn):
            raise TypeError(f"a middleware must be a function of the context, got {fn!r}")
        if isinstance(fn, VoidMiddleware):
            return self
        for wrapper in self._wrappers:
            fn = wrapper(fn)
        self._middleware.append(self.wrap(fn))
        return self

    def use_wrapper(self, fn: Callable[[Middleware], Middleware]) -> Self:
        """Apply a decorator to all middleware, also to those that are added later."""
        self._middleware = [fn(one) for one in self._middleware]
        self._wrappers.append(fn)
        return self

    def run(self, max_step: int = int(1e12)) -> None:
        """Run the middleware until one sets ``finish``, or for a number of steps."""
        self._check_running()
        for step in range(max_step if self._middleware else 0):
            for fn in self._middleware:
                self.forward(fn)
            self.backward()
            self.finish = self.finish or step == max_step - 1
            if self.finish:
                break
            self.renew()

    def forward(self, fn: Middleware, ctx: Any = None, async_mode: bool | None = None) -> Any:
        """Call a middleware with a context, and return its generator if it has one that did not end."""
        self._check_running()
        made = fn(self.ctx if ctx is None else ctx)
        if not isinstance(made, Generator):
            return None
        try:
            next(made)
        except StopIteration:
            return None
        self._open.append(made)
        return made

    def backward(self, backward_stack: Any = None, async_mode: bool | None = None) -> None:
        """Run the rest of all generators, the last one first."""
        self._check_running()
        while self._open:
            self._end(self._open[-1])

    def renew(self) -> Self:
        """Replace the context by that of the next step."""
        self._check_running()
        self.ctx = self.ctx.renew()
        return self

    def stop(self) -> None:
        """End the task and forget its middleware."""
        self._clear()
        self._running = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the task was started and not stopped."""
        return self._running

    def at_end(self, fn: Callable[[], Any]) -> None:
        """Call a function when the task stops, or when another one starts."""
        self._at_end.append(fn)

    def _clear(self) -> None:
        for generator in reversed(self._open):
            generator.close()
        for fn in self._at_end:
            fn()
        for one in (self._middleware, self._wrappers, self._open, self._roles, self._listeners, self._at_end):
            one.clear()

    def _check_running(self) -> None:
        if not self._running:
            raise RuntimeError("the task does not run: call task.start() first")

    def _end(self, generator: Any) -> None:
        """Run the rest of a generator, unless that is done."""
        if generator in self._open:
            self._open.remove(generator)
            with contextlib.suppress(StopIteration):
                next(generator)

    # ------------------------------------------------------------------ middleware in middleware

    def wrap(self, fn: Middleware, lock: Any = False) -> Middleware:
        """Return a middleware that another one may call: it returns a function that runs the rest of its generator.

        If that function is not called, the rest runs after all middleware of the step. ``lock`` has no effect.
        """

        def forward(ctx: Any) -> Callable[[], None]:
            made = self.forward(fn, ctx)
            return lambda: self._end(made)

        forward.__name__ = getattr(fn, "__name__", type(fn).__name__)
        return forward

    def serial(self, *fns: Middleware) -> Middleware:
        """Return a middleware that runs several, one after the other."""

        def serial(ctx: Any) -> Generator[None]:
            made = [self.forward(fn, ctx) for fn in fns]
            yield
            for one in reversed(made):
                self._end(one)

        serial.__name__ = f"serial<{','.join(getattr(fn, '__name__', type(fn).__name__) for fn in fns)}>"
        return serial

    parallel = serial

    def void(self) -> VoidMiddleware:
        """Return a middleware that does nothing."""
        return VoidMiddleware()

    # ------------------------------------------------------------------ roles and events of this process

    def add_role(self, role: Role) -> None:
        """Give the process a role."""
        self._roles.add(role)

    def has_role(self, role: Role) -> bool:
        """Return whether the process has a role; without any, it has all."""
        return not self._roles or role in self._roles

    @property
    def roles(self) -> set[Role]:
        """The roles that were added."""
        return self._roles

    def match_labels(self, patterns: Iterable[str] | str) -> bool:
        """Return whether a label matches a pattern, or one of several, such as ``"node.*"``."""
        wanted = [patterns] if isinstance(patterns, str) else patterns
        return any(fnmatch.filter(self.labels, one) for one in wanted)

    def on(self, event: str, fn: Callable[..., Any]) -> None:
        """Call a function each time that an event is emitted."""
        self._listeners.setdefault(event, []).append(fn)

    def once(self, event: str, fn: Callable[..., Any]) -> None:
        """Call a function the next time that an event is emitted."""

        def call(*args: Any, **kwargs: Any) -> None:
            self.off(event, call)
            fn(*args, **kwargs)

        self.on(event, call)

    def off(self, event: str, fn: Callable[..., Any] | None = None) -> None:
        """Forget a function of an event, or all of its functions."""
        kept = [one for one in self._listeners.get(event, []) if fn is not None and one is not fn]
        self._listeners[event] = kept

    def emit(self, event: str, *args: Any, only_remote: bool = False, only_local: bool = False, **kwargs: Any) -> None:
        """Call the functions of an event; with ``only_remote`` none, as there are no other processes."""
        self._check_running()
        for fn in [] if only_remote else list(self._listeners.get(event, [])):
            fn(*args, **kwargs)

    def wait_for(self, event: str, *args: Any, **kwargs: Any) -> Any:
        """Raise an error, because there is no other process that could emit the event."""
        raise RuntimeError(f"wait_for({event!r}) would wait for ever: {ONE_PROCESS}")


task = Task()
"""The task that scripts use."""
