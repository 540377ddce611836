"""The live page: a run's events as they are written, in a browser.

    events.jsonl ──► Follower ──► Board ──► Frames ──► any number of viewers
    (the run)        (a thread of the page's own process)   (server-sent events)

The run writes its file and knows nothing of the page. A viewer holds no queue: it is sent the newest state
whenever it has taken the last one, so one that stalls misses frames and costs nothing.
"""

from evenload.dashboard.board import Board
from evenload.dashboard.feed import Feed
from evenload.dashboard.server import Address, serve, serve_page
from evenload.report.source import Follower

__all__ = ["Address", "Board", "Feed", "Follower", "serve", "serve_page"]
