"""OpenAI's batch files: a request on each line goes in, and an answer or an error for each comes out."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evenload._private_files import lines_within, plain_file
from evenload.errors import quoted
from evenload.events import json_text
from evenload.pipeline.json_values import is_json

BODY = "body"  # the column with a line's request
URL = "/v1/chat/completions"
MOST_LINE_BYTES = 64 << 20
MOST_ID_LETTERS = 512


def batch_rows(file: Path, id_column: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield each request with its line number; a text in its place says what is wrong with the line.

    Raises OSError for a line of more than 64 MiB.
    """
    first: dict[str, int] = {}
    with plain_file(file) as opened:
        for number, line in enumerate(lines_within(opened, str(file), MOST_LINE_BYTES), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"is not JSON: {error}"
                continue
            if fault := _fault(row):
                yield number, fault
            elif (name := row["custom_id"]) in first:
                yield (
                    number,
                    f"has the custom_id {quoted(name)} of line {first[name]}; give it one of its own",
                )
            else:
                first[name] = number
                yield number, {BODY: row["body"], id_column: name}


def _fault(row: Any) -> str:
    """Return what is wrong with a request, in words that go on after its line; "" if nothing is."""
    if not isinstance(row, dict):
        return "is not a JSON object"
    name, body = row.get("custom_id"), row.get("body")
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_ID_LETTERS:
        return f"has the custom_id {quoted(name, 80)}; write a text of 1 to {MOST_ID_LETTERS} letters"
    for key, only in (("method", "POST"), ("url", URL)):
        if row.get(key) != only:
            return f"has the {key} {quoted(row.get(key), 80)}; only {only} can be asked"
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        return f"has the body {quoted(body, 80)}; write an object with a list of messages"
    if not is_json(body):
        return "has a body that is too deep, or with a number beyond a float"
    return (
        "asks for a stream, which no file can hold; take `stream` out of its body"
        if body.get("stream")
        else ""
    )


def batch_line(row: Mapping[str, Any]) -> str:
    """Write an item's row as a line of the output: the server's answer if there is one, else an error."""
    answer, error = row["outputs"].get("response"), row["error"]
    if isinstance(answer, str):
        told = {"response": json.loads(answer), "error": None}
    else:
        status = row["status"]
        why = error or {
            "type": status,
            "message": f"the item is {status}, and no stage kept an answer for it",
        }
        told = {"response": None, "error": {"code": why["type"], "message": why["message"]}}
    digest = hashlib.sha256(json_text(row["id"]).encode()).hexdigest()
    return json_text({"id": f"batch_req_{digest[:32]}", "custom_id": row["id"], **told}) + "\n"
