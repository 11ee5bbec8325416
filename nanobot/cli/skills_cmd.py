"""``nanobot skills``: what is there, what it costs, and installing more."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.cli.context import CliContext, group
from nanobot.cli.show import printable
from nanobot.core.errors import NanobotError

if TYPE_CHECKING:
    from nanobot.config.loader import LoadedConfig
    from nanobot.skills import SkillsSnapshot, Standing
    from nanobot.skills.install.clawhub import Registry
    from nanobot.skills.install.install import Candidate, Installer
    from nanobot.skills.install.lock import SkillLock
    from nanobot.skills.switches import SkillSwitches

skills_app = group("List, check, make and install skills.")

_TOTAL = (
    "All together {} tokens of every prompt, as estimated (docs/context.md); "
    "`nanobot status --context` corrects that for the model in use."
)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_Shared = Annotated[bool, typer.Option("--shared", help="In the folder that all workspaces share.")]
_Accept = Annotated[
    bool, typer.Option("--accept-findings", help="Install although the scan found something.")
]
_Name = Annotated[str, typer.Argument(help="The skill's name (of its folder).")]


class SkillsError(NanobotError):
    """What was asked of ``nanobot skills`` cannot be done."""


@skills_app.command(name="list")
def list_(ctx: typer.Context, as_json: _Json = False) -> None:
    """All skills: how each stands, and its tokens in every prompt."""
    from nanobot.skills.commands import section_tokens, state_of

    snapshot = _Desk.of(ctx).snapshot()
    total = section_tokens(snapshot)
    if as_json:
        shown = [_shown(snapshot, standing) for standing in snapshot.standings]
        broken = [
            {"name": skill.name, "path": str(skill.path), "reason": skill.reason}
            for skill in snapshot.broken
        ]
        _print({"skills": shown, "broken": broken, "tokens": total})
        return
    rows = [
        (
            standing.skill.name,
            f"{snapshot.costs.get(standing.skill.name, 0):>5} tokens",
            standing.skill.source.value,
            state_of(standing),
        )
        for standing in snapshot.standings
    ]
    rows += [
        (one.name, " " * 12, one.source.value, f"broken: {one.reason}") for one in snapshot.broken
    ]
    width = max((len(printable(name)) for name, *_ in rows), default=0)
    for name, cost, source, state in rows:
        _echo(f"{printable(name):<{width}}  {cost}  {source:<9}  {state}")
    _echo(_TOTAL.format(total))


@skills_app.command()
def show(ctx: typer.Context, name: _Name, as_json: _Json = False) -> None:
    """One skill: what it says of itself, how it stands, and its text."""
    from nanobot.skills.commands import state_of
    from nanobot.skills.reader import read_text

    snapshot = _Desk.of(ctx).snapshot()
    standing = _standing(snapshot, name)
    text = read_text(standing.skill.path)
    if as_json:
        _print({**_shown(snapshot, standing), "text": text})
        return
    _echo(f"{standing.skill.path} ({standing.skill.source.value}): {state_of(standing)}\n")
    _echo(text)


@skills_app.command()
def check(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Only this one.")] = "",
    as_json: _Json = False,
) -> None:
    """Lint the skills and compare installed ones with their hashes (exit code 1: problems).

    What a skill lacks on this machine and that its owner switched it off is shown, and no problem.
    """
    from nanobot.skills.commands import in_place_of
    from nanobot.skills.install.package import lint
    from nanobot.skills.switches import BY_OWNER

    desk = _Desk.of(ctx)
    snapshot = desk.snapshot()
    problems: dict[str, list[str]] = {}
    states: dict[str, list[str]] = {}
    for standing in snapshot.standings:
        problems[standing.skill.name] = [*lint(standing.skill)]
        states[standing.skill.name] = [
            *(f"missing {need}" for need in standing.missing),
            *in_place_of(standing),
        ]
        if standing.held_back:
            kind = states if standing.held_back == BY_OWNER else problems
            kind[standing.skill.name].append(f"off: {standing.held_back}")
    for broken in snapshot.broken:
        problems.setdefault(broken.name, []).append(f"broken: {broken.reason}")
    lock = desk.lock()
    for root in desk.roots():
        for installed in lock.installed(root):
            problems.setdefault(installed, []).extend(lock.changes(root, installed))
    if name and name not in problems:
        raise SkillsError(f"there is no skill {name}")
    bad = any(lines for key, lines in problems.items() if not name or key == name)
    chosen = {
        key: [*lines, *states.get(key, ())]
        for key, lines in sorted(problems.items())
        if not name or key == name
    }
    if as_json:
        _print({"ok": not bad, "skills": chosen})
    else:
        for key, lines in chosen.items():
            _echo(f"{key}: {'; '.join(lines) or 'in order'}")
    if bad:
        raise typer.Exit(1)


@skills_app.command()
def new(ctx: typer.Context, name: _Name, shared: _Shared = False, as_json: _Json = False) -> None:
    """Make a skill to be filled in."""
    from nanobot.skills.install.package import new_skill

    path = new_skill(name, _Desk.of(ctx).root(shared))
    _said({"path": str(path)}, str(path), as_json)


@skills_app.command()
def package(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The skill's folder.")],
    out: Annotated[Path, typer.Option("--out", help="Where to put it.")] = Path(),
    as_json: _Json = False,
) -> None:
    """Pack a skill into a .skill file."""
    from nanobot.skills.install.package import package as pack

    target, notes = pack(folder, out)
    _warn(notes)
    _said({"path": str(target), "notes": list(notes)}, str(target), as_json)


@skills_app.command()
def deps(
    ctx: typer.Context,
    name: _Name,
    run: Annotated[bool, typer.Option("--run", help="Run it, after asking.")] = False,
    yes: _Yes = False,
    as_json: _Json = False,
) -> None:
    """What a skill lacks here and how it says to install it; runs nothing unasked."""
    from nanobot.skills.install.deps import offers

    desk = _Desk.of(ctx)
    standing = _standing(desk.snapshot(), name)
    found = offers(
        standing.skill,
        platform=sys.platform,
        which=shutil.which,
        node_manager=desk.loaded.config.skills.install.node_manager,
    )
    if as_json:
        shown = [
            {"label": one.label, "command": list(one.command), "url": one.url} for one in found
        ]
        _print({"missing": list(standing.missing), "install": shown})
        return
    _echo(f"missing: {', '.join(standing.missing) or 'nothing'}")
    for offer in found:
        _echo(f"{offer.label}: {shlex.join(offer.command) or f'download {offer.url}'}")
    if not found:
        _echo("the skill names no installer that works here")
    for offer in found if run else ():
        if not offer.command:
            raise SkillsError(f"download {offer.url} yourself, look at it, and put it on PATH")
        if not yes and not _agreed(f"Run {shlex.join(offer.command)}?"):
            raise typer.Exit(1)
        raise typer.Exit(subprocess.run(offer.command, check=False).returncode)


@skills_app.command()
def install(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(help="Folder, zip, tar, git URL, or a name in the registry.")
    ],
    shared: _Shared = False,
    yes: _Yes = False,
    accept_findings: _Accept = False,
    as_json: _Json = False,
) -> None:
    """Fetch a skill into quarantine, scan and show it, and install it if you say so."""
    desk = _Desk.of(ctx)
    installer = desk.installer()
    candidate = installer.fetch(source)
    try:
        _confirm(candidate, yes=yes, accept=accept_findings, quiet=as_json)
        target = installer.install(candidate, desk.root(shared))
    finally:
        installer.discard(candidate)
    shown = {"name": candidate.name, "path": str(target), "version": candidate.version}
    _said(shown, f"installed {target}; the assistant has it at its next turn", as_json)


@skills_app.command()
def update(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The skill's name.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Every installed skill.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also over changes by hand.")] = False,
    yes: _Yes = False,
    accept_findings: _Accept = False,
    as_json: _Json = False,
) -> None:
    """Fetch installed skills anew from where they came; the former ones are kept aside."""
    from nanobot.skills.install.install import address_of

    if bool(name) == every:
        raise SkillsError("name one skill, or say --all")
    desk = _Desk.of(ctx)
    installer, lock = desk.installer(), desk.lock()
    places = [
        (root, key, locked)
        for root in desk.roots()
        for key, locked in sorted(lock.installed(root).items())
        if every or key == name
    ]
    if name and not places:
        raise SkillsError(f"{name} was not installed by nanobot skills install")
    outcome: dict[str, str] = {}
    failed = False
    for root, key, locked in places:
        try:
            candidate = installer.fetch(address_of(locked))
            try:
                _confirm(candidate, yes=yes, accept=accept_findings, quiet=as_json)
                backup = installer.renew(candidate, root, key, force=force)
            finally:
                installer.discard(candidate)
        except NanobotError as error:
            if not every:
                raise
            outcome[key], failed = f"failed: {error}", True
            continue
        outcome[key] = "the same" if backup is None else f"updated; the former one is {backup}"
    text = "\n".join(f"{key}: {what}" for key, what in outcome.items())
    _said({"skills": outcome}, text or "nothing is installed", as_json)
    if failed:
        raise typer.Exit(1)


@skills_app.command()
def remove(
    ctx: typer.Context,
    name: _Name,
    shared: _Shared = False,
    yes: _Yes = False,
    as_json: _Json = False,
) -> None:
    """Take a skill away, after asking at a terminal; it is kept aside."""
    desk = _Desk.of(ctx)
    if not yes and sys.stdin.isatty() and not _agreed(f"Remove {name}?"):
        raise typer.Exit(1)
    backup = desk.installer().remove(desk.root(shared), name)
    _said({"name": name, "backup": str(backup)}, f"removed; it is kept in {backup}", as_json)


@skills_app.command()
def search(
    ctx: typer.Context,
    query: Annotated[str, typer.Argument(help="What it should do.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=100)] = 10,
    as_json: _Json = False,
) -> None:
    """Search the registry."""
    with _Desk.of(ctx).registry() as registry:
        found = registry.search(query, limit)
    if as_json:
        _print(
            [
                {"slug": one.slug, "name": one.name, "summary": one.summary, "version": one.version}
                for one in found
            ]
        )
        return
    for one in found:
        _echo(f"{one.slug:<30} {one.version:<10} {one.summary}")
    if not found:
        _echo("nothing found")


@skills_app.command()
def enable(ctx: typer.Context, name: _Name, as_json: _Json = False) -> None:
    """Trust a skill and switch it on."""
    desk = _Desk.of(ctx)
    switches = desk.switches()
    if name not in switches.off():
        _standing(desk.snapshot(), name)
    was_off = switches.enable(name)
    entry = desk.loaded.config.skills.entries.get(name)
    if entry is not None and not entry.enabled:
        raise SkillsError(
            "the configuration switches it off: "
            f"nanobot config set skills.entries.{name}.enabled true"
        )
    text = f"{name} is on from the next turn" if was_off else f"{name} was not off"
    _said({"name": name, "changed": was_off}, text, as_json)


@skills_app.command()
def disable(ctx: typer.Context, name: _Name, as_json: _Json = False) -> None:
    """Switch a skill off, wherever it comes from."""
    desk = _Desk.of(ctx)
    _standing(desk.snapshot(), name)
    desk.switches().disable(name)
    _said({"name": name, "changed": True}, f"{name} is off from the next turn", as_json)


@dataclass(frozen=True, slots=True)
class _Desk:
    """What the commands work with: one home and its configuration."""

    cli: CliContext
    loaded: LoadedConfig

    @classmethod
    def of(cls, ctx: typer.Context) -> _Desk:
        from nanobot.cli.context import load
        from nanobot.logs import log_nowhere

        assert isinstance(ctx.obj, CliContext)
        log_nowhere()
        return cls(ctx.obj, load(ctx.obj))

    def root(self, shared: bool) -> Path:
        return self.cli.home.shared_skills if shared else self.loaded.workspace / "skills"

    def roots(self) -> tuple[Path, ...]:
        return (self.root(False), self.root(True))

    def switches(self) -> SkillSwitches:
        from nanobot.skills.switches import SkillSwitches

        extra = self.loaded.config.skills.load.extra_dirs
        home = self.cli.home
        return SkillSwitches(home.skills_off, self.loaded.workspace, _now, extra_dirs=extra)

    def snapshot(self) -> SkillsSnapshot:
        from nanobot.app import load_skills, sandbox_of

        return load_skills(
            self.loaded.config,
            self.loaded.workspace,
            self.cli.home,
            self.cli.environ,
            _now,
            off=self.switches().off,
            sandbox=sandbox_of(self.loaded.config, self.cli.environ),
        ).snapshot()

    def lock(self) -> SkillLock:
        from nanobot.skills.install.lock import SkillLock

        return SkillLock(self.cli.home.skills_lock)

    def registry(self) -> Registry:
        from nanobot.skills.install.clawhub import PUBLIC_URL, Registry

        return Registry(str(self.loaded.config.skills.registry.url or PUBLIC_URL))

    def installer(self) -> Installer:
        from nanobot.skills.install.install import Installer

        home = self.cli.home
        home.private(home.root)
        return Installer(home.cache / "quarantine", self.lock(), self.registry, _now)


def _now() -> datetime:
    return datetime.now(UTC)


def _confirm(candidate: Candidate, *, yes: bool, accept: bool, quiet: bool) -> None:
    """Show a candidate and have it agreed to; raises SkillsError when it is not."""
    if not quiet:
        skill = candidate.skill
        _echo(f"{candidate.name} {candidate.version} from {candidate.source}", err=True)
        _echo(f"  {skill.description}", err=True)
        for path, file in sorted(candidate.bundle.items()):
            mark = " (executable)" if file.executable else ""
            _echo(f"  {path}, {len(file.data)} bytes{mark}", err=True)
    if candidate.findings:
        for finding in candidate.findings:
            _echo(f"  ! {finding}", err=True)
        if not accept:
            raise SkillsError(
                f"not installed: the scan of {candidate.name} found {len(candidate.findings)} "
                "suspicious places; look at them, then say --accept-findings if you trust them"
            )
    if not yes and not _agreed(f"Install {candidate.name}?"):
        raise SkillsError("not installed: it needs a yes (or --yes)")


def _agreed(question: str) -> bool:
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def _standing(snapshot: SkillsSnapshot, name: str) -> Standing:
    for standing in snapshot.standings:
        if standing.skill.name == name:
            return standing
    for broken in snapshot.broken:
        if broken.name == name:
            raise SkillsError(f"{broken.path} is broken: {broken.reason}")
    raise SkillsError(f"there is no skill {name}; `nanobot skills list` shows all")


def _shown(snapshot: SkillsSnapshot, standing: Standing) -> dict[str, Any]:
    from nanobot.skills.commands import state_of

    skill = standing.skill
    return {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source.value,
        "path": str(skill.path),
        "available": standing.is_eligible,
        "state": state_of(standing),
        "missing": list(standing.missing),
        "always": standing.is_always,
        "tokens": snapshot.costs.get(skill.name, 0),
    }


def _said(value: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        _print(value)
    else:
        _echo(text)


def _echo(text: str, *, err: bool = False) -> None:
    """Print what may hold the words of whoever wrote a skill, so that no terminal obeys them."""
    typer.echo(printable(text), err=err)


def _print(value: Any) -> None:
    _echo(json.dumps(value, ensure_ascii=False, indent=2))


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        _echo(f"warning: {line}", err=True)
