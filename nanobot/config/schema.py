"""The configuration as frozen pydantic models: one model a feature, camelCase on disk.

Every key has a default and a description; the table in docs/configuration.md is held to them by
a test. ``null`` on disk means the default. An error message says what was expected, in the words of
the ``Expected`` beside a type, and never quotes the value, which may be a secret.
"""

# No ``from __future__ import annotations``: compiling 100 annotations from text costs 5 ms a start.
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import time
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
)
from pydantic.alias_generators import to_camel


@dataclass(frozen=True, slots=True)
class Expected:
    """Annotation of a type: its values in the words of an error message."""

    words: str


class Section(BaseModel):
    """A part of the configuration; unknown keys are errors, values cannot be changed."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,
    )


# --------------------------------------------------------------------------------------- types


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("not a number")  # noqa: TRY004 (pydantic collects ValueErrors)
    return value


def _meaning(words: Mapping[str, object]) -> BeforeValidator:
    """Replaces texts that compatible programs write by the value they mean here."""
    return BeforeValidator(
        lambda value: words.get(value, value) if isinstance(value, str) else value
    )


_EMPTY_IS_UNSET = _meaning({"": None})


def _stripped(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


def _as_text(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def address_of(*schemes: str) -> Callable[[str], str]:
    """A check of absolute URLs with these schemes; it raises ValueError for anything else."""
    pattern = re.compile(rf"({'|'.join(schemes)})://[^\s/?#]+\S*", re.IGNORECASE)

    def check(value: str) -> str:
        parts = urlsplit(value)  # raises ValueError itself, as .port does
        if not pattern.fullmatch(value) or not parts.hostname or parts.port == 0:
            raise ValueError("not an address")
        return value

    return check


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("not a path")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # ~somebody who does not exist here
        raise ValueError("no such home") from error


def _split_paths(value: object) -> object:
    return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value


def _zone(value: str) -> str:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError("no such time zone") from error
    return value


def _network(value: object) -> IPv4Network | IPv6Network:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if not isinstance(value, str):
        raise ValueError("not a network")  # noqa: TRY004 (pydantic collects ValueErrors)
    return ip_network(value.strip(), strict=False)


@dataclass(frozen=True, slots=True)
class ActiveHours:
    """A daily window in minutes since midnight; ``end`` before ``start`` passes midnight."""

    start: int
    end: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read ``HH:MM-HH:MM`` (``24:00`` may end it); ValueError on anything else."""
        if isinstance(value, cls):
            return value
        clock = r"([01]?\d|2[0-4]):([0-5]\d)"
        found = re.fullmatch(rf"\s*{clock}\s*-\s*{clock}\s*", str(value), re.ASCII)
        if found is None:
            raise ValueError("not a window of the day")
        hour, minute, end_hour, end_minute = (int(group) for group in found.groups())
        start, end = hour * 60 + minute, end_hour * 60 + end_minute
        if start >= 24 * 60 or end > 24 * 60 or start == end:
            raise ValueError("not a window of the day")
        return cls(start, end)

    def __str__(self) -> str:
        return f"{self.start // 60:02}:{self.start % 60:02}-{self.end // 60:02}:{self.end % 60:02}"

    def covers(self, moment: time) -> bool:
        """Whether a local wall time lies in the window; the end itself does not."""
        minute = moment.hour * 60 + moment.minute
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


Whole: TypeAlias = Annotated[int, BeforeValidator(_no_bool)]
Number: TypeAlias = Annotated[float, BeforeValidator(_no_bool)]
Secret: TypeAlias = Annotated[SecretStr, BeforeValidator(_stripped)]
SecretText: TypeAlias = Annotated[SecretStr, BeforeValidator(_as_text)]
OptionalText: TypeAlias = Annotated[str | None, _EMPTY_IS_UNSET]
Identity: TypeAlias = Annotated[str, BeforeValidator(_as_text), Expected("text or a whole number")]
OptionalAddress: TypeAlias = Annotated[
    Annotated[str, AfterValidator(address_of("https?"))] | None,
    _EMPTY_IS_UNSET,
    Expected("an http:// or https:// address"),
]
OptionalProxy: TypeAlias = Annotated[
    Annotated[str, AfterValidator(address_of("https?", "socks[45]h?"))] | None,
    _EMPTY_IS_UNSET,
    Expected("an http://, https:// or socks5:// address"),
]
Directory: TypeAlias = Annotated[Path, PlainValidator(_path), Expected("the path of a directory")]
Directories: TypeAlias = Annotated[
    tuple[Directory, ...],
    BeforeValidator(_split_paths),
    Expected("a list of directories, or their paths in one text as PATH has them"),
]
OptionalDirectory: TypeAlias = Annotated[
    Directory | None, _EMPTY_IS_UNSET, Expected("the path of a directory")
]
OptionalZone: TypeAlias = Annotated[
    Annotated[str, AfterValidator(_zone)] | None,
    _EMPTY_IS_UNSET,
    Expected('a time zone such as "Europe/Berlin"'),
]
OptionalHours: TypeAlias = Annotated[
    Annotated[ActiveHours, PlainValidator(ActiveHours.parse), PlainSerializer(str)] | None,
    _EMPTY_IS_UNSET,
    Expected('a window of the day such as "08:00-22:00"'),
]
Network: TypeAlias = Annotated[
    IPv4Network | IPv6Network,
    PlainValidator(_network),
    PlainSerializer(str),
    Expected('a network such as "192.168.1.0/24"'),
]


# -------------------------------------------------------------------------------------- agents


class AgentDefaults(Section):
    """How the assistant works, unless a session or a job says otherwise."""

    workspace: OptionalDirectory = Field(
        default=None,
        description="Directory of the assistant's files. Unset: `workspace` in the home.",
    )
    model: OptionalText = Field(
        default=None,
        description="Model, such as `anthropic/claude-sonnet-4-5`. Unset: the offline model.",
    )
    provider: Annotated[
        Literal[
            "auto",
            "openrouter",
            "aihubmix",
            "anthropic",
            "openai",
            "deepseek",
            "gemini",
            "zhipu",
            "dashscope",
            "moonshot",
            "minimax",
            "vllm",
            "ollama",
            "groq",
            "mistral",
            "custom",
        ],
        _meaning({"": "auto"}),
    ] = Field(
        default="auto",
        description="Provider of the model; `auto` chooses by the model's name and the keys.",
    )
    fallback_models: tuple[str, ...] = Field(
        default=(), description="Models asked in this order when the first one fails."
    )
    max_tokens: Whole = Field(default=8192, ge=1, description="Limit of one answer, in tokens.")
    temperature: Number = Field(default=0.7, ge=0, le=2, description="Sampling temperature.")
    reasoning_effort: Annotated[
        Literal["low", "medium", "high", "off"] | None,
        _meaning(
            {
                "": None,
                "adaptive": None,
                "none": "off",
                "minimal": "low",
                "xhigh": "high",
                "max": "high",
            }
        ),
    ] = Field(
        default=None,
        description="How much models reason where `/think` has not said it. Unset: as they like.",
    )
    context_window: Whole | None = Field(
        default=None,
        ge=1024,
        description="Window of the model, in tokens. Unset: what is known of the model.",
    )
    bootstrap_file_chars: Whole = Field(
        default=20_000,
        ge=1000,
        description="Characters of one bootstrap file, or of MEMORY.md, in the prompt.",
    )
    bootstrap_chars: Whole = Field(
        default=60_000,
        ge=1000,
        description="Characters of all bootstrap files together in the prompt.",
    )
    max_tool_iterations: Whole = Field(
        default=20, ge=1, description="Model calls of one turn before it must sum up."
    )
    memory_window: Whole = Field(
        default=50,
        ge=1,
        description="Live messages of a session before the older are consolidated.",
    )
    reflect: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Ask the model to assess tool results; `auto`: if it does not reason itself.",
    )
    queue: Literal["steer", "followup", "collect", "interrupt"] = Field(
        default="steer",
        description="What a message during a turn does: steer it, wait, wait and be joined with "
        "others, or stop the turn.",
    )
    max_concurrent_turns: Whole = Field(
        default=64, ge=1, description="Turns that run at the same time, over all chats."
    )
    model_timeout_s: Whole = Field(
        default=600, ge=1, description="Wall-clock limit of one model call, in seconds."
    )
    model_idle_timeout_s: Whole = Field(
        default=120, ge=1, description="Longest silence within a model's stream, in seconds."
    )
    tool_timeout_s: Whole = Field(
        default=60,
        ge=1,
        description="Wall-clock limit of a tool call that has none of its own, in seconds.",
    )


class SubagentsConfig(Section):
    """Limits and model of subagents."""

    max_concurrent: Whole = Field(
        default=4, ge=1, description="Subagents that run at the same time; others wait."
    )
    max_iterations: Whole = Field(
        default=15, ge=1, description="Model calls of a subagent before it must sum up."
    )
    timeout_s: Whole = Field(
        default=1800, ge=1, description="Wall-clock limit of a subagent's work, in seconds."
    )
    model: OptionalText = Field(
        default=None, description="Model of subagents. Unset: that of the session they work for."
    )


class MemoryConfig(Section):
    """How conversations become memory."""

    model: str | None = Field(
        default=None, description="Model that consolidates conversations. Unset: the session's own."
    )
    timeout_s: Whole = Field(
        default=180, ge=1, description="Wall-clock limit of one consolidation call, in seconds."
    )


class AgentsConfig(Section):
    """The assistant."""

    defaults: AgentDefaults = Field(default_factory=AgentDefaults)
    subagents: SubagentsConfig = Field(default_factory=SubagentsConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)


# ----------------------------------------------------------------------------------- providers


class ModelOverride(Section):
    """What is different about one model; unset keys keep what nanobot knows."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = Field(
        default=None, description="Request field that limits the answer."
    )
    temperature: (
        Annotated[Number, Field(ge=0, le=2), Expected("a number from 0 to 2")]
        | Literal["omit"]
        | None
    ) = Field(
        default=None,
        description="The only temperature the model accepts, or `omit` to send none.",
    )
    context_window: Whole | None = Field(
        default=None, ge=1024, description="Window of the model, in tokens."
    )
    vision: bool | None = Field(default=None, description="Whether it accepts pictures.")
    reasoning: bool | None = Field(
        default=None, description="Whether it has a reasoning mode of its own."
    )


class ProviderConfig(Section):
    """An endpoint for models."""

    api_key: Secret = Field(
        default=SecretStr(""),
        description="Key. Unset: the provider's usual environment variable.",
    )
    api_base: OptionalAddress = Field(
        default=None, description="Address of the endpoint. Unset: the provider's own."
    )
    extra_headers: dict[str, SecretText] = Field(
        default_factory=dict, description="HTTP headers of each request, names letter for letter."
    )
    adapter: Literal["auto", "openai", "litellm"] = Field(
        default="auto",
        description="How to talk to it: the OpenAI protocol, or litellm; `auto` knows which.",
    )
    models: dict[str, ModelOverride] = Field(
        default_factory=dict, description="What is different about single models, by name."
    )


class ProvidersConfig(Section):
    """The endpoints that nanobot serves."""

    openrouter: ProviderConfig = Field(default_factory=ProviderConfig)
    aihubmix: ProviderConfig = Field(default_factory=ProviderConfig)
    anthropic: ProviderConfig = Field(default_factory=ProviderConfig)
    openai: ProviderConfig = Field(default_factory=ProviderConfig)
    deepseek: ProviderConfig = Field(default_factory=ProviderConfig)
    gemini: ProviderConfig = Field(default_factory=ProviderConfig)
    zhipu: ProviderConfig = Field(default_factory=ProviderConfig)
    dashscope: ProviderConfig = Field(default_factory=ProviderConfig)
    moonshot: ProviderConfig = Field(default_factory=ProviderConfig)
    minimax: ProviderConfig = Field(default_factory=ProviderConfig)
    vllm: ProviderConfig = Field(default_factory=ProviderConfig)
    ollama: ProviderConfig = Field(default_factory=ProviderConfig)
    groq: ProviderConfig = Field(default_factory=ProviderConfig)
    mistral: ProviderConfig = Field(default_factory=ProviderConfig)
    custom: ProviderConfig = Field(default_factory=ProviderConfig)


# ------------------------------------------------------------------------------------ channels


class TelegramConfig(Section):
    """The Telegram channel."""

    enabled: bool = Field(default=False, description="Whether the gateway serves the channel.")
    token: Secret = Field(default=SecretStr(""), description="Bot token from @BotFather.")
    allow_from: tuple[Identity, ...] = Field(
        default=(),
        description="Owners: numeric ids or `@name`. Empty: nobody; `*`: everybody.",
    )
    proxy: OptionalProxy = Field(default=None, description="Proxy for the Bot API.")
    api_base: OptionalAddress = Field(
        default=None, description="Root of a self-hosted Bot API server. Unset: the public one."
    )
    group_policy: Literal["mention", "open", "off"] = Field(
        default="mention",
        description="In groups, answer when addressed, always, or never.",
    )
    streaming: bool = Field(
        default=True, description="Show an answer while it is written, by editing one message."
    )
    timeout_s: Whole = Field(
        default=20, ge=1, le=45, description="Longest wait for the Bot API to answer a call."
    )
    poll_timeout_s: Whole = Field(
        default=50,
        ge=1,
        le=50,
        description="How long a poll waits for messages; less where a proxy cuts idle connections.",
    )


class PluginChannelConfig(Section):
    """A channel installed as a package; keys beyond these are the package's own."""

    model_config = ConfigDict(extra="allow")

    enabled: bool = Field(default=False, description="Whether the gateway serves the channel.")
    allow_from: tuple[Identity, ...] = Field(
        default=(), description="Owners, as that channel names them."
    )


class ChannelsConfig(Section):
    """The channels; beyond the named ones, those that installed packages bring."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, PluginChannelConfig]

    telegram: TelegramConfig = Field(default_factory=TelegramConfig)

    @property
    def plugins(self) -> dict[str, PluginChannelConfig]:
        """The configured channels that installed packages bring, by name."""
        return dict(self.__pydantic_extra__)


# ------------------------------------------------------------------------------------- gateway


class HeartbeatConfig(Section):
    """The regular check of HEARTBEAT.md."""

    enabled: bool = Field(default=True, description="Whether HEARTBEAT.md is looked at.")
    interval_s: Whole = Field(default=1800, ge=1, description="Seconds between two looks.")
    active_hours: OptionalHours = Field(
        default=None, description="When to look, such as `08:00-22:00`. Unset: always."
    )
    tz: OptionalZone = Field(
        default=None, description="Time zone of the active hours. Unset: the machine's."
    )


class GatewayConfig(Section):
    """The daemon."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address the gateway listens on."
    )
    port: Whole = Field(default=18790, ge=0, le=65535, description="Port the gateway listens on.")
    heartbeat: HeartbeatConfig = Field(default_factory=HeartbeatConfig)


# --------------------------------------------------------------------------------------- tools


class WebSearchConfig(Section):
    """The web_search tool."""

    api_key: Secret = Field(
        default=SecretStr(""),
        description="Brave Search key. Unset: `BRAVE_API_KEY`, else a keyless engine.",
    )
    max_results: Whole = Field(
        default=5, ge=1, le=10, description="Results when the model names no count."
    )


class WebConfig(Section):
    """What the model may reach over the network through tools."""

    search: WebSearchConfig = Field(default_factory=WebSearchConfig)
    allow_cidrs: tuple[Network, ...] = Field(
        default=(), description="Private networks that fetches may reach all the same."
    )


class ExecConfig(Section):
    """The exec tool."""

    timeout: Whole = Field(
        default=60, ge=1, description="Limit of a command that names none, in seconds."
    )
    sandbox: Annotated[
        Literal["auto", "require", "off"], _meaning({"": "auto", "bwrap": "require"})
    ] = Field(
        default="auto",
        description="OS sandbox: where it works, refuse without it, or none.",
    )
    network: Literal["on", "proxy", "off"] = Field(
        default="on",
        description="Network of a command: as it is, or none; `proxy` is not there yet and "
        "means none.",
    )
    path_append: Directories = Field(
        default=(), description="Further folders of programs, last on the PATH of commands."
    )


class ToolsConfig(Section):
    """What the model's tools may do."""

    web: WebConfig = Field(default_factory=WebConfig)
    exec: ExecConfig = Field(default_factory=ExecConfig)
    restrict_to_workspace: bool = Field(
        default=False,
        description="Keep file tools, and commands in their sandbox, in the workspace and /tmp.",
    )
    approval: dict[str, Literal["allow", "ask", "deny"]] = Field(
        default_factory=dict,
        description="What a tool of this name needs: nothing, the owner's yes, or refusal.",
    )


# -------------------------------------------------------------------------------------- skills


class SkillEntry(Section):
    """One skill's own settings."""

    enabled: bool = Field(default=True, description="Whether the skill is offered.")
    api_key: Secret = Field(
        default=SecretStr(""), description="Value of the skill's `primaryEnv` variable."
    )
    env: dict[str, SecretText] = Field(
        default_factory=dict,
        description="Variables of the skill's commands, unless they are set already.",
    )
    config: dict[str, Any] = Field(default_factory=dict, description="The skill's own settings.")


class SkillsLoadConfig(Section):
    """Where skills come from and when they are looked at."""

    extra_dirs: tuple[Directory, ...] = Field(
        default=(), description="Further directories of skills, lowest in rank."
    )
    watch: bool = Field(
        default=True, description="See changed skills at the next turn; else the next session."
    )
    watch_debounce_ms: Whole = Field(
        default=250, ge=0, description="Changes are looked up, not watched."
    )


class SkillsInstallConfig(Section):
    """How the dependencies of skills are installed."""

    node_manager: Literal["npm", "pnpm", "yarn", "bun"] = Field(
        default="npm", description="What installs Node packages."
    )


class SkillsRegistryConfig(Section):
    """Where skills are searched and fetched by name."""

    url: OptionalAddress = Field(
        default=None, description="Base address of the ClawHub API. Unset: the public one."
    )


class SkillsConfig(Section):
    """The skills."""

    entries: dict[str, SkillEntry] = Field(
        default_factory=dict, description="Settings of single skills, by key or name."
    )
    allow_bundled: tuple[str, ...] | None = Field(
        default=None, description="The only built-in skills to load. Unset: all."
    )
    catalogue_tokens: Whole = Field(
        default=4000,
        ge=500,
        description="The most tokens of the list of skills in a prompt; the rest is searched.",
    )
    load: SkillsLoadConfig = Field(default_factory=SkillsLoadConfig)
    install: SkillsInstallConfig = Field(default_factory=SkillsInstallConfig)
    registry: SkillsRegistryConfig = Field(default_factory=SkillsRegistryConfig)


# ----------------------------------------------------------------------------- bus and retention


class BusConfig(Section):
    """The durable queues."""

    max_queued: Whole = Field(
        default=1000,
        ge=1,
        description="Waiting messages beyond which no more of that chat are read, but commands.",
    )
    outbound_expiry_h: Whole = Field(
        default=48, ge=1, description="Hours after which an undelivered reply is given up."
    )
    retention_days: Whole = Field(
        default=30,
        ge=2,
        description="Days that done messages are kept (two at least: they prevent doubles).",
    )


class RetentionConfig(Section):
    """How long files are kept."""

    media_days: Whole = Field(default=30, ge=1, description="Days that media are kept.")
    spill_days: Whole = Field(default=14, ge=1, description="Days that long results are kept.")
    audit_days: Whole = Field(default=365, ge=1, description="Days that the audit log reaches.")


class Config(Section):
    """The whole configuration."""

    agents: AgentsConfig = Field(default_factory=AgentsConfig)
    providers: ProvidersConfig = Field(default_factory=ProvidersConfig)
    channels: ChannelsConfig = Field(default_factory=ChannelsConfig)
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    tools: ToolsConfig = Field(default_factory=ToolsConfig)
    skills: SkillsConfig = Field(default_factory=SkillsConfig)
    bus: BusConfig = Field(default_factory=BusConfig)
    retention: RetentionConfig = Field(default_factory=RetentionConfig)
