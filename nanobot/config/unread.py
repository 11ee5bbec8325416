"""Keys of the schema that nothing reads yet: deleting its line here makes a key served.

A key set to another value than its default is named in the warning of what is ignored. One set to
a value that would protect keeps the program from starting.
"""

from __future__ import annotations

from collections.abc import Mapping

UNREAD: Mapping[str, tuple[object, ...]] = {
    "channels.telegram.groupPolicy": (),  # groups are not served
    "channels.telegram.streaming": (),
    "gateway.host": (),
    "gateway.port": (),
    "retention.auditDays": (),
    "skills.load.watchDebounceMs": (),
    "tools.approval.<name>": ("ask", "deny"),
}
"""Key to the values that would protect."""
