"""Blocks of tensors as files in one folder on a disk that all machines share, and the deletion of forgotten ones."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.block_files import LARGE, form_of, read_block, replacing, write_block
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.transport import KINDS, NAME, Block, Kind, Refusal, Store, check_handle
from lightning_ding.utils.posix import require_posix_for_distributed

MARK = re.compile(r"mark-[0-9a-f]{32}")
SUFFIX = ".safetensors"
OWNER = "run.txt"
"""File in a folder of blocks outside of the run's folder, which contains the path of that folder."""
STALE = 600.0
"""Seconds without a write after which an incomplete file, or a round or priorities that were not read, are deleted."""


class FileStore(Store):
    """Keeps each block in a separate file: ``folder/kind/<random name>.safetensors``.

    A block appears when it is complete. It survives the death of every process, but not a power failure.

    Args:
        folder: Folder of the store, made if missing.
        max_bytes: Maximum size of a block that is read, in bytes.
        policy_folder: Folder of the published weights, made if missing; None means ``folder``.

    Raises:
        ValueError: If ``max_bytes`` is not positive, or the system is not POSIX.
    """

    def __init__(self, folder: Path, max_bytes: int = 2_000_000_000, policy_folder: Path | None = None) -> None:
        require_posix_for_distributed()
        require(max_bytes > 0, "max_bytes", "> 0", max_bytes)
        self.folder = folder.resolve()
        self.policy_folder = self.folder if policy_folder is None else policy_folder.resolve()
        homes = {**dict.fromkeys(KINDS, self.folder), "policy": self.policy_folder}
        self._folders: dict[str, str] = {kind: str(home / kind) for kind, home in homes.items()}
        for kind_folder in self._folders.values():
            os.makedirs(kind_folder, exist_ok=True)
        self.max_bytes = max_bytes

    @classmethod
    def of(cls, config: ParallelConfig) -> FileStore:
        """Return the store of a run."""
        system, data = config.system, Path(config.main.exp_name) / "data"
        policies = None if system.path_policy is None else Path(system.path_policy)
        return cls(Path(system.path_data) if system.path_data else data, system.coordinator.max_block, policies)

    def claim(self, run: Path) -> None:
        """Note in the folders of the store that they belong to a run, unless they are in the folder of the run.

        Args:
            run: Folder of the run.

        Raises:
            ValueError: If they belong to another run, whose blocks this one would delete.
        """
        run = run.resolve()
        for folder in {self.folder, self.policy_folder}:
            if folder.is_relative_to(run):
                continue
            file = folder / OWNER
            with suppress(FileExistsError), file.open("x") as new:
                try:
                    new.write(str(run))
                    new.flush()
                except OSError:  # the disk is full
                    file.unlink()
                    raise
            if (owner := file.read_text()) != str(run):
                raise ValueError(
                    f"system.path_data and path_policy must be folders of this run alone, but {str(folder)!r} belongs "
                    f"to the run in {owner!r}: choose another folder, or delete {file} if that run is never resumed"
                )

    def clear(self) -> None:
        """Delete all blocks, and what :meth:`claim` has written."""
        for kind_folder in self._folders.values():
            shutil.rmtree(kind_folder, ignore_errors=True)
        for folder in (self.folder, self.policy_folder):
            (folder / OWNER).unlink(missing_ok=True)

    @override
    def put(self, kind: Kind, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> dict[str, str]:
        require(kind in KINDS, "kind", f"one of {KINDS}", kind)
        handle = {"kind": str(kind), "name": secrets.token_hex(16)}
        write_block(Path(self._file(handle)), tensors, metadata)
        return handle

    @override
    def get(self, handle: Any) -> Block:
        return read_block(self._file(handle), self.max_bytes)

    @override
    def form(self, handle: Any) -> dict[str, tuple[str, tuple[int, ...]]] | None:
        file = self._file(handle)
        if not os.path.isfile(file) or os.path.getsize(file) < LARGE:
            return None
        leaves = form_of(file, self.max_bytes)
        return {name: (str(leaf.dtype).removeprefix("torch."), leaf.shape) for name, leaf in leaves.items()}

    @override
    def delete(self, handle: Any) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._file(handle))

    @override
    def move(self, handle: Any, file: Path, block: Block | None = None) -> None:
        source = self._file(handle)
        try:
            if not stat.S_ISREG(os.lstat(source).st_mode):
                raise Refusal(403, f"{os.path.basename(source)} is not a regular file")
            _move(source, file)
        except FileNotFoundError as error:
            if os.path.exists(source):  # then the target directory is missing
                raise
            raise Refusal(404, f"there is no {os.path.basename(source)}") from error

    def sweep(self, max_age: float, kinds: Iterable[Kind] = ("batch", "priority")) -> int:
        """Delete old blocks that were not read, and incomplete files of processes that died.

        Args:
            max_age: Seconds since a file was last written; the clocks of this machine and the disk may differ a little.
            kinds: Kinds of the blocks to delete; incomplete files of every kind are deleted.

        Returns:
            Number of deleted files.
        """
        require(max_age >= 0, "max_age", ">= 0 seconds", max_age)
        oldest = time.time() - max_age
        found = [file for kind in KINDS for file in Path(self._directory(kind)).glob(f".*{SUFFIX}.tmp")]
        found += [file for kind in kinds for file in Path(self._directory(kind)).glob(f"*{SUFFIX}")]
        deleted = 0
        for file in found:
            with suppress(FileNotFoundError):  # its reader has deleted it at the same time
                if file.lstat().st_mtime <= oldest:
                    file.unlink()
                    deleted += 1
        return deleted

    def names(self, kind: Kind) -> list[str]:
        """Return the names in the handles of all blocks of a kind."""
        names = (file[: -len(SUFFIX)] for file in os.listdir(self._directory(kind)) if file.endswith(SUFFIX))
        return [name for name in names if NAME.fullmatch(name)]

    def mark(self) -> str:
        """Make an empty file that shows other machines that they have the same folder, and return its name.

        The name is new each time, so that no machine has cached its absence; earlier files are deleted.
        """
        for older in self.folder.glob("mark-*"):
            older.unlink(missing_ok=True)
        name = f"mark-{secrets.token_hex(16)}"
        (self.folder / name).touch()
        return name

    def _directory(self, kind: str) -> str:
        """Return the directory of a kind, after checking that it was not replaced by a symbolic link."""
        directory = self._folders[kind]
        if os.path.islink(directory):
            raise Refusal(403, f"{kind} is a link out of the store")
        return directory

    def _file(self, handle: Any) -> str:
        """Return the path of a handle's file, as text because the coordinator makes thousands of them each second."""
        kind, name = check_handle(handle)
        return f"{self._directory(kind)}/{name}{SUFFIX}"


class UnannouncedData:
    """Deletes blocks of transitions or weights that no message names, because their sender was killed before.

    Incomplete files of processes that were killed while writing them are deleted, too, and rounds and priorities
    that no process has read. Ages of blocks are measured with the clock of this process, not with the times of the
    files, and begin again when the coordinator is restarted or was suspended. A worker that waits therefore has time to
    send its message again. May be used from several threads.

    Args:
        store: Store of the blocks.
        max_age: Seconds for which a block is kept after it was first seen or last named by a message, > 0.
        clock: Function that returns the time in seconds.
        published: Function that returns the names of the weights that are published, which are kept.
    """

    def __init__(
        self,
        store: FileStore,
        max_age: float,
        clock: Callable[[], float] = time.monotonic,
        published: Callable[[], set[str]] = set,
    ) -> None:
        self._store = store
        self._max_age = max_age
        self._clock = clock
        self._published = published
        self._since: dict[_Block, float] = {}  # when each block was first seen or last named
        self._held: Counter[_Block] = Counter()  # messages that are being answered, by the block that they name
        self._swept_at = clock()
        self._lock = threading.Lock()

    @contextmanager
    def held(self, handle: Mapping[str, Any]) -> Iterator[None]:
        """Keep a block while a message that names it is answered; afterwards its age is 0."""
        block = (str(handle.get("kind")), str(handle.get("name")))
        with self._lock:
            self._held[block] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[block] -= 1
                if not self._held[block]:
                    del self._held[block]
                if block in self._since:
                    self._since[block] = self._clock()

    def sweep(self) -> int:
        """Delete the blocks that are too old, and return the number of deleted files.

        Call it several times in ``max_age``: after a longer pause, this process is taken to have been suspended.

        Raises:
            OSError: If the folder cannot be read or a file cannot be deleted.
        """
        stale = self._store.sweep(STALE)
        kinds: tuple[Kind, ...] = ("data", "policy")
        blocks = {(kind, name) for kind in kinds for name in self._store.names(kind)}
        blocks -= {("policy", name) for name in self._published()}
        now = self._clock()
        with self._lock:
            was_suspended = now - self._swept_at > self._max_age / 2  # so that no message could be received
            self._since = {block: now if was_suspended else self._since.get(block, now) for block in blocks}
            self._swept_at = now
        for block in blocks:
            with self._lock:  # once for each block, so that a message waits for one deletion at most
                if block not in self._held and now - self._since[block] >= self._max_age:
                    self._store.delete({"kind": block[0], "name": block[1]})
                    stale += 1
        return stale


_Block = tuple[str, str]  # kind and name of a block


def is_marked(folder: Path, mark: str) -> bool:
    """Return whether a folder contains the file that :meth:`FileStore.mark` has made."""
    return MARK.fullmatch(mark) is not None and (folder / mark).is_file()


def _move(source: str, file: Path) -> None:
    try:
        os.replace(source, file)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with replacing(file) as temporary:
            shutil.copyfile(source, temporary)
        os.unlink(source)
