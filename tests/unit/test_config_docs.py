"""docs/configuration.md says of every key what the schema says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pydantic import SecretStr

from nanobot.config.compat import UNREAD
from nanobot.config.keys import Table, all_keys, words_of
from nanobot.config.load import load_config
from nanobot.config.schema import ProvidersConfig

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def rows() -> list[str]:
    """The rows of the table of keys, from the schema."""
    lines = []
    for key in all_keys():
        default = key.child.field.get_default(call_default_factory=True)
        if default is None or isinstance(default, SecretStr):
            shown = "unset"
        elif isinstance(default, dict | tuple):
            shown = "none"
        else:
            shown = f"`{json.dumps(default)}`"
        node = key.child.node
        words = words_of(node.values if isinstance(node, Table) else node)
        meaning = str(key.child.field.description)
        if key.pattern in UNREAD:
            meaning = f"Not served: nothing reads it. {meaning}"
        lines.append(f"| `{key.pattern}` | {words} | {shown} | {meaning} |")
    return lines


def test_the_table_has_every_key_with_its_values_default_and_meaning() -> None:
    table = DOCS.read_text("utf-8").partition("## Keys")[2]

    assert [line for line in table.splitlines() if line.startswith("| `")] == rows()


def test_every_provider_is_named() -> None:
    text = " ".join(DOCS.read_text("utf-8").split())
    named = re.search(r"`providers.<name>` is one of ([\w, ]+)\.", text)

    assert named is not None
    assert named.group(1).split(", ") == list(ProvidersConfig.model_fields)


def test_the_example_is_a_valid_configuration(tmp_path: Path) -> None:
    example = re.search(r"```jsonc\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert example is not None
    file = tmp_path / "config.json"
    file.write_text(example.group(1), "utf-8")
    file.chmod(0o600)

    environ = {"ANTHROPIC_API_KEY": "sk-fake-1", "TELEGRAM_TOKEN": "1:fake"}
    loaded = load_config(file, environ)

    assert loaded.warnings == ()
    assert loaded.config.channels.telegram.token.get_secret_value() == "1:fake"
