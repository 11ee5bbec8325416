"""A broken configuration refuses; one of the family loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Nanobot, Telegram, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer


def test_a_wrong_key_names_file_path_and_the_nearest_key(nanobot: Nanobot) -> None:
    nanobot.configure({"agents": {"defaults": {"maxTokns": 100}}})

    done = nanobot.run("agent", "-m", "time")

    assert (done.returncode, done.stdout) == (2, "")
    assert str(nanobot.home / "config.json") in done.stderr
    assert "agents.defaults.maxTokns" in done.stderr
    assert "maxTokens" in done.stderr


def test_a_wrong_type_names_what_was_expected(nanobot: Nanobot) -> None:
    nanobot.configure({"tools": {"exec": {"timeout": "soon"}}})

    done = nanobot.run("status")

    assert (done.returncode, done.stdout) == (2, "")
    assert "tools.exec.timeout" in done.stderr
    assert "whole number" in done.stderr


def test_malformed_json_is_refused_with_its_place(nanobot: Nanobot) -> None:
    nanobot.configure({})
    (nanobot.home / "config.json").write_text('{"agents": {\n  "defaults": }\n}')

    done = nanobot.run("agent", "-m", "time")

    assert (done.returncode, done.stdout) == (2, "")
    assert "line 2" in done.stderr


def test_a_config_of_the_family_drops_in(nanobot: Nanobot, model: ModelServer) -> None:
    model.script(Reply.text("At your service."))
    config = model_config(model.url)
    config["agents"]["defaults"] |= {
        "workspace": str(nanobot.workspace),
        "maxTokens": 8192,
        "temperature": 0.7,
        "maxToolIterations": 20,
        "memoryWindow": 50,
    }
    config |= {
        "channels": {
            "telegram": {"enabled": False, "token": "", "allowFrom": [], "proxy": None},
            "whatsapp": {"enabled": False, "bridgeUrl": "ws://localhost:3001"},
        },
        "gateway": {"host": "0.0.0.0", "port": 18790},
        "tools": {
            "web": {"search": {"apiKey": "", "maxResults": 5}},
            "exec": {"timeout": 60},
            "restrictToWorkspace": False,
            "mcpServers": {},
        },
    }
    nanobot.configure(config)

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (0, "At your service.\n"), done.stderr


FAMILY = Path(__file__).parents[1] / "family"


@pytest.mark.parametrize("version", ["0.1.3.post7", "0.2.0", "0.3.5"])
def test_what_the_familys_onboard_wrote_answers_with_one_warning(
    nanobot: Nanobot, model: ModelServer, version: str
) -> None:
    model.script(Reply.text("At your service."))
    config = json.loads((FAMILY / f"config-{version}.json").read_text("utf-8"))
    ours = model_config(model.url)
    config["agents"]["defaults"] |= ours["agents"]["defaults"]
    config["providers"]["custom"] = ours["providers"]["custom"]
    nanobot.configure(config)

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (0, "At your service.\n"), done.stderr
    (warning,) = done.stderr.splitlines()
    assert "this nanobot does not serve, and ignores: " in warning


def test_the_gateway_starts_on_what_the_familys_onboard_wrote(telegram: Telegram) -> None:
    config = json.loads((FAMILY / "config-0.3.5.json").read_text("utf-8"))
    ours = telegram.config()
    config["agents"]["defaults"] |= ours["agents"]["defaults"]
    config["providers"]["custom"] = ours["providers"]["custom"]
    config["channels"]["telegram"] |= ours["channels"]["telegram"]
    telegram.nanobot.configure(config)

    gateway = telegram.start()

    assert gateway.terminate() == 0


def test_an_enabled_channel_that_is_not_served_stops_the_gateway_alone(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.script(Reply.text("Here."))
    config = model_config(model.url)
    config["channels"] = {"whatsapp": {"enabled": True}}
    nanobot.configure(config)

    asked = nanobot.run("agent", "-m", "hello")
    served = nanobot.run("gateway")
    status = nanobot.run("status")

    problem = "channels.whatsapp.enabled: expected false, found true"
    assert (asked.returncode, asked.stdout) == (0, "Here.\n")
    assert f"the gateway does not start: {nanobot.home}/config.json:1: {problem}" in asked.stderr
    assert served.returncode == 2
    assert problem in served.stderr.splitlines()[-1]
    assert status.returncode == 0
    assert problem in status.stderr


def test_a_key_that_would_protect_and_that_nothing_reads_refuses_to_start(
    nanobot: Nanobot,
) -> None:
    nanobot.configure({"tools": {"approval": {"exec": "ask"}}})

    done = nanobot.run("agent", "-m", "time")

    assert (done.returncode, done.stdout) == (2, "")
    assert "tools.approval.exec: nothing reads it, so it would protect nothing" in done.stderr


def test_a_warning_is_said_once_for_a_config_except_by_what_looks_after_it(
    nanobot: Nanobot, model: ModelServer
) -> None:
    config = model_config(model.url)
    config["tools"] = {"mcpServers": {}}
    nanobot.configure(config)
    ignored = "this nanobot does not serve, and ignores: tools.mcpServers"

    asked = [nanobot.run("agent", "-m", "hello") for _ in range(2)]
    listed = nanobot.run("sessions", "list")
    looked = [nanobot.run("status"), nanobot.run("channels", "status")]
    checked = nanobot.run("config", "check")
    config["tools"]["imagined"] = None
    nanobot.configure(config)
    changed = [nanobot.run("sessions", "list") for _ in range(2)]

    assert [ignored in done.stderr for done in asked] == [True, False]
    assert listed.stderr == ""
    assert all(ignored in done.stderr for done in looked)
    assert ignored in checked.stdout
    assert ["tools.{mcpServers, imagined}" in done.stderr for done in changed] == [True, False]


def test_a_warning_that_cannot_be_remembered_is_said_again(nanobot: Nanobot) -> None:
    nanobot.configure({"tools": {"mcpServers": {}}})
    (nanobot.home / "cache").write_bytes(b"no folder")

    said = [nanobot.run("skills", "list").stderr for _ in range(2)]

    assert "tools.mcpServers" in said[0]
    assert said[0] == said[1]


def test_onboard_says_a_warning_once(nanobot: Nanobot) -> None:
    nanobot.configure({"tools": {"mcpServers": {}}})

    key = ("--provider", "openai", "--api-key", "sk-fake-owner-key-0000")
    done = nanobot.run("onboard", "--yes", *key, "--model", "fake-model", "--no-check")

    assert "Added to" in done.stdout
    assert done.stderr.count("tools.mcpServers") == 1


def test_set_changes_one_key_and_keeps_the_rest(nanobot: Nanobot) -> None:
    nanobot.configure({"agents": {"defaults": {"maxTokens": 5}}, "gateway": {"port": 1}})

    done = nanobot.run("config", "set", "agents.defaults.maxTokens", "64")
    refused = nanobot.run("config", "set", "agents.defaults.maxTokens", "many")

    assert (done.returncode, refused.returncode) == (0, 2), done.stderr
    assert json.loads((nanobot.home / "config.json").read_text()) == {
        "agents": {"defaults": {"maxTokens": 64}},
        "gateway": {"port": 1},
    }
