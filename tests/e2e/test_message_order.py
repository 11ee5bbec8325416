"""A conversation that its endpoint's rule on the order of messages would end for good."""

from __future__ import annotations

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes import message_rules
from tests.fakes.message_rules import Rule
from tests.fakes.model_server import ModelServer, Reply, Request


def ruled(model: ModelServer, rule: Rule, *replies: Reply) -> list[Request]:
    """Have ``model`` give these replies to requests that obey; returns those that did not."""
    waiting = list(replies)
    refused: list[Request] = []

    def answer(request: Request) -> Reply:
        if refusal := rule(request):
            refused.append(request)
            return refusal
        return waiting.pop(0)

    model.answer_with(answer)
    return refused


def test_a_stopped_question_does_not_brick_a_chat_with_gemma(telegram: Telegram) -> None:
    gate = telegram.model.gate()
    refused = ruled(
        telegram.model,
        message_rules.gemma_in_llama_cpp,
        Reply.text("late", gate=gate),
        Reply.text("Still here."),
        Reply.text("And here."),
    )
    gateway = telegram.start()
    telegram.api.inject("delete the folder", chat_id=OWNER)
    telegram.model.wait_arrived(1)
    telegram.api.inject("/stop", chat_id=OWNER)
    eventually(lambda: len(telegram.texts()) == 1, "an answer to /stop")

    telegram.api.inject("are you there?", chat_id=OWNER)
    eventually(lambda: "Still here." in telegram.texts(), "an answer to the next question")
    learned = len(refused)
    gateway.terminate()
    telegram.start()
    telegram.api.inject("and now?", chat_id=OWNER)
    eventually(lambda: "And here." in telegram.texts(), "an answer of the next process")

    assert learned <= 1
    assert len(refused) == learned


def test_mistral_is_asked_to_reflect_without_one_refusal(
    nanobot: Nanobot, model: ModelServer
) -> None:
    refused = ruled(
        model,
        message_rules.mistral,
        Reply.tool_calls([("list_dir", {"path": "."}), ("list_dir", {"path": "memory"})]),
        Reply.text("Two folders."),
    )
    nanobot.configure(
        {
            "agents": {"defaults": {"model": "mistral/mistral-large-latest"}},
            "providers": {"mistral": {"apiKey": "sk-fake-owner-key-0000", "apiBase": model.url}},
        }
    )

    done = nanobot.run("agent", "-m", "look around")

    assert (done.returncode, done.stdout, refused) == (0, "Two folders.\n", []), done.stderr
