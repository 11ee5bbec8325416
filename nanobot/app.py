"""The composition root: builds every object of one home and joins them; nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from loguru import logger

from nanobot.agent.commands import CommandTable
from nanobot.agent.context import ContextBuilder
from nanobot.agent.images import Pictures
from nanobot.agent.loop import AgentLoop
from nanobot.agent.skill_commands import RESERVED, skills_command
from nanobot.agent.skills import SkillOverride, SkillsLoader
from nanobot.agent.skills.switches import OffSource, SkillSwitches
from nanobot.agent.spill import Spill
from nanobot.agent.standard_commands import standard_commands
from nanobot.agent.tools.background import BackgroundProcesses
from nanobot.agent.tools.message import Message
from nanobot.agent.tools.plugins import Plugins, load_plugins
from nanobot.agent.tools.recall import RecallTool
from nanobot.agent.tools.registry import AnyTool, ToolRegistry, default_tools
from nanobot.agent.tools.web import web_tools
from nanobot.agent.turn import TurnLimits
from nanobot.agent.workspace import seed
from nanobot.bus.bus import MessageBus
from nanobot.bus.delivery import DeliveryWorker
from nanobot.bus.dispatcher import Dispatcher, QueueMode
from nanobot.bus.housekeeping import Housekeeper
from nanobot.bus.letters import handle_letters
from nanobot.channels.console import ConsoleServer
from nanobot.config.loader import LoadedConfig
from nanobot.config.masking import all_secrets
from nanobot.config.schema import Config
from nanobot.core.messages import OutboundMessage
from nanobot.core.ports import Channel, Clock
from nanobot.providers import registry
from nanobot.providers.models import Models
from nanobot.providers.tls import TLS
from nanobot.safety.commands import CommandRunner
from nanobot.safety.gate import Gate
from nanobot.safety.paths import PathResolver
from nanobot.safety.redaction import Redactor
from nanobot.safety.sandbox import Sandbox, SandboxMode, SandboxNetwork, SandboxPolicy
from nanobot.session.log import SessionLog
from nanobot.session.recall.index import Sources
from nanobot.session.recall.recall import Recall
from nanobot.session.usage import UsageLog
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.store.shipped import workspace_templates_dir

GRACE_S = 3.5
"""Seconds that running turns get after SIGTERM; with all else the process is gone within 5."""
RESTART_S = 5.0
"""Seconds before a channel whose task has died is started again."""


@dataclass(frozen=True, slots=True)
class App:
    """The parts of one running home that a command line or a gateway talks to."""

    home: Home
    config: Config
    database: Database
    bus: MessageBus
    dispatcher: Dispatcher
    sessions: SessionLog
    models: Models
    commands: CommandTable
    background: BackgroundProcesses
    plugins: Plugins
    tls: TLS
    clock: Clock
    recall: Recall

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
        if self.plugins.problems:
            facts["tools"] = f"left out: {'; '.join(self.plugins.problems)}"
        return facts

    async def letters(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """What ``nanobot bus`` asks for, as ``handle_letters`` has it."""
        return await handle_letters(self.bus, request)


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
            defaults, config.providers, environ, tls=tls, offline_allowed=offline_allowed
        )
        switches = SkillSwitches(
            home.skills_off, workspace, clock, extra_dirs=config.skills.load.extra_dirs
        )
        skills = load_skills(config, workspace, home, environ, clock, off=switches.off)
        resolver = PathResolver(
            home,
            restrict=config.tools.restrict_to_workspace,
            skills=lambda context: skills.snapshot().readable,
            noted=switches.note_write,
        )
        runner = CommandRunner(_sandbox(config, environ))
        background = BackgroundProcesses(runner, lasting=lasting)
        pictures = Pictures(home)
        redactor = Redactor([*all_secrets(config), *registry.keys_in(environ)])
        built_in: tuple[AnyTool, ...] = (
            *default_tools(
                resolver, runner, background, pictures, exec_timeout=config.tools.exec.timeout
            ),
            *web_tools(
                brave_key=config.tools.web.search.api_key.get_secret_value(),
                max_results=config.tools.web.search.max_results,
                allow_cidrs=config.tools.web.allow_cidrs,
                tls=tls,
            ),
            Message(bus, enabled_channels(config)),
            RecallTool(recall := Recall(Sources.of(home, workspace), clock), sessions),
        )
        taken = [tool.name for tool in built_in]
        plugins = await asyncio.to_thread(load_plugins, home, environ, taken)
        tools = ToolRegistry((*built_in, *plugins.tools), mask=redactor.mask)
        loop = AgentLoop(
            sessions=sessions,
            models=models,
            context=ContextBuilder(workspace, skills, tools=tools.names),
            tools=tools,
            spill=Spill(home, cap=TurnLimits().result_chars),
            pictures=pictures,
            clock=clock,
            limits=TurnLimits(
                max_iterations=defaults.max_tool_iterations,
                model_s=(defaults.model_timeout_s * 1.5 + 30) * (1 + len(defaults.fallback_models)),
            ),
        )
        commands = standard_commands(
            sessions=sessions,
            models=models,
            usage=UsageLog(database, clock),
            turns=lambda: dispatcher,
            clock=clock,
            more=(skills_command(skills.snapshot),),
            further=skills.menu,
        )
        dispatcher = Dispatcher(
            bus,
            loop,
            commands,
            clock,
            slots=defaults.max_concurrent_turns,
            queue=QueueMode(defaults.queue),
        )
        app = App(
            home=home,
            config=config,
            database=database,
            bus=bus,
            dispatcher=dispatcher,
            sessions=sessions,
            models=models,
            commands=commands,
            background=background,
            plugins=plugins,
            tls=tls,
            clock=clock,
            recall=recall,
        )
        try:
            yield app
        finally:
            await dispatcher.close()
            await background.aclose()
            await runner.aclose()
            await models.aclose()
    finally:
        database.close()


async def serve(app: App, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Run the gateway: channels, deliveries and the home's socket, until ``stop`` is set.

    ``ready`` is called once each enabled channel is up or has reported its first failure.
    Afterwards intake ends, turns get their grace, and what is left stays for the next start.
    """
    channels = build_channels(app)
    app.dispatcher.progress = channels.get
    workers = [DeliveryWorker(app.bus, channel, app.clock) for channel in channels.values()]
    console = ConsoleServer(
        app.home,
        holder="gateway",
        ask=app.dispatcher.ask,
        status=lambda: _status(app, channels),
        letters=app.letters,
    )
    for worker in workers:
        await worker.recover()
    await app.dispatcher.recover()
    await console.start()
    intakes = {asyncio.create_task(_supervised(channel, app)) for channel in channels.values()}
    intakes.add(asyncio.create_task(_housekeeper(app).run(), name="housekeeping"))
    intakes.add(asyncio.create_task(app.recall.keep_up(), name="search index"))
    try:
        starting = asyncio.create_task(_announce(channels, ready, app.models.warm_up))
        await stop.wait()
        starting.cancel()
        await asyncio.wait({starting})
    finally:
        for intake in intakes:
            intake.cancel()
        if intakes:
            await asyncio.wait(intakes)
        await app.dispatcher.close(GRACE_S)
        await asyncio.gather(
            console.close(),
            *(worker.close(0.7) for worker in workers),
            return_exceptions=True,
        )
        await asyncio.gather(
            *(channel.aclose() for channel in channels.values()), return_exceptions=True
        )


async def _announce(
    channels: Mapping[str, Channel],
    ready: Callable[[], None],
    warm_up: Callable[[], Awaitable[None]],
) -> None:
    for channel in channels.values():
        await channel.wait_ready()
    ready()
    await warm_up()


def enabled_channels(config: Config) -> frozenset[str]:
    """The names of the channels that the gateway serves."""
    return frozenset({"telegram"} if config.channels.telegram.enabled else ())


def build_channels(app: App) -> dict[str, Channel]:
    """The enabled channels by name; raises ConfigError for one that cannot work."""
    channels: dict[str, Channel] = {}
    telegram = app.config.channels.telegram
    if telegram.enabled:
        from nanobot.channels.telegram.channel import TelegramChannel

        channels["telegram"] = TelegramChannel(
            telegram,
            gate=Gate(telegram.allow_from),
            intake=app.bus,
            menu=app.commands.menu(),
            clock=app.clock,
            tls=app.tls.context,
        )
    return channels


async def _supervised(channel: Channel, app: App) -> None:
    """Keep a channel's intake running; one that fails is started again, never silently gone."""
    while True:
        try:
            await channel.run()
        except Exception:
            logger.bind(channel=channel.name).exception("a channel's intake failed")
        await asyncio.sleep(RESTART_S)


def _housekeeper(app: App) -> Housekeeper:
    """What cleans up behind the gateway, by the settings; it writes to each owner it knows of."""
    config, home = app.config, app.home
    owners = [entry for entry in config.channels.telegram.allow_from if entry.strip().isdecimal()]

    async def tell(name: str, text: str) -> None:
        if "telegram" in enabled_channels(config):
            # The id of a private chat is that of the person.
            messages = (
                OutboundMessage("telegram", owner, text, id=f"{name}/{owner}") for owner in owners
            )
            await app.bus.queue(*messages)

    return Housekeeper(
        app.bus,
        app.database,
        app.clock,
        rows=timedelta(days=config.bus.retention_days),
        folders={
            home.media: timedelta(days=config.retention.media_days),
            home.spill: timedelta(days=config.retention.spill_days),
        },
        tell=tell,
    )


async def _status(app: App, channels: Mapping[str, Channel]) -> dict[str, Any]:
    """The facts of ``nanobot status`` and ``nanobot channels status``."""
    states = {name: channel.state() for name, channel in channels.items()}
    return {
        **await app.status(),
        "channels": [
            {
                "name": name,
                "connected": state.connected,
                "detail": state.detail,
                "lastError": state.last_error,
                "errorAt": state.error_at.isoformat() if state.error_at else None,
            }
            for name, state in states.items()
        ],
    }


def load_skills(
    config: Config,
    workspace: Path,
    home: Home,
    environ: Mapping[str, str],
    clock: Clock,
    *,
    off: OffSource,
) -> SkillsLoader:
    """The loader of a home's skills, as turns and ``nanobot skills`` see them."""
    entries = {
        name: SkillOverride(
            enabled=entry.enabled,
            api_key=entry.api_key.get_secret_value(),
            env={key: value.get_secret_value() for key, value in entry.env.items()},
            config=entry.config,
        )
        for name, entry in config.skills.entries.items()
    }
    return SkillsLoader(
        workspace,
        shared_dir=home.shared_skills,
        extra_dirs=config.skills.load.extra_dirs,
        entries=entries,
        allow_bundled=config.skills.allow_bundled,
        config=config.model_dump(by_alias=True) if entries else {},
        environ=environ,
        watch=config.skills.load.watch,
        reserved_commands=RESERVED,
        off=off,
        clock=clock,
    )


def _sandbox(config: Config, environ: Mapping[str, str]) -> Sandbox:
    settings = config.tools.exec
    network = SandboxNetwork.ON if settings.network == "on" else SandboxNetwork.OFF
    policy = SandboxPolicy(mode=SandboxMode(settings.sandbox), network=network)
    return Sandbox(policy, environ=environ, user_home=Path.home())
