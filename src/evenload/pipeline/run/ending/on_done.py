"""Tell others that a run has ended: a command, or an address that gets the summary.

What goes wrong here is said, and changes neither the results nor the exit code: the run is over.
"""

import http.client
import os
import random
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evenload.errors import quoted, reason_of
from evenload.events import json_text
from evenload.pipeline.dispatch.results import PipelineResult
from evenload.pipeline.job.spec_settings import OnDoneSection, fault_of_address
from evenload.pipeline.stages.model_servers import BUSY
from evenload.pipeline.stages.server_pace import pause_s, seconds_of

MOST_SENT_BYTES = 256 << 10
MOST_SAID_BYTES = 2000
_LARGE = ("failures", "summary", "headline", "counts")  # left out in this order where all is too much


def tell_done(
    section: OnDoneSection | None,
    result: PipelineResult,
    job: str,
    folder: Path,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Tell of ``result`` as ``section`` says; returns why that failed, one sentence, or nothing.

    folder  of the job file
    """
    if section is None:
        return []
    if section.command:
        return _run(section, _environment(result), folder)
    return _post(section, _body({"job": job, **result.to_json()}), sleep)


def _environment(result: PipelineResult) -> dict[str, str]:
    facts = {
        "FOLDER": result.folder,
        "STATUS": result.status,
        "ITEMS": len(result.items),
        "DONE": result.n_done,
        "FAILED": len(result.failures),
        "FILTERED": result.n_filtered,
        "UNFINISHED": result.item_counts["unfinished"],
    }
    return {f"EVENLOAD_RUN_{name}": str(value) for name, value in facts.items()}


def _run(section: OnDoneSection, environment: Mapping[str, str], folder: Path) -> list[str]:
    program = section.command[0]
    beside = folder / program
    words = [str(beside) if "/" in program and beside.is_file() else program, *section.command[1:]]
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                words, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return [f"on_done: {quoted(program)} cannot be started: {reason_of(error)}"]
        try:
            code = process.wait(section.timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            return [f"on_done: {quoted(program)} was ended after {section.timeout_s:g} s"]
        if not code:
            return []
        said.seek(max(0, said.seek(0, os.SEEK_END) - MOST_SAID_BYTES))
        last = said.read(MOST_SAID_BYTES).decode("utf-8", "replace").strip()
    how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
    return [f"on_done: {quoted(program)} {how}{': ' + quoted(last[-200:]) if last else ''}"]


def _kill(process: subprocess.Popen) -> None:
    """End the command with all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        process.kill()
    process.wait()


def _body(told: dict[str, Any]) -> bytes:
    """Return the summary as JSON, without its longest parts where it would be too long."""
    body = json_text(told).encode("utf-8", "backslashreplace")
    for name in _LARGE:
        if len(body) <= MOST_SENT_BYTES:
            break
        told = {key: value for key, value in told.items() if key != name}
        body = json_text({**told, "is_cut": True}).encode("utf-8", "backslashreplace")
    return body


def _post(section: OnDoneSection, body: bytes, sleep: Callable[[float], None]) -> list[str]:
    """Send ``body`` until somebody takes it; a redirect is no answer, wherever it leads."""
    url = section.url or os.environ.get(section.url_env or "", "")
    token = os.environ.get(section.token_env, "") if section.token_env else ""
    if fault := fault_of_address(url):
        return [
            f"on_done: {'the address in ' + section.url_env if section.url_env else fault} cannot be used"
        ]
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    opener, why = urllib.request.build_opener(NoRedirects), ""
    for attempt in range(section.retries + 1):
        wanted_s = None
        try:
            request = urllib.request.Request(url, body, headers)
            with opener.open(request, timeout=section.timeout_s):
                return []
        except urllib.error.HTTPError as error:
            with error:
                why, is_busy = f"answered {error.code}", error.code in BUSY or error.code >= 500
            wanted_s = seconds_of(error.headers.get("Retry-After"))
            if not is_busy:
                break
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = f"cannot be reached ({type(error).__name__})"
        if attempt < section.retries:
            sleep(pause_s(attempt, wanted_s, random.random()))
    return [f"on_done: {urlsplit(url).hostname} {why}, and was not told"]


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: the token goes to no other server."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None
