"""One record of what happened: typed events, where they go, and how they are read back.

Progress bars, reports, traces, the journal's views and tests all read these events and nothing else.
Times are seconds since the run began (``t``, ``start_s``, ``stop_s``); ``RunStarted.unix_s`` says when that
was.

    emit ──► EventLog ──► sinks: a list in memory, events.jsonl, a progress bar, ...
"""

from evenload.events import kinds
from evenload.events.event_log import EventFile, EventLog, read_events
from evenload.events.json_lines import decode, encode, json_text
from evenload.events.kinds import *  # noqa: F403 - each kind of event is named once, there

__all__ = ["EventFile", "EventLog", "decode", "encode", "json_text", "read_events"]
__all__ += kinds.__all__
