"""Whatever stands in the file or the environment, the answer is a Config or a ConfigError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from nanobot.config.compat import config_warnings
from nanobot.config.keys import all_keys, children, loose
from nanobot.config.load import LoadedConfig, parse_config
from nanobot.config.schema import Config
from nanobot.config.show import all_secrets, displayed
from nanobot.core.errors import ConfigError

FILE = Path("/home/somebody/.nanobot/config.json")
KEYS = [key.pattern.replace("providers.<name>", "providers.openai") for key in all_keys()]
SECTIONS = sorted({pattern.rsplit(".", depth)[0] for pattern in KEYS for depth in (1, 2, 3)})

_TEXT = (
    st.text()
    | st.text(st.characters(categories=["Cs"]), max_size=3)
    | st.sampled_from(["${A}", "${B}", "$${A}", "${", "*", "@x", "1|x", "http://u:p@h", "~", "~u"])
)
_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_NAME = st.sampled_from(["name", "a.b", "A-B", "", "naïve"]) | st.text(max_size=3)


def read(text: str, environ: Mapping[str, str]) -> LoadedConfig | None:
    """The result, used as the program uses it; None if it was refused in proper form."""
    try:
        loaded = parse_config(text, FILE, environ, plugin_channels=lambda: {"carrier"})
    except ConfigError as error:
        for line in str(error).splitlines():
            assert line.startswith((str(FILE), "NANOBOT_"))
        return None
    json.dumps(displayed(loaded.config), ensure_ascii=False, allow_nan=False).encode()
    assert all(all_secrets(loaded.config))
    config_warnings(loaded.config)
    return loaded


@st.composite
def _files(draw: st.DrawFn) -> dict[str, Any]:
    """A tree with any values at some keys, sections and unknown places."""
    tree: dict[str, Any] = {}
    for pattern in draw(st.lists(st.sampled_from(KEYS + SECTIONS), min_size=1, max_size=4)):
        *way, last = [draw(_NAME) if step == "<name>" else step for step in pattern.split(".")]
        if draw(st.integers(0, 5)) == 0:
            last = draw(_NAME)
        at = tree
        for step in way:
            below = at.setdefault(step, {})
            if not isinstance(below, dict):
                break
            at = below
        at[last] = draw(_VALUE)
    return tree


@given(_files())
def test_any_value_at_any_key_loads_or_is_refused(tree: dict[str, Any]) -> None:
    read(json.dumps(tree), {"A": "1"})


@given(_VALUE)
def test_any_value_as_the_whole_file_loads_or_is_refused(value: Any) -> None:
    loaded = read(json.dumps(value), {})

    assert loaded is None or value is None or isinstance(value, dict)


@given(st.text())
@example("null")
@example('\ufeff{"agents": {}}')
def test_any_text_as_the_file_loads_or_is_refused(text: str) -> None:
    read(text, {})


@given(
    st.sampled_from(KEYS + SECTIONS),
    st.sampled_from(["", "__X", "__", "_"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=[])) | _VALUE.map(json.dumps),
)
def test_any_value_of_any_variable_loads_or_is_refused(
    pattern: str, suffix: str, value: str
) -> None:
    variable = "NANOBOT_" + pattern.replace(".", "__").upper() + suffix

    loaded = read("{}", {variable: value})

    assert loaded is None or set(loaded.overrides.values()) <= {variable}


@given(st.text())
def test_variables_of_any_name_below_a_section_load_or_are_refused(name: str) -> None:
    read("{}", {f"NANOBOT_AGENTS__{name}": "1", f"NANOBOT_SKILLS__ENTRIES__{name}__ENV": "{}"})


@given(st.text().filter(lambda name: loose(name.split("__")[0]) not in children(Config)))
def test_variables_of_any_name_outside_of_sections_are_ignored(name: str) -> None:
    loaded = read("{}", {f"NANOBOT_{name}": "1"})

    assert loaded is not None and loaded.overrides == {}
