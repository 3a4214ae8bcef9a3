"""Where a server is."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from costmodel.hardware.errors import InputError, shown


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        host: as it is connected to; ``authority`` as it is written in the Host line.
        base: path before ``/v1``, without a slash at its end.
    """

    secure: bool
    host: str
    port: int
    base: str
    authority: str

    @property
    def url(self) -> str:
        """The address as it is shown."""
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.base}"


def parse_url(url: str) -> Address:
    """Return the address of a server; ``/v1`` at its end may be left out.

    Raises:
        InputError: it is none, or it carries a password or a query, which would be secrets in a record.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError("--url: is no address; it looks like http://localhost:8000") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(
            "--url: user, password, query and fragment do not belong into it; a key comes from the environment (--api-key-env NAME)"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"--url {shown(url)}: is no address; it looks like http://localhost:8000")
    if any(character.isspace() or not character.isprintable() for character in url) or not url.isascii():
        raise InputError(f"--url {shown(url)}: has characters that an address cannot have")
    secure = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Address(secure, parts.hostname, port or (443 if secure else 80), base, parts.netloc)
