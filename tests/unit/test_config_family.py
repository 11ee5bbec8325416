"""A configuration of the family drops in; what we do not serve is said once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.compat import config_warnings
from nanobot.config.load import LoadedConfig, load_config
from nanobot.config.schema import ChannelsConfig, Config, PluginChannelConfig, TelegramConfig
from nanobot.config.show import displayed
from nanobot.core.errors import ConfigError

FAMILY_FILES = Path(__file__).parents[1] / "family"
"""Configs as ``nanobot onboard`` of these versions of the family wrote them."""


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
        "channels.{sendProgress, whatsapp, discord, feishu}, "
        "channels.telegram.replyToMessage, providers.{siliconflow, github_copilot}, "
        "gateway.heartbeat.keepRecentMessages, tools.mcpServers, "
        "gateway.host",
    )
    assert loaded.config.channels.telegram.allow_from == ("123",)
    assert loaded.config.channels.plugins == {}
    assert loaded.config.providers.anthropic.api_key.get_secret_value() == "sk-fake-a"


@pytest.mark.parametrize("enabled", [True, "true", 1, "yes"])
def test_an_enabled_channel_that_is_not_served_stops_the_gateway_by_name(
    tmp_path: Path, enabled: Any
) -> None:
    loaded = load(tmp_path, {"channels": {"whatsapp": {"enabled": enabled}}})

    problem = (
        f"{tmp_path / 'config.json'}:1: channels.whatsapp.enabled: expected false, found true: "
        "this nanobot does not serve the channel whatsapp"
    )
    assert loaded.gateway_problems == (problem,)
    assert loaded.warnings[1:] == (f"the gateway does not start: {problem}",)


def test_an_enabled_channel_of_the_environment_stops_the_gateway_by_the_variables_name(
    tmp_path: Path,
) -> None:
    environ = {"NANOBOT_CHANNELS__SLACK__ENABLED": "true"}

    loaded = load_config(tmp_path / "config.json", environ, plugin_channels=frozenset)

    assert loaded.gateway_problems == (
        "NANOBOT_CHANNELS__SLACK__ENABLED in the environment: channels.slack.enabled: "
        "expected false, found true: this nanobot does not serve the channel slack",
    )


@pytest.mark.parametrize("version", ["0.1.3.post7", "0.2.0", "0.3.5"])
def test_what_the_familys_onboard_writes_loads_with_one_warning(
    tmp_path: Path, version: str
) -> None:
    written = (FAMILY_FILES / f"config-{version}.json").read_text("utf-8")

    loaded = load(tmp_path, json.loads(written))

    assert len(loaded.warnings) == 1
    assert loaded.gateway_problems == ()


@pytest.mark.parametrize("value", [None, "", False, [], {}, {"a": None, "b": {"c": ""}}])
def test_an_unknown_key_without_a_meaningful_value_is_ignored_with_the_others(
    tmp_path: Path, value: Any
) -> None:
    loaded = load(tmp_path, {"imagined": value, "tools": {"imagined": value}})

    assert loaded.warnings == (
        f"{tmp_path / 'config.json'}: this nanobot does not serve, and ignores: imagined, "
        "tools.imagined",
    )


@pytest.mark.parametrize("value", [True, 0, "no", [None], {"a": {"b": 1}}])
def test_an_unknown_key_with_a_meaningful_value_refuses(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"tools\.imagined: unknown key"):
        load(tmp_path, {"tools": {"imagined": value}})


def test_a_channel_that_nobody_knows_and_that_is_switched_off_is_ignored(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"channels": {"pigeon": {"enabled": False, "loft": "north"}}})

    assert loaded.warnings[0].endswith("ignores: channels.pigeon")


PROTECTING = {
    "agents.defaults.disabledSkills": ["shell"],
    "tools.approval.exec": "ask",
    "tools.approval.message": "deny",
    "tools.exec.allowPatterns": ["^git "],
    "tools.exec.denyPatterns": ["rm"],
    "tools.exec.enable": False,
    "tools.file.enable": False,
    "tools.web.enable": False,
}


def nested(key: str, value: Any) -> Any:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize("key", PROTECTING)
def test_a_key_that_would_protect_and_that_nothing_reads_refuses(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, nested(key, PROTECTING[key]))

    assert str(caught.value) == (
        f"{tmp_path / 'config.json'}:1: {key}: nothing reads it, so it would protect nothing: "
        "take it out to start"
    )


def test_a_text_that_says_false_protects_like_false(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tools\.exec\.enable: nothing reads it"):
        load(tmp_path, {"tools": {"exec": {"enable": "False"}}})


def test_a_variable_that_would_protect_refuses_by_its_name(tmp_path: Path) -> None:
    environ = {"NANOBOT_TOOLS__APPROVAL__exec": "deny"}

    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "config.json", environ, plugin_channels=frozenset)

    assert str(caught.value).startswith("NANOBOT_TOOLS__APPROVAL__exec in the environment: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("channels.telegram.groupPolicy", "off"),
        ("channels.telegram.groupPolicy", "open"),
        ("channels.telegram.streaming", False),
        ("gateway.host", "0.0.0.0"),
        ("gateway.port", 8080),
        ("retention.auditDays", 30),
        ("skills.load.watchDebounceMs", 500),
        ("tools.approval.exec", "allow"),
    ],
)
def test_a_key_of_ours_that_nothing_reads_is_named_as_ignored(
    tmp_path: Path, key: str, value: Any
) -> None:
    loaded = load(tmp_path, nested(key, value))

    assert loaded.warnings[0].endswith(f"ignores: {key}")


@pytest.mark.parametrize(("written", "meant"), [("", "auto"), ("bwrap", "require")])
def test_the_familys_sandbox_means_ours(tmp_path: Path, written: str, meant: str) -> None:
    loaded = load(tmp_path, {"tools": {"exec": {"sandbox": written}}})

    assert (loaded.config.tools.exec.sandbox, loaded.warnings) == (meant, ())


def test_defaults_of_keys_that_nothing_reads_are_no_matter(tmp_path: Path) -> None:
    loaded = load(tmp_path, displayed(Config()))

    assert loaded.warnings == ()


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
        load(tmp_path, {"channels": {"telegrm": {"token": "1:fake"}}}, frozenset({"carrier"}))


def telegram(**fields: Any) -> Config:
    section = TelegramConfig.model_validate({"enabled": True, "token": "1:fake", **fields})
    return Config(channels=ChannelsConfig(telegram=section))


def test_an_empty_list_of_an_enabled_channel_is_hinted_at_with_the_line_to_write() -> None:
    assert config_warnings(telegram(allowFrom=[])) == [
        "channels.telegram.allowFrom is empty: nobody is let in; "
        "to let yourself in: "
        """nanobot config set channels.telegram.allowFrom '["<your id>"]'"""
    ]
    assert config_warnings(Config()) == []


def test_bare_names_are_hinted_at_with_the_line_to_write() -> None:
    listed = [123, "alice", "@bob", "456|carol", "telegram:789", "*", "张三", "-100"]

    assert config_warnings(telegram(allowFrom=listed)) == [
        'channels.telegram.allowFrom: "alice", "456|carol", "telegram:789", "\\u5f20\\u4e09" '
        "name nobody; an entry is a numeric id (safest), @name or *: "
        "nanobot config set channels.telegram.allowFrom "
        """'["123", "@alice", "@bob", "456", "789", "*", "<numeric id>", "-100"]'"""
    ]


def test_a_list_that_works_needs_no_hint() -> None:
    assert config_warnings(telegram(allowFrom=["123", "@bob"])) == []


def test_an_enabled_channel_without_a_token_is_hinted_at() -> None:
    (hint,) = config_warnings(telegram(token="", allowFrom=["1"]))

    assert hint.startswith("channels.telegram.token is empty")


def test_an_installed_channel_with_an_empty_list_is_hinted_at(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"channels": {"carrier": {"enabled": True}}}, frozenset({"carrier"}))

    (hint,) = config_warnings(loaded.config)
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
