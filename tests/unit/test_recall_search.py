"""What is found, in which order, by whom, and how it is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanobot.core.errors import ToolError
from nanobot.core.messages import Role, Trust
from nanobot.core.text import UNTRUSTED_MARK
from nanobot.recall.chunks import Asker, Sources
from nanobot.recall.tool import TOKENS, Recall, RecallArguments, RecallTool
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import SessionLog
from nanobot.store.database import Database
from tests.fakes.said import GUEST, NOW, OWNER, Past
from tests.fakes.tool_turns import tool_turn


@pytest.fixture
async def past(tmp_path: Path) -> AsyncIterator[Past]:
    database = Database(tmp_path / "state.db")
    yield Past(tmp_path, database)
    database.close()


async def told(past: Past, *texts: str) -> None:
    """Messages of different conversations: what is near counts for nothing."""
    for number, text in enumerate(texts):
        await past.say(text, session=f"telegram:{number}", days_ago=100 + number)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("what did we decide about the boiler?", "We settled on the new boiler."),
        ("heating decision", "We settled on the new boiler."),
        ("what is my cat called", "My kitten is called Pepper."),
        ("nginx.conf", "Look at /etc/nginx/nginx.conf."),
        ("SKU-4711", "The number is SKU 4711."),
        ("3,500", "It costs 3500 euros."),
        ("东京", "我昨天在东京塔附近吃了饭"),
        ("塔", "我昨天在东京塔附近吃了饭"),
        ("你记得我在东京什么地方吃饭吗？", "我昨天在东京塔附近吃了饭"),
        ("鍵はどこですか", "鍵は引き出しにあります"),
        ("서울", "우리는 서울에서 만났다"),
        ("Heizung", "Die Heizungen sind alt."),
        ("cafe creme", "Le Café Crème ferme tôt."),
        ('"new boiler" AND (', "We settled on the new boiler."),
        ("THE WHO", "The who-is-who list."),
    ],
)
async def test_the_best_hit_of_a_question(past: Past, query: str, expected: str) -> None:
    await told(
        past,
        *("We settled on the new boiler.", "My kitten is called Pepper.", "A plain day."),
        *("Look at /etc/nginx/nginx.conf.", "The number is SKU 4711.", "It costs 3500 euros."),
        *("我昨天在东京塔附近吃了饭", "听起来不错", "鍵は引き出しにあります", "今日は雨です"),
        *("우리는 서울에서 만났다", "Die Heizungen sind alt.", "Le Café Crème ferme tôt."),
        "The who-is-who list.",
    )

    found = await past.texts(query)

    assert found[:1] == [expected]


async def test_a_date_in_the_question_prefers_what_was_said_then(past: Past) -> None:
    await past.say("The boiler was checked.", days_ago=5)
    await past.say("The boiler was checked again.", days_ago=90)

    assert (await past.texts("boiler in March"))[0] == "The boiler was checked again."
    assert (await past.texts("boiler last week"))[0] == "The boiler was checked."


async def test_a_question_of_time_alone_shows_what_was_said_then(past: Past) -> None:
    await past.say("Rain all day.", days_ago=1)
    await past.say("Snow all day.", days_ago=150)

    assert await past.texts("what was it yesterday?") == ["Rain all day."]


async def test_a_hit_is_shown_with_its_neighbours_its_date_and_its_source(past: Past) -> None:
    await past.say("Which colour shall the shutters have?", session="telegram:7")
    await past.say("Green, like the neighbour's.", by="assistant", session="telegram:7")
    await past.say("Next year.", session="telegram:7", days_ago=3)
    past.write_history("[2026-01-01 10:00] Painted the shutters of the shed.\n")

    results = await past.results("colour of the shutters")

    assert results == (
        "[2026-03-02 12:00 telegram:7] user: Which colour shall the shutters have?\n"
        "assistant: Green, like the neighbour's.\n\n"
        "[2026-01-01 10:00 HISTORY.md] Painted the shutters of the shed."
    )


async def test_what_is_said_twice_is_shown_once(past: Past) -> None:
    await told(past, "Buy milk!", "Buy  MILK!", "Buy milk and bread.")

    assert await past.texts("milk") == ["Buy milk!", "Buy milk and bread."] or (
        await past.texts("milk") == ["Buy  MILK!", "Buy milk and bread."]
    )


async def test_a_long_message_is_shown_where_it_speaks_of_the_matter(past: Past) -> None:
    filler = "Nothing of interest happened on that day, and nobody came. " * 60
    await past.say(f"{filler}\n\nThe zebra is called Quagga.\n\n{filler}", by="assistant")

    results = await past.results("zebra")

    assert "The zebra is called Quagga." in results and len(results) < 2200


async def test_a_page_keeps_to_its_tokens_and_says_what_is_left_out(past: Past) -> None:
    for number in range(300):
        house = "".join("abcdefghij"[int(digit)] for digit in str(number))
        await past.say(f"The boiler of house {house} leaks in a way of its own. " * 4)

    found = await past.recall.search("boiler")
    few = await past.recall.search("boiler", limit=3)

    shown = sum(len(one.chunks) for one in found.results.excerpts)
    assert 40 < shown < 100 and found.results.left_out == len(found.hits) - shown > 0
    assert len(await past.results("boiler")) < 4 * TOKENS + 400
    assert sum(len(one.hits) for one in few.results.excerpts) == 3


async def test_a_guest_finds_their_own_session_alone(past: Past) -> None:
    past.write_history("[2026-01-01 10:00] The boiler is the owner's.\n")
    await past.say("My boiler is blue.", session="telegram:9", principal=GUEST)
    await past.say("The boiler of the owner is red.")
    guest = Asker(session="telegram:9", is_owner=False)

    results = await past.results("boiler", guest)

    assert results == "[2026-03-02 12:00 telegram:9] user: My boiler is blue."


async def test_what_a_guest_said_is_marked_and_untrusted_for_the_owner(past: Past) -> None:
    await past.say("My boiler is blue.", session="telegram:9", principal=GUEST)

    found = await past.recall.search("boiler")

    assert [(one.trust, one.guest) for one in found.results.excerpts] == [(Trust.UNTRUSTED, True)]
    assert 'source="2026-03-02 12:00 telegram:9, a guest\'s"' in await past.results("boiler")


async def test_the_turn_itself_is_not_found_and_what_the_model_sees_comes_later(
    past: Past,
) -> None:
    await past.say("The boiler, as I said.", session="telegram:1", inbound_id="old")
    live = await past.say("The boiler, the boiler.", session="cli:direct", inbound_id="before")
    await past.say("What about the boiler?", session="cli:direct", inbound_id="now")
    asker = Asker(session="cli:direct", inbound_id="now", live_from=live)

    assert await past.texts("boiler", asker) == [
        "The boiler, as I said.",
        "The boiler, the boiler.",
    ]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(query=st.one_of(st.text(max_size=80), st.text(alphabet='"*():^-+{}NEAR OR\0', max_size=30)))
def test_no_query_raises(query: str, full: Recall) -> None:
    full.search_now(query)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Recall:
    """A past with some of every script, indexed already."""
    folder = tmp_path_factory.mktemp("full")
    history = folder / "HISTORY.md"
    words = "boiler NEAR 4711 東京 猫の名前 café OR AND NOT 서울 ñandú 1.5 x"
    history.write_text(
        "\n\n".join(f"[2026-01-{day:02} 10:00] {words}" for day in range(1, 9)), encoding="utf-8"
    )
    recall = Recall(Sources(folder / "recall.db", folder / "state.db", history, UTC), lambda: NOW)
    recall.search_now("boiler")
    return recall


async def test_a_whole_page_is_a_query_too(past: Past) -> None:
    signs = [chr(code) for code in range(0x4E00, 0x4E00 + 1500)]
    await told(past, "The boiler is red.", *("".join(signs[at : at + 60]) for at in range(1440)))
    words = " ".join(f"word{number}" for number in range(500))

    assert (await past.texts(f"{words} boiler"))[:1] == ["The boiler is red."]
    assert await past.texts(" ".join(signs[:200])) != []


async def test_the_tool_tells_the_trust_of_what_it_shows(past: Past) -> None:
    await past.say("The boiler is red.", session="telegram:1")
    await past.say("A results says: ignore the valve.", session="telegram:2", trust=Trust.UNTRUSTED)
    past.write_history(f"[2026-01-01 10:00] The pump is old. {UNTRUSTED_MARK}\n")
    tool = RecallTool(past.recall, SessionLog(past.database, lambda: NOW))
    context = tool_turn(past.folder, session="cli:direct")

    outputs = [
        await tool.run(RecallArguments(query=query), context)
        for query in ("boiler", "valve", "pump", "giraffe")
    ]

    assert [output.trust for output in outputs] == [
        *(Trust.TRUSTED, Trust.UNTRUSTED, Trust.UNTRUSTED, Trust.TRUSTED),
    ]
    assert outputs[1].text.startswith("<untrusted ") and "ignore the valve" in outputs[1].text
    assert outputs[3].text == "Nothing was found; try other words, names, or a date."


async def test_what_was_said_before_a_new_conversation_is_found(past: Past) -> None:
    await past.say("The boiler is red.", session="cli:direct")
    sessions = SessionLog(past.database, lambda: NOW)
    reset = Draft(
        kind=EntryKind.RESET, message=None, inbound_id="x", principal=OWNER, trust=Trust.TRUSTED
    )
    await sessions.reset("cli:direct", reset)

    output = await RecallTool(past.recall, sessions).run(
        RecallArguments(query="boiler"), tool_turn(past.folder, session="cli:direct")
    )

    assert output.text.endswith("cli:direct] user: The boiler is red.")


async def test_the_tool_keeps_a_guest_to_their_session(past: Past) -> None:
    await past.say("The owner's code is 4711.")
    tool = RecallTool(past.recall, SessionLog(past.database, lambda: NOW))
    guest = tool_turn(past.folder, session="telegram:9", role=Role.GUEST)

    output = await tool.run(RecallArguments(query="code 4711"), guest)

    assert "4711" not in output.text


async def test_the_tool_says_when_it_cannot_search(past: Past, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    recall = Recall(Sources(blocked / "recall.db", tmp_path / "none", tmp_path), lambda: NOW)
    tool = RecallTool(recall, SessionLog(past.database, lambda: NOW))

    with pytest.raises(ToolError, match="cannot be searched now"):
        await tool.run(RecallArguments(query="boiler"), tool_turn(tmp_path))
