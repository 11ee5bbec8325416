"""File tools and commands see the same files, and skills the same programs, tried from outside."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Nanobot, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer
from tests.fakes.skills import write_skill

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def configure(nanobot: Nanobot, model: ModelServer, **tools: Any) -> None:
    config = model_config(model.url)
    config["tools"] = {"exec": {"sandbox": "require"}, **tools}
    nanobot.configure(config)


def results(
    nanobot: Nanobot, model: ModelServer, *calls: tuple[str, dict[str, Any]]
) -> tuple[str, ...]:
    """What one turn's calls gave, made one after the other."""
    model.script(*(Reply.tool_calls([call]) for call in calls), Reply.text("done"))

    done = nanobot.run("agent", "-m", "go")

    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return tuple(model.requests[-1].tool_results)


@pytest.fixture
def name() -> str:
    return f"nanobot-test-{secrets.token_hex(8)}"


@pytest.mark.parametrize("restrict", [False, True])
def test_what_write_file_puts_in_tmp_a_command_finds_there_and_the_other_way_round(
    nanobot: Nanobot, model: ModelServer, name: str, restrict: bool
) -> None:
    configure(nanobot, model, restrictToWorkspace=restrict)
    folder = f"/tmp/{name}"

    written, seen, _, read, listed, found, edited, relative, other_name = results(
        nanobot,
        model,
        ("write_file", {"path": f"{folder}/a.py", "content": "print('from a')\n"}),
        ("exec", {"command": f"python3 {folder}/a.py"}),
        ("exec", {"command": f"echo from b > {folder}/b.txt"}),
        ("read_file", {"path": f"{folder}/b.txt"}),
        ("list_dir", {"path": folder}),
        ("grep", {"pattern": "from", "path": folder}),
        ("edit_file", {"path": f"{folder}/b.txt", "old_text": "from b", "new_text": "changed"}),
        ("exec", {"command": "pwd; cat b.txt", "working_dir": folder}),
        ("read_file", {"path": f"/var/tmp/{name}/b.txt"}),
    )

    assert written == f"Created {folder}/a.py: 1 line, 16 B."
    assert (seen, read) == ("from a", "from b")
    assert listed.splitlines() == ["a.py (16 B)", "b.txt (7 B)"]
    assert found.splitlines() == [f"{folder}/a.py:1: print('from a')", f"{folder}/b.txt:1: from b"]
    assert edited == f"Replaced in {folder}/b.txt, line 1."
    assert relative == f"{folder}\nchanged"
    assert other_name == "changed"
    assert not Path(folder).exists()


def test_tmp_is_kept_from_one_turn_to_the_next_and_holds_pictures(
    nanobot: Nanobot, model: ModelServer, name: str
) -> None:
    configure(nanobot, model)
    picture = f"/tmp/{name}.png"

    results(nanobot, model, ("exec", {"command": f"echo {PIXEL} | base64 -d > {picture}"}))
    *_, looked = results(nanobot, model, ("read_file", {"path": picture}))

    assert looked.startswith(f"{picture}: ")
    assert not Path(picture).exists()


def test_a_background_process_writes_into_the_same_tmp(
    nanobot: Nanobot, model: ModelServer, name: str
) -> None:
    configure(nanobot, model)
    log = f"/tmp/{name}.log"

    *_, read = results(
        nanobot,
        model,
        ("exec", {"command": f"echo ready > {log}.part; mv {log}.part {log}", "background": True}),
        ("exec", {"command": f"until test -e {log}; do sleep 0.05; done"}),
        ("read_file", {"path": log}),
    )

    assert read == "ready"


def test_without_a_sandbox_tmp_is_the_machines_for_all(
    nanobot: Nanobot, model: ModelServer, name: str
) -> None:
    configure(nanobot, model, exec={"sandbox": "off"})
    path = Path("/tmp", name)
    try:
        _, seen = results(
            nanobot,
            model,
            ("write_file", {"path": str(path), "content": "here"}),
            ("exec", {"command": f"cat {path}"}),
        )

        assert (seen, path.read_text()) == ("here", "here")
    finally:
        path.unlink(missing_ok=True)


def test_what_the_owner_put_into_the_machines_tmp_is_read_unless_restricted(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path
) -> None:
    report = tmp_path / "report.txt"
    report.write_text("ours")

    configure(nanobot, model)
    (read,) = results(nanobot, model, ("read_file", {"path": str(report)}))
    configure(nanobot, model, restrictToWorkspace=True)
    *_, refused = results(nanobot, model, ("read_file", {"path": str(report)}))

    assert read == "ours"
    assert "ours" not in refused


def test_a_link_in_tmp_leads_no_file_tool_out(
    nanobot: Nanobot, model: ModelServer, name: str
) -> None:
    configure(nanobot, model, restrictToWorkspace=True)
    targets = [f"{nanobot.home}/config.json", f"{nanobot.home}/logs/diary.txt", "/etc/hostname"]
    targets += ["../../config.json", f"/tmp/{name}-0", f"/tmp/{name}-4"]
    links = "; ".join(f"ln -s {target} /tmp/{name}-{i}" for i, target in enumerate(targets))

    _, *read = results(
        nanobot,
        model,
        ("exec", {"command": links}),
        *(("read_file", {"path": f"/tmp/{name}-{i}"}) for i in range(len(targets))),
        *(
            ("write_file", {"path": f"/tmp/{name}-{i}", "content": "{}"})
            for i in range(len(targets))
        ),
    )

    secrets_of_others = ("sk-fake", Path("/etc/hostname").read_text().strip())
    assert len(read) == 2 * len(targets)
    assert not [text for text in read if any(secret in text for secret in secrets_of_others)]
    assert [text for text in read if "Created" in text or "Replaced" in text] == []


def test_a_command_sees_what_a_file_tool_wrote_anywhere_and_nothing_beside_it(
    nanobot: Nanobot, model: ModelServer
) -> None:
    configure(nanobot, model)
    project = nanobot.home.parent / "project"
    project.mkdir()
    (project / "secret.txt").write_text("dear diary")

    _, seen, listed = results(
        nanobot,
        model,
        ("write_file", {"path": str(project / "a.py"), "content": "print(6 * 7)"}),
        ("exec", {"command": f"python3 {project}/a.py; echo x >> {project}/a.py"}),
        ("exec", {"command": f"ls -A {project}"}),
    )

    assert seen.splitlines()[0] == "42"
    assert listed == "a.py"
    assert (project / "a.py").read_text() == "print(6 * 7)"


@pytest.mark.parametrize("restrict", [False, True])
def test_a_restricted_command_reads_the_workspace_and_the_system_alone(
    nanobot: Nanobot, model: ModelServer, restrict: bool
) -> None:
    configure(nanobot, model, restrictToWorkspace=restrict)
    places = "/opt /srv /mnt /media /home /root /run /sys /boot /var/lib /var/log"

    (seen,) = results(
        nanobot,
        model,
        ("exec", {"command": f"ls -d {places} {nanobot.home.parent} 2>/dev/null; ls /usr/bin/env"}),
    )

    opened = ["/opt"] if Path("/opt").exists() and not restrict else []
    # The workspace's own parents are there, empty but for the way to it.
    assert seen.splitlines() == [*opened, str(nanobot.home.parent), "/usr/bin/env"]


def program(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    path = folder / text
    path.write_text(f"#!/bin/sh\necho {text} runs\n")
    path.chmod(0o755)
    return path


def test_a_skill_is_available_exactly_if_its_program_runs_in_a_command(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path
) -> None:
    home = nanobot.home.parent
    program(home / ".local" / "bin", "in-local")
    program(home / "go" / "bin", "in-go")
    program(tmp_path / "named", "in-named")
    uv = home / ".local" / "share" / "uv" / "tools" / "x" / "bin"
    (home / ".local" / "bin" / "by-uv").symlink_to(program(uv, "by-uv"))
    program(tmp_path / "unnamed", "in-unnamed")
    elsewhere = program(home / "elsewhere", "linked")
    (home / ".local" / "bin" / "linked").symlink_to(elsewhere)
    interpreted = home / ".local" / "bin" / "interpreted"
    interpreted.write_text(f"#!{elsewhere}\n")
    interpreted.chmod(0o755)
    programs = ["in-local", "in-go", "in-named", "by-uv", "in-unnamed", "linked", "interpreted"]
    nanobot.environ = {"PATH": f"{tmp_path}/unnamed:/usr/bin:/bin"}
    configure(nanobot, model, exec={"sandbox": "require", "pathAppend": [str(tmp_path / "named")]})
    for name in programs:
        metadata = json.dumps({"nanobot": {"requires": {"bins": [name]}}})
        write_skill(nanobot.workspace / "skills", name, f"metadata: {metadata}")

    ran = results(nanobot, model, *(("exec", {"command": name}) for name in programs))
    listed = json.loads(nanobot.run("skills", "list", "--json").stdout)["skills"]

    running = [name for name, text in zip(programs, ran, strict=True) if text == f"{name} runs"]
    available = [skill["name"] for skill in listed if skill["state"] == "ready"]
    assert running == ["in-local", "in-go", "in-named", "by-uv"]
    assert sorted(set(available) & set(programs)) == sorted(running)
    summary = model.requests[0].messages[0]["content"]
    assert summary.count("<requires>CLI: in-unnamed</requires>") == 1
    assert "CLI: in-local" not in summary
