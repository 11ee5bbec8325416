"""A configuration of the family drops in; what we do not serve is said once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.hints import config_hints
from nanobot.config.loader import LoadedConfig, load_config
from nanobot.config.schema import ChannelsConfig, Config, PluginChannelConfig, TelegramConfig
from nanobot.core.errors import ConfigError


def load(tmp_path: Path, content: Any, installed: frozenset[str] = frozenset()) -> LoadedConfig:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(content), "utf-8")
    file.chmod(0o600)
    return load_config(file, {}, plugin_channels=lambda: installed)


FAMILY: dict[str, Any] = {
    "agents": {
        "defaults": {
            "workspace": "~/.nanobot/workspace",
            "model": "anthropic/claude-sonnet-4-5",
            "provider": "auto",
            "maxTokens": 8192,
            "temperature": 0.7,
            "maxToolIterations": 20,
            "memoryWindow": 50,
            "reasoningEffort": None,
        }
    },
    "channels": {
        "sendProgress": True,
        "whatsapp": {"enabled": False, "bridgeUrl": "ws://localhost:3001", "allowFrom": []},
        "telegram": {
            "enabled": True,
            "token": "1:fake",
            "allowFrom": ["123"],
            "proxy": None,
            "replyToMessage": False,
        },
        "discord": {"enabled": False, "token": "${NOT_SET}", "intents": 37377},
        "feishu": {"enabled": False, "appId": ""},
    },
    "providers": {
        "anthropic": {"apiKey": "sk-fake-a", "apiBase": None, "extraHeaders": None},
        "vllm": {"apiKey": "", "apiBase": None},
        "siliconflow": {"apiKey": ""},
        "github_copilot": {"apiKey": ""},
    },
    "gateway": {"host": "0.0.0.0", "port": 18790, "heartbeat": {"keepRecentMessages": 8}},
    "tools": {
        "web": {"search": {"apiKey": "", "maxResults": 5}},
        "exec": {"timeout": 60, "pathAppend": ""},
        "restrictToWorkspace": False,
        "mcpServers": {"files": {"command": "npx", "env": {"KEY": "${NOT_SET_EITHER}"}}},
    },
}


def test_a_family_file_loads_with_one_warning(tmp_path: Path) -> None:
    loaded = load(tmp_path, FAMILY)

    assert loaded.warnings == (
        f"{tmp_path / 'config.json'}: this nanobot does not serve, and ignores: "
        "channels.sendProgress, channels.whatsapp, "
        "channels.telegram.replyToMessage, channels.discord, channels.feishu, "
        "providers.siliconflow, providers.github_copilot, gateway.heartbeat.keepRecentMessages, "
        "tools.exec.pathAppend, tools.mcpServers",
    )
    assert loaded.config.channels.telegram.allow_from == ("123",)
    assert loaded.config.channels.plugins == {}
    assert loaded.config.providers.anthropic.api_key.get_secret_value() == "sk-fake-a"


@pytest.mark.parametrize("enabled", [True, "true", 1, "yes"])
def test_an_enabled_channel_that_is_not_served_refuses_by_name(
    tmp_path: Path, enabled: Any
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {"channels": {"whatsapp": {"enabled": enabled}}})

    assert str(caught.value) == (
        f"{tmp_path / 'config.json'}:1: channels.whatsapp.enabled: expected false, found true: "
        "this nanobot does not serve the channel whatsapp"
    )


def test_an_installed_channel_has_its_section_even_under_a_family_name(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        {
            "channels": {
                "discord": {"enabled": True, "allow_from": [1], "botToken": "t", "deep": {"a": 1}},
                "carrier": {},
            }
        },
        frozenset({"discord", "carrier"}),
    )

    assert loaded.warnings == ()
    assert loaded.config.channels.plugins == {
        "discord": PluginChannelConfig.model_validate(
            {"enabled": True, "allowFrom": ["1"], "botToken": "t", "deep": {"a": 1}}
        ),
        "carrier": PluginChannelConfig(),
    }


def test_an_installed_channel_is_checked_as_far_as_it_is_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"channels\.carrier\.enabled: expected true or false"):
        load(tmp_path, {"channels": {"carrier": {"enabled": []}}}, frozenset({"carrier"}))


def test_a_channel_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"channels\.telegrm: unknown key.*channels\.telegram"):
        load(tmp_path, {"channels": {"telegrm": {}}}, frozenset({"carrier"}))


def telegram(**fields: Any) -> Config:
    section = TelegramConfig.model_validate({"enabled": True, "token": "1:fake", **fields})
    return Config(channels=ChannelsConfig(telegram=section))


def test_an_empty_list_of_an_enabled_channel_is_hinted_at_with_the_line_to_write() -> None:
    assert config_hints(telegram(allowFrom=[])) == [
        "channels.telegram.allowFrom is empty: nobody but approved pairings is let in; "
        "to let yourself in: "
        """nanobot config set channels.telegram.allowFrom '["<your id>"]'"""
    ]
    assert config_hints(Config()) == []


def test_bare_names_are_hinted_at_with_the_line_to_write() -> None:
    listed = [123, "alice", "@bob", "456|carol", "telegram:789", "*", "张三", "-100"]

    assert config_hints(telegram(allowFrom=listed)) == [
        'channels.telegram.allowFrom: "alice", "456|carol", "telegram:789", "\\u5f20\\u4e09" '
        "name nobody; an entry is a numeric id (safest), @name or *: "
        "nanobot config set channels.telegram.allowFrom "
        """'["123", "@alice", "@bob", "456", "789", "*", "<numeric id>", "-100"]'"""
    ]


def test_a_list_that_works_needs_no_hint() -> None:
    assert config_hints(telegram(allowFrom=["123", "@bob"])) == []


def test_an_enabled_channel_without_a_token_is_hinted_at() -> None:
    (hint,) = config_hints(telegram(token="", allowFrom=["1"]))

    assert hint.startswith("channels.telegram.token is empty")


def test_an_installed_channel_with_an_empty_list_is_hinted_at(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"channels": {"carrier": {"enabled": True}}}, frozenset({"carrier"}))

    (hint,) = config_hints(loaded.config)
    assert hint.startswith("channels.carrier.allowFrom is empty")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("", None), ("adaptive", None), ("none", "off"), ("minimal", "low"), ("xhigh", "high")],
)
def test_an_effort_of_the_family_becomes_the_nearest_of_ours(
    tmp_path: Path, theirs: str, ours: str | None
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"agents": {"defaults": {"reasoningEffort": theirs}}}), "utf-8")
    path.chmod(0o600)

    assert load_config(path, {}).config.agents.defaults.reasoning_effort == ours
