"""Access control: allowed host names, web pages of other sites, API keys, and limits per client."""

import hmac
import ipaddress
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from polyarr.files import read_regular
from polyarr.schema import in_one_line
from polyarr.serving.protocol import RefusedError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN = ("/health",)  # paths without authentication
_MAX_KEYS = 2**16  # bytes of a file


@dataclass(frozen=True)
class Access:
    """Access rules of a server.

    Args:
        hosts: Host names by which clients may call the server; *.NAME allows all that end in .NAME. Empty: any.
        keys: API keys, one of which a request must have. Empty: requests need none.
        slots: Largest number of concurrent requests of one client, waiting ones included. None: no limit per client.
        tokens: Largest number of tokens of these requests, prompts and completions. None: no limit per client.
        connections: Largest number of connections of one client. None: any number.
        origins: Origins, such as https://app.example, whose web pages may call the server (CORS); *: all.
    """

    hosts: frozenset[str] = frozenset()
    keys: frozenset[bytes] = frozenset()
    slots: int | None = None
    connections: int | None = None
    origins: frozenset[str] = frozenset()
    tokens: int | None = None

    def client(self, scope: Scope) -> str:
        """Return the client of a request: its API key if there are several keys, else its address."""
        if len(self.keys) > 1:
            return Headers(scope=scope).get("authorization", "").partition(" ")[2].strip()
        return client_of((scope.get("client") or ("",))[0])

    def refused(self, scope: Scope) -> RefusedError | None:
        """Return the error for a request that is not allowed, or None."""
        headers = Headers(scope=scope)
        named = headers.get("host", "")
        if self.hosts and named and not self._is_known(_host(named)):
            return RefusedError(403, f"Host: {in_one_line(named)!r} is not this server's name")
        if not self.keys or scope["path"] in OPEN:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not given:
            return RefusedError(401, "Authorization: it is missing; it must be Bearer and an API key")
        # Every key is compared, in constant time, so that timing does not reveal a key.
        if not any([hmac.compare_digest(given.strip().encode("latin-1"), key) for key in self.keys]):
            return RefusedError(401, "Authorization: the API key is wrong", code="invalid_api_key")
        return None

    def _is_known(self, host: str | None) -> bool:
        return host is not None and any(
            host.endswith(name[1:]) if name.startswith("*.") else host == name for name in self.hosts
        )


def client_of(address: str) -> str:
    """Return the client of an address; an IPv6 /64 network is one client, since one owner has all its addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped:
        return str(getattr(found, "ipv4_mapped", None) or found)
    return str(ipaddress.ip_network((found, 64), strict=False))


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def api_keys(path: Path | None, key: str | None) -> frozenset[bytes]:
    """Return the API keys in a file, one on each line, and a further one.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file has no key, or a key has blanks.
    """
    keys: frozenset[bytes] = frozenset()
    if path is not None:
        keys = frozenset(filter(None, map(bytes.strip, read_regular(path, _MAX_KEYS).splitlines())))
        if not keys or any(len(one.split()) > 1 for one in keys):
            raise ValueError(f"{path}: it must have an API key without blanks on each line, and at least one")
    if key is None:
        return keys
    if len(os.fsencode(key).split()) != 1:
        raise ValueError("--api-key: it must be a key without blanks")
    return keys | {os.fsencode(key).strip()}


def check_origins(origins: Collection[str]) -> None:
    """Raise ValueError unless all origins are such as browsers send them, or *."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s@?#A-Z]+", origin):
            text = "it must be such as https://app.example or http://localhost:3000, or *, without a path"
            raise ValueError(f"CORS: the origin is {in_one_line(origin)!r}; {text}")


def access_of(
    host: str,
    waiting: int,
    hosts: Collection[str] = (),
    keys: Collection[bytes] = (),
    per_client: int | None = None,
    origins: Collection[str] = (),
    tokens: int | None = None,
) -> Access:
    """Return the access rules of a server that listens at `host`.

    At a loopback address, clients must call the server by a loopback name, and one client may have all requests. At
    other addresses one client may have a quarter of them. `per_client` overrides that number; `tokens`
    is the largest number of tokens of one client.

    Raises:
        ValueError: An origin is none.
    """
    check_origins(origins)
    here = is_loopback(host)
    names = (*LOOPBACK, host.lower(), *(name.lower() for name in hosts)) if here or hosts else ()
    slots = per_client or (None if here else max(1, (1 + waiting) // 4))
    return Access(frozenset(names), frozenset(keys), slots, None if here else 100, frozenset(origins), tokens)


def _host(named: str) -> str | None:
    try:
        return urlsplit(f"//{named}").hostname
    except ValueError:
        return None
