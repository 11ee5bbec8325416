"""Secrets of a configuration are masked wherever it is shown, and listed for the redactor."""

from __future__ import annotations

import json

from nanobot.config.keys import split
from nanobot.config.schema import Config
from nanobot.config.show import all_secrets, displayed, displayed_changes, lookup, mask

CONFIG = Config.model_validate(
    {
        "agents": {"defaults": {"model": "a/b"}},
        "providers": {
            "openai": {
                "apiKey": "sk-fake-openai-1234",
                "apiBase": "https://user:hidden-pass@h.example/v1",
                "extraHeaders": {
                    "Authorization": "Bearer fake-bearer-5678",
                    "HTTP-Referer": "https://me.example",
                },
            },
            "custom": {"apiKey": "none"},
        },
        "channels": {
            "telegram": {"token": "123456:fake-telegram-token", "allowFrom": ["7"]},
            "carrier": {"loft": "north", "botToken": "fake-carrier-token"},
        },
        "tools": {"web": {"allowCidrs": ["10.0.0.0/8"]}},
        "gateway": {"heartbeat": {"activeHours": "8:00-9:00"}},
        "skills": {
            "entries": {
                "s": {
                    "apiKey": "fake-skill-key",
                    "env": {"S_TOKEN": "fake-env-token", "MEDIA_DIR": "/srv/media"},
                    "config": {"password": "fake-config-pass", "size": [1, {"secretKey": "short"}]},
                }
            },
            "load": {"extraDirs": ["/srv/skills"]},
        },
    }
)
SECRETS = [
    "123456:fake-telegram-token",
    "Bearer fake-bearer-5678",
    "sk-fake-openai-1234",
    "fake-carrier-token",
    "fake-bearer-5678",
    "fake-config-pass",
    "fake-env-token",
    "fake-skill-key",
    "hidden-pass",
]


def test_a_mask_keeps_four_characters_of_a_long_secret_only() -> None:
    assert [mask(""), mask("short"), mask("sk-fake-1234567")] == ["", "***", "***4567"]


def test_the_secrets_are_listed_longest_first() -> None:
    assert all_secrets(CONFIG) == SECRETS


def test_what_is_set_is_shown_with_secrets_masked() -> None:
    assert displayed_changes(CONFIG) == {
        "agents": {"defaults": {"model": "a/b"}},
        "providers": {
            "openai": {
                "apiKey": "***1234",
                "apiBase": "https://user:***@h.example/v1",
                "extraHeaders": {
                    "Authorization": "***5678",
                    "HTTP-Referer": "https://me.example",
                },
            },
            "custom": {"apiKey": "***"},
        },
        "channels": {
            "telegram": {"token": "***oken", "allowFrom": ["7"]},
            "carrier": {
                "enabled": False,
                "allowFrom": [],
                "loft": "north",
                "botToken": "***oken",
            },
        },
        "tools": {"web": {"allowCidrs": ["10.0.0.0/8"]}},
        "gateway": {"heartbeat": {"activeHours": "08:00-09:00"}},
        "skills": {
            "entries": {
                "s": {
                    "enabled": True,
                    "apiKey": "***-key",
                    "env": {"S_TOKEN": "***oken", "MEDIA_DIR": "***"},
                    "config": {"password": "***pass", "size": [1, {"secretKey": "***"}]},
                }
            },
            "load": {"extraDirs": ["/srv/skills"]},
        },
    }


def test_what_is_shown_in_full_and_revealed_loads_as_the_same_configuration() -> None:
    revealed = json.loads(json.dumps(displayed(CONFIG, reveal=True)))

    def without_null(value: object) -> object:
        if isinstance(value, dict):
            return {key: without_null(item) for key, item in value.items() if item is not None}
        return value

    assert Config.model_validate(without_null(revealed)) == CONFIG


def test_no_secret_is_in_any_text_form() -> None:
    shown = repr(CONFIG) + str(CONFIG.providers) + CONFIG.model_dump_json() + str(displayed(CONFIG))
    free = {"fake-config-pass", "fake-carrier-token", "hidden-pass"}  # no type of ours says secret

    assert [secret for secret in SECRETS if secret in shown and secret not in free] == []
    assert [secret for secret in SECRETS if secret in str(displayed(CONFIG))] == []


def test_a_value_is_looked_up_by_its_key_in_either_spelling() -> None:
    keys = [
        "agents.defaults.max_tokens",
        "agents.defaults.contextWindow",
        "channels.telegram.token",
        "channels.carrier.loft",
        "skills.entries.s.config.size",
        "browser.enabled",
        "providers.openai.extraHeaders",
    ]

    assert [lookup(CONFIG, split(key)) for key in keys] == [
        8192,
        None,
        "***oken",
        "north",
        [1, {"secretKey": "***"}],
        None,
        {"Authorization": "***5678", "HTTP-Referer": "https://me.example"},
    ]
    assert lookup(CONFIG, split("providers.custom.apiKey"), reveal=True) == "none"
