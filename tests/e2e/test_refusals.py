"""What a model's endpoint refuses is learned once, not once a process."""

from __future__ import annotations

from tests.e2e.conftest import Nanobot
from tests.fakes.model_server import ModelServer, Reply, Request


def without_temperature(request: Request) -> Reply:
    if "temperature" in request.body:
        return Reply.error(400, "`temperature` is deprecated for this model.")
    return Reply.text("Hello.")


def test_the_next_process_does_not_send_what_was_refused(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.answer_with(without_temperature)
    nanobot.use_model(model)

    answers = [nanobot.run("agent", "-m", "hello").stdout for _ in range(2)]

    assert answers == ["Hello.\n"] * 2
    sent = ["temperature" in request.body for request in model.requests]
    assert sent == [True, False, False]


def test_a_damaged_memory_of_refusals_costs_one_refusal(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.answer_with(without_temperature)
    nanobot.use_model(model)
    nanobot.run("agent", "-m", "hello")
    remembered = nanobot.home / "cache" / "refusals.json"
    remembered.write_bytes(remembered.read_bytes()[:-3])

    done = nanobot.run("agent", "-m", "hello again")

    assert (done.returncode, done.stdout) == (0, "Hello.\n"), done.stderr
    sent = ["temperature" in request.body for request in model.requests]
    assert sent == [True, False, True, False]
