"""A model that makes the same call again and again is told so, and at last stopped."""

from __future__ import annotations

from tests.e2e.conftest import Nanobot
from tests.fakes.model_server import ModelServer, Reply, Request

TOLD = "times in a row"


def calls(name: str, **arguments: object) -> Reply:
    return Reply.tool_calls([(name, arguments)])


def told(model: ModelServer) -> list[int]:
    """The numbers of the requests whose newest message speaks of a repetition."""
    return [one.number for one in model.requests if TOLD in str(one.messages[-1]["content"])]


def test_from_the_fifth_time_on_the_model_is_told_and_after_twenty_it_has_to_answer(
    nanobot: Nanobot, model: ModelServer
) -> None:
    def stuck(request: Request) -> Reply:
        if request.body.get("tool_choice") == "none":
            return Reply.text("I got no further.")
        return calls("list_dir", path=".")

    model.answer_with(stuck)
    nanobot.use_model(model, maxToolIterations=40)

    done = nanobot.run("agent", "-m", "look around")

    assert (done.returncode, done.stdout) == (0, "I got no further.\n"), done.stderr
    assert told(model) == list(range(6, 22))
    assert f"5 {TOLD}" in model.requests[5].last_user
    assert f"20 {TOLD}" in model.requests[20].last_user


def test_the_same_call_with_another_result_is_no_repetition(
    nanobot: Nanobot, model: ModelServer
) -> None:
    growing = calls("exec", command="echo x >> log; cat log")
    model.script(*[growing] * 12, Reply.text("Done."))
    nanobot.use_model(model)

    done = nanobot.run("agent", "-m", "keep a log")

    assert (done.returncode, done.stdout, told(model)) == (0, "Done.\n", []), done.stderr


def test_a_quiet_process_may_be_polled_for_as_long_as_it_takes(
    nanobot: Nanobot, model: ModelServer
) -> None:
    def patient(request: Request) -> Reply:
        if request.number == 1:
            return calls("exec", command="sleep 60", background=True)
        if request.number > 24:
            return Reply.text("It still runs.")
        name = request.tool_results[0].partition(" as ")[2].partition(";")[0]
        return calls("process", action="poll", id=name, timeout_s=0)

    model.answer_with(patient)
    nanobot.use_model(model, maxToolIterations=40)

    done = nanobot.run("agent", "-m", "run it")

    assert (done.returncode, done.stdout) == (0, "It still runs.\n"), done.stderr
    assert model.requests[-1].tool_results[-1] == "[running, no new output]"
