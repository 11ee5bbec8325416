"""Packages that bring a tool or a channel, as their documentation says, in a running gateway."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Nanobot, eventually, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def site(tmp_path: Path, nanobot: Nanobot) -> Path:
    """A folder of installed packages, on nanobot's path."""
    site = tmp_path / "site-packages"
    site.mkdir()
    nanobot.environ["PYTHONPATH"] = str(site)
    return site


def install(site: Path, document: str) -> None:
    """Install the package that a document shows."""
    text = (DOCS / document).read_text(encoding="utf-8")
    project, points = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0].split("\n\n")
    name = re.findall(r'name = "(.*)"', project)[0]
    group = re.findall(r'entry-points\."(.*)"', points)[0]
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = points.splitlines()[1:]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]).replace('"', ""))
    module = re.findall(r"And in `(.*?)`", text)[0]
    (site / module).write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])


def folder_config(model: ModelServer, root: Path, **section: Any) -> dict[str, Any]:
    section = {"enabled": True, "allowFrom": ["alice"], "path": str(root), **section}
    return {**model_config(model.url), "channels": {"folder": section}}


def test_the_channel_of_the_documentation_serves(
    nanobot: Nanobot, model: ModelServer, site: Path, tmp_path: Path
) -> None:
    install(site, "adding-a-channel.md")
    root = tmp_path / "letters"
    (root / "in").mkdir(parents=True)
    (root / "in" / "mallory.txt").write_text("let me in")
    (root / "in" / "alice.txt").write_text("Grüße")
    model.answer_with(lambda request: Reply.text(f"heard {request.last_user[-5:]}"))
    nanobot.configure(folder_config(model, root))

    gateway = nanobot.start("gateway")
    try:
        answer = root / "out" / "alice.txt"
        eventually(lambda: answer.is_file() and answer.stat().st_size > 0, "an answer")
        status = nanobot.run("channels", "status", "--json")
    finally:
        gateway.terminate()
        _, log = gateway.communicate(timeout=10)

    assert gateway.returncode == 0, log
    assert answer.read_text(encoding="utf-8") == "heard Grüße\n"
    assert len(model.requests) == 1
    assert list((root / "in").iterdir()) == []
    (row,) = (r for r in json.loads(status.stdout)["channels"] if r["name"] == "folder")
    assert (row["enabled"], row["connected"], row["detail"]) == (True, True, str(root / "in"))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise RuntimeError('no such library')", "RuntimeError: no such library"),
        ("class Folder:\n    def __init__(self, host): ...", "it has no run and no wait_ready"),
        ("", "AttributeError"),
    ],
)
def test_an_enabled_channel_that_cannot_be_loaded_refuses_to_start(
    nanobot: Nanobot, model: ModelServer, site: Path, tmp_path: Path, source: str, why: str
) -> None:
    install(site, "adding-a-channel.md")
    (site / "nanobot_folder.py").write_text(source)
    nanobot.configure(folder_config(model, tmp_path))

    ran = nanobot.run("gateway")

    assert ran.returncode == 2
    assert "channels.folder is enabled but its package cannot serve it: " + why in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_channel_that_is_switched_off_is_not_even_loaded(
    nanobot: Nanobot, model: ModelServer, site: Path, tmp_path: Path
) -> None:
    install(site, "adding-a-channel.md")
    (site / "nanobot_folder.py").write_text("raise RuntimeError('loaded')")
    nanobot.configure(folder_config(model, tmp_path, enabled=False))

    ran = nanobot.run("agent", "-m", "hello")

    assert (ran.returncode, ran.stdout.strip()) == (0, "OK")


def test_the_tool_of_the_documentation_is_called(
    nanobot: Nanobot, model: ModelServer, site: Path
) -> None:
    install(site, "adding-a-tool.md")
    nanobot.environ["DICE_LOADED"] = "4"
    nanobot.use_model(model)
    model.script(Reply.tool_calls([("dice", {"sides": 6})]), Reply.text("A four."))

    ran = nanobot.run("agent", "-m", "throw a die")

    assert (ran.returncode, ran.stdout.strip()) == (0, "A four.")
    assert "dice" in [tool["function"]["name"] for tool in model.requests[0].body["tools"]]
    assert model.requests[1].body["messages"][-1]["content"] == "4"
