"""The typed reading of a frontmatter: gates must be right, the rest as far as it makes sense."""

from __future__ import annotations

import json

import pytest

from nanobot.skills.frontmatter import SkillBroken, read
from nanobot.skills.manifest import (
    DESCRIPTION_MAX,
    InstallKind,
    InstallSpec,
    Manifest,
    Requirements,
    read_manifest,
)


def manifest(header: str, **spaces: object) -> Manifest:
    metadata = f"\nmetadata: {json.dumps(spaces)}" if spaces else ""
    return read_manifest(read(f"{header}{metadata}"), "folder")


def test_everything_a_skill_can_say_is_typed() -> None:
    said = manifest(
        "name: folder\n"
        "description: Does it.\n"
        "homepage: https://example.org\n"
        "license: MIT\n"
        "compatibility: Needs a network\n"
        "allowed-tools: Bash(git add:*) Read, Write\n"
        "user-invocable: false\n"
        "disable-model-invocation: true\n"
        "command-dispatch: tool\n"
        "command-tool: exec\n"
        "command-arg-mode: raw",
        openclaw={
            "emoji": "🦊",
            "always": False,
            "os": ["linux", "darwin"],
            "requires": {"bins": ["a"], "anyBins": ["b", "c"], "env": ["D"], "config": ["e.f"]},
            "primaryEnv": "D",
            "skillKey": "key",
            "install": [
                {"kind": "brew", "id": "brew", "label": "Get it", "bins": ["a"], "formula": "a"},
                {
                    "kind": "download",
                    "url": "https://example.org/a.tar.gz",
                    "archive": "tar.gz",
                    "extract": True,
                    "stripComponents": 1,
                    "targetDir": "~/tools",
                    "os": ["linux"],
                },
                {"kind": "uv", "package": "a", "extract": "auto"},
                {"kind": "go", "module": "example.org/a"},
            ],
        },
    )

    assert said == Manifest(
        name="folder",
        description="Does it.",
        homepage="https://example.org",
        emoji="🦊",
        license="MIT",
        compatibility="Needs a network",
        allowed_tools=("Bash(git add:*)", "Read", "Write"),
        always=False,
        ungated=False,
        user_invocable=False,
        disable_model_invocation=True,
        command_dispatch="tool",
        command_arg_mode="raw",
        command_tool="exec",
        os=("linux", "darwin"),
        requires=Requirements(("a",), ("b", "c"), ("D",), ("e.f",)),
        primary_env="D",
        key="key",
        install=(
            InstallSpec(kind=InstallKind.BREW, id="brew", label="Get it", bins=("a",), formula="a"),
            InstallSpec(
                kind=InstallKind.DOWNLOAD,
                url="https://example.org/a.tar.gz",
                archive="tar.gz",
                extract=True,
                strip_components=1,
                target_dir="~/tools",
                os=("linux",),
            ),
            InstallSpec(kind=InstallKind.UV, package="a"),
            InstallSpec(kind=InstallKind.GO, module="example.org/a"),
        ),
        notes=(),
    )


@pytest.mark.parametrize("space", ["nanobot", "openclaw", "moltbot", "clawdbot"])
def test_each_namespace_of_the_family_is_understood(space: str) -> None:
    said = manifest("description: d", **{space: {"requires": {"env": ["KEY"]}, "emoji": "🦊"}})

    assert (said.requires.env, said.emoji) == (("KEY",), "🦊")


def test_of_several_namespaces_the_first_that_has_a_field_decides_it() -> None:
    said = manifest(
        "description: d",
        clawdbot={"emoji": "4", "os": ["linux"], "skillKey": "fourth"},
        openclaw={"emoji": "2", "requires": {"bins": ["two"]}, "os": None},
        nanobot={"emoji": "1"},
        somebody={"emoji": "0", "primaryEnv": "ELSE"},
    )

    assert (said.emoji, said.requires.bins, said.os, said.key, said.primary_env) == (
        "1",
        ("two",),
        ("linux",),
        "fourth",
        "",
    )


@pytest.mark.parametrize(
    ("top", "spaces", "always", "ungated"),
    [
        ("", {}, False, False),
        ("always: true", {}, True, False),
        ("always: yes", {}, True, False),
        ('always: "true"', {}, True, False),
        ("", {"nanobot": True}, True, False),
        ("", {"openclaw": True}, True, True),
        ("", {"moltbot": True}, False, True),
        ("", {"clawdbot": True}, False, True),
        ("always: true", {"nanobot": False}, False, False),
        ("always: true", {"openclaw": False}, False, False),
        ("always: true", {"clawdbot": False}, False, False),
        ("always: true", {"clawdbot": True}, True, True),
        ("always: false", {"nanobot": True}, True, False),
        ("", {"openclaw": False, "nanobot": True}, True, False),
        ("", {"openclaw": True, "nanobot": False}, False, True),
        ("", {"clawdbot": True, "openclaw": False}, False, False),
    ],
)
def test_always_means_in_context_or_ungated_by_where_it_stands(
    top: str, spaces: dict[str, bool], always: bool, ungated: bool
) -> None:
    said = manifest(
        f"description: d\n{top}", **{space: {"always": value} for space, value in spaces.items()}
    )

    assert (said.always, said.ungated) == (always, ungated)


def test_single_names_and_commas_make_a_list_and_repetitions_none() -> None:
    said = manifest(
        "description: d\nallowed-tools: [a, b]",
        openclaw={"requires": {"bins": "curl, jq", "env": ["A", "A", " "]}, "os": "linux"},
    )

    assert said.requires == Requirements(bins=("curl", "jq"), env=("A",))
    assert (said.os, said.allowed_tools) == (("linux",), ("a", "b"))


def test_names_that_look_like_other_things_stay_names() -> None:
    said = manifest("description: d\nmetadata: {openclaw: {requires: {bins: [yes, no, 7z, 1.10]}}}")

    assert said.requires.bins == ("yes", "no", "7z", "1.10")


def test_truth_may_be_a_digit_and_a_system_may_have_its_common_name() -> None:
    said = manifest(
        "description: d\nalways: 1\nuser-invocable: 0", openclaw={"os": ["macOS", "macos", "Linux"]}
    )

    assert (said.always, said.user_invocable) == (True, False)
    assert said.os == ("darwin", "linux")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("always: perhaps", "always: expected true or false, found 'perhaps'"),
        ("always: [true]", "always: expected text"),
        ("user-invocable: 3", "user-invocable: expected true or false, found '3'"),
        (
            "disable-model-invocation: never",
            "disable-model-invocation: expected true or false, found 'never'",
        ),
        ("description: {a: b}", "description: expected text"),
        ("description: [a]", "description: expected text"),
        ("command-dispatch: tool", "command-dispatch: tool needs command-tool, the tool's name"),
        ("metadata: [a]", "metadata: expected an object"),
        ("metadata: text", "metadata: neither a mapping nor JSON that can be read"),
        ("metadata: '[1]'", "metadata: expected an object"),
        ("metadata: 5", "metadata: expected an object"),
        ("metadata: {openclaw: text}", "metadata.openclaw: expected an object"),
        (
            "metadata: {openclaw: {requires: [curl]}}",
            "metadata.openclaw.requires: expected an object",
        ),
        (
            "metadata: {nanobot: {requires: {bins: {curl: true}}}}",
            "metadata.nanobot.requires.bins: expected a list of names",
        ),
        (
            "metadata: {nanobot: {requires: {bins: [[curl]]}}}",
            "metadata.nanobot.requires.bins: expected text",
        ),
        ("metadata: {clawdbot: {os: {a: b}}}", "metadata.clawdbot.os: expected a list of names"),
        (
            "metadata: {moltbot: {primaryEnv: A=B}}",
            "metadata.moltbot.primaryEnv: 'A=B' is not the name of an environment variable",
        ),
        ("metadata: {openclaw: {skillKey: [a]}}", "metadata.openclaw.skillKey: expected text"),
        (
            "metadata: {openclaw: {always: maybe}}",
            "metadata.openclaw.always: expected true or false, found 'maybe'",
        ),
    ],
)
def test_a_gate_that_cannot_be_read_breaks_the_skill(header: str, reason: str) -> None:
    with pytest.raises(SkillBroken) as raised:
        manifest(header)

    assert str(raised.value) == reason


def test_what_decides_nothing_is_left_out_with_a_note() -> None:
    said = manifest(
        "name: other\n"
        "license: [MIT]\n"
        "allowed-tools: {a: b}\n"
        "command-dispatch: model\n"
        "metadata: {openclaw: {emoji: [x], install: [{kind: apt}, {kind: uv, package: a},"
        " {kind: download, stripComponents: many}, text]}}"
    )

    assert (said.license, said.allowed_tools, said.emoji, said.command_tool) == (
        "",
        (),
        "",
        "",
    )
    assert said.install == (InstallSpec(kind=InstallKind.UV, package="a"),)
    assert said.notes == (
        "the name other is not the folder's (folder)",
        "the description is missing: a model cannot know when to use it",
        "command-dispatch: model is not known, only tool is",
        "metadata.openclaw.emoji: expected text",
        "license: expected text",
        "allowed-tools: expected a list of names",
        "metadata.openclaw.install[0].kind: expected one of brew, node, go, uv, download,"
        " found 'apt'",
        "metadata.openclaw.install[2].stripComponents: expected a number, found 'many'",
        "metadata.openclaw.install[3]: expected an object",
    )


def test_an_unknown_argument_mode_is_raw_with_a_note() -> None:
    said = manifest(
        "name: folder\ndescription: d\n"
        "command-dispatch: TOOL\ncommand-tool: exec\ncommand-arg-mode: split"
    )

    assert said.command_tool == "exec"
    assert said.notes == ("command-arg-mode: split is not known, raw is used",)


def test_a_missing_description_is_the_name_and_a_missing_name_the_folder() -> None:
    named = manifest("name: Weather Now")
    nameless = manifest("license: MIT")

    assert (named.description, nameless.description) == ("Weather Now", "folder")
    assert nameless.name == ""


def test_a_long_description_is_cut_where_the_standard_ends() -> None:
    said = manifest(f"name: folder\ndescription: {'word ' * 1000}")

    assert len(said.description) == DESCRIPTION_MAX
    assert said.description.endswith("…")
    assert said.notes == (f"the description is longer than {DESCRIPTION_MAX} characters",)


def test_half_a_surrogate_pair_cannot_get_in() -> None:
    said = manifest(
        'description: d\nmetadata: {"openclaw": {"emoji": "x\\ud83d", "os": ["\\ud83d"]}}'
    )

    assert (said.emoji, said.os) == ("x", ())


def test_the_homepage_of_the_top_level_comes_first() -> None:
    first = manifest("description: d\nhomepage: https://a.example", openclaw={"homepage": "b"})
    second = manifest("description: d", openclaw={"homepage": "https://b.example"})

    assert (first.homepage, second.homepage) == ("https://a.example", "https://b.example")
