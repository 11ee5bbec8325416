"""Reading config.json: what is accepted, and how what is wrong is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import time
from ipaddress import IPv4Network
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from nanobot.config.load import LoadedConfig, load_config
from nanobot.config.schema import (
    ActiveHours,
    AgentDefaults,
    Config,
    ProvidersConfig,
    SkillsInstallConfig,
    SkillsLoadConfig,
    TelegramConfig,
)
from nanobot.core.errors import ConfigError

NONE: Mapping[str, str] = {}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def load(file: Path, text: str | bytes, environ: Mapping[str, str] = NONE) -> LoadedConfig:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(0o600)
    return load_config(file, environ, plugin_channels=lambda: {"carrier"})


def problems(file: Path, text: str | bytes, environ: Mapping[str, str] = NONE) -> list[str]:
    """The lines of the error, with the file's path as FILE."""
    with pytest.raises(ConfigError) as caught:
        load(file, text, environ)
    return str(caught.value).replace(str(file), "FILE").splitlines()


# ------------------------------------------------------------------------------- what is accepted


def test_a_missing_file_gives_the_family_defaults(file: Path) -> None:
    loaded = load_config(file, NONE)

    assert (loaded.exists, loaded.warnings, loaded.overrides) == (False, (), {})
    assert loaded.config == Config()
    assert loaded.workspace == file.parent / "workspace"
    defaults = loaded.config.agents.defaults
    assert (defaults.model, defaults.max_tokens, defaults.temperature) == (None, 8192, 0.7)
    assert (defaults.max_tool_iterations, defaults.memory_window) == (20, 50)
    assert loaded.config.channels.telegram == TelegramConfig()
    assert loaded.config.channels.telegram.allow_from == ()
    assert (loaded.config.gateway.host, loaded.config.gateway.port) == ("127.0.0.1", 18790)
    assert loaded.config.gateway.heartbeat.interval_s == 1800
    assert loaded.config.tools.web.search.max_results == 5
    assert loaded.config.tools.exec.timeout == 60
    assert loaded.config.tools.restrict_to_workspace is False
    assert loaded.config.skills.load == SkillsLoadConfig(watch=True, watch_debounce_ms=250)
    assert loaded.config.skills.install == SkillsInstallConfig(node_manager="npm")


def test_every_family_key_is_read(file: Path) -> None:
    loaded = load(
        file,
        """{
          "agents": {"defaults": {"workspace": "/srv/w", "model": "a/b", "maxTokens": 1,
                     "temperature": 0, "maxToolIterations": 2, "memoryWindow": 3}},
          "providers": {"openrouter": {"apiKey": " sk-fake-or ", "apiBase": "http://h:1/v1",
                        "extraHeaders": {"X-Title": "t", "x_title": "u"}}},
          "channels": {"telegram": {"enabled": true, "token": "1:fake", "allowFrom": [123, "@me"],
                       "proxy": "socks5://u:p@localhost:1080"}},
          "gateway": {"host": "0.0.0.0", "port": 1, "heartbeat": {"enabled": false,
                      "intervalS": 60, "activeHours": "22:30-6:00", "tz": "Europe/Berlin"}},
          "tools": {"web": {"search": {"apiKey": "k", "maxResults": 7},
                            "allowCidrs": ["10.1.2.3/8"]},
                    "exec": {"timeout": 5}, "restrictToWorkspace": true},
          "skills": {"entries": {"my-Skill": {"enabled": false, "apiKey": "k",
                       "env": {"A_b": "c", "PORT": 80}, "config": {"Deep": [{"x_y": null}]}}},
                     "allowBundled": ["memory"],
                     "load": {"extraDirs": ["/srv/s"], "watch": false, "watchDebounceMs": 1},
                     "install": {"nodeManager": "bun"}}
        }""",
    )

    config = loaded.config
    defaults = config.agents.defaults
    assert loaded.warnings == (
        f"{file}: this nanobot does not serve, and ignores: gateway.{{host, port}}, "
        "skills.load.watchDebounceMs",
    )
    assert loaded.workspace == defaults.workspace == Path("/srv/w")
    assert (defaults.model, defaults.max_tokens, defaults.temperature) == ("a/b", 1, 0)
    assert (defaults.max_tool_iterations, defaults.memory_window) == (2, 3)
    router = config.providers.openrouter
    assert (router.api_key.get_secret_value(), router.api_base) == ("sk-fake-or", "http://h:1/v1")
    headers = {name: value.get_secret_value() for name, value in router.extra_headers.items()}
    assert headers == {"X-Title": "t", "x_title": "u"}
    telegram = config.channels.telegram
    assert telegram.allow_from == ("123", "@me")
    assert (telegram.enabled, telegram.proxy) == (True, "socks5://u:p@localhost:1080")
    heartbeat = config.gateway.heartbeat
    assert (heartbeat.enabled, heartbeat.interval_s, heartbeat.tz) == (False, 60, "Europe/Berlin")
    assert heartbeat.active_hours == ActiveHours(22 * 60 + 30, 6 * 60)
    assert config.tools.web.allow_cidrs == (IPv4Network("10.0.0.0/8"),)
    assert (config.tools.exec.timeout, config.tools.restrict_to_workspace) == (5, True)
    skill = config.skills.entries["my-Skill"]
    environment = {name: value.get_secret_value() for name, value in skill.env.items()}
    assert (skill.enabled, environment) == (False, {"A_b": "c", "PORT": "80"})
    assert skill.config == {"Deep": [{"x_y": None}]}
    assert config.skills.allow_bundled == ("memory",)
    assert config.skills.load.extra_dirs == (Path("/srv/s"),)
    assert config.skills.install.node_manager == "bun"


def test_snake_case_comments_trailing_commas_and_null_are_accepted(file: Path) -> None:
    loaded = load(
        file,
        """// first
        {
          "agents": {"defaults": {"max_tokens": 7, /* why, "not" */ "temperature": null,},},
          "channels": null,
          "skills": {"entries": {"a": null}, "allow_bundled": ["x", "y",]}, // last, one
        }
        """,
    )

    assert loaded.config.agents.defaults == AgentDefaults(max_tokens=7)
    assert loaded.config.skills.allow_bundled == ("x", "y")
    assert loaded.config.skills.entries == {}


def test_marks_of_comments_inside_of_texts_are_text(file: Path) -> None:
    loaded = load(file, r'{"agents": {"defaults": {"model": "a//b/*c*/,]\"//"},}}')

    assert loaded.config.agents.defaults.model == 'a//b/*c*/,]"//'


def test_a_byte_order_mark_and_any_locale_are_fine(file: Path) -> None:
    text = '{"agents": {"defaults": {"model": "größe/模型"}}}'
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    file.chmod(0o600)
    code = (
        "import sys; from pathlib import Path; from nanobot.config.load import load_config\n"
        "model = load_config(Path(sys.argv[1]), {}).config.agents.defaults.model\n"
        "print(ascii(model))"
    )

    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, str(file)],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=True,
    )

    assert done.stdout.strip() == ascii("größe/模型").encode()


def test_variables_are_replaced_in_texts_of_any_depth(file: Path) -> None:
    loaded = load(
        file,
        """{"gateway": {"port": "${PORT}"},
            "channels": {"telegram": {"allowFrom": ["${ME}"]}},
            "providers": {"custom": {"extraHeaders": {"${ME}": "a ${ME} $${ME} $ME b"}}},
            "skills": {"entries": {"s": {"config": {"list": [{"deep": "<${EMPTY}>"}]}}}}}""",
        {"PORT": "81", "ME": "7", "EMPTY": ""},
    )

    assert loaded.config.gateway.port == 81
    assert loaded.config.channels.telegram.allow_from == ("7",)
    headers = loaded.config.providers.custom.extra_headers
    assert {name: value.get_secret_value() for name, value in headers.items()} == {
        "${ME}": "a 7 ${ME} $ME b"
    }
    assert loaded.config.skills.entries["s"].config == {"list": [{"deep": "<>"}]}


def test_empty_texts_that_the_family_writes_mean_unset(file: Path) -> None:
    loaded = load(
        file,
        """{"agents": {"defaults": {"model": "", "provider": "", "workspace": ""}},
            "providers": {"openai": {"apiKey": "", "apiBase": ""}},
            "channels": {"telegram": {"proxy": ""}}, "tools": {"exec": {"sandbox": ""}}}""",
    )

    assert loaded.config == Config()


def test_a_relative_workspace_is_in_the_home_and_tilde_is_the_user(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")

    relative = load(file, '{"agents": {"defaults": {"workspace": "mine"}}}')
    absolute = load(file, '{"agents": {"defaults": {"workspace": "~/mine"}}}')

    assert relative.workspace == file.parent / "mine"
    assert absolute.workspace == Path("/home/somebody/mine")


def test_a_file_that_others_may_read_gets_a_warning(file: Path) -> None:
    file.write_text("{}")
    file.chmod(0o640)

    assert load_config(file, NONE).warnings == (
        f"{file}: others on this machine may read it (mode 0640): chmod 600 {file}",
    )


def test_the_configuration_cannot_be_changed_in_memory() -> None:
    with pytest.raises(ValidationError):
        Config().agents.defaults.model = "x"  # type: ignore[misc]


def test_a_provider_can_be_chosen_by_every_name_that_can_be_configured() -> None:
    choices = get_args(AgentDefaults.model_fields["provider"].annotation)

    assert set(choices) == {"auto", *ProvidersConfig.model_fields}


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("08:00-22:00", [time(8), time(21, 59)], [time(7, 59), time(22)]),
        ("22:00-06:00", [time(22), time(0), time(5, 59)], [time(6), time(21, 59)]),
        ("00:00-24:00", [time(0), time(23, 59)], []),
    ],
)
def test_active_hours_cover_their_window(
    window: str, inside: list[time], outside: list[time]
) -> None:
    hours = ActiveHours.parse(window)

    assert str(hours) == window
    assert [hours.covers(moment) for moment in inside] == [True] * len(inside)
    assert [hours.covers(moment) for moment in outside] == [False] * len(outside)


def test_reading_the_configuration_loads_nothing_heavy() -> None:
    code = (
        "import sys; from pathlib import Path; from nanobot.config.load import load_config\n"
        "load_config(Path('/nonexistent/config.json'), {})\n"
        "heavy = {'litellm', 'telegram', 'typer', 'httpx', 'loguru', 'asyncio', 'difflib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert done.stdout == "[]\n"


# ---------------------------------------------------------------------------------- what is wrong


def test_every_problem_is_listed_at_once_with_its_line(file: Path) -> None:
    text = """{
      "agents": {"defaults": {
        "maxTokenz": 1,
        "max_tokens": "many",
        "temperature": 3,
        "memoryWindow": true,
        "queue": "jump",
        "fallbackModels": ["a", 5]
      }},
      "providers": {
        "opnai": {"apiKey": "k"},
        "openai": {"apiKey": 12345678901234, "apiBase": "${BASE}",
                   "models": {"gpt-4.1": {"temperature": "hot"}}}
      },
      "gateway": [],
      "tools": {"web": {"allowCidrs": ["10.0.0.0/8", "everywhere"]},
                "approval": {"exec": "sometimes"}},
      "skills": {"entries": {"my.skill": {"env": {"A": {}}}}},
      "maxToolIterations": 3,
      "nonsense": {"a": 1}
    }"""

    assert problems(file, text) == [
        "FILE:3: agents.defaults.maxTokenz: unknown key; "
        "the nearest valid key is agents.defaults.maxTokens",
        "FILE:4: agents.defaults.maxTokens: expected a whole number of at least 1, "
        'found the text "many"',
        "FILE:5: agents.defaults.temperature: expected a number from 0 to 2, found 3",
        "FILE:6: agents.defaults.memoryWindow: expected a whole number of at least 1, found true",
        'FILE:7: agents.defaults.queue: expected "steer", "followup", "collect" or "interrupt", '
        'found the text "jump"',
        "FILE:8: agents.defaults.fallbackModels[1]: expected text, found 5",
        "FILE:11: providers.opnai: unknown key; the nearest valid key is providers.openai",
        "FILE:12: providers.openai.apiBase: the environment variable BASE is not set",
        "FILE:12: providers.openai.apiKey: expected text, found a number",
        'FILE:13: providers.openai.models."gpt-4.1".temperature: '
        'expected a number from 0 to 2 or "omit", found the text "hot"',
        "FILE:15: gateway: expected an object, found a list",
        'FILE:16: tools.web.allowCidrs[1]: expected a network such as "192.168.1.0/24", '
        'found the text "everywhere"',
        'FILE:17: tools.approval.exec: expected "allow", "ask" or "deny", '
        'found the text "sometimes"',
        'FILE:18: skills.entries."my.skill".env.A: expected text, found an object',
        "FILE:19: maxToolIterations: unknown key; "
        "the nearest valid key is agents.defaults.maxToolIterations",
        "FILE:20: nonsense: unknown key; "
        "valid here: agents, providers, channels, gateway, tools, skills, bus, retention",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"a": 1,\n "b": }', "FILE:2:7: not JSON: Expecting value at line 2, column 7"),
        (
            '{\n// note\n"gateway": {"port": 1,\n "port": 2}}',
            'FILE:4:2: not JSON: The name "port" is given twice at line 4, column 2',
        ),
        ("", "FILE:1:1: not JSON: Expecting value at line 1, column 1"),
        ("{}}", "FILE:1:3: not JSON: Extra data at line 1, column 3"),
        ("{,}", None),
        ("[1,,]", None),
        ('{"a": 1 /* open }', None),
        ('{"a": "open}', None),
        ("[]", "FILE:1: expected an object, found a list"),
        ("[" * 100_000, "FILE:1:1: not JSON: Nested too deeply at line 1, column 1"),
        (
            '{"gateway": {"port": ' + "9" * 5000 + "}}",
            "FILE:1:1: not JSON: A number has too many digits at line 1, column 1",
        ),
        (b'{"\xff": 1}', "FILE: expected UTF-8; byte 2 is not"),
        (
            '{"gateway": {"port": 1, "host": "a"},\n "agents": {"defaults": '
            '{"maxTokens": 1, "max_tokens": 2}}}',
            "FILE:2: agents.defaults.maxTokens: given twice, as maxTokens and max_tokens",
        ),
        (
            '{"agents": {"defaults": {"temperature": NaN}}}',
            "FILE:1: agents.defaults.temperature: expected a number from 0 to 2, found nan",
        ),
        (
            '{"agents": {"defaults": {"model": "\\ud800"}}}',
            "FILE:1: agents.defaults.model: expected Unicode text, found half a surrogate pair",
        ),
        (
            '{"agents": {"defaults": {"workspace": "a\\u0000b"}}}',
            "FILE:1: agents.defaults.workspace: expected the path of a directory, "
            "found text of 3 characters",
        ),
        (
            '{"gateway": {"heartbeat": {"tz": "Mars/Base", "activeHours": "8-25"}}}',
            "FILE:1: gateway.heartbeat.activeHours: expected a window of the day such as "
            '"08:00-22:00", found the text "8-25"',
        ),
        (
            '{"channels": {"telegram": {"apiBase": "localhost:8081"}}}',
            "FILE:1: channels.telegram.apiBase: expected an http:// or https:// address, "
            'found the text "localhost:8081"',
        ),
        *(
            (
                f'{{"providers": {{"openai": {{"apiBase": "{address}"}}}}}}',
                "FILE:1: providers.openai.apiBase: expected an http:// or https:// address, "
                f'found the text "{address}"',
            )
            for address in ("http://[::1", "http://h:70000", "http://:80/v1", "https://h:0/")
        ),
        (
            '{"agents": {"defaults": {"model": "${not a name}"}}}',
            "FILE:1: agents.defaults.model: "
            "expected ${NAME} of a variable ($${ stands for ${ itself)",
        ),
        (
            '{"skills": {"entries": {"x": {"config": {"a": ' + "[" * 70 + "]" * 70 + "}}}}}",
            "FILE:1: skills.entries.x.config.a[0][0][0]: expected at most 64 levels, found more",
        ),
    ],
)
def test_a_broken_file_is_refused_with_the_place(
    file: Path, text: str | bytes, line: str | None
) -> None:
    found = problems(file, text)

    if line is None:
        assert found[0].startswith("FILE:1:")
    else:
        assert line in found


@pytest.mark.parametrize("zone", ["America", "../etc/passwd", "", "Europe/Nowhere", "a\\u0000b"])
def test_a_zone_is_a_name_of_a_zone(file: Path, zone: str) -> None:
    text = f'{{"gateway": {{"heartbeat": {{"tz": "{zone}"}}}}}}'
    if not zone:
        assert load(file, text).config.gateway.heartbeat.tz is None
        return

    (line,) = problems(file, text)
    assert line.startswith(
        'FILE:1: gateway.heartbeat.tz: expected a time zone such as "Europe/Berlin", found '
    )


def test_an_error_never_quotes_a_secret(file: Path) -> None:
    secret = "sk-fake-do-not-show"
    text = json.dumps(
        {
            "providers": {"openai": {"apiKey": [secret], "adapter": secret * 2}},
            "channels": {"telegram": {"token": {"a": secret}, "proxy": f"me:{secret}@h"}},
            "skills": {"entries": {"s": {"env": {"K": [secret]}, "enabled": "${KEY}"}}},
        }
    )

    with pytest.raises(ConfigError) as caught:
        load(file, text, {"KEY": secret})

    assert len(str(caught.value).splitlines()) == 6
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("broken", ["directory", "link", "unreadable parent"])
def test_a_file_that_cannot_be_read_is_not_taken_for_a_missing_one(
    tmp_path: Path, broken: str
) -> None:
    file = tmp_path / "config.json"
    if broken == "directory":
        file.mkdir()
    elif broken == "link":
        file.symlink_to(tmp_path / "gone.json")
    else:
        (tmp_path / "home").write_text("not a directory")
        file = tmp_path / "home" / "config.json"

    with pytest.raises(ConfigError, match=str(file)):
        load_config(file, NONE)
