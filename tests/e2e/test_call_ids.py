"""Calls whose endpoint gives them an id that a former call of the turn had."""

from __future__ import annotations

from tests.e2e.conftest import OWNER, Telegram, eventually
from tests.fakes.model_replies import Framing, Ids, Reply
from tests.fakes.model_server import Request

PARTS = [f"Part {number}." for number in range(1, 7)]


def test_messages_of_one_turn_are_all_sent_though_their_calls_share_an_id(
    telegram: Telegram,
) -> None:
    parts = list(PARTS)
    summed_up: list[Request] = []

    def answer(request: Request) -> Reply:
        if "tools" not in request.body:
            summed_up.append(request)
            return Reply.text("## Facts\nParts were sent.")
        if not parts:
            return Reply.text("Done.")
        # So long that soon no former call of the turn is left in the model's view.
        wanted = [("message", {"content": parts.pop(0)})]
        reply = Reply.tool_calls(wanted, text="word " * 1500)
        return reply.but(framing=Framing(ids=Ids.SAME, text_size=1000))

    telegram.model.answer_with(answer)
    config = telegram.config()
    config["agents"]["defaults"] |= {"contextWindow": 8000, "maxTokens": 1000}
    telegram.nanobot.configure(config)
    telegram.start()

    telegram.api.inject("send the report in parts", chat_id=OWNER)
    eventually(lambda: "Done." in telegram.texts(), "the answer")

    assert telegram.texts() == [*PARTS, "Done."]
    assert summed_up
