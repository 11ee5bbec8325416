"""Skills from the outside: their commands in the terminal and in Telegram, their keys."""

from __future__ import annotations

import re

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_server import ModelServer, Reply
from tests.fakes.skills import write_skill

KEY = "fakeservicekey-0123456789"


def test_a_skills_command_works_in_the_terminal(nanobot: Nanobot, model: ModelServer) -> None:
    nanobot.use_model(model)
    write_skill(nanobot.workspace / "skills", "weather", body="Ask {baseDir}/ask.sh.")
    model.script(Reply.text("Sunny in Paris."))

    result = nanobot.run("agent", "-m", "/weather Paris")

    assert (result.returncode, result.stdout) == (0, "Sunny in Paris.\n")
    said = model.requests[-1].body["messages"][-1]["content"]
    assert f"Ask {nanobot.workspace}/skills/weather/ask.sh." in said
    assert said.endswith("Arguments of the command: Paris")


def test_a_dispatched_command_answers_with_no_model_at_all(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    write_skill(
        nanobot.workspace / "skills", "look", "command-dispatch: tool", "command-tool: exec"
    )

    result = nanobot.run("agent", "-m", "/look echo $((6 * 7))")

    assert (result.returncode, result.stdout, model.requests) == (0, "42\n", [])


def test_a_skills_key_reaches_its_commands_and_nothing_else(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    config = nanobot.home / "config.json"
    text = config.read_text(encoding="utf-8").rstrip().removesuffix("}")
    config.write_text(
        f'{text}, "skills": {{"entries": {{"ask": {{"env": {{"ASK_KEY": "{KEY}"}}}}}}}}}}',
        encoding="utf-8",
    )
    write_skill(nanobot.workspace / "skills", "ask", "command-dispatch: tool", "command-tool: exec")

    length = nanobot.run("agent", "--logs", "-m", "/ask printf %s $ASK_KEY | wc -c")
    shown = nanobot.run("agent", "--logs", "-m", "/ask echo $ASK_KEY")

    assert length.stdout.strip() == str(len(KEY))
    for text in (shown.stdout, shown.stderr, length.stderr):
        assert KEY not in text
    assert "tool exec ok" in length.stderr


def test_skills_stand_in_telegrams_menu_and_work_there(telegram: Telegram) -> None:
    skills = telegram.nanobot.workspace / "skills"
    write_skill(skills, "weather", body="Say the weather.")
    write_skill(skills, "status", body="Not the command.")
    write_skill(skills, "Über-Größe")
    for number in range(120):
        write_skill(skills, f"many-{number:03}")
    telegram.model.script(Reply.text("Sunny."))
    telegram.start()
    eventually(lambda: bool(telegram.api.commands), "the menu")

    telegram.api.inject("/weather Paris", chat_id=OWNER)
    eventually(lambda: telegram.texts() == ["Sunny."], "the answer")

    menu = telegram.api.commands
    names = [command["command"] for command in menu]
    assert len(names) == len(set(names)) == 100
    assert all(re.fullmatch(r"[a-z0-9_]{1,32}", name) for name in names)
    assert names[0] == "start" and "many_000" in names
    assert "Say the weather." in str(telegram.model.requests[-1].body["messages"][-1])
