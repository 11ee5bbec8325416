"""The rules against SSRF: which URLs and addresses a fetch for the model may reach."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import quote, urljoin

from nanobot.core.errors import ToolError
from nanobot.core.text import one_line

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

Resolver: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Looks a host name up: its addresses as text, best first; raises OSError for none."""

_SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a carrier's shared address"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a protocol's own address"),
        ("192.0.2.0/24", "a documentation address"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "a benchmarking address"),
        ("198.51.100.0/24", "a documentation address"),
        ("203.0.113.0/24", "a documentation address"),
        ("224.0.0.0/4", "a multicast address"),
        ("255.255.255.255/32", "the broadcast address"),
        ("240.0.0.0/4", "a reserved address"),
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("::ffff:0:0/96", "an IPv4-mapped address"),
        ("::ffff:0:0:0/96", "an IPv4-translated address"),
        ("::/96", "an IPv4-compatible address"),
        ("64:ff9b::/96", "a NAT64 address"),
        ("64:ff9b:1::/48", "a NAT64 address"),
        ("100::/64", "a discard address"),
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "a protocol's own address"),
        ("2001:db8::/32", "a documentation address"),
        ("2002::/16", "a 6to4 address"),
        ("3fff::/20", "a documentation address"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a site-local address"),
        ("ff00::/8", "a multicast address"),
    )
)
_PUBLIC_IPV6 = IPv6Network("2000::/3")

# What cloud machines ask for their own credentials; one of them lies in a public range.
_METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
        ),
    )
)
_METADATA_NAMES = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.goog",
        "metadata.google.internal",
    }
)
_LOOPBACK_NAMES = re.compile(
    r"(?:.+\.)?localhost|localhost6?\.localdomain6?|localhost6|ip6-(?:localhost|loopback)"
)
_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))

# (prefix, how far the IPv4 address inside lies from the right, mask to undo)
_TRANSLATED: tuple[tuple[IPv6Network, int, int], ...] = (
    (IPv6Network("::ffff:0:0/96"), 0, 0),
    (IPv6Network("::ffff:0:0:0/96"), 0, 0),
    (IPv6Network("::/96"), 0, 0),
    (IPv6Network("64:ff9b::/96"), 0, 0),
    (IPv6Network("64:ff9b:1::/48"), 0, 0),
    (IPv6Network("2001::/32"), 0, 0xFFFFFFFF),
    (IPv6Network("2002::/16"), 80, 0),
)
# ISATAP (RFC 5214): the lower half of the address says so, whatever its prefix.
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})


class NetworkError(ToolError):
    """A fetch could not be done; the text says what was in the way."""


class AddressRefused(NetworkError):
    """A fetch may not reach this destination."""


class AddressRules:
    """Allows public addresses and those that the owner listed, and nothing else."""

    def __init__(self, allow: Iterable[Network] = ()) -> None:
        self._allow = tuple(allow)

    def refusal(self, address: Address) -> str | None:
        """Why ``address`` is refused, as in "a private address"; None if it may be reached.

        For an address that stands for an IPv4 address, that one must be allowed too. A listed
        range does not allow the addresses of cloud metadata; they must be listed one by one.
        """
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            return "an address of one network interface"
        kind = _kind(address)
        if kind is None:
            return None
        listed = [
            network
            for network in self._allow
            if network.version == address.version and address in network
        ]
        if not listed:
            return kind
        if address in _METADATA:
            return None if any(network.num_addresses == 1 for network in listed) else kind
        inner = _inner(address)
        if inner is not None and (problem := self.refusal(inner)):
            return f"{kind} for {inner}, {problem}"
        return None


class CheckedResolver:
    """Looks hosts up and lets only allowed addresses through."""

    def __init__(self, rules: AddressRules, lookup: Resolver | None = None) -> None:
        """``lookup``: the operating system's, where none is given."""
        self._rules = rules
        self._lookup = lookup or system_lookup

    async def addresses(self, host: str) -> tuple[Address, ...]:
        """The addresses to connect to, best first, of a host as ``Url`` has it.

        Raises AddressRefused if even one of them is refused, NetworkError if there is none.
        """
        if host in _METADATA_NAMES:
            raise AddressRefused(f"Refused: {host} is a cloud's metadata service.")
        if _LOOPBACK_NAMES.fullmatch(host):
            # Not looked up (RFC 6761); only what the owner listed, IPv4 or IPv6.
            allowed = tuple(one for one in _LOOPBACK if self._rules.refusal(one) is None)
            if not allowed:
                raise _refused(host, _LOOPBACK[0], "a loopback address")
            return allowed
        texts = await self._found(host)
        try:
            found = tuple(dict.fromkeys(map(ip_address, texts)))
        except ValueError as error:
            raise NetworkError(f"The name server's answer to {host} is no address.") from error
        if not found:
            raise NetworkError(f"{host} has no address.")
        for address in found:
            if problem := self._rules.refusal(address):
                raise _refused(host, address, problem)
        return found

    async def _found(self, host: str) -> Sequence[str]:
        if _is_address(host):
            return (host,)
        try:
            return await self._lookup(host)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise NetworkError(
                    f"{host} cannot be looked up now: the name server does not answer."
                ) from error
            raise NetworkError(f"There is no host {host}.") from error
        except OSError as error:
            raise NetworkError(f"{host} cannot be looked up: {error}.") from error


async def system_lookup(host: str) -> Sequence[str]:
    """The addresses the operating system knows of a host name, looked up in a thread."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(where[0]) for _, _, _, _, where in found]


def _refused(host: str, address: Address, problem: str) -> AddressRefused:
    what = f"{host} is" if _is_address(host) else f"{host} is at {address},"
    return AddressRefused(
        f"Refused: {what} {problem}. Only public addresses are fetched from, and those that the "
        "owner lists in tools.web.allowCidrs."
    )


def _kind(address: Address) -> str | None:
    """What is special about an address; None for an ordinary public one."""
    if address in _METADATA:
        return "a cloud's metadata address"
    for network, kind in _SPECIAL:
        if network.version == address.version and address in network:
            return kind
    if isinstance(address, IPv6Address):
        if address not in _PUBLIC_IPV6:
            return "an unassigned address"
        if _is_isatap(address):
            return "an ISATAP address"
    return None


def _inner(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv4Address) or address.is_loopback or address.is_unspecified:
        return None
    if _is_isatap(address):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    for network, shift, mask in _TRANSLATED:
        if address in network:
            return IPv4Address((int(address) >> shift & 0xFFFFFFFF) ^ mask)
    return None


def _is_isatap(address: IPv6Address) -> bool:
    return int(address) >> 32 & 0xFFFFFFFF in _ISATAP


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


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
    """A text is not a URL that may be fetched."""


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
    if not host.isascii():
        import idna

        try:
            host = idna.encode(host, uts46=True).decode("ascii")
        except idna.IDNAError as error:
            raise UrlRefused(f"{_shown(text)}: the host is not a valid name.") from error
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        problem = f"{_shown(text)}: the host is not a valid IPv4 address."
        if not all(map(_NUMBER.fullmatch, labels)):
            raise UrlRefused(problem)
        try:
            # One to four decimal, octal or hexadecimal numbers; a bare 0x is a zero (WHATWG).
            return str(IPv4Address(socket.inet_aton(re.sub(r"\b0x(?=\.|$)", "0", name))))
        except OSError as error:
            raise UrlRefused(problem) from error
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise UrlRefused(f"{_shown(text)}: the host is not a valid name.")
    return name


def _shown(text: str) -> str:
    return repr(one_line(_CONTROL.sub(" ", text), 120))
