"""What is masked as a secret, what is not, and that it takes little time."""

from __future__ import annotations

import hashlib
import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.safety.redaction import MASK, Redactor

# Put together here, so that no scanner takes this file for a leak.
KEYS = [
    "sk-" + "fake0123456789abcdefFAKE0123",
    "sk-proj-" + "fake_0123-456789abcdefFAKE0123",
    "sk-ant-api03-" + "fake" * 20 + "01-AA",
    "sk-or-v1-" + "0123456789abcdef" * 4,
    "sk_live_" + "fake0123456789abcdef",
    "ghp_" + "fake" * 9,
    "gho_" + "fake" * 9,
    "github_pat_" + "fake_" * 16,
    "glpat-" + "fake-0123456789abcdef",
    "xoxb-" + "123456789012-fake0123456789",
    "xapp-" + "1-A0123-fake0123456789",
    "AKIA" + "FAKEFAKEFAKEFAKE",
    "AIza" + "Fake0" * 7,
    "ya29." + "fake0123456789abcdefgh",
    "gsk_" + "fake" * 13,
    "hf_" + "fakeF" * 7,
    "tvly-" + "fake0123456789abcdef",
    "eyJ" + "fakefake0.eyJ" + "fakefake1." + "fake_-fake2",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "frame", ["{}", "key={}", '{{"apiKey": "{}"}}', "({}).", "\n{}\n", "'{}',"]
)
def test_well_known_keys_are_masked_wherever_they_stand(key: str, frame: str) -> None:
    assert Redactor().mask(frame.format(key)) == frame.format(MASK)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://api.telegram.org/bot123456789:" + "AAfake0" * 5 + "/getMe",
         f"https://api.telegram.org/bot123456789:{MASK}/getMe"),
        ("Authorization: Bearer fake0123456789abcdef==", f"Authorization: Bearer {MASK}"),
        ("authorization: bearer fake-0123.456789_abc", f"authorization: bearer {MASK}"),
        ('"Authorization": "Basic dXNlcjpmYWtl"', f'"Authorization": "Basic {MASK}"'),
        ("git clone https://me:fake-token@example.invalid/x.git",
         f"git clone https://me:{MASK}@example.invalid/x.git"),
        ("postgres://app:fake@db/x and redis://:fakefake@cache",
         f"postgres://app:{MASK}@db/x and redis://:{MASK}@cache"),
        ("a\n-----BEGIN OPENSSH PRIVATE KEY-----\nZmFrZQ==\nZmFrZQ\n"
         "-----END OPENSSH PRIVATE KEY-----\nb",
         f"a\n-----BEGIN OPENSSH PRIVATE KEY-----{MASK}\nb"),
        ("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"
         "ZmFrZQ==\n-----END RSA PRIVATE KEY-----",
         f"-----BEGIN RSA PRIVATE KEY-----{MASK}"),
        (r"{'key': '-----BEGIN PRIVATE KEY-----\nZmFrZQ==\n-----END PRIVATE KEY-----\n'}",
         rf"{{'key': '-----BEGIN PRIVATE KEY-----{MASK}\n'}}"),
        ("-----BEGIN PRIVATE KEY-----\nZmFrZQ== cut off", f"-----BEGIN PRIVATE KEY-----{MASK}"),
    ],
)  # fmt: skip
def test_what_a_secret_was_can_still_be_read(text: str, masked: str) -> None:
    assert Redactor().mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "550e8400-e29b-41d4-a716-446655440000",
        "<div class='sk-fading-circle-with-many-dots sk-circle12'>",
        "task-0123456789abcdef0123456789 risk-2024-report-final-version-2",
        "The bearer of this letter is entitled to everything in it.",
        "bearer authentication-is-required",
        "http://localhost:8080/path@2x.png",
        "git@github.com:owner/repository.git",
        "https://example.invalid:443/?q=a:b@c",
        "2026-01-02T03:04:05.678901+00:00 12345678:short",
        "-----BEGIN CERTIFICATE-----\nMIIBfake\n-----END CERTIFICATE-----",
        "eyJhbGciOiJIUzI1NiJ9 alone is only the head of a token",
        "AKIA is a prefix, and so are ghp_ and sk- and hf_hub_download",
        "npm_config_registry=https://example.invalid/",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUA",
        "Ein Satz mit Umlauten: Grüße, €, 😀.",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert Redactor(["configured-secret"]).mask(text) == text


def test_hashes_and_identifiers_of_all_sorts_are_left_alone() -> None:
    for number in range(2000):
        digest = hashlib.sha512(str(number).encode())
        identifier = uuid.UUID(bytes=digest.digest()[:16])
        text = f"{digest.hexdigest()} {identifier} {digest.hexdigest()[:40]}:{number} v{number}"
        assert Redactor().mask(text) == text


def test_configured_secrets_are_masked_in_every_form_they_take() -> None:
    secret = 'p@ss "wörd"/1'
    redactor = Redactor([secret])

    text = f"{secret} {json.dumps(secret)} p%40ss%20%22w%C3%B6rd%22%2F1"

    assert redactor.mask(text) == f'{MASK} "{MASK}" {MASK}'


def test_of_two_secrets_the_longer_one_goes_first() -> None:
    assert Redactor(["fake-key-1", "fake-key-1-and-more"]).mask(
        "fake-key-1-and-more fake-key-1"
    ) == (f"{MASK} {MASK}")


def test_values_too_short_to_be_told_from_words_are_not_masked() -> None:
    redactor = Redactor(["", "  ", "secret", "1234567"])

    assert redactor.mask("a secret of 1234567 words") == "a secret of 1234567 words"


@given(
    st.lists(st.sampled_from([*KEYS, "configured-secret", " ", "x", "Bearer ", ":"]), max_size=6)
)
def test_masking_twice_is_masking_once_and_leaves_no_secret(parts: list[str]) -> None:
    redactor = Redactor(["configured-secret"])

    masked = redactor.mask(" ".join(parts))

    assert redactor.mask(masked) == masked
    assert not any(key in masked for key in (*KEYS, "configured-secret"))


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox jumps over the lazy dog. " * 23_000,
        "sk-" * 350_000,
        "sk-a1 " * 170_000,
        "eyJ" * 350_000,
        "eyJaaaaaaaa.eyJ" * 70_000,
        "1" * 1_000_000,
        ":" * 1_000_000,
        "://a:" * 200_000,
        "-----BEGIN PRIVATE KEY-----" * 37_000,
        "-----BEGIN PRIVATE KEY-----" + "\n" * 1_000_000,
        "Bearer " * 140_000,
        "Authorization" + " " * 1_000_000,
    ],
    ids=lambda text: str(text)[:20].strip(),
)
def test_a_secret_behind_a_hostile_megabyte_is_masked(text: str) -> None:
    """Also a test that masking ends: in quadratic time it would take hours."""
    redactor = Redactor([f"configured-secret-{number}" for number in range(20)])

    masked = redactor.mask(f"{text}\n-----END PRIVATE KEY-----\nconfigured-secret-7.")

    assert masked.endswith(f"{MASK}.")
