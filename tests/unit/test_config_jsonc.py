"""JSON with comments is read with exact places and changed without touching the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.config.jsonc import JsonError, parse

TEXT = """{
  // the model
  "agents": {
    "defaults": {
      "model": "a/b", // good, cheap
      "maxTokens": 1, /* trailing, comma */
    }
  },
  "gateway": {"port": 1},
  "empty": {},
  "nothing": null
  /* the end */
}
"""


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        (["agents", "defaults", "model"], "c", '"a/b", // good', '"c", // good'),
        (
            ["agents", "defaults", "temperature"],
            0.5,
            "/* trailing, comma */\n",
            '/* trailing, comma */\n      "temperature": 0.5\n',
        ),
        (["gateway", "port"], [1, "x"], '{"port": 1}', '{"port": [1, "x"]}'),
        (["gateway", "host"], "h", '{"port": 1}', '{"port": 1, "host": "h"}'),
        (["empty", "a"], True, "{}", '{\n    "a": true\n  }'),
        (["nothing", "a", "b"], 1, "null", '{\n    "a": {\n      "b": 1\n    }\n  }'),
        (
            ["tools", "exec", "timeout"],
            5,
            "null\n  /* the end */\n",
            'null,\n  /* the end */\n  "tools": {\n    "exec": {\n      "timeout": 5\n    }\n  }\n',
        ),
    ],
)
def test_a_change_touches_its_value_only(path: list[str], value: Any, old: str, new: str) -> None:
    changed = parse(TEXT).with_value(path, value)

    assert changed == TEXT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("{}", '{\n  "a": 1\n}'),
        ('{"b": 2,}', '{"b": 2, "a": 1}'),
        ('{"b": 2 /* , */ }', '{"b": 2, "a": 1 /* , */ }'),
        ("{ /* nothing */ }", '{ /* nothing */  "a": 1}'),
        ('{\n\t"b": 2 // two\n}\n', '{\n\t"b": 2, // two\n\t"a": 1\n}\n'),
        ('{\r\n  "b": 2\r\n}', '{\r\n  "b": 2,\r\n  "a": 1\r\n}'),
        ('{\n    "b": {\n        "c": 1}}', '{\n    "b": {\n        "c": 1}, "a": 1}'),
        ('// {"a": 0}\n{"a": 2}', '// {"a": 0}\n{"a": 1}'),
    ],
)
def test_a_member_is_added_in_the_style_of_the_file(text: str, changed: str) -> None:
    assert parse(text).with_value(["a"], 1) == changed


def test_what_is_no_object_is_not_replaced_by_one() -> None:
    with pytest.raises(ValueError, match="not an object"):
        parse('{"a": [1]}').with_value(["a", "b"], 1)


def test_a_line_is_that_of_the_deepest_known_part() -> None:
    document = parse(TEXT)

    paths: list[list[str | int]] = [
        [],
        ["agents"],
        ["agents", "defaults", "maxTokens"],
        ["agents", "defaults", "unknown", "deep"],
        ["gateway", "port", 3],
    ]
    assert [document.line_of(path) for path in paths] == [1, 3, 6, 4, 9]


def test_an_item_of_a_list_has_its_line() -> None:
    assert parse('{"a": [\n1,\n{"b":\n[2]}]}').line_of(["a", 1, "b", 0]) == 4


def test_an_open_text_of_any_length_is_refused_at_once() -> None:
    with pytest.raises(JsonError):
        parse('{"a": "' + "x" * 100_000)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text(), _JSON, max_size=4)
_SPACE = st.sampled_from(["", " ", "\n", "\n  ", '/* c, " */', "// c }\n", "\r\n\t"])


@st.composite
def _texts(draw: st.DrawFn, value: Any) -> str:
    """A way to write ``value``: spaces, comments and trailing commas wherever they may be."""

    def written(value: Any) -> str:
        if isinstance(value, dict):
            parts = [
                f"{draw(_SPACE)}{json.dumps(key)}{draw(_SPACE)}:{draw(_SPACE)}{written(item)}"
                for key, item in value.items()
            ]
            return f"{{{joined(parts)}{draw(_SPACE)}}}"
        if isinstance(value, list):
            return f"[{joined([draw(_SPACE) + written(item) for item in value])}{draw(_SPACE)}]"
        return json.dumps(value)

    def joined(parts: list[str]) -> str:
        comma = draw(st.sampled_from(["", f"{draw(_SPACE)},"])) if parts else ""
        return f"{draw(_SPACE)},".join(parts) + comma

    return f"{draw(_SPACE)}{written(value)}{draw(_SPACE)}"


@given(st.data(), _OBJECTS)
def test_any_way_of_writing_a_value_is_read(data: st.DataObject, value: dict[str, Any]) -> None:
    assert parse(data.draw(_texts(value))).data == value


@given(st.data(), _OBJECTS, st.lists(st.text(), min_size=1, max_size=3), _JSON)
def test_a_change_is_read_back_and_changes_nothing_else(
    data: st.DataObject, value: dict[str, Any], path: list[str], new: Any
) -> None:
    into_existing: bool = data.draw(st.booleans())
    if value and into_existing:
        path = [data.draw(st.sampled_from(sorted(value))), *path[1:]]
    text = data.draw(_texts(value))
    expected = json.loads(json.dumps(value))
    at = expected
    for name in path[:-1]:
        at = at.setdefault(name, {}) if isinstance(at, dict) else None
        if at is None or not isinstance(at, dict):
            return
    at[path[-1]] = new

    assert parse(parse(text).with_value(path, new)).data == expected


@given(st.text(alphabet=' \n{}[]:,"\\/*a1tnuell-.') | st.text())
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        document = parse(text)
        place = (document.line_of([]), 1)
    except JsonError as error:
        place = (error.line, error.column)

    assert 1 <= place[0] <= text.count("\n") + 1
    assert 1 <= place[1] <= len(text) + 1
