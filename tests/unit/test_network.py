"""Tests of the network client: what it refuses, what it fetches, what it bounds."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from nanobot.internet.addresses import (
    AddressRefused,
    AddressRules,
    CheckedResolver,
    Network,
    NetworkError,
    UrlRefused,
    parse_url,
    system_lookup,
)
from nanobot.internet.client import (
    USER_AGENT,
    FetchFailed,
    FetchLimits,
    FetchTimedOut,
    SafeClient,
    TooLarge,
)
from tests.fakes.internet import FakeInternet, FakeNames, OneTLS
from tests.fakes.web_server import Page, Request, WebServer, redirect

PUBLIC = "93.184.216.34"
LOOPBACK = ip_network("127.0.0.0/8")


def client(
    names: FakeNames | None = None,
    *,
    allow: Iterable[Network] = (),
    internet: FakeInternet | None = None,
    tls: OneTLS | None = None,
    limits: FetchLimits = FetchLimits(total_s=20.0),
) -> SafeClient:
    """A client that knows no name and no address but those given."""
    return SafeClient(
        tls=tls or OneTLS(),
        allow_cidrs=allow,
        lookup=names or FakeNames(),
        network=internet or FakeInternet(),
        limits=limits,
    )


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with WebServer() as server:
        yield server


def local(
    web: WebServer, *names: str, limits: FetchLimits = FetchLimits(total_s=20.0)
) -> SafeClient:
    """A client for which ``names`` are public sites, all of them ``web``."""
    return client(
        FakeNames(dict.fromkeys(names or ("site.example",), PUBLIC)),
        internet=FakeInternet([PUBLIC], {80: web.port}),
        limits=limits,
    )


async def fetched(fetcher: SafeClient, url: str) -> bytes:
    async with fetcher.get(url) as response:
        return await response.read()


# -- what is refused ----------------------------------------------------------------------------

PRIVATE_NAMES = FakeNames(
    {
        "intranet.example": "10.1.2.3",
        "router.example": "192.168.1.1",
        "cname-to-private.example": "172.16.5.5",
        "cname-to-loopback.example": "127.0.0.1",
        "v6-loopback.example": "::1",
        "mapped.example": "::ffff:10.0.0.1",
        "nat64.example": "64:ff9b::10.0.0.1",
        "scoped.example": "fe80::1%eth0",
        "one-bad-of-two.example": (PUBLIC, "10.0.0.1"),
        "bad-ipv6-of-two.example": (PUBLIC, "fd00::1"),
        "metadata.example": "169.254.169.254",
        "127.0.0.1.nip.example": "127.0.0.1",
        "xn--lcalhost-6cb.example": "127.0.0.1",
        "nowhere.example": "0.0.0.0",
    }
)

REFUSED_DESTINATIONS = [
    # loopback, in every spelling of a number
    "http://127.0.0.1/",
    "http://127.0.0.1:8080/",
    "http://127.0.0.1./",
    "http://127.1/",
    "http://127.0.1/",
    "http://127.255.255.254/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0X7F.0.0.1/",
    "http://0x7f.1/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://0177.0.0.01/",
    "http://00000177.0x0.0.1/",
    "http://１２７.０.０.１/",
    "http://127。0。0。1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://127｡0｡0｡1/",
    "http://１２７。1/",
    "http://127.0.0.1\u200b/",
    "http://\u00ad127.0.0.1/",
    "http://1\ufe0f27.0.0.1/",
    "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[0000::0001]:80/",
    # this host, by other names
    "http://0/",
    "http://0.0.0.0/",
    "http://0x0/",
    "http://[::]/",
    "http://localhost/",
    "http://LOCALHOST/",
    "http://localhost./",
    "http://loc\u00adalhost/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "http://printer.localhost/",
    "http://localhost.localdomain/",
    "http://ip6-localhost/",
    # private networks
    "http://10.0.0.1/",
    "http://10.1/",
    "http://167772161/",
    "http://012.0.0.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.0.1/",
    "http://0xc0a80001/",
    "http://192.168.257/",
    "http://100.64.0.1/",
    "http://100.127.255.255/",
    "http://[fc00::1]/",
    "http://[fd12:3456:789a::1]/",
    "http://[fec0::1]/",
    # link-local and metadata
    "http://169.254.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/latest/meta-data/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://[fe80::1]/",
    "http://[fd00:ec2::254]/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://METADATA.google.internal./",
    "http://metadata/",
    # IPv4 inside IPv6
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:10.0.0.1]/",
    "http://[::ffff:8.8.8.8]/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[::127.0.0.1]/",
    "http://[::7f00:1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::10.0.0.1]/",
    "http://[64:ff9b:1:ffff::10.0.0.1]/",
    "http://[2001:20::1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a00:1::1]/",
    "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "http://[2a00:1450::5efe:10.0.0.1]/",
    "http://[2a00:1450::200:5efe:127.0.0.1]/",
    # what is no ordinary public address
    "http://192.0.2.1/",
    "http://198.51.100.7/",
    "http://203.0.113.9/",
    "http://198.18.0.1/",
    "http://192.0.0.1/",
    "http://192.88.99.1/",
    "http://224.0.0.1/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://4294967295/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[2001:2::1]/",
    "http://[100::1]/",
    "http://[ff02::1]/",
    "http://[5f00::1]/",
    "http://[4000::1]/",
    # names that lead to such places
    *(f"http://{name}/" for name in PRIVATE_NAMES.known),
]

REFUSED_TEXTS = [
    # who is meant?
    "http://user@example.com/",
    "http://user:password@example.com/",
    "http://example.com@127.0.0.1/",
    "http://127.0.0.1@example.com/",
    "http://@example.com/",
    "http://example.com:80@127.0.0.1/",
    "http://127.1.1.1:80:@127.2.2.2/",
    "http://1.1.1.1 &@127.0.0.1#@2.2.2.2/",
    "http://example.com\\@127.0.0.1/",
    "http://example.com\\.127.0.0.1/",
    "http://127.0.0.1\\.example.com/",
    # zones
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[::1%25lo]/",
    # escapes, white space and control characters
    "http://%6c%6f%63alhost/",
    "http://127%2e0%2e0%2e1/",
    "http://127.0.0.1%00.example.com/",
    "http://127.0.0.1%2f.example.com/",
    "http://127.0.0.1\t.example.com/",
    "http://127.0.0.1\n.example.com/",
    "http://127.0.0.1\r\nHost: example.com/",
    "http://127.0.0.1\0.example.com/",
    "http://127.0.0.1 .example.com/",
    "http://example.com/\r\nX-Injected: 1",
    "http:/\t/127.0.0.1/",
    # numbers that are no addresses
    "http://256.256.256.256/",
    "http://18446744071562067969/",
    "http://0b1111111.0.0.1/",
    "http://١٢٧.٠.٠.١/",
    "http://1.2.3.4.5/",
    "http://0x100000000/",
    "http://4294967296/",
    "http://127.0.0.08/",
    "http://x.1.0x5/",
    "http://127..0.1/",
    "http://1.2.3.65536/",
    "http://example.127/",
    "http://example.0x7f/",
    # brackets
    "http://[127.0.0.1]/",
    "http://[::1/",
    "http://::1/",
    "http://[::1]x/",
    "http://[::ffff:127.0.0.0x1]/",
    "http://[::ffff:0177.0.0.1]/",
    "http://[v1.x]/",
    "http://[]/",
    # ports
    "http://example.com:0/",
    "http://example.com:65536/",
    "http://example.com:80a/",
    "http://example.com:-1/",
    "http://example.com:８０/",
    "http://example.com:80:80/",
    # names
    "http:///",
    "http://",
    "http://./",
    "http://example..com/",
    "http://.example.com/",
    "http://example.com../",
    "http://exa mple.com/",
    "http://exa<mple.com/",
    "http://examp℀le.com/",
    f"http://{'a' * 64}.example/",
    f"http://{'a.' * 130}example/",
    # schemes
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "ftp://example.com/",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "dict://127.0.0.1:11211/stats",
    "unix:///run/nanobot.sock",
    "data:text/html,<p>x",
    "javascript:alert(1)",
    "view-source:http://127.0.0.1/",
    "jar:http://127.0.0.1/!/",
    "http:127.0.0.1",
    "http:/127.0.0.1/",
    "//127.0.0.1/",
    "127.0.0.1",
    "example.com/page",
    "",
    "http://example.com/" + "a" * 8000,
]


@pytest.mark.parametrize("url", REFUSED_DESTINATIONS)
async def test_a_destination_that_is_not_public_is_refused_without_a_connection(url: str) -> None:
    internet = FakeInternet()

    with pytest.raises(AddressRefused):
        await fetched(client(PRIVATE_NAMES, internet=internet), url)

    assert internet.connections == []


@pytest.mark.parametrize("url", REFUSED_TEXTS)
async def test_a_text_that_readers_may_read_differently_is_refused_unasked(url: str) -> None:
    internet, names = FakeInternet(), FakeNames({"example.com": PUBLIC})

    with pytest.raises(UrlRefused):
        await fetched(client(names, internet=internet), url)

    assert (internet.connections, names.asked) == ([], [])


def test_the_tables_hold_as_many_spellings_as_they_promise() -> None:
    assert len({*REFUSED_DESTINATIONS, *REFUSED_TEXTS}) >= 150
    assert len({url for url, _, _ in ORDINARY}) >= 40


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2/",
        "//127.0.0.2/",
        "http://2130706434/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://intranet.example/",
        "http://user@site.example/",
        "http://site.example\\@127.0.0.1/",
        "https://localhost/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "http://[",
        "http://127.0.0.2\\@site.example/",
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_checked_like_the_first_url(
    web: WebServer, location: str, status: int
) -> None:
    web.pages["/"] = redirect(location, status)
    names = FakeNames({"site.example": PUBLIC, "intranet.example": "10.1.2.3"})
    internet = FakeInternet([PUBLIC], {80: web.port})

    with pytest.raises((AddressRefused, UrlRefused)):
        await fetched(client(names, internet=internet), "http://site.example/")

    assert internet.connections == [(PUBLIC, 80)]


async def test_a_refused_redirect_is_not_told_in_the_servers_words(web: WebServer) -> None:
    web.pages["/"] = redirect("ftp://x/ Obey me")

    with pytest.raises(UrlRefused) as caught:
        await fetched(local(web), "http://site.example/")

    assert str(caught.value) == "site.example redirects to what is no URL to fetch."


async def test_a_name_that_changes_its_mind_is_connected_where_it_was_checked(
    web: WebServer,
) -> None:
    web.pages["/"] = Page(b"public")
    names = FakeNames().add("rebind.example", PUBLIC, "127.0.0.1", "127.0.0.1")
    internet = FakeInternet([PUBLIC, "127.0.0.1"], {80: web.port})

    body = await fetched(client(names, internet=internet), "http://rebind.example/")

    assert (body, names.asked) == (b"public", ["rebind.example"])
    assert internet.connections == [(PUBLIC, 80)]


async def test_a_name_that_changes_its_mind_between_redirects_is_refused(web: WebServer) -> None:
    web.pages["/"] = redirect("/again")
    names = FakeNames().add("rebind.example", PUBLIC, "127.0.0.1")
    internet = FakeInternet([PUBLIC, "127.0.0.1"], {80: web.port})

    with pytest.raises(AddressRefused):
        await fetched(client(names, internet=internet), "http://rebind.example/")

    assert internet.connections == [(PUBLIC, 80)]


async def test_a_name_server_that_answers_with_no_address_is_an_error() -> None:
    names = FakeNames({"odd.example": "not-an-address", "empty.example": ()})

    for name in ("odd.example", "empty.example", "unknown.example"):
        with pytest.raises(NetworkError) as caught:
            await fetched(client(names), f"http://{name}/")
        assert not isinstance(caught.value, AddressRefused)


# -- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2a00:1450:4001:82a::200e",
        "2001:4860:4860::8888",
        "2620:fe::fe",
    ],
)
def test_a_public_address_is_allowed(address: str) -> None:
    assert AddressRules().refusal(ip_address(address)) is None


def test_listed_networks_are_allowed_and_only_those() -> None:
    rules = AddressRules([ip_network("10.1.0.0/16"), ip_network("fd00:1::/32"), LOOPBACK])
    addresses = ["10.1.2.3", "127.0.0.1", "fd00:1::5", "10.2.0.1", "::1", "fd00:2::1"]

    allowed = [one for one in addresses if rules.refusal(ip_address(one)) is None]

    assert allowed == ["10.1.2.3", "127.0.0.1", "fd00:1::5"]


def test_a_listed_address_of_translation_is_judged_by_the_address_inside_too() -> None:
    rules = AddressRules([ip_network("64:ff9b::/96"), ip_network("::1/128")])
    addresses = ["64:ff9b::8.8.8.8", "64:ff9b::10.0.0.1", "::1"]

    refusals = [rules.refusal(ip_address(one)) for one in addresses]

    assert refusals == [None, "a NAT64 address for 10.0.0.1, a private address", None]


def test_metadata_is_opened_by_no_range_but_by_its_own_address() -> None:
    address = ip_address("169.254.169.254")
    everything = AddressRules([ip_network("0.0.0.0/0")])
    itself = AddressRules([ip_network("169.254.169.254/32")])

    assert everything.refusal(address) == "a cloud's metadata address"
    assert itself.refusal(address) is None


async def test_localhost_is_the_loopback_address_that_the_owner_listed() -> None:
    names = FakeNames()
    resolver = CheckedResolver(AddressRules([LOOPBACK]), names)

    addresses = await resolver.addresses("localhost")

    assert (addresses, names.asked) == ((IPv4Address("127.0.0.1"),), [])


async def test_the_refusal_names_the_address_and_the_setting() -> None:
    with pytest.raises(AddressRefused) as caught:
        await fetched(client(PRIVATE_NAMES), "http://intranet.example/")

    assert str(caught.value) == (
        "Refused: intranet.example is at 10.1.2.3, a private address. Only public addresses are "
        "fetched from, and those that the owner lists in tools.web.allowCidrs."
    )


@given(st.integers(0, 2**32 - 1), st.data())
def test_every_spelling_of_an_ipv4_address_is_that_address(
    number: int, data: st.DataObject
) -> None:
    parts = data.draw(st.integers(1, 4))
    values = [number >> (24 - 8 * place) & 255 for place in range(parts - 1)]
    values.append(number & 256 ** (5 - parts) - 1)
    formats = st.sampled_from(["{:d}", "0{:o}", "0x{:x}", "0X{:X}", "0x00{:x}", "000{:o}"])
    host = ".".join(data.draw(formats).format(value) for value in values)

    url = parse_url(f"http://{host}/")

    assert url.host == str(IPv4Address(number))


@given(st.ip_addresses())
def test_an_address_that_python_knows_to_be_special_is_refused(
    address: IPv4Address | IPv6Address,
) -> None:
    special = address.is_private or address.is_multicast or address.is_reserved

    assert not special or AddressRules().refusal(address) is not None


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_in_disguise_is_refused(address: IPv4Address) -> None:
    number = int(address)
    disguises = [
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address(0xFFFF << 48 | number),
        IPv6Address(number),
        IPv6Address(0x64FF9B << 96 | number),
        IPv6Address(0x64FF9B0001 << 80 | number),
        IPv6Address(0x2002 << 112 | number << 80),
        IPv6Address(0x20010000 << 96 | number ^ 0xFFFFFFFF),
        IPv6Address(0x2A001450 << 96 | 0x5EFE << 32 | number),
    ]

    assert all(AddressRules().refusal(disguise) for disguise in disguises)


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://", "http://a.example/"]))
def test_any_text_is_refused_or_means_the_same_when_read_again(text: str, start: str) -> None:
    try:
        url = parse_url(start + text)
    except UrlRefused:
        return

    assert parse_url(str(url)) == url
    assert str(url).isascii()
    assert not {*str(url)} & {*' \t\r\n\\<>"#'}


# -- what passes --------------------------------------------------------------------------------

ORDINARY = [
    # (URL, Host header, request target)
    ("http://example.com", "example.com", "/"),
    ("http://example.com/", "example.com", "/"),
    ("HTTP://EXAMPLE.COM/Path", "example.com", "/Path"),
    ("http://example.com:80/", "example.com", "/"),
    ("http://example.com:/x", "example.com", "/x"),
    ("http://example.com:8080/x", "example.com:8080", "/x"),
    ("http://example.com./", "example.com", "/"),
    ("  http://example.com/padded \n", "example.com", "/padded"),
    ("http://example.com?q=1", "example.com", "/?q=1"),
    ("http://example.com#part", "example.com", "/"),
    ("http://example.com/a/b/c.html", "example.com", "/a/b/c.html"),
    ("http://example.com/a?x=1&y=2#z", "example.com", "/a?x=1&y=2"),
    ("http://example.com/?u=http://10.0.0.1/", "example.com", "/?u=http://10.0.0.1/"),
    ("http://example.com/@user", "example.com", "/@user"),
    ("http://example.com/a b", "example.com", "/a%20b"),
    ("http://example.com/a%20b", "example.com", "/a%20b"),
    ("http://example.com/100%", "example.com", "/100%"),
    (
        "http://example.com/caf\u00e9?q=\u6771\u4eac",
        "example.com",
        "/caf%C3%A9?q=%E6%9D%B1%E4%BA%AC",
    ),
    ("http://example.com/a;b=c,d(e)!*'~", "example.com", "/a;b=c,d(e)!*'~"),
    ("http://example.com/[x]|{y}^", "example.com", "/[x]%7C%7By%7D%5E"),
    ("http://example.com/a\\b", "example.com", "/a%5Cb"),
    ("http://example.com//double//", "example.com", "//double//"),
    ("http://example.com/../up", "example.com", "/../up"),
    ("http://www.example.co.uk/", "www.example.co.uk", "/"),
    ("http://a-b.example.com/", "a-b.example.com", "/"),
    ("http://under_score.example.com/", "under_score.example.com", "/"),
    ("http://1password.example/", "1password.example", "/"),
    ("http://0x.example/", "0x.example", "/"),
    ("http://b\u00fccher.example/", "xn--bcher-kva.example", "/"),
    ("http://xn--bcher-kva.example/", "xn--bcher-kva.example", "/"),
    ("http://\u4f8b\u3048.example/", "xn--r8jz45g.example", "/"),
    (f"http://{PUBLIC}/", PUBLIC, "/"),
    ("http://0x5db8d822/", PUBLIC, "/"),
    ("http://[2606:2800:220:1::1]/", "[2606:2800:220:1::1]", "/"),
    ("http://[2606:2800:0220:0001::0001]:8080/", "[2606:2800:220:1::1]:8080", "/"),
    ("https://example.com/", "example.com", "/"),
    ("https://example.com:443/x?y", "example.com", "/x?y"),
    ("https://example.com:8443/", "example.com:8443", "/"),
    ("https://b\u00fccher.example/", "xn--bcher-kva.example", "/"),
    (f"https://{PUBLIC}/", PUBLIC, "/"),
]
ORDINARY_NAMES = (
    "0x.example",
    "1password.example",
    "a-b.example.com",
    "example.com",
    "under_score.example.com",
    "www.example.co.uk",
    "xn--bcher-kva.example",
    "xn--r8jz45g.example",
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> OneTLS:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return OneTLS(context)


@pytest.mark.parametrize(("url", "host", "target"), ORDINARY)
async def test_an_ordinary_url_is_fetched_from_the_checked_address(
    web: WebServer, authority: trustme.CA, url: str, host: str, target: str
) -> None:
    six = "2606:2800:220:1::1"
    names = FakeNames(dict.fromkeys(ORDINARY_NAMES, PUBLIC))
    certified = server_context(authority, "example.com", "xn--bcher-kva.example", PUBLIC)
    async with WebServer(tls=certified) as secure:
        for server in (web, secure):
            server.pages[target.partition("?")[0]] = Page(b"fine")
        ports = {80: web.port, 8080: web.port, 443: secure.port, 8443: secure.port}
        internet = FakeInternet([PUBLIC, six], ports)

        body = await fetched(client(names, internet=internet, tls=trusting(authority)), url)

        (request,) = web.requests + secure.requests
    assert (body, request.headers["host"], request.target) == (b"fine", host, target)
    assert [address for address, _ in internet.connections] == [six if "[" in host else PUBLIC]


async def test_a_server_of_this_machine_is_fetched_from_when_its_network_is_listed(
    web: WebServer,
) -> None:
    web.pages["/x"] = Page(b"mine")
    names = FakeNames({"box.example": "127.0.0.1"})
    hosts = ("127.0.0.1", "localhost", "2130706433", "127.1", "box.example")
    fetcher = SafeClient(tls=OneTLS(), allow_cidrs=[LOOPBACK], lookup=names)

    bodies = [await fetched(fetcher, web.url("/x", host)) for host in hosts]

    assert bodies == [b"mine"] * len(hosts)


async def test_a_request_says_who_asks_and_nothing_else(web: WebServer) -> None:
    web.pages["/"] = Page(headers=(("Set-Cookie", "id=1"), ("Location", "/next")), status=302)
    web.pages["/next"] = Page(b"done")

    await fetched(local(web), "http://site.example/")

    assert [request.headers for request in web.requests] == [
        {
            "host": "site.example",
            "user-agent": USER_AGENT,
            "accept": "*/*",
            "accept-encoding": "gzip, deflate",
            "connection": "close",
        }
    ] * 2


async def test_proxies_of_the_environment_are_not_used(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.pages["/"] = Page(b"direct")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert await fetched(local(web), "http://site.example/") == b"direct"


async def test_the_next_address_is_tried_when_the_first_does_not_answer(web: WebServer) -> None:
    web.pages["/"] = Page(b"second")
    names = FakeNames({"site.example": ("2606:2800:220:1::1", PUBLIC)})
    internet = FakeInternet([PUBLIC], {80: web.port})

    body = await fetched(client(names, internet=internet), "http://site.example/")

    assert body == b"second"
    assert internet.connections == [("2606:2800:220:1::1", 80), (PUBLIC, 80)]


async def test_an_address_that_cannot_be_reached_is_said(web: WebServer) -> None:
    names = FakeNames({"site.example": PUBLIC})

    with pytest.raises(FetchFailed, match=r"site\.example:80"):
        await fetched(client(names), "http://site.example/")


async def test_a_closed_port_is_said() -> None:
    async with WebServer() as gone:
        url = gone.url("/")
    fetcher = SafeClient(tls=OneTLS(), allow_cidrs=[LOOPBACK])

    with pytest.raises(FetchFailed, match=rf"No connection to 127\.0\.0\.1:{gone.port}"):
        await fetched(fetcher, url)


async def test_the_system_looks_up_an_address_as_itself() -> None:
    assert set(await system_lookup("127.0.0.1")) == {"127.0.0.1"}


# -- TLS ----------------------------------------------------------------------------------------


async def test_tls_verifies_the_name_although_the_connection_goes_to_the_address(
    authority: trustme.CA,
) -> None:
    asked: list[str | None] = []
    context = server_context(authority, "site.example")
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with WebServer(tls=context) as secure:
        secure.pages["/"] = Page(b"safe")
        names = FakeNames({"site.example": PUBLIC, "other.example": PUBLIC})
        internet = FakeInternet([PUBLIC], {443: secure.port})
        fetcher = client(names, internet=internet, tls=trusting(authority))

        body = await fetched(fetcher, "https://site.example/")
        with pytest.raises(FetchFailed) as caught:
            await fetched(fetcher, "https://other.example/")

    assert (body, asked) == (b"safe", ["site.example", "other.example"])
    assert str(caught.value) == (
        "The certificate of other.example:443 is not valid: Hostname mismatch, certificate is not "
        "valid for 'other.example'."
    )
    assert len(secure.requests) == 1


async def test_a_certificate_of_an_unknown_authority_is_refused(authority: trustme.CA) -> None:
    async with WebServer(tls=server_context(trustme.CA(), "site.example")) as secure:
        internet = FakeInternet([PUBLIC], {443: secure.port})
        fetcher = client(
            FakeNames({"site.example": PUBLIC}), internet=internet, tls=trusting(authority)
        )

        with pytest.raises(FetchFailed, match=r"certificate of site\.example:443 is not valid"):
            await fetched(fetcher, "https://site.example/")

    assert secure.requests == []


async def test_a_server_that_does_not_speak_tls_is_said(authority: trustme.CA) -> None:
    async with WebServer(greeting=b"220 mail.example ESMTP\r\n") as mail:
        internet = FakeInternet([PUBLIC], {443: mail.port})
        fetcher = client(
            FakeNames({"site.example": PUBLIC}), internet=internet, tls=trusting(authority)
        )

        with pytest.raises(FetchFailed, match=r"site\.example:443 does not speak TLS"):
            await fetched(fetcher, "https://site.example/")


async def test_a_server_that_does_not_speak_http_is_said() -> None:
    async with WebServer(greeting=b"220 mail.example ESMTP\r\n\r\n") as mail:
        with pytest.raises(FetchFailed) as caught:
            await fetched(local(mail), "http://site.example/")

    assert str(caught.value) == "site.example:80 does not answer as an HTTP server should."


async def test_a_redirect_may_change_the_scheme_either_way(
    web: WebServer, authority: trustme.CA
) -> None:
    async with WebServer(tls=server_context(authority, "site.example")) as secure:
        web.pages["/"] = redirect("https://site.example/up")
        secure.pages["/up"] = redirect("http://site.example/down")
        web.pages["/down"] = Page(b"arrived")
        internet = FakeInternet([PUBLIC], {80: web.port, 443: secure.port})
        fetcher = client(
            FakeNames({"site.example": PUBLIC}), internet=internet, tls=trusting(authority)
        )

        assert await fetched(fetcher, "http://site.example/") == b"arrived"


# -- redirects ----------------------------------------------------------------------------------


async def test_redirects_are_followed_relative_to_where_they_stand(web: WebServer) -> None:
    web.pages |= {
        "/a/b": redirect("c?x=1#y"),
        "/a/c": redirect("/caf\u00e9".encode().decode("latin-1")),
        "/caf%C3%A9": redirect("//other.example/end"),
        "/end": Page(b"end"),
    }

    async with local(web, "site.example", "other.example").get(
        "http://site.example/a/b"
    ) as response:
        body = await response.read()

    assert (body, str(response.url)) == (b"end", "http://other.example/end")
    assert [request.target for request in web.requests] == [
        "/a/b",
        "/a/c?x=1",
        "/caf%C3%A9",
        "/end",
    ]


async def test_headers_of_the_caller_stay_with_the_origin_they_are_for(web: WebServer) -> None:
    web.pages |= {
        "/": redirect("/same"),
        "/same": redirect("http://other.example/elsewhere"),
        "/elsewhere": Page(b"end"),
    }

    fetcher = local(web, "site.example", "other.example")
    async with fetcher.get("http://site.example/", headers={"X-Token": "fake"}) as response:
        await response.read()

    assert [request.headers.get("x-token") for request in web.requests] == ["fake", "fake", None]


async def test_a_loop_of_redirects_ends(web: WebServer) -> None:
    web.pages["/"] = redirect("/")

    with pytest.raises(FetchFailed, match="more than 5 redirects"):
        await fetched(local(web), "http://site.example/")

    assert len(web.requests) == 6


async def test_a_redirect_that_leads_nowhere_is_a_response(web: WebServer) -> None:
    web.pages["/"] = Page(b"choose", 302)

    async with local(web).get("http://site.example/") as response:
        body = await response.read()

    assert (response.status, body) == (302, b"choose")


# -- bounds -------------------------------------------------------------------------------------

SOON = FetchLimits(total_s=0.3, connect_s=0.3)


@pytest.mark.parametrize(
    "page",
    [
        Page(silent=True),
        Page(b"head", endless=b"x"),
        Page(b"head", announced=100, stalls=True),
        Page(status=302, headers=(("Location", "/"),), endless=b"x"),
    ],
    ids=["no answer", "drips", "stops", "redirects for ever"],
)
async def test_a_server_that_takes_its_time_is_left(web: WebServer, page: Page) -> None:
    def answer(request: Request) -> Page:
        return page

    web.pages["/"] = answer
    limits = FetchLimits(total_s=0.3, redirects=1_000_000)

    with pytest.raises(FetchTimedOut, match=r"longer than 0\.3 s"):
        await fetched(local(web, limits=limits), "http://site.example/")

    async with asyncio.timeout(10):
        await web.left.wait()


async def test_a_name_server_that_does_not_answer_is_left() -> None:
    async def silent(host: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    fetcher = SafeClient(tls=OneTLS(), lookup=silent, limits=SOON)

    with pytest.raises(FetchTimedOut):
        await fetched(fetcher, "http://site.example/")


async def test_a_time_out_of_the_callers_own_is_not_taken_for_the_clients(web: WebServer) -> None:
    web.pages["/"] = Page(b"x")

    with pytest.raises(TimeoutError, match="mine"):
        async with local(web).get("http://site.example/"):
            raise TimeoutError("mine")


async def test_a_cancelled_fetch_closes_its_connection(web: WebServer) -> None:
    web.pages["/"] = Page(silent=True)
    fetch = asyncio.create_task(fetched(local(web), "http://site.example/"))
    async with asyncio.timeout(10):
        await web.arrived.wait()

    fetch.cancel()

    with pytest.raises(asyncio.CancelledError):
        await fetch
    async with asyncio.timeout(10):
        await web.left.wait()


SMALL = FetchLimits(max_bytes=1000, total_s=20.0)


async def test_a_body_is_read_up_to_the_limit_and_no_further(web: WebServer) -> None:
    web.pages |= {
        "/fits": Page(b"x" * 1000),
        "/not": Page(b"x" * 1001),
        "/": Page(endless=b"x" * 100),
    }
    fetcher = local(web, limits=SMALL)

    body = await fetched(fetcher, "http://site.example/fits")
    for path in ("/not", "/"):
        with pytest.raises(TooLarge, match="1,000 bytes"):
            await fetched(fetcher, f"http://site.example{path}")

    assert len(body) == 1000


async def test_the_head_of_a_large_body_can_be_had(web: WebServer) -> None:
    web.pages |= {"/large": Page(endless=b"0123456789" * 100), "/small": Page(b"all")}
    fetcher = local(web, limits=SMALL)

    heads = []
    for path, limit in (("/large", 15), ("/large", None), ("/small", None)):
        async with fetcher.get(f"http://site.example{path}") as response:
            heads.append(await response.read_head(limit))

    assert heads == [(b"012345678901234", False), (b"0123456789" * 100, False), (b"all", True)]


def packed(body: bytes, encoding: str = "gzip") -> Page:
    return Page(body, headers=(("Content-Encoding", encoding),))


async def test_a_compression_bomb_is_measured_by_what_it_unpacks_to(web: WebServer) -> None:
    web.pages["/"] = packed(gzip.compress(bytes(50_000_000)))
    fetcher = local(web, limits=FetchLimits(max_bytes=1_000_000, total_s=20.0))

    with pytest.raises(TooLarge):
        await fetched(fetcher, "http://site.example/")
    async with fetcher.get("http://site.example/") as response:
        head, is_whole = await response.read_head(10)

    assert (head, is_whole) == (bytes(10), False)


async def test_compressed_emptiness_without_end_is_stopped(web: WebServer) -> None:
    web.pages["/"] = Page(
        endless=gzip.compress(b"") * 1000, headers=(("Content-Encoding", "gzip"),)
    )

    with pytest.raises(TooLarge):
        await fetched(local(web, limits=SMALL), "http://site.example/")


async def test_compressed_bodies_are_unpacked_however_they_are_wrapped(web: WebServer) -> None:
    text = b"some words, " * 20_000
    raw = zlib.compressobj(wbits=-15)
    pages = [
        packed(gzip.compress(text)),
        packed(gzip.compress(text[:5000]) + gzip.compress(text[5000:])),
        packed(gzip.compress(text) + bytes(100)),
        packed(zlib.compress(text), "deflate"),
        packed(raw.compress(text) + raw.flush(), "deflate"),
        packed(gzip.compress(text), "X-GZIP"),
        packed(text, "identity"),
        packed(b"", "gzip"),
    ]
    bodies = []
    for page in pages:
        web.pages["/"] = page
        bodies.append(await fetched(local(web), "http://site.example/"))

    assert bodies == [text] * 7 + [b""]


@pytest.mark.parametrize(
    "page",
    [
        packed(gzip.compress(b"some words" * 1000)[:-20]),
        packed(b"\x1f\x8b\x08 this is no gzip"),
        packed(b"x", "br"),
        packed(b"x", "gzip, gzip"),
        Page(headers=(("X", "y" * 200_000),)),
        Page(headers=(("Content-Length", "nonsense"),)),
        Page(headers=(("Transfer-Encoding", "chunked"),), body=b"nonsense\r\n"),
    ],
    ids=["cut", "not gzip", "brotli", "twice", "headers", "length", "chunks"],
)
async def test_an_answer_that_cannot_be_understood_is_an_error(web: WebServer, page: Page) -> None:
    web.pages["/"] = page

    with pytest.raises(FetchFailed, match=r"site\.example"):
        await fetched(local(web), "http://site.example/")


async def test_an_answer_cut_off_by_the_network_is_an_error(web: WebServer) -> None:
    web.pages["/"] = Page(b"half", announced=100)

    with pytest.raises(FetchFailed) as caught:
        await fetched(local(web), "http://site.example/")

    assert str(caught.value) == "site.example:80 broke off its answer, or garbled it."


async def test_a_response_tells_its_type_encoding_and_size(web: WebServer) -> None:
    types = {
        "Text/HTML; Charset=UTF-8": ("text/html", "utf-8"),
        'text/plain;charset="iso-8859-1"': ("text/plain", "iso-8859-1"),
        "application/json": ("application/json", ""),
        "": ("", ""),
    }
    found = {}
    for content_type in types:
        web.pages["/"] = Page(b"12345", content_type=content_type)
        async with local(web).get("http://site.example/") as response:
            found[content_type] = (response.media_type, response.charset)
            size = response.announced_size

    assert (found, size) == (types, 5)
