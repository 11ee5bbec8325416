"""Keys that configs of the family are known to hold and this nanobot does not serve.

They load with one warning, so that an existing file drops in. Collected from the family's public
documentation and from files that users posted.
"""

from __future__ import annotations

from collections.abc import Sequence

_KEYS = {
    "": "$schema api cli hooks imageGeneration mcp modelPresets transcription webSearch webui",
    "agents.defaults": """botIcon botName consolidationRatio contextBlockLimit contextWindowTokens
        disabledSkills dream failOnToolError idleCompactAfterMinutes maxMessages
        maxToolResultChars modelPreset providerRetryMode sessionTtlMinutes
        timezone toolHintMaxLength unifiedSession""",
    "channels": """dingtalk discord email feishu googlechat imessage irc lark line matrix
        mattermost mochat msteams napcat nostr qq signal slack teams twitch webchat websocket
        wechat wecom weixin whatsapp zalo extractDocumentText sendMaxRetries sendProgress
        sendToolHints showReasoning transcriptionLanguage transcriptionProvider""",
    "channels.telegram": """connectionPoolSize inlineKeyboards poolTimeout reactEmoji
        replyToMessage streamEditInterval""",
    "gateway.heartbeat": "keepRecentMessages",
    "providers": """antLing azureOpenai baichuan bedrock byteplus byteplusCodingPlan cerebras
        cohere dashscopeCodingPlan fireworks githubCopilot huggingface hunyuan kimi kimiCoding
        lmStudio longcat minimaxAnthropic nvidia openaiCodex opencode ovms perplexity qianfan
        siliconflow skywork stepfun together vertexAi volcengine volcengineCodingPlan xai
        xiaomiMimo zai""",
    "providers.*": "apiType apiVersion extraBody extraQuery proxy region",
    "skills.install": "preferBrew",
    "tools": "cliApps file imageGeneration mcpServers my ssrfWhitelist",
    "tools.exec": "allowPatterns allowedEnvKeys denyPatterns enable pathAppend pathPrepend",
    "tools.web": "enable fetch proxy userAgent",
    "tools.web.search": "baseUrl provider timeout",
}


def _plain(key: str) -> str:
    return key.replace("_", "").lower()


_BY_PLACE = {place: frozenset(map(_plain, words.split())) for place, words in _KEYS.items()}


def is_unserved(place: Sequence[str | int], key: str) -> bool:
    """Whether a key (any spelling) of the section at ``place`` is the family's and not ours."""
    section = ".".join(map(str, place))
    if len(place) == 2 and place[0] == "providers":
        section = "providers.*"
    return _plain(key) in _BY_PLACE.get(section, ())


def installed_channels() -> frozenset[str]:
    """The names of the channels that installed packages bring (entry points)."""
    from importlib.metadata import entry_points

    return frozenset(point.name for point in entry_points(group="nanobot.channels"))
