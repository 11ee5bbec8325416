"""The gateway: channels, deliveries, services and the home's socket around one app."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from loguru import logger

from nanobot.app import App
from nanobot.bus.delivery import DeliveryWorker
from nanobot.bus.housekeeping import Housekeeper
from nanobot.channels.console import ConsoleServer
from nanobot.channels.registry import enabled_channels, plugin_channels
from nanobot.core.messages import OutboundMessage
from nanobot.core.ports import Channel
from nanobot.safety.gate import Gate

GRACE_S = 3.5
"""Seconds that running turns get after SIGTERM; with all else the process is gone within 5."""
RESTART_S = 5.0
"""Seconds before a channel or service that has died is started again."""


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
        answers=app.answers(),
    )
    for worker in workers:
        await worker.recover()
    await app.dispatcher.recover()
    await app.consolidator.start()
    await console.start()
    services: dict[str, Callable[[], Awaitable[None]]] = {
        **{channel.name: channel.run for channel in channels.values()},
        "housekeeping": _housekeeper(app).run,
        "cron": partial(app.cron.run, partial(_tell, app)),
        "heartbeat": app.heartbeat.run,
        "search index": app.recall.keep_up,
    }
    running = {asyncio.create_task(_supervised(name, run)) for name, run in services.items()}
    try:
        starting = asyncio.create_task(_announce(channels, ready, app.models.warm_up))
        await stop.wait()
        starting.cancel()
        await asyncio.wait({starting})
    finally:
        for service in running:
            service.cancel()
        await asyncio.wait(running)
        await app.dispatcher.close(GRACE_S)
        await app.consolidator.aclose()
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


def build_channels(app: App) -> dict[str, Channel]:
    """The enabled channels by name; raises ConfigError for one that cannot work."""
    channels = plugin_channels(
        app.config.channels,
        intake=app.bus,
        menu=app.commands.menu(),
        clock=app.clock,
        environ=app.environ,
        home=app.home,
    )
    telegram = app.config.channels.telegram
    if telegram.enabled:
        from nanobot.channels.telegram.channel import TelegramChannel
        from nanobot.channels.telegram.connections import Time

        channels["telegram"] = TelegramChannel(
            telegram,
            gate=Gate(telegram.allow_from),
            intake=app.bus,
            menu=app.commands.menu,
            tls=app.tls.context,
            time=Time(app.clock),
        )
    return channels


async def _supervised(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Keep a channel or service running; one that fails begins again, never silently gone."""
    while True:
        try:
            await run()
        except Exception:
            logger.exception("{} failed; it is started again in {:g} s", name, RESTART_S)
        await asyncio.sleep(RESTART_S)


async def _tell(app: App, name: str, text: str) -> None:
    """Write to each owner we know of, once a name."""
    telegram = app.config.channels.telegram
    if telegram.enabled:
        # The id of a private chat is that of the person.
        owners = [entry for entry in telegram.allow_from if entry.strip().isdecimal()]
        await app.bus.queue(
            *(OutboundMessage("telegram", one, text, id=f"{name}/{one}") for one in owners)
        )


def _housekeeper(app: App) -> Housekeeper:
    """What cleans up behind the gateway, by the settings."""
    config, home = app.config, app.home
    return Housekeeper(
        app.bus,
        app.database,
        app.clock,
        rows=timedelta(days=config.bus.retention_days),
        folders={
            home.media: timedelta(days=config.retention.media_days),
            home.spill: timedelta(days=config.retention.spill_days),
            home.tmp: timedelta(days=config.retention.spill_days),
        },
        served=enabled_channels(config.channels),
        tell=partial(_tell, app),
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
