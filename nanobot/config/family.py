"""Keys that configs of the family hold and this nanobot does not serve.

They load with one warning, so that an existing file drops in; one that would protect refuses.
Collected from the family's public documentation, from files that users posted and from the files
that its programs write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
"""Channels that the family's own default config enables: nobody waits for them to answer."""

_REFUSES_WHEN_SET = (
    "agents.defaults.disabledSkills tools.exec.allowPatterns tools.exec.denyPatterns"
)
_REFUSES_WHEN_FALSE = "tools.exec.enable tools.file.enable tools.web.enable"
_FALSE = ("", "false", "0", "no", "off", "n", "f")
_PROVIDER_DEFAULTS = {"apitype": "auto"}


def _plain(key: str) -> str:
    return key.replace("_", "").lower()


_BY_PLACE = {place: frozenset(map(_plain, words.split())) for place, words in _KEYS.items()}
_PROTECTING = {
    **dict.fromkeys(map(_plain, _REFUSES_WHEN_SET.split()), True),
    **dict.fromkeys(map(_plain, _REFUSES_WHEN_FALSE.split()), False),
}


def is_unserved(place: Sequence[str | int], key: str) -> bool:
    """Whether a key (any spelling) of the section at ``place`` is the family's and not ours."""
    section = ".".join(map(str, place))
    if len(place) == 2 and place[0] == "providers":
        section = "providers.*"
    return _plain(key) in _BY_PLACE.get(section, ())


def says_nothing(value: Any) -> bool:
    """Whether a value of an unknown key is empty, or an object of only such values."""
    if isinstance(value, dict):
        return all(
            says_nothing(item) or _PROVIDER_DEFAULTS.get(_plain(name)) == item
            for name, item in value.items()
        )
    return any(value is each for each in (None, False)) or value in ("", [])


def protecting(path: Sequence[str | int], value: Any) -> Iterator[tuple[str | int, ...]]:
    """Where a key at ``path``, or one within its value, restricts what the assistant may do."""
    wanted = _PROTECTING.get(_plain(".".join(map(str, path))))
    is_set = value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)
    if wanted is not None and is_set is wanted and value is not None:
        yield tuple(path)
    if isinstance(value, dict):
        for name, item in value.items():
            yield from protecting((*path, name), item)


def installed_channels() -> frozenset[str]:
    """The names of the channels that installed packages bring (entry points)."""
    from importlib.metadata import entry_points

    return frozenset(point.name for point in entry_points(group="nanobot.channels"))
