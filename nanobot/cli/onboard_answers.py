"""How `nanobot onboard` gets its answers: from flags alone, or by asking at the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from getpass import getpass
from typing import TypeAlias

from nanobot.cli.onboard_plan import (
    SUGGESTED,
    Answers,
    Checked,
    Found,
    Present,
    check_endpoint,
    provider_by_key,
    provider_by_model,
    split_ids,
    wrong_base,
    wrong_ids,
    wrong_key,
    wrong_token,
)
from nanobot.cli.show import printable
from nanobot.core.errors import ConfigError
from nanobot.providers import ollama
from nanobot.providers.catalogue import BY_NAME, SPECS

_Wrong: TypeAlias = Callable[[str], str]
"""Says what is wrong with an answer, "" for nothing."""

_REMARKS = {
    "openrouter": "one key for nearly every model",
    "ollama": "models on this machine",
    "vllm": "your own vLLM server",
    "custom": "any server of the OpenAI kind: LM Studio, llama.cpp, LiteLLM, …",
}
_NONE = "none"


# --------------------------------------------------------------------------------- from flags


def from_flags(given: Answers, found: Found, present: Present, *, check: bool) -> Answers:
    """The flags, completed by what was found here; raises ConfigError for what is missing."""
    _check_flags(given)
    provider = _provider_of(given, found, present)
    if not provider:
        return given
    if given.api_key and (wrong := wrong_key(given.api_key, provider)):
        raise ConfigError(f"--api-key: {wrong}")
    answers = replace(given, provider=provider, api_base=_base(provider, given, present))
    if not (answers.api_base or present.base_of(provider)):
        raise ConfigError(f"{provider} needs its address: --api-base http://…/v1")
    listed = _look_at(answers, present) if check else ()
    if present.model and not given.model:
        return answers
    model = given.model or _default_model(provider, found, listed)
    if not model:
        raise ConfigError(f"--model is missing: nanobot knows no model of {provider} to suggest")
    return replace(answers, model=model)


def _check_flags(given: Answers) -> None:
    """Raise ConfigError for the first flag with an invalid value."""
    for wrong, value, flag in (
        (_wrong_provider(given.provider), given.provider, "--provider"),
        (wrong_base(given.api_base), given.api_base, "--api-base"),
        (wrong_token(given.telegram_token), given.telegram_token, "--telegram-token"),
        (wrong_ids(given.allow_from), given.allow_from, "--allow-from"),
    ):
        if value and wrong:
            raise ConfigError(f"{flag}: {wrong}")


def _provider_of(given: Answers, found: Found, present: Present) -> str:
    """The provider that the flags name or imply, else one that can be used at once."""
    if given.provider:
        return given.provider
    if given.api_base:
        return "custom"
    implied = provider_by_model(given.model) or provider_by_key(given.api_key)
    if implied:
        return implied
    if given.model or given.api_key:
        raise ConfigError(f"--provider is missing: one of {', '.join(BY_NAME)}")
    if present.model:
        return ""
    return found.providers[0] if found.providers else ""


def _wrong_provider(name: str) -> str:
    if name in BY_NAME:
        return ""
    near = get_close_matches(name.lower(), BY_NAME, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(BY_NAME)}"
    return f"“{printable(name)}” is no provider{hint}"


def _base(provider: str, given: Answers, present: Present) -> str:
    """The address to store; Ollama always has one, so that its models lead to no other provider."""
    if provider == "ollama" and not given.api_base:
        return ollama.base(present.environ)
    return given.api_base


def _look_at(answers: Answers, present: Present) -> tuple[str, ...]:
    """Print whether the endpoint answers; returns the models it lists."""
    checked = _checked(answers, present)
    if checked is None:
        return ()
    print(f"{checked.sentence}.")
    model, listed = answers.model, checked.models
    if model and listed and not _is_listed(model, answers.provider, listed):
        print(_not_listed(model, listed))
    return listed


def _is_listed(model: str, provider: str, listed: tuple[str, ...]) -> bool:
    return model in listed or model.removeprefix(f"{provider}/") in listed


def _checked(answers: Answers, present: Present) -> Checked | None:
    """The result of the check, None for an endpoint of another protocol than OpenAI's."""
    base = answers.api_base or present.base_of(answers.provider)
    if BY_NAME[answers.provider].native or not base:
        return None
    checked = check_endpoint(base, answers.api_key or present.key_of(answers.provider))
    return replace(checked, sentence=printable(checked.sentence))


def _not_listed(model: str, listed: tuple[str, ...]) -> str:
    near = get_close_matches(model, listed, n=3, cutoff=0.4)
    return f"It does not list {model}" + (f"; near: {', '.join(near)}." if near else ".")


def _default_model(provider: str, found: Found, listed: tuple[str, ...]) -> str:
    """The model to suggest, "" for none."""
    if provider == "ollama" and found.ollama:
        return found.ollama[0]
    suggested = SUGGESTED.get(provider, "")
    if not listed or suggested in listed:
        return suggested
    if not suggested:
        return listed[0]
    return next(iter(get_close_matches(suggested, listed, n=1, cutoff=0.4)), suggested)


# --------------------------------------------------------------------------- at the terminal


def from_person(given: Answers, found: Found, present: Present, *, check: bool) -> Answers:
    """Ask for what neither flags nor the config say; EOFError and KeyboardInterrupt give up."""
    _check_flags(given)
    asked = _ask_for_model(given, found, present, check=check)
    return _ask_for_telegram(asked, present)


def _ask_for_model(given: Answers, found: Found, present: Present, *, check: bool) -> Answers:
    if present.model:
        print(present.model_in_words(" (as configured)"))
        provider = given.provider or present.keyless_provider()
        if not provider or present.key_of(provider) or BY_NAME[provider].keyless:
            return given
        return replace(given, provider=provider, api_key=given.api_key or _ask_key(provider))
    while True:
        provider = given.provider or _ask_provider(found)
        if provider == _NONE:
            return given
        answers = replace(given, provider=provider, api_base=_base(provider, given, present))
        spec = BY_NAME[provider]
        if not (answers.api_base or present.base_of(provider)):
            answers = replace(answers, api_base=_ask("Its address", wrong_base))
        if provider in found.keys:
            print(f"Its key stays in {found.keys[provider]}; the config needs none.")
        elif not (answers.api_key or present.key_of(provider) or provider == "ollama"):
            answers = replace(answers, api_key=_ask_key(provider))
            if not (answers.api_key or spec.keyless):
                given = replace(given, provider="")
                continue
        answers, listed = _ask_until_accepted(answers, present) if check else (answers, ())
        return replace(answers, model=given.model or _ask_model(provider, found, listed))


def _ask_provider(found: Found) -> str:
    """Which provider: a number of the list, or a name."""
    ready = {
        **({"ollama": f"runs at {found.ollama_at}: {_some(found.ollama)}"} if found.ollama else {}),
        **{name: f"{variable} is set" for name, variable in found.keys.items()},
    }
    others = [spec.name for spec in SPECS if spec.name not in ready]
    names = [*ready, *others, _NONE]
    print("Who serves your model?")
    for number, name in enumerate(names, 1):
        remark = ready.get(name) or _REMARKS.get(name, "")
        if name == _NONE:
            remark = "for now: the small offline model answers"
        print(f"  {number:>2}  {name:<11} {remark}".rstrip())

    def wrong(answer: str) -> str:
        if answer.isascii() and answer.isdigit():
            return "" if 1 <= int(answer) <= len(names) else f"the numbers go to {len(names)}"
        return "" if answer.lower() == _NONE else _wrong_provider(answer.lower())

    answer = _ask("Number or name", wrong, default=next(iter(ready), _NONE))
    return names[int(answer) - 1] if answer.isdigit() else answer.lower()


def _ask_key(provider: str) -> str:
    otherwise = "none" if BY_NAME[provider].keyless else "choose another provider"
    return _ask_secret_key(f"Key of {provider} (not shown; Enter: {otherwise})", provider)


def _ask_secret_key(question: str, provider: str) -> str:
    return _ask(question, lambda key: wrong_key(key, provider), optional=True, secret=True)


def _ask_until_accepted(answers: Answers, present: Present) -> tuple[Answers, tuple[str, ...]]:
    """Check the key at the endpoint; while it is refused, ask for another one."""
    provider = answers.provider
    while (checked := _checked(answers, present)) is not None:
        print(f"{checked.sentence}.")
        if not (checked.is_refused and answers.api_key):
            return answers, checked.models
        other = _ask_secret_key("Another key (not shown; Enter: keep this one)", provider)
        if not other:
            return answers, ()
        answers = replace(answers, api_key=other)
    return answers, ()


def _ask_model(provider: str, found: Found, listed: tuple[str, ...]) -> str:
    default = _default_model(provider, found, listed)
    if listed:
        print(f"Models: {_some(listed, 8)}")
    while True:
        model = _ask("Model", lambda answer: "", default=default)
        if not listed or _is_listed(model, provider, listed) or model == default:
            return model
        print(_not_listed(model, listed) + " Enter takes it all the same.")
        default = model


def _ask_for_telegram(given: Answers, present: Present) -> Answers:
    telegram = present.loaded.config.channels.telegram
    token = given.telegram_token
    if telegram.token:
        print("Telegram: has a bot token (as configured).")
    elif not token:
        token = _ask(
            "Telegram bot token from @BotFather (not shown; Enter: no Telegram)",
            wrong_token,
            optional=True,
            secret=True,
        )
    allow_from = given.allow_from
    if (token or telegram.token) and not (allow_from or telegram.allow_from):
        answer = _ask(
            "Your own Telegram id, a number that @userinfobot tells you (Enter: later)",
            lambda text: wrong_ids(split_ids(text)),
            optional=True,
        )
        allow_from = split_ids(answer)
    return replace(given, telegram_token=token, allow_from=allow_from)


def _ask(
    question: str, wrong: _Wrong, *, default: str = "", optional: bool = False, secret: bool = False
) -> str:
    """An answer with nothing wrong, "" where it is optional; Enter takes the default.

    ``secret``: the answer is not shown while it is typed.
    """
    prompt = f"{question} [{default}]: " if default else f"{question}: "
    read = getpass if secret else input
    while True:
        answer = read(prompt).strip() or default
        if not answer and optional:
            return ""
        problem = wrong(answer) if answer else "there has to be an answer"
        if not problem:
            if secret:
                print(f"  ({len(answer)} characters)")
            return answer
        print(f"  {printable(problem)}")


def _some(names: tuple[str, ...], count: int = 3) -> str:
    shown = printable(", ".join(names[:count]))
    return shown if len(names) <= count else f"{shown}, and {len(names) - count} more"
