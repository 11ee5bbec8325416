"""Keys of compatible programs, keys that nothing reads, and warnings about valid settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nanobot.config.keys import loose
from nanobot.config.schema import Config

_KEYS = {
    "": "$schema api cli hooks imageGeneration mcp modelPresets transcription webSearch webui",
    "agents.defaults": """botIcon botName consolidationRatio contextBlockLimit contextWindowTokens
        disabledSkills dream failOnToolError idleCompactAfterMinutes
        idleCompactCheckIntervalSeconds maxConcurrentSubagents maxMessages maxToolResultChars
        modelPreset providerRetryMode sessionTtlMinutes thinkingStyle timezone
        timezoneMode toolHintMaxLength unifiedSession""",
    "channels": """dingtalk discord email feishu googlechat imessage irc lark line matrix
        mattermost mochat msteams napcat nostr qq signal slack teams twitch webchat websocket
        wechat wecom weixin whatsapp zalo extractDocumentText sendMaxRetries sendProgress
        sendToolHints showReasoning transcriptionLanguage transcriptionProvider""",
    "channels.telegram": """connectionPoolSize inlineKeyboards mode poolTimeout reactEmoji
        replyToMessage richMessages streamEditInterval webhookListenHost webhookListenPort
        webhookMaxConnections webhookPath webhookSecretToken webhookUrl""",
    "gateway": "restartMode",
    "gateway.heartbeat": "keepRecentMessages",
    "providers": """antLing assemblyai atomicChat azureOpenai baichuan bedrock byteplus
        byteplusCodingPlan cerebras cohere dashscopeCodingPlan edenai fireworks githubCopilot
        huggingface hunyuan kimi kimiCoding lmStudio longcat minimaxAnthropic modelscope novita
        nvidia openaiCodex opencode opencodeGo opencodeZen orcarouter ovms perplexity qianfan
        siliconflow skywork stepfun together vertexAi volcengine volcengineCodingPlan xai
        xiaomiMimo zai""",
    "providers.*": "apiType apiVersion extraBody extraQuery profile proxy region thinkingStyle",
    "skills.install": "preferBrew",
    "tools": """cliApps file imageGeneration maxSessionMessagesPerMinute mcpServers my
        ssrfWhitelist webuiAllowLocalServiceAccess webuiAllowRemotePackageInstall""",
    "tools.exec": """allowPatterns allowedEnvKeys denyPatterns enable pathPrepend
        sandboxRoBinds sandboxRwBinds""",
    "tools.web": "enable fetch proxy userAgent",
    "tools.web.search": "baseUrl provider timeout",
}


ALWAYS_ON = frozenset({"websocket"})
"""Channels that compatible programs enable by default; their users expect no answer there."""

UNREAD: Mapping[str, tuple[object, ...]] = {
    "channels.telegram.groupPolicy": (),  # groups are not served
    "channels.telegram.streaming": (),
    "gateway.host": (),
    "gateway.port": (),
    "retention.auditDays": (),
    "skills.load.watchDebounceMs": (),
    "tools.approval.<name>": ("ask", "deny"),
}
"""Keys of the schema that nothing reads, with the values that would protect."""

_REFUSES_WHEN_SET = (
    "agents.defaults.disabledSkills tools.exec.allowPatterns tools.exec.denyPatterns"
)
_REFUSES_WHEN_FALSE = "tools.exec.enable tools.file.enable tools.web.enable"
_FALSE = ("", "false", "0", "no", "off", "n", "f")
_PROVIDER_DEFAULTS = {"apitype": "auto"}


_BY_PLACE = {place: frozenset(map(loose, words.split())) for place, words in _KEYS.items()}
_RESTRICTS = {
    **dict.fromkeys(map(loose, _REFUSES_WHEN_SET.split()), True),
    **dict.fromkeys(map(loose, _REFUSES_WHEN_FALSE.split()), False),
}


def is_unserved(place: Sequence[str | int], key: str) -> bool:
    """Whether a key (any spelling) of the section at ``place`` is a compatible program's alone."""
    section = ".".join(map(str, place))
    if len(place) == 2 and place[0] == "providers":
        section = "providers.*"
    return loose(key) in _BY_PLACE.get(section, ())


def is_empty(value: Any) -> bool:
    """Whether a value of an unknown key is empty, or an object of only such values."""
    if isinstance(value, dict):
        return all(
            is_empty(item) or _PROVIDER_DEFAULTS.get(loose(name)) == item
            for name, item in value.items()
        )
    return any(value is each for each in (None, False)) or value in ("", [])


def restrictions(path: Sequence[str | int], value: Any) -> Iterator[tuple[str | int, ...]]:
    """The places, at ``path`` or within its value, that restrict what the assistant may do."""
    wanted = _RESTRICTS.get(loose(".".join(map(str, path))))
    is_set = value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)
    if wanted is not None and is_set is wanted and value is not None:
        yield tuple(path)
    if isinstance(value, dict):
        for name, item in value.items():
            yield from restrictions((*path, name), item)


def installed_channels() -> frozenset[str]:
    """The names of the channels that installed packages bring (entry points)."""
    from importlib.metadata import entry_points

    return frozenset(point.name for point in entry_points(group="nanobot.channels"))


def config_warnings(config: Config) -> list[str]:
    """A line for each doubtful setting, with the command that corrects it."""
    warnings: list[str] = []
    telegram = config.channels.telegram
    if telegram.enabled:
        if not telegram.token:
            warnings.append(
                "channels.telegram.token is empty, so Telegram cannot be reached: "
                "nanobot config set channels.telegram.token '<token from @BotFather>'"
            )
        warnings.extend(_access("channels.telegram.allowFrom", telegram.allow_from))
    for name, channel in config.channels.plugins.items():
        if channel.enabled and not channel.allow_from:
            warnings.append(_nobody(f"channels.{name}.allowFrom"))
    return warnings


def _access(key: str, listed: Sequence[str]) -> list[str]:
    if not listed:
        return [_nobody(key)]
    mended = [_mended(entry) for entry in listed]
    wrong = [json.dumps(entry) for entry in listed if entry != _mended(entry)]
    if not wrong:
        return []
    verb = "names nobody" if len(wrong) == 1 else "name nobody"
    return [
        f"{key}: {', '.join(wrong)} {verb}; an entry is a numeric id (safest), @name or *: "
        f"nanobot config set {key} '{json.dumps(mended)}'"
    ]


def _nobody(key: str) -> str:
    return (
        f"{key} is empty: nobody is let in; to let yourself in: "
        f"""nanobot config set {key} '["<your id>"]'"""
    )


def _mended(entry: str) -> str:
    """An entry in a form that works; compatible programs write bare names and ``id|name``."""
    if entry == "*" or re.fullmatch(r"-?\d+|@\w+", entry, re.ASCII):
        return entry
    number = re.match(r"(?:\w+:)?(-?\d+)(?:\||$)", entry.strip(), re.ASCII)
    if number:
        return number.group(1)
    name = re.sub(r"\W", "", entry, flags=re.ASCII)
    return f"@{name}" if name else "<numeric id>"
