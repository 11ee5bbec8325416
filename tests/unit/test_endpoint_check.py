"""Looking at a model endpoint says what it found, within its limit, and never fails."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from nanobot.cli.onboard_plan import Checked, check_endpoint
from tests.fakes.model_server import ModelServer


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def test_an_endpoint_that_answers_lists_its_models() -> None:
    with ModelServer.in_thread(models=("a", "b"), require_key="sk-fake") as server:
        checked = check_endpoint(f"{server.url}/", "sk-fake")

        assert checked == Checked(f"{server.url}/ answers and lists 2 models", ("a", "b"))


@pytest.mark.parametrize(("key", "said"), [("sk-no", "this key"), ("", "requests without a key")])
def test_a_refused_key_is_told_from_none(key: str, said: str) -> None:
    with ModelServer.in_thread(require_key="sk-fake") as server:
        checked = check_endpoint(server.url, key)

        assert checked == Checked(f"{server.url} does not accept {said} (401)", is_refused=True)


def test_what_is_no_list_of_models_proves_nothing() -> None:
    with ModelServer.in_thread() as server:
        checked = check_endpoint(server.root, "")

        assert checked == Checked(f"{server.root} gives no list of models (status 404)")


def test_silence_ends_at_the_limit(silent: str) -> None:
    checked = check_endpoint(silent, "", limit_s=0.3)

    assert checked == Checked(f"{silent} did not answer within 0.3 s")


@pytest.mark.parametrize(
    "base", ["http://127.0.0.1:9/v1", "http://[::/v1", f"http://{'a' * 70}.invalid"]
)
def test_what_cannot_be_reached_is_said(base: str) -> None:
    checked = check_endpoint(base, "sk-fake")

    assert (checked.models, checked.is_refused) == ((), False)
    assert checked.sentence.startswith(f"{base} cannot be reached: ")
    assert "sk-fake" not in json.dumps(checked.sentence)
