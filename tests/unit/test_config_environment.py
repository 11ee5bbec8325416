"""NANOBOT_… variables lie over the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nanobot.config.load import LoadedConfig, load_config
from nanobot.core.errors import ConfigError


def load(tmp_path: Path, text: str, environ: Mapping[str, str]) -> LoadedConfig:
    file = tmp_path / "config.json"
    file.write_text(text, "utf-8")
    file.chmod(0o600)
    return load_config(file, environ, plugin_channels=lambda: {"carrier"})


def problems(tmp_path: Path, text: str, environ: Mapping[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ)
    return str(caught.value).splitlines()


def test_a_variable_overrides_the_file_in_any_spelling(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        '{"agents": {"defaults": {"model": "file", "temperature": 0.1}}}',
        {
            "NANOBOT_AGENTS__DEFAULTS__MODEL": "12",
            "NANOBOT_AGENTS__DEFAULTS__MAX_TOKENS": "9",
            "NANOBOT_agents__defaults__memoryWindow": "8",
            "NANOBOT_GATEWAY__HEARTBEAT__INTERVALS": "7",
            "NANOBOT_CHANNELS__TELEGRAM__ALLOW_FROM": '[1, "@b"]',
            "NANOBOT_TOOLS__EXEC__TIMEOUT": "",
        },
    )

    defaults = loaded.config.agents.defaults
    assert (defaults.model, defaults.max_tokens, defaults.memory_window) == ("12", 9, 8)
    assert defaults.temperature == 0.1
    assert loaded.config.gateway.heartbeat.interval_s == 7
    assert loaded.config.channels.telegram.allow_from == ("1", "@b")
    assert loaded.config.tools.exec.timeout == 60
    assert loaded.overrides == {
        "agents.defaults.model": "NANOBOT_AGENTS__DEFAULTS__MODEL",
        "agents.defaults.maxTokens": "NANOBOT_AGENTS__DEFAULTS__MAX_TOKENS",
        "agents.defaults.memoryWindow": "NANOBOT_agents__defaults__memoryWindow",
        "gateway.heartbeat.intervalS": "NANOBOT_GATEWAY__HEARTBEAT__INTERVALS",
        "channels.telegram.allowFrom": "NANOBOT_CHANNELS__TELEGRAM__ALLOW_FROM",
    }


def test_an_object_is_laid_over_a_section_and_a_key_of_its_own_wins(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        '{"gateway": {"host": "h", "heartbeat": {"intervalS": 5}}}',
        {
            "NANOBOT_GATEWAY__PORT": "2",
            "NANOBOT_GATEWAY": '{"port": 1, "heartbeat": {"enabled": false}}',
        },
    )

    gateway = loaded.config.gateway
    assert (gateway.host, gateway.port) == ("h", 2)
    assert (gateway.heartbeat.enabled, gateway.heartbeat.interval_s) == (False, 5)


def test_free_names_are_those_of_the_file_or_letter_for_letter(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        '{"skills": {"entries": {"my-Skill": {"config": {"a": 1}}}}}',
        {
            "NANOBOT_SKILLS__ENTRIES__MY_SKILL__API_KEY": "sk-fake-1",
            "NANOBOT_SKILLS__ENTRIES__Other__ENV__Some_Name": "v",
            "NANOBOT_SKILLS__ENTRIES__MY_SKILL__CONFIG__B": '{"c": [2]}',
        },
    )

    entries = loaded.config.skills.entries
    assert list(entries) == ["my-Skill", "Other"]
    assert entries["my-Skill"].api_key.get_secret_value() == "sk-fake-1"
    assert entries["my-Skill"].config == {"a": 1, "B": {"c": [2]}}
    assert entries["Other"].env["Some_Name"].get_secret_value() == "v"


def test_an_overridden_value_of_the_file_is_not_looked_at(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        '{"channels": {"telegram": {"token": "${UNSET}"}}, "gateway": {"port": "wrong"}}',
        {"NANOBOT_CHANNELS__TELEGRAM__TOKEN": "1:${fake}", "NANOBOT_GATEWAY__PORT": "3"},
    )

    assert loaded.config.channels.telegram.token.get_secret_value() == "1:${fake}"
    assert loaded.config.gateway.port == 3


def test_variables_that_name_no_section_are_not_ours_to_judge(tmp_path: Path) -> None:
    environ = {"NANOBOT_HOME": "/srv", "NANOBOT_LOG__LEVEL": "1", "NANOBOT_": "x", "OTHER": "y"}

    assert load(tmp_path, "{}", environ).overrides == {}


def test_wrong_variables_are_named(tmp_path: Path) -> None:
    lines = problems(
        tmp_path,
        "{}",
        {
            "NANOBOT_GATEWAY__PROT": "1",
            "NANOBOT_GATEWAY__PORT__X": "1",
            "NANOBOT_GATEWAY__HOST": "h\udcff",
            "NANOBOT_GATEWAY__HEARTBEAT__ENABLED": "perhaps",
            "NANOBOT_TOOLS": "all",
            "NANOBOT_CHANNELS__TELEGRAM__TOKEN": '["sk-fake-secret"]',
            "NANOBOT_CHANNELS__TELEGRAM__ALLOW_FROM": "12",
            "NANOBOT_RETENTION__MEDIADAYS": "1",
            "NANOBOT_RETENTION__MEDIA_DAYS": "2",
        },
    )

    assert sorted(lines) == [
        "NANOBOT_CHANNELS__TELEGRAM__ALLOW_FROM in the environment: channels.telegram.allowFrom: "
        "expected a list, each item text or a whole number, found 12",
        "NANOBOT_GATEWAY__HEARTBEAT__ENABLED in the environment: gateway.heartbeat.enabled: "
        'expected true or false, found the text "perhaps"',
        "NANOBOT_GATEWAY__HOST in the environment: gateway.host: "
        "expected Unicode text, found half a surrogate pair",
        "NANOBOT_GATEWAY__PORT__X in the environment: gateway.port: "
        "expected a whole number from 0 to 65535, found an object",
        "NANOBOT_GATEWAY__PROT in the environment: gateway.prot: unknown key; "
        "the nearest valid key is gateway.port",
        "NANOBOT_RETENTION__MEDIA_DAYS in the environment: retention.mediaDays: "
        "is set by NANOBOT_RETENTION__MEDIADAYS as well",
        'NANOBOT_TOOLS in the environment: tools: expected an object, found the text "all"',
    ]


def test_an_installed_channel_can_be_set_by_variables(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "{}",
        {
            "NANOBOT_CHANNELS__CARRIER__ENABLED": "true",
            "NANOBOT_CHANNELS__CARRIER__ALLOW_FROM": "[7]",
            "NANOBOT_CHANNELS__CARRIER__LOFT": "north",
        },
    )

    carrier = loaded.config.channels.plugins["carrier"]
    assert (carrier.enabled, carrier.allow_from) == (True, ("7",))
    assert carrier.model_extra == {"loft": "north"}
