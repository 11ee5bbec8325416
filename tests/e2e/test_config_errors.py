"""A broken configuration refuses; one of the family loads."""

from __future__ import annotations

import json

from tests.e2e.conftest import Nanobot, model_config
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


def test_an_enabled_channel_that_is_not_served_refuses_by_name(nanobot: Nanobot) -> None:
    nanobot.configure({"channels": {"whatsapp": {"enabled": True}}})

    done = nanobot.run("agent", "-m", "time")

    assert done.returncode == 2
    assert "channels.whatsapp" in done.stderr


def test_set_changes_one_key_and_keeps_the_rest(nanobot: Nanobot) -> None:
    nanobot.configure({"agents": {"defaults": {"maxTokens": 5}}, "gateway": {"port": 1}})

    done = nanobot.run("config", "set", "agents.defaults.maxTokens", "64")
    refused = nanobot.run("config", "set", "agents.defaults.maxTokens", "many")

    assert (done.returncode, refused.returncode) == (0, 2), done.stderr
    assert json.loads((nanobot.home / "config.json").read_text()) == {
        "agents": {"defaults": {"maxTokens": 64}},
        "gateway": {"port": 1},
    }
