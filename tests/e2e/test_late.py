"""Messages that were sent long before the daemon could read them."""

from __future__ import annotations

import time

from tests.e2e.conftest import OWNER, Telegram
from tests.fakes.model_replies import Reply


def test_a_message_of_nine_hours_ago_is_answered_with_a_word_on_its_age(
    telegram: Telegram,
) -> None:
    telegram.model.answer_with(lambda request: Reply.text("Good morning."))
    telegram.api.inject("good night", chat_id=OWNER, date=int(time.time()) - 9 * 3600 - 60)

    telegram.start()
    telegram.api.wait_for_sent(1, OWNER, timeout=60)

    (request,) = telegram.model.requests
    header, _, words = request.last_user.partition("\n")
    assert (words, 'sent="9 h ago"' in header) == ("good night", True), header
