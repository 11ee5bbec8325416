"""``nanobot skills``: list, check, make and install skills."""

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

from nanobot.cli.context import CliContext
from nanobot.cli.show import printable
from nanobot.core.errors import NanobotError

if TYPE_CHECKING:
    from nanobot.config.load import LoadedConfig
    from nanobot.skills.eligibility import SkillsSnapshot, SkillStatus
    from nanobot.skills.install.clawhub import Registry
    from nanobot.skills.install.install import Candidate, Installer, SkillLock
    from nanobot.skills.switches import SkillSwitches

skills_app = typer.Typer(
    help="List, check, make and install skills.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)

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
    """A ``nanobot skills`` command cannot be carried out."""


@skills_app.command(name="list")
def list_(ctx: typer.Context, as_json: _Json = False) -> None:
    """All skills: how each stands, and its tokens in every prompt."""
    from nanobot.skills.catalogue import section_tokens, state_of

    snapshot = _Setup.of(ctx).snapshot()
    total = section_tokens(snapshot)
    if as_json:
        shown = [_shown(snapshot, status) for status in snapshot.statuses]
        broken = [
            {"name": skill.name, "path": str(skill.path), "reason": skill.reason}
            for skill in snapshot.broken
        ]
        _print({"skills": shown, "broken": broken, "tokens": total})
        return
    rows = [
        (
            status.skill.name,
            f"{snapshot.costs.get(status.skill.name, 0):>5} tokens",
            status.skill.source.value,
            state_of(status),
        )
        for status in snapshot.statuses
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
    from nanobot.skills.catalogue import state_of
    from nanobot.skills.reader import read_text

    snapshot = _Setup.of(ctx).snapshot()
    status = _status(snapshot, name)
    text = read_text(status.skill.path)
    if as_json:
        _print({**_shown(snapshot, status), "text": text})
        return
    _echo(f"{status.skill.path} ({status.skill.source.value}): {state_of(status)}\n")
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
    from nanobot.skills.catalogue import in_place_of
    from nanobot.skills.install.package import lint
    from nanobot.skills.switches import BY_OWNER

    setup = _Setup.of(ctx)
    snapshot = setup.snapshot()
    problems: dict[str, list[str]] = {}
    states: dict[str, list[str]] = {}
    for status in snapshot.statuses:
        problems[status.skill.name] = [*lint(status.skill)]
        states[status.skill.name] = [
            *(f"missing {need}" for need in status.missing),
            *in_place_of(status),
        ]
        if status.off_reason:
            kind = states if status.off_reason == BY_OWNER else problems
            kind[status.skill.name].append(f"off: {status.off_reason}")
    for broken in snapshot.broken:
        problems.setdefault(broken.name, []).append(f"broken: {broken.reason}")
    lock = setup.lock()
    for root in setup.roots():
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

    path = new_skill(name, _Setup.of(ctx).root(shared))
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
    from nanobot.skills.install.package import offers

    setup = _Setup.of(ctx)
    status = _status(setup.snapshot(), name)
    found = offers(
        status.skill,
        platform=sys.platform,
        which=shutil.which,
        node_manager=setup.loaded.config.skills.install.node_manager,
    )
    if as_json:
        shown = [
            {"label": one.label, "command": list(one.command), "url": one.url} for one in found
        ]
        _print({"missing": list(status.missing), "install": shown})
        return
    _echo(f"missing: {', '.join(status.missing) or 'nothing'}")
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
    setup = _Setup.of(ctx)
    installer = setup.installer()
    candidate = installer.fetch(source)
    try:
        _confirm(candidate, yes=yes, accept=accept_findings, quiet=as_json)
        target = installer.install(candidate, setup.root(shared))
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
    setup = _Setup.of(ctx)
    installer, lock = setup.installer(), setup.lock()
    places = [
        (root, key, locked)
        for root in setup.roots()
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
    setup = _Setup.of(ctx)
    if not yes and sys.stdin.isatty() and not _agreed(f"Remove {name}?"):
        raise typer.Exit(1)
    backup = setup.installer().remove(setup.root(shared), name)
    _said({"name": name, "backup": str(backup)}, f"removed; it is kept in {backup}", as_json)


@skills_app.command()
def search(
    ctx: typer.Context,
    query: Annotated[str, typer.Argument(help="What it should do.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=100)] = 10,
    as_json: _Json = False,
) -> None:
    """Search the registry."""
    with _Setup.of(ctx).registry() as registry:
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
    setup = _Setup.of(ctx)
    switches = setup.switches()
    if name not in switches.off():
        _status(setup.snapshot(), name)
    was_off = switches.enable(name)
    entry = setup.loaded.config.skills.entries.get(name)
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
    setup = _Setup.of(ctx)
    _status(setup.snapshot(), name)
    setup.switches().disable(name)
    _said({"name": name, "changed": True}, f"{name} is off from the next turn", as_json)


@dataclass(frozen=True, slots=True)
class _Setup:
    """One home and its configuration."""

    cli: CliContext
    loaded: LoadedConfig

    @classmethod
    def of(cls, ctx: typer.Context) -> _Setup:
        from nanobot.cli.setup import load
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
        from nanobot.skills.install.install import SkillLock

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
    """Show a candidate and ask for consent; raises SkillsError without it."""
    if not quiet:
        skill = candidate.skill
        _echo(f"{candidate.name} {candidate.version} from {candidate.source}", err=True)
        _echo(f"  {skill.manifest.description}", err=True)
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


def _status(snapshot: SkillsSnapshot, name: str) -> SkillStatus:
    for status in snapshot.statuses:
        if status.skill.name == name:
            return status
    for broken in snapshot.broken:
        if broken.name == name:
            raise SkillsError(f"{broken.path} is broken: {broken.reason}")
    raise SkillsError(f"there is no skill {name}; `nanobot skills list` shows all")


def _shown(snapshot: SkillsSnapshot, status: SkillStatus) -> dict[str, Any]:
    from nanobot.skills.catalogue import state_of

    skill = status.skill
    return {
        "name": skill.name,
        "description": skill.manifest.description,
        "source": skill.source.value,
        "path": str(skill.path),
        "available": status.is_eligible,
        "state": state_of(status),
        "missing": list(status.missing),
        "always": status.is_always,
        "tokens": snapshot.costs.get(skill.name, 0),
    }


def _said(value: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        _print(value)
    else:
        _echo(text)


def _echo(text: str, *, err: bool = False) -> None:
    """Print text that may come from a skill, without control characters."""
    typer.echo(printable(text), err=err)


def _print(value: Any) -> None:
    _echo(json.dumps(value, ensure_ascii=False, indent=2))


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        _echo(f"warning: {line}", err=True)
