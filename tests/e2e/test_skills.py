"""Skills from the outside: their commands in the terminal and in Telegram, their keys."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.context import cl100k
from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_server import ModelServer, Reply, Request
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


def many_skills(root: Path, count: int) -> list[str]:
    """Writes ``count`` skills, each with a description of three sentences; returns their names."""
    names = [f"{AREAS[number % len(AREAS)]}-helper-{number:04}" for number in range(count)]
    for name in names:
        area = name.split("-")[0]
        write_skill(
            root,
            name,
            f"description: Works on {area} for {name}. Use when somebody asks for a {area} report, "
            f"wants to compare one {area} with another, or has to hand in {area} papers. "
            f"Knows the forms of twelve offices and ends with a list of what is missing ({name}).",
        )
    return names


AREAS = ("invoice", "tax", "garden", "travel", "school", "kitchen", "backup")


def skills_section(request: Request) -> str:
    prompt = str(request.messages[0]["content"])
    return prompt[prompt.index("# Skills\n") :]


def test_140_skills_are_listed_with_shortened_descriptions(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    names = many_skills(nanobot.home / "skills", 140)
    model.script(Reply.text("Hello."))

    done = nanobot.run("agent", "-m", "hi")

    section = skills_section(model.requests[0])
    assert done.returncode == 0, done.stderr
    assert cl100k()(section) <= 4000
    assert all(f"\n- {name}: Works on " in section for name in names)
    assert "\n- weather: " in section
    assert str(nanobot.home / "cache" / "skills.txt") in section


def test_of_2290_skills_the_rest_is_found_by_the_search_the_model_is_told_of(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    config = json.loads((nanobot.home / "config.json").read_text(encoding="utf-8"))
    nanobot.configure({**config, "tools": {"restrictToWorkspace": True}})
    names = many_skills(nanobot.home / "skills", 2290)
    sought = names[2000]
    told: list[str] = []

    def answer(request: Request) -> Reply:
        last = str(request.messages[-1]["content"])
        if request.messages[-1]["role"] != "tool":
            section = skills_section(request)
            told[:] = re.findall(r"^(/\S+/skills\.txt) has a line", section, re.MULTILINE)
            search = {"path": told[0], "pattern": sought}
            return Reply.tool_calls([("grep", search)])
        if found := re.search(r"\[(/\S+/SKILL\.md)\]", last):
            return Reply.tool_calls([("read_file", {"path": found[1]})])
        return Reply.text("Found." if "Do it." in last else f"Not found: {last}")

    model.answer_with(answer)

    done = nanobot.run("agent", "-m", "hand in the papers")

    section = skills_section(model.requests[0])
    assert (done.returncode, done.stdout) == (0, "Found.\n"), done.stderr
    assert cl100k()(section) <= 4000
    assert sought not in section and min(names) in section
    assert "\n- weather: " in section


def test_one_catalogue_has_one_number(nanobot: Nanobot, model: ModelServer) -> None:
    nanobot.use_model(model)
    write_skill(nanobot.workspace / "skills", "mine")

    listed = json.loads(nanobot.run("skills", "list", "--json").stdout)["tokens"]
    in_words = nanobot.run("skills", "list").stdout
    in_chat = nanobot.run("agent", "-m", "/skills").stdout
    measured = json.loads(nanobot.run("status", "--context", "--json").stdout)["fixed"]

    assert listed == measured["skills summary"]
    assert f"{listed} tokens of every prompt" in in_words
    assert f"{listed} tokens of every prompt" in in_chat


def test_the_lists_in_a_chat_stay_short_with_many_skills(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    many_skills(nanobot.home / "skills", 500)

    skills = nanobot.run("agent", "-m", "/skills").stdout
    commands = nanobot.run("agent", "-m", "/help").stdout

    assert len(skills) < 20_000 and "more: `nanobot skills list`" in skills
    assert len(commands) < 20_000 and "more: /skills" in commands


def test_without_watching_a_new_conversation_sees_a_new_skill(telegram: Telegram) -> None:
    telegram.nanobot.configure({**telegram.config(), "skills": {"load": {"watch": False}}})
    telegram.model.answer_with(lambda request: Reply.text("Hello."))
    telegram.start()

    def prompt_of(text: str) -> str:
        seen = len(telegram.api.sent_to(OWNER))
        telegram.api.inject(text, chat_id=OWNER)
        telegram.api.wait_for_sent(seen + 1, OWNER)
        asked = [one for one in telegram.model.requests if "# Skills" in str(one.messages[0])]
        return skills_section(asked[-1])

    first = prompt_of("hi")
    write_skill(telegram.nanobot.workspace / "skills", "late")
    same_conversation = prompt_of("hi again")
    prompt_of("/new")
    next_conversation = prompt_of("hi in a new one")
    write_skill(telegram.nanobot.workspace / "skills", "later")
    deleted = telegram.nanobot.run("sessions", "delete", f"telegram:{OWNER}", "--yes")
    after_deletion = prompt_of("hi once more")

    assert "<name>late</name>" not in first + same_conversation
    assert "<name>late</name>" in next_conversation
    assert "<name>later</name>" not in next_conversation
    assert deleted.returncode == 0, deleted.stderr
    assert "<name>later</name>" in after_deletion


def test_a_skill_that_comes_later_stands_in_telegrams_menu(telegram: Telegram) -> None:
    telegram.configure(pollTimeoutS=1)
    telegram.start()
    eventually(lambda: bool(telegram.api.commands), "the menu")

    def names() -> list[str]:
        return [command["command"] for command in telegram.api.commands]

    before = names()
    write_skill(telegram.nanobot.workspace / "skills", "late")
    eventually(lambda: "late" in names(), "the skill in the menu")
    (telegram.nanobot.workspace / "skills" / "late" / "SKILL.md").unlink()
    eventually(lambda: "late" not in names(), "the menu without the skill")

    assert "late" not in before
