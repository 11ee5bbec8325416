"""URLs of fetches, read strictly and once: what is checked is what is connected to.

Host names follow the WHATWG URL standard where it is stricter than RFC 3986 (numbers of any
spelling are IPv4 addresses, names are mapped by UTS 46), and what readers of URLs disagree about
is refused: user names, backslashes before the path, percent signs in hosts, zones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, urljoin

from nanobot.core.text import one_line
from nanobot.internet.addresses import NetworkError

LONGEST = 8000

_PORTS = {"http": 80, "https": 443}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AUTHORITY_END = re.compile(r"[/?#\\]")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_LONGEST_NAME = 253
# Everything visible that a request line may carry; an existing percent sign is left as it is.
_KEPT = "!$%&'()*+,/:;=?@[]~"


class UrlRefused(NetworkError):
    """A text is no URL that may be fetched."""


@dataclass(frozen=True, slots=True)
class Url:
    """A checked URL: ``host`` is lower-case ASCII without brackets, ``target`` path and query.

    An address as host is in its canonical spelling; ``str`` gives the whole URL.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """Host and, where it is not the scheme's own, port: the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"

    def joined(self, reference: str) -> Url:
        """The URL that ``reference`` means when it stands in this one's page."""
        try:
            whole = urljoin(str(self), reference.strip())
        except ValueError as error:
            raise UrlRefused(f"{_shown(reference)} is not a URL.") from error
        return parse_url(whole)


def parse_url(text: str) -> Url:
    """Read an absolute http or https URL; raises UrlRefused."""
    text = text.strip()
    if len(text) > LONGEST:
        raise UrlRefused(f"The URL is longer than {LONGEST:,} characters.")
    if _CONTROL.search(text):
        raise UrlRefused(f"{_shown(text)} has control characters or line breaks in it.")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise UrlRefused(f"{_shown(text)} is not a whole URL; write it with https:// in front.")
    if scheme not in _PORTS:
        raise UrlRefused(f"{_shown(text)}: only http and https can be fetched.")
    end = _AUTHORITY_END.search(rest)
    authority, tail = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    if tail.startswith("\\"):
        raise UrlRefused(f"{_shown(text)} has a backslash after the host.")
    if "@" in authority:
        raise UrlRefused("URLs with a user name or password are not fetched.")
    host, port = _split(authority, text)
    target = tail.partition("#")[0]
    if not target.startswith("/"):
        target = f"/{target}"
    return Url(
        scheme,
        _host(host, text),
        _PORTS[scheme] if port is None else port,
        quote(target, safe=_KEPT, errors="replace"),
    )


def _split(authority: str, text: str) -> tuple[str, int | None]:
    """The host, an IPv6 address still in brackets, and the port if there is one."""
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        host += bracket
        if not bracket or (rest and not rest.startswith(":")):
            raise UrlRefused(f"{_shown(text)}: the host is not a valid IPv6 address.")
        port = rest[1:]
    else:
        host, _, port = authority.partition(":")
    if not port:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or not 0 < int(port) < 65536:
        raise UrlRefused(f"{_shown(text)}: the port is not a number from 1 to 65535.")
    return host, int(port)


def _host(host: str, text: str) -> str:
    if host.startswith("["):
        try:
            if "%" in host:
                raise UrlRefused(f"{_shown(text)}: addresses with a zone are not fetched.")
            return str(IPv6Address(host[1:-1]))
        except ValueError as error:
            raise UrlRefused(f"{_shown(text)}: the host is not a valid IPv6 address.") from error
    name = _ascii(host, text).lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        address = _ipv4(labels)
        if address is None:
            raise UrlRefused(f"{_shown(text)}: the host is not a valid IPv4 address.")
        return str(address)
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise UrlRefused(f"{_shown(text)}: the host is not a valid name.")
    return name


def _ascii(host: str, text: str) -> str:
    if host.isascii():
        return host
    import idna

    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except idna.IDNAError as error:
        raise UrlRefused(f"{_shown(text)}: the host is not a valid name.") from error


def _ipv4(parts: list[str]) -> IPv4Address | None:
    """The address of one to four decimal, octal or hexadecimal numbers, as inet_aton reads them."""
    if len(parts) > 4:
        return None
    values: list[int] = []
    for part in parts:
        if not _NUMBER.fullmatch(part):
            return None
        try:
            values.append(_number(part))
        except ValueError:  # an 8 or 9 in an octal number
            return None
    *leading, last = values
    if any(value > 255 for value in leading) or last >= 256 ** (5 - len(values)):
        return None
    return IPv4Address(sum(value << (24 - 8 * place) for place, value in enumerate(leading)) + last)


def _number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8) if part.startswith("0") else int(part)


def _shown(text: str) -> str:
    return repr(one_line(_CONTROL.sub(" ", text), 120))
