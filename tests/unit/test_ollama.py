"""Where the Ollama of this machine is looked for, by its own variable."""

from __future__ import annotations

import pytest

from nanobot.providers.ollama import address, base, is_ollama, running_models


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (None, "127.0.0.1:11434"),
        ("", "127.0.0.1:11434"),
        ("0.0.0.0", "127.0.0.1:11434"),
        ("[::]:1234", "127.0.0.1:1234"),
        ("box.example", "box.example:11434"),
        ("box.example:1234", "box.example:1234"),
        ("http://box.example:1234/", "box.example:1234"),
        (":1234", "127.0.0.1:1234"),
        ("[::1]", "[::1]:11434"),
        ("http://[::1", "127.0.0.1:11434"),
        ("box.example:port", "127.0.0.1:11434"),
    ],
)
def test_the_address_is_read_as_ollama_writes_it(said: str | None, found: str) -> None:
    environ = {} if said is None else {"OLLAMA_HOST": said}

    assert (address(environ), base(environ)) == (found, f"http://{found}/v1")


def test_nobody_there_has_no_models() -> None:
    assert running_models({"OLLAMA_HOST": "127.0.0.1:9"}) == ()


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("ollama", "http://box.example:80/v1", True),
        ("custom", "http://127.0.0.1:11434/v1", True),
        ("custom", "http://127.0.0.1:8000/v1", False),
        ("openai", "https://api.openai.com/v1", False),
    ],
)
def test_an_ollama_is_known_by_its_name_or_its_port(name: str, url: str, expected: bool) -> None:
    assert is_ollama(name, url) is expected
