"""The token that every message must carry, the addresses that need one, and TLS."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightning_ding.config import require
from lightning_ding.distributed.config import CoordinatorConfig

VARIABLE = "LIGHTNING_DING_TOKEN"
MIN_LENGTH = 16
TOKEN_FILE = "token"
"""Name of the file in the folder of a run that contains the token of the run."""

logger = logging.getLogger(__name__)


def read_token(token_file: str | None, folder: Path | None = None) -> str | None:
    """Return the token of a run. It is never a command-line argument, because every user of a machine can read those.

    Args:
        token_file: File that holds the token and nothing else, as ``openssl rand -hex 32 > token`` writes it; None
            takes ``LIGHTNING_DING_TOKEN`` from the environment.
        folder: Folder of the run; without a file and a variable, its file ``token`` is read, see :func:`make_token`.

    Returns:
        The token, or None if there is none.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the token is shorter than 16 characters, or has characters that an HTTP header cannot carry. The
            message does not contain the token.
    """
    if token_file is not None:
        _warn_of_readers(Path(token_file), "the token")
        return _checked(Path(token_file).read_text(errors="replace").strip(), f"the token in {token_file}")
    token = os.environ.get(VARIABLE)
    if token is not None:
        return _checked(token.strip(), f"the token in {VARIABLE}")
    if folder is not None and (folder / TOKEN_FILE).exists():
        return read_token(str(folder / TOKEN_FILE))
    return None


def make_token(folder: Path) -> None:
    """Write a random token, readable by its owner alone, into the folder of a run, unless there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        file = os.open(folder / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as output:
            output.write(secrets.token_hex(32))


def is_authorised(header: str | None, token: str | None) -> bool:
    """Return whether a request may be answered, in a time that does not depend on how much of the token is right.

    Args:
        header: Content of the header ``Authorization``.
        token: The token; None accepts every request.
    """
    given = (header or "").encode(errors="surrogateescape")
    return token is None or hmac.compare_digest(given, f"Bearer {token}".encode())


def server_tls(config: CoordinatorConfig) -> ssl.SSLContext | None:
    """Return the certificate and the key of a coordinator; None if it has none, so that it uses HTTP without TLS.

    Raises:
        ValueError: If a file cannot be read, the key does not belong to the certificate, or has a passphrase.
    """
    if config.certificate_file is None:
        return None
    key_file = config.key_file or config.certificate_file

    def refuse() -> str:  # OpenSSL would ask at the terminal
        raise ValueError(f"system.coordinator.key_file must be a key without a passphrase, got {key_file!r}")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with _naming("certificate_file and key_file", config.certificate_file, config.key_file):
        context.load_cert_chain(config.certificate_file, config.key_file, refuse)
    _warn_of_readers(Path(key_file), "the key")
    return context


def client_tls(config: CoordinatorConfig) -> ssl.SSLContext | None:
    """Return the certificates that a worker trusts; None if the coordinator uses HTTP without TLS.

    Raises:
        ValueError: If their file cannot be read, or there is no certificate for a key or trusted certificates.
    """
    if config.certificate_file is None:
        allowed, others = "given with key_file or ca_file", (config.key_file, config.ca_file)
        require(others == (None, None), "system.coordinator.certificate_file", allowed, None)
        return None
    with _naming("ca_file", config.ca_file):
        return ssl.create_default_context(cafile=config.ca_file)


@contextmanager
def _naming(names: str, *files: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # also of ssl
        told = " and ".join(map(repr, files))
        raise ValueError(f"system.coordinator.{names} must be PEM files that fit, got {told}: {error}") from error


def leads_to_one_machine(host: str) -> bool:
    """Return whether an address to listen at leads all other machines to the same machine."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host not in ("", "localhost")
    return not (address.is_unspecified or address.is_loopback)


def callable_name(host: str) -> str:
    """Return the address by which workers can call a coordinator that listens at ``host``.

    If it listens at all addresses of this machine, this is the name of the machine if that can be resolved, else the
    loopback address, with a warning.
    """
    try:
        if not ipaddress.ip_address(host).is_unspecified:
            return host
    except ValueError:
        return host
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        logger.warning("this machine's name %r cannot be resolved: workers elsewhere need --host: %s", name, error)
        return "::1" if ":" in host else "127.0.0.1"
    return name


def _warn_of_readers(file: Path, secret: str) -> None:
    if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        logger.warning("%s can be read by other users than its owner; chmod 600 keeps %s secret", file, secret)


def _checked(token: str, name: str) -> str:
    good = len(token) >= MIN_LENGTH and all("!" <= character <= "~" for character in token)
    got = f"{len(token)} characters"
    require(good, name, f"at least {MIN_LENGTH} visible ASCII characters without spaces", got)
    return token
