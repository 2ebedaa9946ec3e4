"""The secret that every message must bear."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from lightning_ding.config import require

VARIABLE = "LIGHTNING_DING_TOKEN"
MIN_LENGTH = 16
TOKEN_FILE = "token"
"""Of a run that was given none, in its folder."""

_log = logging.getLogger(__name__)


def read_token(token_file: str | None, folder: Path | None = None) -> str | None:
    """Return the token of a run, which is never an argument: everybody on a machine sees the arguments of processes.

    Args:
        token_file: File that holds it and nothing else, as ``openssl rand -hex 32 > token`` makes it; None takes
            ``LIGHTNING_DING_TOKEN`` of the environment.
        folder: Of the run; if there is neither, the file ``token`` in it counts, see :func:`make_token`.

    Returns:
        The token, or None if there is none.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the token is shorter than 16 characters, or has spaces or others that a header cannot bear. What
            it is does not stand in the message.
    """
    if token_file is not None:
        return _checked(_read(Path(token_file)), f"the token in {token_file}")
    token = os.environ.get(VARIABLE)
    if token is not None:
        return _checked(token.strip(), f"the token in {VARIABLE}")
    if folder is not None and (folder / TOKEN_FILE).exists():
        return read_token(str(folder / TOKEN_FILE))
    return None


def make_token(folder: Path) -> None:
    """Write a random token into a run's folder, which nobody but its owner can read, unless one is there."""
    with suppress(FileExistsError):
        file = os.open(folder / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as output:
            output.write(secrets.token_hex(32))


def _read(file: Path) -> str:
    if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("%s can be read by others than its owner; chmod 600 keeps the token secret", file)
    return file.read_text(errors="replace").strip()


def _checked(token: str, name: str) -> str:
    good = len(token) >= MIN_LENGTH and all("!" <= character <= "~" for character in token)
    got = f"{len(token)} characters"
    require(good, name, f"at least {MIN_LENGTH} visible ASCII characters without spaces", got)
    return token
