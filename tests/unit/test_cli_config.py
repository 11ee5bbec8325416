"""``nanobot config`` on real files."""

from __future__ import annotations

import itertools
import json
import stat
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.config_cmd import config_app
from nanobot.cli.config_file import set_values
from nanobot.cli.context import CliContext
from nanobot.config.load import load_config
from nanobot.core.errors import ConfigError, StoreUnavailable
from nanobot.store.home import Home

NONE: Mapping[str, str] = {}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def write(home: Home, text: str) -> Path:
    home.root.mkdir(exist_ok=True)
    home.config_file.write_text(text, "utf-8")
    home.config_file.chmod(0o600)
    return home.config_file


def run(home: Home, *args: str, environ: Mapping[str, str] = NONE, stdin: str = "") -> Result:
    return CliRunner().invoke(config_app, list(args), obj=CliContext(home, environ), input=stdin)


def error(result: Result) -> str:
    assert isinstance(result.exception, ConfigError)
    return str(result.exception)


# -------------------------------------------------------------------------------- reading


def test_path_prints_where_the_file_is(home: Home) -> None:
    assert run(home, "path").stdout == f"{home.config_file}\n"


def test_show_prints_what_is_set_with_secrets_masked_and_warnings_aside(home: Home) -> None:
    write(
        home,
        '{"providers": {"openai": {"apiKey": "sk-fake-1234567"}}, "tools": {"mcpServers": {}},'
        ' "gateway": {"port": 18790}}',
    )

    result = run(home, "show", environ={"NANOBOT_AGENTS__DEFAULTS__MODEL": "m"})

    assert json.loads(result.stdout) == {
        "agents": {"defaults": {"model": "m"}},
        "providers": {"openai": {"apiKey": "***4567"}},
    }
    assert result.stderr == (
        f"warning: {home.config_file}: this nanobot does not serve, and ignores: tools.mcpServers\n"
    )
    assert "\x1b" not in result.output


def test_show_all_has_the_defaults_and_json_is_one_line(home: Home) -> None:
    result = run(home, "show", "--all", "--json")

    assert len(result.stdout.splitlines()) == 1
    assert json.loads(result.stdout)["gateway"]["port"] == 18790


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        (["agents.defaults.model"], "m\n"),
        (["agents.defaults.model", "--json"], '"m"\n'),
        (["agents.defaults.max_tokens"], "8192\n"),
        (["agents.defaults.contextWindow"], "null\n"),
        (["channels.telegram.allowFrom"], '[\n  "7"\n]\n'),
        (["channels.telegram.token"], "***7890\n"),
        (["channels.telegram.token", "--reveal"], "12:fake567890\n"),
        (["skills.entries.a.b.enabled"], "false\n"),
        (['skills.entries."a.b".enabled'], "false\n"),
    ],
)
def test_get_prints_one_value(home: Home, args: list[str], printed: str) -> None:
    write(
        home,
        '{"agents": {"defaults": {"model": "m"}},'
        ' "channels": {"telegram": {"token": "12:fake567890", "allowFrom": [7]}},'
        ' "skills": {"entries": {"a.b": {"enabled": false}}}}',
    )

    assert run(home, "get", *args).stdout == printed


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (
            "agents.defaults.modle",
            "agents.defaults.modle: unknown key; the nearest valid key is agents.defaults.model",
        ),
        (
            "gateway.port.x",
            "gateway.port.x: unknown key; gateway.port is a value and has no keys",
        ),
        ("a..b", '"a..b": expected a key such as agents.defaults.model'),
        ("", '"": expected a key such as agents.defaults.model'),
    ],
)
def test_an_unknown_key_is_an_error_with_the_nearest(home: Home, key: str, text: str) -> None:
    assert error(run(home, "get", key)) == text
    assert error(run(home, "set", key, "1")) == text
    assert not home.config_file.exists()


def test_check_says_what_is_valid_and_what_may_surprise(home: Home) -> None:
    missing = run(home, "check")
    write(home, '{"channels": {"telegram": {"enabled": true, "token": "1:fake"}}}')
    result = run(home, "check")
    report = json.loads(run(home, "check", "--json").stdout)

    assert missing.stdout == f"{home.config_file} does not exist: all keys have their defaults\n"
    first, hint = result.stdout.splitlines()
    assert first == f"{home.config_file} is valid"
    assert hint.startswith("- channels.telegram.allowFrom is empty")
    assert report == {
        "ok": True,
        "path": str(home.config_file),
        "exists": True,
        "problems": [],
        "warnings": [],
        "hints": [hint.removeprefix("- ")],
    }


def test_check_of_a_broken_file_fails_with_every_problem(home: Home) -> None:
    file = write(home, '{"gateway": {"port": "x"},\n"agents": 1}')
    lines = [
        f'{file}:1: gateway.port: expected a whole number from 0 to 65535, found the text "x"',
        f"{file}:2: agents: expected an object, found 1",
    ]

    result = run(home, "check", "--json")

    assert result.exit_code == 2
    assert json.loads(result.stdout) == {"ok": False, "path": str(file), "problems": lines}
    assert error(run(home, "check")).splitlines() == lines
    assert error(run(home, "show")).splitlines() == lines


# -------------------------------------------------------------------------------- changing


def test_set_makes_the_file_private(home: Home) -> None:
    result = run(home, "set", "agents.defaults.model", "a/b")

    assert result.stdout == f"agents.defaults.model is set in {home.config_file}\n"
    assert home.config_file.read_text() == (
        '{\n  "agents": {\n    "defaults": {\n      "model": "a/b"\n    }\n  }\n}\n'
    )
    assert stat.S_IMODE(home.config_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700


def test_set_keeps_everything_else_as_it_was(home: Home) -> None:
    text = """{
  // mine
  "agents": {"defaults": {"max_tokens": 5, "model": "${MODEL}"}},
  "channels": {"discord": {"enabled": false, "intents": 1}},
}
"""
    file = write(home, text)
    file.chmod(0o644)

    result = run(home, "set", "agents.defaults.maxTokens", "6")

    assert file.read_text() == text.replace('"max_tokens": 5', '"max_tokens": 6')
    (backup,) = home.root.glob("config.json.bak-*")
    assert backup.read_text() == text
    assert stat.S_IMODE(backup.stat().st_mode) == stat.S_IMODE(file.stat().st_mode) == 0o600
    assert result.stdout.splitlines()[1] == f"former file: {backup}"
    assert result.stderr.splitlines() == [
        f"warning: {file}: this nanobot does not serve, and ignores: channels.discord",
        "warning: agents.defaults.model needs the variable MODEL, not set here",
    ]


@pytest.mark.parametrize(
    ("key", "raw", "stored"),
    [
        ("agents.defaults.model", "12", "12"),
        ("agents.defaults.model", '"quoted"', "quoted"),
        ("agents.defaults.model", "null", None),
        ("agents.defaults.temperature", "0.5", 0.5),
        ("tools.restrictToWorkspace", "true", True),
        ("channels.telegram.allowFrom", '[1, "@a"]', [1, "@a"]),
        ("channels.telegram.token", "${TOKEN}", "${TOKEN}"),
        ("providers.openai.extraHeaders.X-A.b", "1", 1),
        ("providers.openai.models.gpt-4.1.vision", "false", False),
        ("skills.entries.s.config.any.thing", "[1", "[1"),
        ("gateway.heartbeat", '{"enabled": false}', {"enabled": False}),
        ("channels.discord.enabled", "false", False),
    ],
)
def test_a_value_is_json_where_that_fits_and_else_text(
    home: Home, key: str, raw: str, stored: object
) -> None:
    change = set_values(home.config_file, [(key, raw)], NONE)

    value = json.loads(home.config_file.read_text())
    while isinstance(value, dict) and value != stored:
        (value,) = value.values()
    assert value == stored
    assert change.backup is None


def test_names_with_dots_become_one_name(home: Home) -> None:
    set_values(home.config_file, [("providers.openai.models.gpt-4.1.vision", "true")], NONE)
    set_values(home.config_file, [('skills.entries."a.enabled".enabled', "false")], NONE)

    config = load_config(home.config_file, NONE).config
    assert config.providers.openai.models["gpt-4.1"].vision is True
    assert config.skills.entries["a.enabled"].enabled is False


@pytest.mark.parametrize(
    ("text", "key", "value", "line"),
    [
        (
            "{}",
            "gateway.port",
            "http",
            'gateway.port: expected a whole number from 0 to 65535, found the text "http"',
        ),
        (
            "{}",
            "channels.telegram.allowFrom",
            "12",
            "channels.telegram.allowFrom: "
            "expected a list, each item text or a whole number, found 12",
        ),
        ('{"wrong": 1}', "gateway.port", "1", "wrong: unknown key"),
        ('{"gateway": [1]}', "gateway.port", "1", "gateway.port is inside of what is no object"),
        ("{", "gateway.port", "1", "not JSON"),
    ],
)
def test_a_change_that_would_not_be_valid_changes_nothing(
    home: Home, text: str, key: str, value: str, line: str
) -> None:
    file = write(home, text)

    message = error(run(home, "set", key, value))

    assert message.startswith(str(file))
    assert line in message
    assert file.read_text() == text
    assert [each.name for each in home.root.iterdir()] == ["config.json"]


def test_a_secret_can_come_from_stdin_and_is_not_printed(home: Home) -> None:
    result = run(home, "set", "providers.openai.apiKey", "-", stdin="sk-fake-secret\n")

    assert load_config(
        home.config_file, NONE
    ).config.providers.openai.api_key.get_secret_value() == ("sk-fake-secret")
    assert "sk-fake-secret" not in result.output


def test_a_key_that_the_environment_overrides_is_said(home: Home) -> None:
    environ = {"NANOBOT_TOOLS__EXEC__TIMEOUT": "9"}

    result = run(home, "set", "tools.exec.timeout", "8", environ=environ)

    assert result.stderr == (
        "warning: NANOBOT_TOOLS__EXEC__TIMEOUT in the environment overrides tools.exec.timeout\n"
    )


def test_a_broken_environment_does_not_keep_one_from_mending_the_file(home: Home) -> None:
    result = run(home, "set", "gateway.port", "8", environ={"NANOBOT_GATEWAY__PROT": "9"})

    assert result.exit_code == 0
    assert load_config(home.config_file, NONE).config.gateway.port == 8


def test_the_last_five_former_files_are_kept(home: Home) -> None:
    write(home, '{"gateway": {"port": 0}}')
    (home.root / "config.json.bak-mine").write_text("kept")
    ticks = itertools.count()

    def clock() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(ticks))

    for port in range(1, 8):
        set_values(home.config_file, [("gateway.port", str(port))], NONE, clock=clock)
    same = set_values(home.config_file, [("gateway.port", "7")], NONE, clock=clock)

    backups = sorted(home.root.glob("config.json.bak-2*"))
    ports = [json.loads(backup.read_text())["gateway"]["port"] for backup in backups]
    assert ports == [2, 3, 4, 5, 6]
    assert backups[0].name == "config.json.bak-20260101T000002000000Z"
    assert (home.root / "config.json.bak-mine").exists()
    assert same.backup is None


def test_several_keys_are_one_change(home: Home) -> None:
    file = write(home, "{}\n")

    change = set_values(
        file,
        [("channels.telegram.enabled", "true"), ("channels.telegram.token", "1:fake")],
        NONE,
    )

    telegram = load_config(file, NONE).config.channels.telegram
    assert (telegram.enabled, telegram.token.get_secret_value()) == (True, "1:fake")
    assert change.keys == ("channels.telegram.enabled", "channels.telegram.token")
    assert [each.name for each in home.root.glob("*.bak-*")] == [
        change.backup.name if change.backup else ""
    ]


def test_a_link_stays_a_link(home: Home, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    home.root.mkdir()
    home.config_file.symlink_to(real)

    set_values(home.config_file, [("gateway.port", "1")], NONE)

    assert home.config_file.is_symlink()
    assert json.loads(real.read_text()) == {"gateway": {"port": 1}}


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    file = write(Home(tmp_path / "home"), "{}")
    # A directory in the way of the backup fails whoever runs the test, root included.
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    (file.parent / "config.json.bak-20260101T000000000000Z").mkdir()

    with pytest.raises(StoreUnavailable, match=f"{file}: cannot be written: "):
        set_values(file, [("gateway.port", "1")], NONE, clock=lambda: moment)

    assert file.read_text() == "{}"
