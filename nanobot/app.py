"""The composition root: builds every object of one home and joins them; nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from nanobot.admin import Admin
from nanobot.agent.context import ContextBuilder, ContextMeter
from nanobot.agent.loop import AgentLoop
from nanobot.agent.standard_commands import StandardCommands, compact_command
from nanobot.agent.turn import Profile, TurnLimits
from nanobot.agent.window import Spill
from nanobot.bus.bus import MessageBus
from nanobot.bus.dispatcher import Dispatcher
from nanobot.bus.session_actor import QueueMode
from nanobot.channels.console import RequestHandler
from nanobot.channels.registry import enabled_channels
from nanobot.config.load import LoadedConfig
from nanobot.config.schema import AgentDefaults, Config
from nanobot.config.show import all_secrets
from nanobot.core.commands import CommandTable
from nanobot.core.errors import ProviderError
from nanobot.core.ports import Clock
from nanobot.core.tool import ToolContext
from nanobot.cron.jobs import JobFile
from nanobot.cron.service import CronService
from nanobot.cron.tool import Cron, cron_command
from nanobot.heartbeat.service import KEPT_BEATS, SESSION, HeartbeatService
from nanobot.internet.fetch import web_tools
from nanobot.memory.consolidation import Consolidator, MemorySettings
from nanobot.memory.progress import MemoryProgress
from nanobot.memory.store import MemoryStore, memory_command
from nanobot.providers import catalogue
from nanobot.providers.models import Models
from nanobot.providers.offline import MODEL as OFFLINE
from nanobot.providers.openai import TLS
from nanobot.providers.quirks import Refusals
from nanobot.recall.chunks import Sources
from nanobot.recall.tool import Recall, RecallTool
from nanobot.safety.paths import DiskView, PathResolver
from nanobot.safety.redaction import Redactor
from nanobot.session.log import SessionLog, free_for_next
from nanobot.session.transfer import SessionTransfer
from nanobot.session.usage import UsageLog
from nanobot.shell.commands import BackgroundProcesses, CommandRunner
from nanobot.shell.sandbox import Sandbox, SandboxMode, SandboxNetwork, SandboxPolicy
from nanobot.skills.catalogue import skills_command
from nanobot.skills.eligibility import SkillOverride, SkillsSettings
from nanobot.skills.loader import SkillsLoader
from nanobot.skills.switches import OffSource, SkillSwitches
from nanobot.store.database import Database
from nanobot.store.home import Home, seed, workspace_templates_dir
from nanobot.subagents.manager import PROFILE, Spawn, SubagentManager
from nanobot.takeover import take_over
from nanobot.tools.images import Pictures
from nanobot.tools.message import Message
from nanobot.tools.plugins import Plugins, load_plugins
from nanobot.tools.registry import AnyTool, ToolRegistry, default_tools


@dataclass(frozen=True, slots=True)
class App:
    """The parts of one running home that a command line or a gateway talks to.

    ``notice``: what opening it did that its owner should know, "" for nothing.
    """

    home: Home
    config: Config
    database: Database
    bus: MessageBus
    dispatcher: Dispatcher
    sessions: SessionLog
    consolidator: Consolidator
    admin: Admin
    models: Models
    commands: CommandTable
    context: ContextBuilder
    tools: ToolRegistry
    meter: ContextMeter
    background: BackgroundProcesses
    plugins: Plugins
    subagents: SubagentManager
    cron: CronService
    heartbeat: HeartbeatService
    tls: TLS
    clock: Clock
    environ: Mapping[str, str]
    recall: Recall
    notice: str

    async def status(self) -> dict[str, Any]:
        """What runs and what waits, for ``nanobot status``."""
        counts = await self.bus.counts()
        facts = {
            "turns": f"{self.dispatcher.running_turns()} running",
            "messages": f"{counts.inbox + counts.outbox} waiting, "
            f"{counts.dead_inbox + counts.dead_outbox} dead letters",
            "commands": self.commands.menu(),
        }
        if self.database.trouble:
            facts["store"] = f"waits for the disk: {self.database.trouble}"
        if self.database.quarantined is not None:
            facts["quarantined"] = f"a damaged state database: {self.database.quarantined}"
        if running := self.background.running():
            facts["processes"] = f"{running} running in the background"
        if any(helpers := await self.subagents.counts()):
            facts["subagents"] = "{} running, {} waiting".format(*helpers)
        if self.cron.problems:
            facts["jobs"] = "; ".join(self.cron.problems)
        if self.plugins.problems:
            facts["tools"] = f"left out: {'; '.join(self.plugins.problems)}"
        return facts

    async def context_of(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Where the tokens of ``{"session": key}`` go, for ``nanobot status --context``."""
        try:
            return (await self.meter.report(str(request["session"]))).document()
        except ProviderError as error:
            return {"error": str(error)}

    def answers(self) -> Mapping[str, RequestHandler]:
        """What a command beside this process may ask of it over the home's socket."""
        return {
            "dead_letters": self.bus.dead_letters.answer,
            "context": self.context_of,
            "admin": self.admin.answer,
        }


def now() -> datetime:
    """The present moment, aware; the one clock of a running app."""
    return datetime.now(UTC)


@asynccontextmanager
async def open_app(
    loaded: LoadedConfig,
    home: Home,
    environ: Mapping[str, str],
    *,
    offline_allowed: bool,
    lasting: bool = True,
    clock: Clock = now,
) -> AsyncIterator[App]:
    """Build the app of a home and close it at the end; the caller holds the home's lock.

    ``offline_allowed``: with no model configured the offline model answers (at a terminal only).
    ``lasting``: it goes on after an answer, and so do background processes.
    """
    config = loaded.config
    defaults = config.agents.defaults
    workspace = loaded.workspace
    sandbox = sandbox_of(config, environ)
    probing = asyncio.get_running_loop().run_in_executor(None, sandbox.is_used)
    home.private(home.root)
    if not workspace.exists():
        seed(workspace, workspace_templates_dir())
    database = Database(home.database)
    try:
        sessions = SessionLog(database, clock)
        bus = MessageBus(
            database,
            clock,
            outbound_expiry=timedelta(hours=config.bus.outbound_expiry_h),
            max_queued=config.bus.max_queued,
        )
        tls = TLS()
        models = Models(
            defaults,
            config.providers,
            environ,
            tls=tls,
            offline_allowed=offline_allowed,
            refusals=Refusals(home.refusals),
        )
        switches = SkillSwitches(
            home.skills_off, workspace, clock, extra_dirs=config.skills.load.extra_dirs
        )
        memory = MemoryStore(
            home, workspace, clock, file_cap=config.agents.defaults.bootstrap_file_chars
        )
        skills = load_skills(
            config, workspace, home, environ, clock, off=switches.off, sandbox=sandbox
        )
        transfer, job_file = SessionTransfer(database, clock), JobFile(home.cron_jobs)
        notice = await take_over(
            home, workspace, database, jobs=job_file, sessions=transfer, memory=memory
        )

        def noted(context: ToolContext, path: Path) -> None:
            switches.note_write(context, path)
            memory.before_write(context, path)

        resolver = PathResolver(
            home,
            restrict=config.tools.restrict_to_workspace,
            skills=lambda context: skills.snapshot().readable,
            noted=noted,
            own_tmp=sandbox.is_used,
        )
        runner = CommandRunner(sandbox)
        background = BackgroundProcesses(runner, lasting=lasting)
        pictures = Pictures(home)
        search = config.tools.web.search
        brave_key = search.api_key.get_secret_value() or environ.get("BRAVE_API_KEY", "")
        redactor = Redactor([*all_secrets(config), *catalogue.keys_in(environ), brave_key])
        served = enabled_channels(config.channels)
        cron = CronService(job_file, database, bus, clock, served=served)
        heartbeat = HeartbeatService(
            config.gateway.heartbeat,
            workspace / "HEARTBEAT.md",
            bus,
            clock,
            lambda connection: free_for_next(connection, SESSION, KEPT_BEATS),
            served,
        )
        helpers = config.agents.subagents
        subagents = SubagentManager(bus, sessions, clock, model=helpers.model)
        built_in: tuple[AnyTool, ...] = (
            *default_tools(
                resolver, runner, background, pictures, exec_timeout=config.tools.exec.timeout
            ),
            *web_tools(
                brave_key=brave_key,
                max_results=search.max_results,
                allow_cidrs=config.tools.web.allow_cidrs,
                tls=tls,
            ),
            Message(bus, served),
            Spawn(subagents),
            Cron(cron),
            RecallTool(recall := Recall(Sources.of(home, workspace), clock), sessions),
        )
        taken = [tool.name for tool in built_in]
        plugins = await asyncio.to_thread(load_plugins, home, environ, taken)
        await probing  # so that no turn waits for it
        tools = ToolRegistry(
            (*built_in, *plugins.tools), mask=redactor.mask, timeout_s=defaults.tool_timeout_s
        )
        context_for = partial(_context, config, workspace, skills)
        context = context_for("chat", tools)
        meter = ContextMeter(sessions, models, context, tools)
        loop = AgentLoop(
            profiles=_profiles(config, tools, context_for),
            sessions=sessions,
            models=models,
            context=context,
            tools=tools,
            spill=Spill(home, cap=TurnLimits().result_chars),
            pictures=pictures,
            clock=clock,
            limits=_limits(defaults),
        )
        progress = MemoryProgress(database, clock)
        consolidator = Consolidator(
            sessions=sessions,
            progress=progress,
            memory=memory,
            models=models,
            clock=clock,
            settings=MemorySettings(
                window=defaults.memory_window,
                model=config.agents.memory.model,
                timeout_s=config.agents.memory.timeout_s,
            ),
            active=lasting,
            offline=OFFLINE,
        )
        commands = StandardCommands(
            sessions=sessions,
            models=models,
            default_effort=config.agents.defaults.reasoning_effort or "as the model likes",
            usage=UsageLog(database, clock),
            turns=lambda: dispatcher,
            clock=clock,
            subagents=subagents.status_lines,
            meter=meter,
            renewed=context.forget,
        ).table(
            more=(
                compact_command(sessions, models, loop.window, meter),
                memory_command(memory, progress),
                skills_command(skills.snapshot),
                cron_command(cron, lambda inbound_id: dispatcher.settled(inbound_id)),
            ),
            further=skills.menu,
        )
        dispatcher = Dispatcher(
            bus,
            loop,
            commands,
            clock,
            slots=defaults.max_concurrent_turns,
            queue=QueueMode(defaults.queue),
            max_subagents=helpers.max_concurrent,
            subagents=subagents,
            hooks=consolidator,
        )
        admin = Admin(
            sessions=transfer,
            progress=progress,
            memory=memory,
            consolidator=consolidator,
            is_busy=lambda key: dispatcher.running_since(key) is not None,
            recall=recall,
            home=home,
            renewed=context.forget,
        )
        app = App(
            home=home,
            config=config,
            database=database,
            bus=bus,
            dispatcher=dispatcher,
            sessions=sessions,
            consolidator=consolidator,
            admin=admin,
            models=models,
            commands=commands,
            context=context,
            tools=tools,
            meter=meter,
            background=background,
            plugins=plugins,
            subagents=subagents,
            cron=cron,
            heartbeat=heartbeat,
            tls=tls,
            clock=clock,
            environ=environ,
            recall=recall,
            notice=notice,
        )
        try:
            yield app
        finally:
            await dispatcher.close()
            await consolidator.aclose()
            await background.aclose()
            await runner.aclose()
            await models.aclose()
    finally:
        database.close()


def _context(
    config: Config, workspace: Path, skills: SkillsLoader, profile: str, tools: ToolRegistry
) -> ContextBuilder:
    defaults = config.agents.defaults
    return ContextBuilder(
        workspace,
        skills,
        tools=tools.names,
        file_cap=defaults.bootstrap_file_chars,
        files_cap=defaults.bootstrap_chars,
        profile=profile,
    )


def _profiles(
    config: Config, tools: ToolRegistry, context_for: Callable[[str, ToolRegistry], ContextBuilder]
) -> dict[str, Profile]:
    """How turns run that no person began; a chat's has all tools."""
    unattended = tools.without("cron")
    delegated = tools.without("message", "spawn", "cron")
    steps, helpers = config.agents.defaults.max_tool_iterations, config.agents.subagents
    return {
        "job": Profile(context_for("job", unattended), unattended, steps),
        "heartbeat": Profile(context_for("heartbeat", unattended), unattended, steps),
        PROFILE: Profile(
            context_for(PROFILE, delegated),
            delegated,
            helpers.max_iterations,
            limit_s=helpers.timeout_s,
        ),
    }


def _limits(defaults: AgentDefaults) -> TurnLimits:
    # Every model gets its time, with room for what the retries wait in between.
    models = 1 + len(defaults.fallback_models)
    return TurnLimits(
        max_iterations=defaults.max_tool_iterations,
        model_s=(defaults.model_timeout_s * 1.5 + 30) * models,
    )


def load_skills(
    config: Config,
    workspace: Path,
    home: Home,
    environ: Mapping[str, str],
    clock: Clock,
    *,
    off: OffSource,
    sandbox: Sandbox,
) -> SkillsLoader:
    """The loader of a home's skills, as turns and ``nanobot skills`` see them.

    A program is there if commands find it.
    """
    view = DiskView((workspace,), restricted=config.tools.restrict_to_workspace)
    entries = {
        name: SkillOverride(
            enabled=entry.enabled,
            api_key=entry.api_key.get_secret_value(),
            env={key: value.get_secret_value() for key, value in entry.env.items()},
            config=entry.config,
        )
        for name, entry in config.skills.entries.items()
    }
    settings = SkillsSettings(
        shared_dir=home.shared_skills,
        extra_dirs=config.skills.load.extra_dirs,
        entries=entries,
        allow_bundled=config.skills.allow_bundled,
        config=config.model_dump(by_alias=True) if entries else {},
        watch=config.skills.load.watch,
        cap=config.skills.catalogue_tokens,
        catalogue=home.skills_catalogue,
    )
    return SkillsLoader(
        workspace,
        settings=settings,
        environ=environ,
        which=lambda program: sandbox.which(program, view),
        off=off,
        clock=clock,
    )


def sandbox_of(config: Config, environ: Mapping[str, str]) -> Sandbox:
    """The sandbox of the commands that a config's models run."""
    settings = config.tools.exec
    network = SandboxNetwork.ON if settings.network == "on" else SandboxNetwork.OFF
    policy = SandboxPolicy(SandboxMode(settings.sandbox), network, settings.path_append)
    return Sandbox(policy, environ=environ, user_home=Path.home())
