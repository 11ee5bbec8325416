"""Tests of the fake model server that other tests and the benchmarks rely on."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fakes.model_server import Ending, Framing, ModelServer, Reply, Request, Tokens

Answer = tuple[int, dict[str, str], bytes]


def post(server_url: str, body: dict[str, Any] | None = None, key: str = "") -> Answer:
    """One request over a connection of its own; blocks."""
    address = urlsplit(server_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    document = json.dumps(body or {"model": "m", "messages": []})
    try:
        connection.request("POST", f"{address.path}/chat/completions", document, headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def get(url: str) -> Answer:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    try:
        connection.request("GET", address.path)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def said(words: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": words}], **more}


def content_of(answer: Answer) -> str:
    return str(json.loads(answer[2])["choices"][0]["message"]["content"])


def deltas_of(answer: Answer) -> list[Any]:
    events = answer[2].decode().split("\n\n")
    documents = [json.loads(one.removeprefix("data: ")) for one in events if "{" in one]
    return [choice["delta"] for one in documents for choice in one["choices"]]


async def test_replies_come_from_the_script_and_then_the_default() -> None:
    async with ModelServer(default=Reply.text("default")) as server:
        server.script(Reply.text("first"), Reply.text("second"))

        answers = [content_of(await asyncio.to_thread(post, server.url)) for _ in range(3)]

    assert answers == ["first", "second", "default"]


async def test_a_callable_goes_by_the_request_and_may_leave_it_to_the_script() -> None:
    def route(request: Request) -> Reply | None:
        return Reply.text("four") if "2+2" in request.last_user else None

    async with ModelServer() as server:
        server.answer_with(route)
        server.script(Reply.text("scripted"))

        answers = [
            content_of(await asyncio.to_thread(post, server.url, said(words)))
            for words in ("hello", "what is 2+2?")
        ]

    assert answers == ["scripted", "four"]


async def test_a_stream_has_the_documented_form() -> None:
    async with ModelServer() as server:
        server.script(
            Reply.tool_calls(
                [("look", {"what": "x"})],
                text="One two",
                reasoning="Hm",
                usage=Tokens(3, 4, 2),
                framing=Framing(argument_size=8),
            )
        )
        body = said("hi", stream=True, stream_options={"include_usage": True})

        answer = await asyncio.to_thread(post, server.url, body)

    assert answer[1]["Content-Type"] == "text/event-stream"
    assert deltas_of(answer) == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm"},
        {"content": "One"},
        {"content": " two"},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call_1_0",
                    "type": "function",
                    "function": {"name": "look", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"what":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' "x"}'}}]},
        {},
    ]
    last = answer[2].decode().split("\n\n")[-3:]
    assert json.loads(last[0].removeprefix("data: "))["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert last[1:] == ["data: [DONE]", ""]


async def test_sizes_cut_the_bytes_of_a_stream_and_change_none() -> None:
    async with ModelServer() as server:
        plain = Reply.text("ü 🙂", framing=Framing(newline="\r\n", comments=True))
        server.script(plain, plain.but(framing=Framing("\r\n", comments=True, sizes=(1, 2))))

        whole, cut = [
            await asyncio.to_thread(post, server.url, said("hi", stream=True)) for _ in range(2)
        ]

    assert whole[2] == cut[2]
    assert whole[2].startswith(b": ping\r\n\r\ndata: {")


async def test_a_key_is_wanted_where_one_is_required() -> None:
    async with ModelServer(require_key="sk-fake") as server:
        wrong = await asyncio.to_thread(post, server.url, None, "sk-other")
        right = await asyncio.to_thread(post, server.url, None, "sk-fake")

    assert (wrong[0], json.loads(wrong[2])["error"]["code"]) == (401, "invalid_api_key")
    assert right[0] == 200


async def test_models_are_listed_and_other_paths_unknown() -> None:
    async with ModelServer(models=("a", "b")) as server:
        models = await asyncio.to_thread(get, f"{server.url}/models")
        unknown = await asyncio.to_thread(get, f"{server.url}/nothing")

    assert [model["id"] for model in json.loads(models[2])["data"]] == ["a", "b"]
    assert unknown[0] == 404


async def test_a_gate_holds_a_request_until_it_is_released() -> None:
    async with ModelServer() as server:
        gate = server.gate()
        server.script(Reply.text("late", gate=gate))
        asked = asyncio.create_task(asyncio.to_thread(post, server.url))
        await gate.reached()
        request = await server.arrived(1)
        was_held = not asked.done() and not request.answered.is_set()

        gate.release()
        answer = await asked
        await request.answered.wait()

    assert (was_held, content_of(answer)) == (True, "late")
    assert not request.disconnected.is_set()


async def test_waiting_for_what_does_not_come_fails_instead_of_hanging() -> None:
    async with ModelServer() as server:
        gate = server.gate()

        with pytest.raises(TimeoutError):
            await gate.reached(timeout_s=0.01)
        with pytest.raises(TimeoutError):
            await server.arrived(1, timeout_s=0.01)
        with pytest.raises(TimeoutError):
            gate.wait_reached(timeout_s=0.01)


async def test_the_record_shows_a_client_that_went_away() -> None:
    async with ModelServer() as server:
        server.script(Reply.hang("a b", after_chunks=1))
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
        body = json.dumps(said("hi", stream=True)).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await reader.readuntil(b"\r\n\r\n")
        request = server.requests[0]
        before = request.disconnected.is_set()

        writer.close()
        await writer.wait_closed()
        await request.disconnected.wait()

    assert (before, request.answered.is_set(), request.last_user) == (False, False, "hi")


async def test_a_connection_serves_one_request_after_another_also_when_sent_at_once() -> None:
    async with ModelServer() as server:
        server.script(Reply.text("one", latency_s=0.01), Reply.text("two"))
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
        one = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"

        writer.write(one + one[:20])
        writer.write(one[20:])
        bodies = []
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            [length] = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
            bodies.append(json.loads(await reader.readexactly(int(length.split(b": ")[1]))))
        writer.close()
        await writer.wait_closed()

    assert [body["choices"][0]["message"]["content"] for body in bodies] == ["one", "two"]
    assert (server.connections_made, [one.connection for one in server.requests]) == (1, [1, 1])


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply.truncated("a b", ending=Ending.CUT), http.client.IncompleteRead),
        (Reply.reset(), ConnectionResetError),
        (Reply.text("", ending=Ending.CUT), http.client.RemoteDisconnected),
    ],
)
async def test_bad_endings_reach_the_client(reply: Reply, error: type[Exception]) -> None:
    async with ModelServer() as server:
        server.script(reply)

        with pytest.raises(error):
            await asyncio.to_thread(post, server.url, said("hi", stream=True))


def broken(request: Request) -> Reply:
    raise LookupError(request.last_user)


async def test_what_a_callable_raises_is_raised_when_the_server_ends() -> None:
    statuses: list[int] = []

    async def ask_a_broken_server() -> None:
        async with ModelServer() as server:
            server.answer_with(broken)
            statuses.append((await asyncio.to_thread(post, server.url, said("hi")))[0])

    with pytest.raises(LookupError, match="hi"):
        await ask_a_broken_server()

    assert statuses == [500]


def test_in_a_thread_it_is_told_and_watched_from_outside() -> None:
    with ModelServer.in_thread(require_key="sk-fake") as server:
        gate = server.gate()
        server.script(Reply.text("first", gate=gate))
        answers: list[Answer] = []
        asking = threading.Thread(
            target=lambda: answers.append(post(server.url, said("hi"), "sk-fake"))
        )
        asking.start()
        gate.wait_reached()
        before = (len(answers), server.wait_arrived(1).last_user)
        gate.release()
        asking.join(10)
        second = post(server.url, said("again"), "sk-fake")

    assert before == (0, "hi")
    assert (content_of(answers[0]), content_of(second)) == ("first", "OK")
    assert [request.last_user for request in server.requests] == ["hi", "again"]


def test_in_a_thread_defects_of_the_test_are_raised_too() -> None:
    def ask_a_broken_server() -> None:
        with ModelServer.in_thread() as server:
            server.answer_with(broken)
            post(server.url, said("hi"))

    with pytest.raises(LookupError, match="hi"):
        ask_a_broken_server()


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(OSError, match="address already in use"):
            _started(port)


def _started(port: int) -> None:
    with ModelServer.in_thread(port=port):
        pass


def test_ending_with_a_request_still_held_leaves_nothing_behind() -> None:
    with ModelServer.in_thread() as server:
        gate = server.gate()
        server.script(Reply.text("never", gate=gate))
        client = socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0))
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        gate.wait_reached()

    gate.release()
    with client:
        ended = _is_ended(client)

    assert ended
    assert "model-server" not in [thread.name for thread in threading.enumerate()]


def _is_ended(client: socket.socket) -> bool:
    client.settimeout(10)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


async def test_two_hundred_slow_requests_are_answered_side_by_side() -> None:
    async with ModelServer() as server:
        gate = server.gate()
        server.default = Reply.text("OK", gate=gate)
        port = urlsplit(server.url).port
        body = json.dumps(said("hi", stream=True)).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)

        async def one() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + body)
            answer = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
            await writer.wait_closed()
            return answer

        asking = asyncio.gather(*(one() for _ in range(200)))
        await gate.reached(200, timeout_s=60)
        gate.release()
        answers = await asking

    assert all(b'"content": "OK"' in answer for answer in answers)


def test_as_a_program_it_prints_its_address_and_ends_when_told() -> None:
    command = [sys.executable, "-m", "tests.fakes.model_server", "--text", "Hello", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            answer = post(url)
        finally:
            process.send_signal(signal.SIGTERM)
        code = process.wait(10)

    assert (content_of(answer), code) == ("Hello", 0)
