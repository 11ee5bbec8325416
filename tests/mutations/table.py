"""Which tests guard against which known failure, and a change of the code that they notice.

The numbers are those of the list of failures that assistants of this kind are known for; this
table has those of delivery, history and the platform (1-22, 44-48).
"""

from __future__ import annotations

from dataclasses import dataclass

NUMBERS = (*range(1, 23), *range(44, 49))


@dataclass(frozen=True, slots=True)
class Mutation:
    """``old`` in ``file`` becomes ``new``; then at least one of ``tests`` (node ids) has to fail.

    ``failure`` is what a user would see.
    """

    number: int
    failure: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


ACTOR = "nanobot/bus/session_actor.py"
BUS = "nanobot/bus/bus.py"
DELIVERY = "nanobot/bus/delivery.py"
DISPATCHER = "nanobot/bus/dispatcher.py"
LOG = "nanobot/session/log.py"
LOOP = "nanobot/agent/loop.py"
MESSAGE = "nanobot/tools/message.py"
POLLING = "nanobot/channels/telegram/polling.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        1,
        "one slow chat holds up every chat",
        DISPATCHER,
        "self._actor(pending.message.session_key).put(pending)",
        'self._actor("everybody").put(pending)',
        ("tests/unit/test_dispatcher.py::test_a_flood_in_one_chat_does_not_starve_another",),
    ),
    Mutation(
        2,
        "the message tool writes to the chat of another turn",
        MESSAGE,
        "        chat_id = args.chat_id or (context.chat_id if",
        '        chat_id = args.chat_id or (self.__dict__.setdefault("home", context.chat_id) if',
        (
            "tests/unit/test_turn_promises.py"
            "::test_the_message_tool_writes_to_the_chat_of_its_own_turn",
        ),
    ),
    Mutation(
        2,
        "a job's answer goes to the chat it was made in",
        "nanobot/bus/answers.py",
        '        rule.chat_id or inbound.chat_id,\n        f"{rule.note}',
        '        inbound.chat_id,\n        f"{rule.note}',
        ("tests/unit/test_turn_promises.py::test_an_answer_goes_where_its_rule_says",),
    ),
    Mutation(
        3,
        "a tool that hangs freezes its session",
        "nanobot/tools/registry.py",
        "async with asyncio.timeout(seconds) as limit:",
        "async with asyncio.timeout(None) as limit:",
        ("tests/unit/test_registry.py::test_a_tool_over_its_time_is_stopped",),
    ),
    Mutation(
        3,
        "a model that hangs freezes its session",
        "nanobot/providers/resilient.py",
        "limit = asyncio.timeout(policy.total_s)",
        "limit = asyncio.timeout(None)",
        ("tests/unit/test_retry.py::test_the_total_limit_ends_an_attempt_that_hangs",),
    ),
    Mutation(
        4,
        "a stopped turn is begun again",
        DISPATCHER,
        "        for running in turns:\n            running.stopped = True\n",
        "        for running in turns:\n",
        ("tests/unit/test_dispatcher.py::test_stop_ends_the_turn_and_leaves_the_queue",),
    ),
    Mutation(
        4,
        "/stop leaves the turn's processes running",
        "nanobot/shell/exec.py",
        "        await self._background.kill_turn(inbound_id)",
        "        del inbound_id",
        ("tests/e2e/test_background.py::test_stop_ends_what_its_turn_started_in_the_background",),
    ),
    Mutation(
        4,
        "a second message does not correct the running turn",
        ACTOR,
        "offered = [one for one in self.mailbox if one not in running.waited]",
        "offered = []",
        ("tests/unit/test_dispatcher.py::test_what_arrives_during_a_turn_steers_it",),
    ),
    Mutation(
        5,
        "a message is acknowledged before it is stored, and a kill loses it",
        POLLING,
        "            left = await self._intake.post_now(messages, poison)",
        "            import asyncio\n\n"
        "            asyncio.ensure_future(self._intake.post_now(messages, poison))\n"
        "            left = ()",
        (
            "tests/contract/test_telegram_channel.py"
            "::test_nothing_is_acknowledged_before_it_is_committed",
        ),
    ),
    Mutation(
        5,
        "what is acknowledged is not on the disk yet, and a power cut loses it",
        BUS,
        "            rows = await self._database.write(write, durable=True)",
        "            rows = await self._database.write(write)",
        (
            "tests/crash/test_syncs.py"
            "::test_a_sync_stands_before_the_acknowledgement_the_command_and_the_send",
        ),
    ),
    Mutation(
        5,
        "a command runs that the log does not know after a power cut",
        LOOP,
        "await self._append(turn, asked, durable=writes)",
        "await self._append(turn, asked)",
        (
            "tests/crash/test_syncs.py"
            "::test_a_sync_stands_before_the_acknowledgement_the_command_and_the_send",
        ),
    ),
    Mutation(
        5,
        "a message is sent that the outbox takes for unsent after a power cut",
        "nanobot/bus/outbox.py",
        "            )\n\n        await self._database.write(write, durable=True)\n\n"
        "    async def attempting",
        "            )\n\n        await self._database.write(write)\n\n    async def attempting",
        (
            "tests/crash/test_syncs.py"
            "::test_a_sync_stands_before_the_acknowledgement_the_command_and_the_send",
        ),
    ),
    Mutation(
        5,
        "after a kill the model is not told whether its message was sent, and sends it again",
        "nanobot/agent/tool_calls.py",
        "    for call in open_calls(entries):\n        asked_by",
        "    for call in ():\n        asked_by",
        (
            "tests/unit/test_turn_promises.py"
            "::test_after_a_kill_in_the_message_tool_the_model_is_told_whether_it_was_sent",
        ),
    ),
    Mutation(
        5,
        "a reply that may have been sent is sent again as if it were new",
        DELIVERY,
        "again = pieces[number].state is PieceState.ATTEMPTING and not fresh",
        "again = False",
        ("tests/unit/test_delivery.py::test_a_piece_that_was_being_sent_at_a_kill_is_marked",),
    ),
    Mutation(
        5,
        "what a stopped turn had queued lies there until the next start",
        BUS,
        "        return await asyncio.shield(task)",
        "        return await task",
        (
            "tests/unit/test_bus.py"
            "::test_what_is_committed_is_announced_although_its_writer_was_cancelled",
        ),
    ),
    Mutation(
        5,
        "a message that kills the process kills it for ever",
        ACTOR,
        "            if attempts > MAX_ATTEMPTS:\n",
        "            if attempts > 1000:\n",
        (
            "tests/unit/test_dispatcher.py"
            "::test_a_poison_message_is_parked_with_an_apology_and_the_next_goes_on",
        ),
    ),
    Mutation(
        6,
        "what was sent while the bot was down vanishes",
        POLLING,
        "self._offset: int | None = None",
        "self._offset: int | None = -1",
        (
            "tests/contract/test_telegram_channel.py"
            "::test_what_came_while_the_bot_was_down_is_taken_in_once_and_in_order",
        ),
    ),
    Mutation(
        6,
        "an update that comes twice is answered twice",
        "nanobot/bus/inbox.py",
        '"INSERT OR IGNORE INTO inbox (id, session, channel, payload, received_at) "',
        '"INSERT OR REPLACE INTO inbox (id, session, channel, payload, received_at) "',
        ("tests/unit/test_dispatcher.py::test_the_same_id_is_accepted_once",),
    ),
    Mutation(
        7,
        "Telegram goes deaf on a connection that says nothing any more",
        POLLING,
        "limit_s=poll_s + self._limits.poll_margin_s,",
        "limit_s=10_000.0,",
        (
            "tests/contract/test_telegram_channel.py"
            "::test_a_poll_that_hangs_is_given_up_and_the_connection_replaced",
        ),
    ),
    Mutation(
        7,
        "a half-dead connection is polled on",
        POLLING,
        "            await self._connections.renew_poller()\n",
        "",
        (
            "tests/contract/test_telegram_channel.py"
            "::test_after_an_unreadable_answer_the_connection_is_replaced",
        ),
    ),
    Mutation(
        8,
        "the wait that the platform asks for is not kept",
        DELIVERY,
        "delay = max(after, BACKOFF_S[min(delivery.attempts, len(BACKOFF_S) - 1)])",
        "delay = BACKOFF_S[min(delivery.attempts, len(BACKOFF_S) - 1)]",
        ("tests/unit/test_delivery.py::test_the_wait_a_platform_asks_for_is_kept",),
    ),
    Mutation(
        9,
        "pieces are longer than the platform takes: an emoji counts two",
        "nanobot/channels/text.py",
        "return len(text) + sum(1 for _ in _ASTRAL.finditer(text))",
        "return len(text)",
        ("tests/unit/test_channel_text.py",),
    ),
    Mutation(
        10,
        "the same answer twice, by the message tool and at the end",
        LOOP,
        "if _words(answer) in map(_words, turn.said):",
        "if False:",
        (
            "tests/unit/test_turn_promises.py"
            "::test_what_the_message_tool_has_said_is_not_said_again",
        ),
    ),
    Mutation(
        10,
        "an answer is suppressed because another chat has read it",
        MESSAGE,
        "        if here:\n            return ToolOutput(",
        "        if True:\n            return ToolOutput(",
        (
            "tests/unit/test_turn_promises.py"
            "::test_what_was_said_elsewhere_is_said_here_all_the_same",
        ),
    ),
    Mutation(
        11,
        "a send that is refused is swallowed",
        DELIVERY,
        "            await bus.outbox.dead_letter(message.id, str(error))\n",
        "            await bus.outbox.nothing_to_send(message.id)\n",
        (
            "tests/unit/test_delivery.py"
            "::test_a_refusal_for_good_is_a_dead_letter_and_the_next_goes_on",
        ),
    ),
    Mutation(
        12,
        "a stranger's message is looked at before the allow list",
        "nanobot/channels/telegram/updates.py",
        "        if role is None:\n",
        "        message = Message.model_validate(update.message)\n        if role is None:\n",
        (
            "tests/unit/test_telegram_updates.py"
            "::test_a_stranger_is_turned_away_before_the_message_is_looked_at",
        ),
    ),
    Mutation(
        12,
        "typing for ever",
        "nanobot/channels/telegram/sending.py",
        "until = self._time.monotonic() + self._limits.typing_most_s",
        "until = self._time.monotonic() + 10 * self._limits.typing_most_s",
        (
            "tests/contract/test_telegram_sending.py"
            "::test_typing_never_lasts_longer_than_five_minutes",
        ),
    ),
    Mutation(
        13,
        "a child that hides in a session of its own outlives its command",
        "nanobot/shell/supervisor.py",
        "    _become_subreaper()\n    wake",
        "    wake",
        ("tests/unit/test_sandbox.py::test_an_escape_artist_does_not_survive_its_time",),
    ),
    Mutation(
        13,
        "each command leaves a descriptor open",
        "nanobot/shell/process_tree.py",
        "            os.close(self._output)\n",
        "",
        ("tests/unit/test_sandbox.py::test_many_commands_leave_no_descriptor_thread_or_zombie",),
    ),
    Mutation(
        14,
        "SIGTERM hangs on a running turn",
        "nanobot/gateway.py",
        "GRACE_S = 3.5\n",
        "GRACE_S = 30.0\n",
        (
            "tests/e2e/test_gateway.py"
            "::test_sigterm_in_a_turn_leaves_at_once_and_the_turn_is_finished_later",
        ),
    ),
    Mutation(
        15,
        "a chat that cannot be written to delays all others",
        DELIVERY,
        "chat = self._chat(undelivered.message.chat_id)",
        'chat = self._chat("")',
        ("tests/unit/test_delivery.py::test_a_chat_that_hangs_delays_no_other",),
    ),
    Mutation(
        16,
        "a call without its result bricks the session",
        "nanobot/session/entries.py",
        "            messages.append(results.get(call.id) or "
        "ToolMessage(call.id, call.name, interrupted))\n",
        "            if call.id in results:\n                messages.append(results[call.id])\n",
        (
            "tests/unit/test_history.py::test_a_missing_result_is_told_as_interrupted",
            "tests/crash/test_log_damage.py"
            "::test_every_request_is_legal_whatever_was_cut_from_or_written_over_the_log",
        ),
    ),
    Mutation(
        17,
        "what stands in for an answer is stored as the assistant's words",
        LOOP,
        "        if response.content.strip():\n            entries.append",
        "        response = replace(response, content=response.content or NO_ANSWER)\n"
        "        if response.content.strip():\n            entries.append",
        (
            "tests/unit/test_agent_loop.py"
            "::test_an_answer_that_stays_empty_is_a_fixed_line_outside_the_history",
        ),
    ),
    Mutation(
        18,
        "a session that has grown too large is never answered again",
        "nanobot/agent/window.py",
        "        elif view.talk <= FULL * room:\n",
        "        else:\n",
        (
            "tests/unit/test_turn_promises.py"
            "::test_a_session_of_five_million_characters_is_answered",
        ),
    ),
    Mutation(
        19,
        "a picture goes out under the wrong type",
        "nanobot/tools/images.py",
        '    if head.startswith(b"\\xff\\xd8\\xff"):\n        return "image/jpeg"',
        '    if head.startswith(b"\\xff\\xd8\\xff"):\n        return "image/png"',
        ("tests/unit/test_images.py::test_a_picture_is_known_by_its_first_bytes",),
    ),
    Mutation(
        19,
        "a model that cannot see is sent pictures",
        LOOP,
        "as_shown(turn.messages, vision=chosen.vision, model=chosen.model)",
        "as_shown(turn.messages, vision=True, model=chosen.model)",
        (
            "tests/unit/test_image_turns.py"
            "::test_a_model_that_cannot_see_is_told_and_so_is_who_asks",
        ),
    ),
    Mutation(
        20,
        "a clock in the system prompt: the cache never hits",
        "nanobot/agent/context.py",
        "        return SEPARATOR.join(part.text for part in self.parts(role, skills))",
        "        import time\n\n        texts = [part.text for part in self.parts(role, skills)]\n"
        "        return SEPARATOR.join([*texts, str(time.time_ns())])",
        (
            "tests/unit/test_turn_promises.py"
            "::test_over_fifty_turns_each_request_begins_with_the_whole_former_one",
        ),
    ),
    Mutation(
        21,
        "a header that the model parrots is shown",
        "nanobot/core/turn_header.py",
        '    return _PARROTED.sub("", text)',
        "    return text",
        ("tests/unit/test_agent_loop.py::test_a_parroted_header_reaches_nobody",),
    ),
    Mutation(
        21,
        "reasoning that is cut off is shown as the answer",
        "nanobot/providers/answer.py",
        "return Split(reasoning=held) if self._place is _Place.REASONING else Split(answer=held)",
        "return Split(answer=held)",
        ("tests/unit/test_thinking.py",),
    ),
    Mutation(
        22,
        "each turn reads the whole past",
        LOG,
        "    rows = _rows(connection, key, row[0] - 1, -1, trimmed, newest_first=True)\n",
        "    rows = [\n"
        "        one\n"
        "        for one in _rows(connection, key, 0, -1, trimmed, newest_first=True)\n"
        "        if one[0] >= row[0]\n"
        "    ]\n",
        (
            "tests/unit/test_turn_promises.py"
            "::test_a_turn_costs_the_same_after_ten_thousand_messages",
        ),
    ),
    Mutation(
        44,
        "one damaged line hides the conversation behind it",
        LOG,
        'entry {} of session {}: {}", seq, key, error)\n\n\ndef time_of',
        'entry {} of session {}: {}", seq, key, error)\n            return\n\n\ndef time_of',
        ("tests/unit/test_session_log.py::test_damaged_rows_are_left_out",),
    ),
    Mutation(
        44,
        "one damaged page costs the whole state",
        "nanobot/store/salvage.py",
        "                ranges += [(middle + 1, high), (low, middle)]\n",
        "                del middle\n",
        (
            "tests/unit/test_database.py"
            "::test_a_page_found_damaged_by_a_read_costs_the_rows_on_it_alone",
        ),
    ),
    Mutation(
        44,
        "after a damaged state is replaced, new messages are taken for old ones",
        "nanobot/store/salvage.py",
        "(table, max(last, now))",
        "(table, last)",
        ("tests/unit/test_database.py::test_after_a_rebuild_no_number_is_given_out_again",),
    ),
    Mutation(
        45,
        "a config with mistakes silently runs on defaults",
        "nanobot/config/load.py",
        "    if problems := reading.problems():\n",
        "    if (problems := reading.problems()) and not problems:\n",
        ("tests/e2e/test_config_errors.py::test_a_wrong_key_names_file_path_and_the_nearest_key",),
    ),
    Mutation(
        45,
        "the names of headers and variables are rewritten",
        "nanobot/config/load.py",
        "            return name, node.values",
        "            return name.lower(), node.values",
        ("tests/unit/test_config_loader.py::test_every_family_key_is_read",),
    ),
    Mutation(
        46,
        "eager imports make every command slow",
        "nanobot/cli/main.py",
        "    _streams()\n    try:\n",
        "    import pydantic  # noqa: F401\n\n    _streams()\n    try:\n",
        ("tests/e2e/test_imports.py::test_light_commands_load_nothing_heavy",),
    ),
    Mutation(
        47,
        "the config is read in the locale's encoding",
        "nanobot/config/load.py",
        'return path.read_bytes().decode("utf-8-sig")',
        'return path.read_bytes().decode("latin-1")',
        ("tests/unit/test_config_loader.py::test_a_byte_order_mark_and_any_locale_are_fine",),
    ),
    Mutation(
        48,
        "an answer is lost when the disk is full",
        "nanobot/bus/settling.py",
        "            except StoreError as error:\n"
        "                self._waiters.tell(inbound.id, AskResult(error=error))\n"
        "            else:\n"
        "                return\n",
        "            except StoreError as error:\n"
        "                self._waiters.tell(inbound.id, AskResult(error=error))\n"
        "            return\n",
        ("tests/unit/test_dispatcher_faults.py::test_a_full_disk_is_waited_out",),
    ),
    Mutation(
        48,
        "a full disk is not told from a message that fails, which is parked",
        ACTOR,
        "        if isinstance(error, StoreError):\n            raise error\n",
        "",
        (
            "tests/unit/test_dispatcher_faults.py"
            "::test_a_disk_that_is_full_for_long_costs_no_attempt",
        ),
    ),
)
