"""Every kind of frontmatter there is: read as meant, or refused with a reason."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from nanobot.skills.frontmatter import (
    HEADER_MAX,
    Refused,
    SkillBroken,
    header_of,
    json_tree,
    plain_values,
    read,
    read_lines,
    read_simple,
    read_strict,
)
from nanobot.skills.manifest import Requirements, read_manifest
from nanobot.skills.reader import BrokenSkill, Skill, Source, read_body, read_skill
from tests.fakes.skills import write_raw


def read_as(tmp_path: Path, content: str | bytes) -> Skill | BrokenSkill:
    write_raw(tmp_path, "sample", content)
    return read_skill(Source.WORKSPACE, tmp_path / "sample", protected=())


def read_well(tmp_path: Path, content: str | bytes) -> Skill:
    skill = read_as(tmp_path, content)
    assert isinstance(skill, Skill), skill
    return skill


def read_badly(tmp_path: Path, content: str | bytes) -> str:
    broken = read_as(tmp_path, content)
    assert isinstance(broken, BrokenSkill), broken
    return broken.reason


# --- the three readers agree ------------------------------------------------------------------

_AWKWARD = st.text(alphabet="ab1 :#'\"-[]{},&*!|>%@`\\.\t~é🦊/yesno\u2028\xa0", max_size=24)
_LINE = st.one_of(
    st.builds("{}: {}".format, st.sampled_from(["name", "a-b", "metadata", "yes"]), _AWKWARD),
    st.sampled_from(["", "# comment", "  indented", "key:", 'a: "b"', "b: 'c'", "---", "..."]),
    _AWKWARD,
)


@given(lines=st.lists(_LINE, max_size=5))
def test_the_simple_reader_reads_what_yaml_would_read_or_nothing(lines: list[str]) -> None:
    header = "".join(f"{line}\n" for line in lines)

    simple = read_simple(header)

    assert simple is None or simple == read_strict(header)


_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**12), 10**12),
        st.text(
            alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=9
        ),
    ),
    lambda children: st.one_of(
        st.lists(children, max_size=3), st.dictionaries(st.text("abc", max_size=3), children)
    ),
    max_leaves=8,
)


@given(value=st.dictionaries(st.text("abc", min_size=1, max_size=3), _JSON, min_size=1))
def test_metadata_as_json_on_one_line_means_what_json_means(value: dict[str, Any]) -> None:
    header = f"metadata: {json.dumps(value)}\n"

    simple = read_simple(header)

    assert simple is not None
    assert plain_values(simple["metadata"]) == value
    assert plain_values(read_strict(header)["metadata"]) == value


@given(value=st.dictionaries(st.text("abc", min_size=1, max_size=3), _JSON, min_size=1))
def test_plain_values_are_those_of_yaml(value: dict[str, Any]) -> None:
    header = yaml.safe_dump(value)
    assume("&id" not in header)

    assert plain_values(read_strict(header)) == yaml.safe_load(header)


@given(head=st.one_of(st.binary(max_size=80), st.builds(b"---\n%b\n---\n".__mod__, st.binary())))
def test_no_bytes_do_more_than_break_their_own_skill(head: bytes) -> None:
    with contextlib.suppress(SkillBroken):
        header = header_of(head, is_whole=True)
        read_manifest(None if header is None else read(header), "fuzzed")


@given(lines=st.lists(_LINE, max_size=8))
def test_any_lines_can_be_read_one_by_one(lines: list[str]) -> None:
    values = read_lines("\n".join(lines))

    assert all(isinstance(key, str) for key in values)


def test_a_common_skill_is_read_without_importing_yaml(tmp_path: Path) -> None:
    write_raw(
        tmp_path,
        "sample",
        '---\nname: sample\ndescription: "Ask: answer."\nalways: true\n'
        'metadata: {"nanobot": {"requires": {"bins": ["curl"]}}}\n---\nbody',
    )
    program = (
        "import sys; from pathlib import Path\n"
        "from nanobot.skills.loader import SkillsLoader\n"
        f"loader = SkillsLoader(Path('none'), Path({str(tmp_path)!r}))\n"
        "assert loader.list_skills(False)\n"
        "print({'yaml', 'pyjson5', 'jinja2', 'nanobot.config'} & set(sys.modules))"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert result.stdout == "set()\n"


# --- the file around it -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "---\nname: sample\ndescription: Fine.\n---\nBody.\n",
        "---\nname: sample\ndescription: Fine.\n---\n\n\nBody.",
        "\ufeff---\nname: sample\ndescription: Fine.\n---\nBody.\n",
        "---\r\nname: sample\r\ndescription: Fine.\r\n---\r\nBody.\r\n",
        "\ufeff---\r\nname: sample\r\ndescription: Fine.\r\n---\r\nBody.\r\n",
        "---\rname: sample\rdescription: Fine.\r---\rBody.\r",
        "---  \nname: sample\ndescription: Fine.\n--- \t\nBody.\n",
        "\n  \n---\nname: sample\ndescription: Fine.\n---\nBody.\n",
        "---\n\nname:   sample   \n# a comment\ndescription: Fine.\n\n---\nBody.\n",
    ],
    ids=["plain", "blank", "bom", "crlf", "bom-crlf", "cr", "trailing", "leading", "spaced"],
)
def test_line_endings_marks_and_blanks_around_it_do_not_matter(
    tmp_path: Path, content: str
) -> None:
    skill = read_well(tmp_path, content)

    assert (skill.manifest.name, skill.manifest.description, skill.manifest.notes) == (
        "sample",
        "Fine.",
        (),
    )
    assert read_body(skill) == "Body."


def test_a_file_that_ends_with_the_frontmatter_has_an_empty_body(tmp_path: Path) -> None:
    skill = read_well(tmp_path, "---\ndescription: Fine.\n---")

    assert read_body(skill) == ""


def test_a_file_without_frontmatter_goes_by_the_name_of_its_folder(tmp_path: Path) -> None:
    skill = read_well(tmp_path, "# How to\n\n---\n\nBody.")

    assert (skill.name, skill.manifest.name, skill.manifest.description) == ("sample", "", "sample")
    assert read_body(skill) == "# How to\n\n---\n\nBody."


@pytest.mark.parametrize("content", ["", "---\n---\n", "---\n\n---\nBody", "---\n# only\n---\n"])
def test_an_empty_frontmatter_is_none_that_says_anything(tmp_path: Path, content: str) -> None:
    assert read_well(tmp_path, content).manifest.description == "sample"


def test_a_frontmatter_that_is_not_closed_is_broken(tmp_path: Path) -> None:
    assert (
        read_badly(tmp_path, "---\nname: sample\n\nBody.")
        == "the frontmatter is not closed by a line of ---"
    )


def test_a_body_of_a_megabyte_is_read_only_when_asked_for(tmp_path: Path) -> None:
    body = "x" * 1_000_000

    skill = read_well(tmp_path, f"---\ndescription: Fine.\n---\n{body}\n")

    assert skill.manifest.description == "Fine."
    assert read_body(skill) == body


def test_a_frontmatter_has_a_limit(tmp_path: Path) -> None:
    comment = "#" * (HEADER_MAX - 30)
    assert read_well(tmp_path, f"---\n{comment}\ndescription: d\n---\nBody")

    reason = read_badly(tmp_path, f"---\n{comment * 2}\ndescription: d\n---\nBody")

    assert reason == "the frontmatter is not closed by a line of --- within 64 KB"


def test_a_long_body_with_old_line_endings_is_no_obstacle(tmp_path: Path) -> None:
    skill = read_well(tmp_path, "---\rdescription: Fine.\r---\r" + "line\r" * 40_000)

    assert skill.manifest.description == "Fine."


def test_a_file_of_many_megabytes_is_broken(tmp_path: Path) -> None:
    path = write_raw(tmp_path, "sample", "---\ndescription: d\n---\n")
    with path.open("r+b") as file:
        file.truncate(9 * 1024 * 1024)

    broken = read_skill(Source.WORKSPACE, tmp_path / "sample", protected=())

    assert isinstance(broken, BrokenSkill)
    assert broken.reason == "SKILL.md is larger than 8 MB"


def test_a_frontmatter_that_is_not_utf8_is_broken(tmp_path: Path) -> None:
    latin = "---\nname: sample\ndescription: café\n---\n".encode("latin-1")

    assert read_badly(tmp_path, latin) == "the frontmatter is not UTF-8 (line 3)"
    assert "UTF-16" in read_badly(tmp_path, "---\nname: x\n---\n".encode("utf-16"))


def test_a_body_that_is_not_utf8_loses_only_the_letters_in_question(tmp_path: Path) -> None:
    skill = read_well(tmp_path, b"---\ndescription: Fine.\n---\ncaf\xe9 au lait")

    assert read_body(skill) == "caf\ufffd au lait"


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "description"),
    [
        ("description: Use when: the user asks", "Use when: the user asks"),
        ('description: "Use when: quoted"', "Use when: quoted"),
        ("description: 'It''s quoted'", "It's quoted"),
        ('description: "a \\"b\\" \\u00e9"', 'a "b" é'),
        ('description: "Half" quoted: text', '"Half" quoted: text'),
        ('description: It\'s "fine": yes', 'It\'s "fine": yes'),
        ("description: *bold* text", "*bold* text"),
        ("description: @mention and `code`", "@mention and `code`"),
        ("description: [beta] does: things", "[beta] does: things"),
        ("description: 100%: sure", "100%: sure"),
        ("description: 🦊 fox: brown 🐻", "🦊 fox: brown 🐻"),
        ("description: yes", "yes"),
        ("description: 1.10", "1.10"),
        ("description: 2024-01-02", "2024-01-02"),
        ("description: >\n  folded\n  text", "folded text"),
        ("description: |\n  two\n  lines", "two lines"),
        ("description: >-\nnot indented", "not indented"),
        ("description: goes on\n  below", "goes on below"),
        ("description: goes on: oddly\nwithout indent", "goes on: oddly without indent"),
        ("description:\tafter a tab", "after a tab"),
        ("description:no blank", "no blank"),
        ("description: one\ndescription: two", "two"),
        ("description: bad: one\ndescription: two", "two"),
        ("description: hidden\u0007bell", "hiddenbell"),
        ("description: a # comment", "a"),
    ],
)
def test_descriptions_are_read_as_meant(tmp_path: Path, line: str, description: str) -> None:
    skill = read_well(tmp_path, f"---\nname: sample\n{line}\nlicense: MIT\n---\nBody")

    assert (skill.manifest.description, skill.manifest.license) == (description, "MIT")


def test_a_file_read_line_by_line_says_so(tmp_path: Path) -> None:
    skill = read_well(tmp_path, "---\nname: sample\ndescription: a: b\n---\n")

    assert skill.manifest.notes == (
        "not strict YAML, read line by line: mapping values are not allowed in this context"
        " (line 3)",
    )


_NEEDS = Requirements(bins=("curl", "jq"))

_METADATA = {
    "JSON on one line": 'metadata: {"openclaw":{"requires":{"bins":["curl","jq"]}}}',
    "JSON in a string": 'metadata: \'{"openclaw": {"requires": {"bins": ["curl", "jq"]}}}\'',
    "JSON in a block": 'metadata: |\n  {"openclaw":\n    {"requires": {"bins": ["curl", "jq"]}}}',
    "JSON5 in a block": "metadata: |\n  {openclaw: {requires: {bins: ['curl', 'jq',],},},} // ok",
    "a YAML mapping": "metadata:\n openclaw:\n  requires:\n   bins:\n   - curl\n   - jq",
    "a flow mapping": "metadata: {openclaw: {requires: {bins: [curl, jq]}}}",
    "a flow mapping over lines": 'metadata:\n  {\n    "openclaw":\n      {\n'
    '        "requires": { "bins": ["curl", "jq",], },\n      },\n  }',
    "closed at margin": 'metadata: {\n  "openclaw": {"requires": {"bins": ["curl", "jq"],}},\n}',
    "all at the margin": 'metadata:\n{\n"openclaw": {"requires":\n{"bins": ["curl", "jq"]}}\n}',
    "tabs": 'metadata:\n\t{\n\t\t"openclaw": {"requires": {"bins": ["curl", "jq"],},},\n\t}',
    "tabs in a mapping": "metadata:\n\topenclaw:\n\t\trequires:\n\t\t\tbins: [curl, jq]",
    "comments": 'metadata: {\n  // why\n  "openclaw": {"requires": {"bins": ["curl", "jq"]}}\n}',
    "a bracket quoted": 'metadata: {"a": "}", "openclaw": {"requires": {"bins": ["curl","jq"]}}}',
}


@pytest.mark.parametrize("neighbour", ["license: MIT", "compatibility: needs: care"])
@pytest.mark.parametrize("form", _METADATA)
def test_metadata_is_read_in_every_form_beside_any_neighbour(
    tmp_path: Path, form: str, neighbour: str
) -> None:
    skill = read_well(
        tmp_path, f"---\n{neighbour}\n{_METADATA[form]}\nhomepage: https://example.org\n---\n"
    )

    assert (skill.manifest.requires, skill.manifest.homepage) == (_NEEDS, "https://example.org")


def test_an_open_bracket_does_not_swallow_the_keys_below(tmp_path: Path) -> None:
    reason = read_badly(tmp_path, '---\nmetadata: {"openclaw": {\nname: sample\n---\n')

    assert reason.startswith("metadata: neither a mapping nor JSON that can be read (as YAML: ")


def test_a_frontmatter_without_any_keys_is_broken(tmp_path: Path) -> None:
    assert read_badly(tmp_path, "---\n- a\n- b\n---\n") == (
        "the frontmatter is not a mapping: it has no keys"
    )


# --- bombs ------------------------------------------------------------------------------------


def test_aliases_are_refused_before_they_multiply(tmp_path: Path) -> None:
    levels = ["  l0: &l0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    levels += [f"  l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30)]

    reason = read_badly(tmp_path, "\n".join(["---", "metadata:", *levels, "---", ""]))

    assert reason == (
        "metadata: neither a mapping nor JSON that can be read"
        " (as YAML: YAML aliases are not allowed)"
    )
    with pytest.raises(Refused, match="aliases"):
        read_strict("a: &x 1\nb: *x\n")


@pytest.mark.parametrize("bracket", ["[", '{"a":', "- ", "{a: ", "? "])
def test_endless_nesting_is_refused(tmp_path: Path, bracket: str) -> None:
    header = f"metadata: {bracket * 8000}"

    assert isinstance(read_as(tmp_path, f"---\n{header}\n---\n"), BrokenSkill)
    with pytest.raises(Refused):
        read_strict(bracket * 8000)
    with pytest.raises(Refused):
        json_tree(bracket * 8000)


def test_tags_make_no_objects(tmp_path: Path) -> None:
    skill = read_well(
        tmp_path, "---\ndescription: !!python/object/apply:os.getcwd 'text'\nlicense: MIT\n---\n"
    )

    assert (skill.manifest.description, skill.manifest.license) == ("text", "MIT")


def test_a_second_document_is_not_strict(tmp_path: Path) -> None:
    skill = read_well(tmp_path, "---\nname: sample\n...\ndescription: Fine.\n---\n")

    assert skill.manifest.description == "Fine."
    assert "line by line" in skill.manifest.notes[0]
