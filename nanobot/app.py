"""The composition root: builds every object of one home and joins them; nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
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
from nanobot.tools.plugins import load_plugins
from nanobot.tools.registry import AnyTool, ToolRegistry, default_tools


class App:
    """The parts of one running home; each attribute is built once, in the order of the methods.

    ``notice``: what opening the home did that its owner should know, "" for nothing.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        home: Home,
        environ: Mapping[str, str],
        database: Database,
        sandbox: Sandbox,
        *,
        clock: Clock,
        lasting: bool,
    ) -> None:
        self.config = loaded.config
        self.workspace = loaded.workspace
        self.home = home
        self.environ = environ
        self.database = database
        self.clock = clock
        self.notice = ""
        self._sandbox = sandbox
        self._lasting = lasting
        self._served = enabled_channels(self.config.channels)

    def build_state(self, *, offline_allowed: bool) -> None:
        """The bus, the sessions, the models, the memory and the skills: what runs no turn."""
        config, home, clock = self.config, self.home, self.clock
        self.sessions = SessionLog(self.database, clock)
        self.bus = MessageBus(
            self.database,
            clock,
            outbound_expiry=timedelta(hours=config.bus.outbound_expiry_h),
            max_queued=config.bus.max_queued,
        )
        self.tls = TLS()
        self.models = Models(
            config.agents.defaults,
            config.providers,
            self.environ,
            tls=self.tls,
            offline_allowed=offline_allowed,
            refusals=Refusals(home.refusals),
        )
        self._switches = SkillSwitches(
            home.skills_off, self.workspace, clock, extra_dirs=config.skills.load.extra_dirs
        )
        self._memory = MemoryStore(
            home, self.workspace, clock, file_cap=config.agents.defaults.bootstrap_file_chars
        )
        self._skills = load_skills(
            config,
            self.workspace,
            home,
            self.environ,
            clock,
            off=self._switches.off,
            sandbox=self._sandbox,
        )
        self._transfer = SessionTransfer(self.database, clock)
        self._job_file = JobFile(home.cron_jobs)

    async def take_over(self) -> None:
        """Take over what another nanobot left in this home, at its first start."""
        self.notice = await take_over(
            self.home,
            self.workspace,
            self.database,
            jobs=self._job_file,
            sessions=self._transfer,
            memory=self._memory,
        )

    async def build_tools(self) -> None:
        """The services that tools talk to, then all tools, plugins last."""
        config, home, clock = self.config, self.home, self.clock
        self._runner = CommandRunner(self._sandbox)
        self.background = BackgroundProcesses(self._runner, lasting=self._lasting)
        self._pictures = Pictures(home)
        self.cron = CronService(self._job_file, self.database, self.bus, clock, served=self._served)
        self.heartbeat = HeartbeatService(
            config.gateway.heartbeat,
            self.workspace / "HEARTBEAT.md",
            self.bus,
            clock,
            lambda connection: free_for_next(connection, SESSION, KEPT_BEATS),
            self._served,
        )
        self.subagents = SubagentManager(
            self.bus, self.sessions, clock, model=config.agents.subagents.model
        )
        self.recall = Recall(Sources.of(home, self.workspace), clock)
        search = config.tools.web.search
        brave_key = search.api_key.get_secret_value() or self.environ.get("BRAVE_API_KEY", "")
        built_in: tuple[AnyTool, ...] = (
            *default_tools(
                self._path_resolver(),
                self._runner,
                self.background,
                self._pictures,
                exec_timeout=config.tools.exec.timeout,
            ),
            *web_tools(
                brave_key=brave_key,
                max_results=search.max_results,
                allow_cidrs=config.tools.web.allow_cidrs,
                tls=self.tls,
            ),
            Message(self.bus, self._served),
            Spawn(self.subagents),
            Cron(self.cron),
            RecallTool(self.recall, self.sessions),
        )
        taken = [tool.name for tool in built_in]
        self.plugins = await asyncio.to_thread(load_plugins, home, self.environ, taken)
        redactor = Redactor([*all_secrets(config), *catalogue.keys_in(self.environ), brave_key])
        self.tools = ToolRegistry(
            (*built_in, *self.plugins.tools),
            mask=redactor.mask,
            timeout_s=config.agents.defaults.tool_timeout_s,
        )

    def _path_resolver(self) -> PathResolver:
        """Where file tools may go; writes there are noted for skills and memory."""

        def noted(context: ToolContext, path: Path) -> None:
            self._switches.note_write(context, path)
            self._memory.before_write(context, path)

        return PathResolver(
            self.home,
            restrict=self.config.tools.restrict_to_workspace,
            skills=lambda context: self._skills.snapshot().readable,
            noted=noted,
            own_tmp=self._sandbox.is_used,
        )

    def build_agent(self) -> None:
        """The agent loop, the memory's consolidation, the commands and the dispatcher."""
        config, clock = self.config, self.clock
        defaults = config.agents.defaults
        context_for = partial(_context, config, self.workspace, self._skills)
        self.context = context_for("chat", self.tools)
        self.meter = ContextMeter(self.sessions, self.models, self.context, self.tools)
        self._loop = AgentLoop(
            profiles=_profiles(config, self.tools, context_for),
            sessions=self.sessions,
            models=self.models,
            context=self.context,
            tools=self.tools,
            spill=Spill(self.home, cap=TurnLimits().result_chars),
            pictures=self._pictures,
            clock=clock,
            limits=_limits(defaults),
        )
        self._progress = MemoryProgress(self.database, clock)
        self.consolidator = Consolidator(
            sessions=self.sessions,
            progress=self._progress,
            memory=self._memory,
            models=self.models,
            clock=clock,
            settings=MemorySettings(
                window=defaults.memory_window,
                model=config.agents.memory.model,
                timeout_s=config.agents.memory.timeout_s,
            ),
            active=self._lasting,
            offline=OFFLINE,
        )
        self.commands = self._commands()
        self.dispatcher = Dispatcher(
            self.bus,
            self._loop,
            self.commands,
            clock,
            slots=defaults.max_concurrent_turns,
            queue=QueueMode(defaults.queue),
            max_subagents=config.agents.subagents.max_concurrent,
            subagents=self.subagents,
            hooks=self.consolidator,
        )
        self.admin = Admin(
            sessions=self._transfer,
            progress=self._progress,
            memory=self._memory,
            consolidator=self.consolidator,
            is_busy=lambda key: self.dispatcher.running_since(key) is not None,
            recall=self.recall,
            home=self.home,
            deleted=self._session_deleted,
        )

    async def _session_deleted(self, key: str) -> None:
        """End what a deleted session had running, and forget its view of the skills."""
        await self.background.kill_session(key)
        self.context.forget(key)

    def _commands(self) -> CommandTable:
        return StandardCommands(
            sessions=self.sessions,
            models=self.models,
            default_effort=self.config.agents.defaults.reasoning_effort or "as the model likes",
            usage=UsageLog(self.database, self.clock),
            turns=lambda: self.dispatcher,
            clock=self.clock,
            subagents=self.subagents.status_lines,
            meter=self.meter,
            renewed=self.context.forget,
        ).table(
            more=(
                compact_command(self.sessions, self.models, self._loop.window, self.meter),
                memory_command(self._memory, self._progress),
                skills_command(self._skills.snapshot),
                cron_command(self.cron, lambda inbound_id: self.dispatcher.settled(inbound_id)),
            ),
            further=self._skills.menu,
        )

    async def aclose(self) -> None:
        """Close every part but the database."""
        await self.dispatcher.close()
        await self.consolidator.aclose()
        await self.background.aclose()
        await self._runner.aclose()
        await self.models.aclose()

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
    ``lasting``: the app, and with it background processes, go on after an answer.
    """
    sandbox = sandbox_of(loaded.config, environ)
    probing = asyncio.get_running_loop().run_in_executor(None, sandbox.is_used)
    home.private(home.root)
    if not loaded.workspace.exists():
        seed(loaded.workspace, workspace_templates_dir())
    database = Database(home.database)
    try:
        app = App(loaded, home, environ, database, sandbox, clock=clock, lasting=lasting)
        app.build_state(offline_allowed=offline_allowed)
        await app.take_over()
        await app.build_tools()
        await probing  # so that no turn waits for it
        app.build_agent()
        try:
            yield app
        finally:
            await app.aclose()
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
