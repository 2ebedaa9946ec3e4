"""Addresses at which a coordinator listens, and by which it can be called."""

from __future__ import annotations

import ipaddress
import logging
import socket

logger = logging.getLogger(__name__)


def leads_to_one_machine(host: str) -> bool:
    """Return whether an address to listen at is one that every machine can call, and finds the same one behind it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host not in ("", "localhost")
    return not (address.is_unspecified or address.is_loopback)


def callable_name(host: str) -> str:
    """Return what to call a coordinator by that listens at ``host``.

    For one that listens at all addresses of this machine, it is the machine's name if that leads anywhere, else the
    loopback, with a warning.
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
        logger.warning("%r, which is this machine, leads nowhere: workers elsewhere need --host: %s", name, error)
        return "::1" if ":" in host else "127.0.0.1"
    return name
