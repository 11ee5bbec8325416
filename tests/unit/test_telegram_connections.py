"""Where the channel's connections lead."""

from __future__ import annotations

import ssl

import pytest
from pydantic import SecretStr

from nanobot.channels.telegram.connections import Connections, Limits, NotSent, Refusal
from nanobot.config.schema import TelegramConfig
from tests.fakes.bot_api import BotApi
from tests.fakes.telegram_channel import no_tls


async def test_the_server_may_be_given_with_a_slash_at_its_end() -> None:
    async with BotApi() as api:
        config = TelegramConfig(token=SecretStr(api.token), api_base=f"{api.root}/")
        connections = Connections(config, Limits(), no_tls)

        me = await connections.poll("getMe", {}, limit_s=5)

        assert me["id"] == api.bot_id
        await connections.aclose()


async def test_a_server_with_tls_is_spoken_to_with_the_one_context_there_is() -> None:
    async with BotApi() as api:
        api.offline()
        asked = []

        async def tls() -> ssl.SSLContext:
            asked.append(True)
            return ssl.create_default_context()

        secure = api.root.replace("http:", "https:")
        connections = Connections(
            TelegramConfig(token=SecretStr(api.token), api_base=secure), Limits(), tls
        )

        with pytest.raises(NotSent, match="Connection refused"):
            await connections.poll("getMe", {}, limit_s=5)
        with pytest.raises(NotSent, match="Connection refused"):
            await connections.call("getMe", {}, limit_s=5)

        assert asked == [True]
        await connections.aclose()


async def test_a_proxy_is_used() -> None:
    async with BotApi() as api:
        api.offline()
        config = TelegramConfig(
            token=SecretStr(api.token),
            api_base="http://bots.example.org",
            proxy=f"http://ada:fake-password@127.0.0.1:{api.port}",
        )
        connections = Connections(config, Limits(), no_tls)

        with pytest.raises(NotSent) as refused:
            await connections.poll("getMe", {}, limit_s=5)
        api.online()
        # The fake stands in for the proxy; it does not know addresses with a host in them.
        with pytest.raises(Refusal, match="Not Found"):
            await connections.poll("getMe", {}, limit_s=5)

        assert str(refused.value) == "no connection to bots.example.org: Connection refused"
        await connections.aclose()
