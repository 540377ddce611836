"""Damaged, hostile and nonsensical traces: a sentence, or an audit of what could be read."""

import gzip
import json
import math
import random
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from planted_traces import FORMATS

from evenload.audit import page
from evenload.audit.audit import AuditParts, audit_of
from evenload.audit.page import audit_view
from evenload.audit.readers import json_elements, trace_file
from evenload.audit.recording import EXCHANGE, WORK
from evenload.audit.traces import AuditOptions, audit_traces, read_trace
from evenload.cli.audit import audit as audit_command
from evenload.errors import ConfigError, EvenloadError, FormatError

SCHEDULE = [[WORK] * 4 + [None] * 5 + [EXCHANGE, WORK], [None, WORK, WORK, None, WORK] + [None] * 6]
N_MUTANTS = 25
BEYOND = ({"ts": 1, "dur": 1e308}, {"ts": -1e308, "dur": 1})  # finite in µs, not in ns
SHARDS = (
    b'" } { [ ] , \0 \xff\xfe NaN 1e999 -1 null \\ "ts":-4e18 "dur":"x" "ph":7 \x1b[31m <script> %'.split()
)
SHARDS += [b"\n", b"9" * 400, b'{"a":' * 300]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The content with a few bytes cut, doubled, changed, or with a shard put in."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(content) + 1)
        to = min(len(content), at + chance.choice((1, 1, 3, 40)))
        what = chance.choice(("cut", "double", "change", "shard", "shard", "end"))
        if what == "cut":
            content = content[:at] + content[to:]
        elif what == "double":
            content = content[:to] + content[at:]
        elif what == "change":
            content = content[:at] + bytes(chance.randrange(256) for _ in range(to - at)) + content[to:]
        elif what == "shard":
            content = content[:at] + chance.choice(SHARDS) + content[to:]
        elif chance.random() < 0.3:
            content = content[:at]
    return content


def holds_up(path: Path) -> None:
    """An audit of the file ends in a result whose sums hold, or in one of our errors, in one sentence."""
    try:
        found = audit_traces([path])
    except EvenloadError as error:
        said = error
    else:
        assert found.work_ns + sum(found.lost_ns.values()) == found.wall_ns * len(found.devices)
        assert json.loads(json.dumps(found.to_json(), allow_nan=False))
        return
    assert "\n" not in said.message
    assert said.exit_code in (1, 2)


@pytest.mark.parametrize("name", FORMATS)
def test_mutants_of_every_format(name, tmp_path):
    chance = random.Random(name)
    FORMATS[name](SCHEDULE, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    packed = name.endswith(".gz")
    for at in range(N_MUTANTS):
        if packed and at % 2:
            changed = gzip.compress(mutated(gzip.decompress(content), chance), 1)
        else:
            changed = mutated(content, chance)
        (tmp_path / name).write_bytes(changed)
        holds_up(tmp_path / name)


def events(*rows: object, **head: object) -> bytes:
    good = [{"ph": "X", "name": "a", "cat": "kernel", "pid": 0, "tid": 7, "ts": 0, "dur": 10}]
    good += [{"ph": "X", "name": "a", "cat": "kernel", "pid": 1, "tid": 7, "ts": 5, "dur": 15}]
    return json.dumps({**head, "traceEvents": [*good, *rows]}).encode()


NONSENSE: dict[str, bytes] = {
    "numbers": events(1, None, "x", [], True),
    "no phase": events({}, {"ph": None}, {"ph": 3}, {"ph": ["X"]}),
    "times": events(
        *({"ph": "X", "cat": "kernel", "pid": 0, "ts": t, "dur": 5} for t in (None, "x", [], -1e300))
    ),
    "lengths": events(
        *({"ph": "X", "cat": "kernel", "pid": 0, "ts": 1, "dur": d} for d in (-5, None, 1e300, "y"))
    ),
    "not finite": events().replace(b'"ts": 0', b'"ts": NaN').replace(b'"dur": 15', b'"dur": Infinity'),
    "rows": events(
        *({"ph": "X", "cat": "kernel", "pid": p, "ts": 1, "dur": 2} for p in (1.5, None, [], {}, 2**70))
    ),
    "names": events(
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": ["x"]}}, {"ph": "M", "args": 1}
    ),
    "a year": events({"ph": "X", "cat": "kernel", "pid": 0, "ts": 1e16, "dur": 3}),
    "beyond numbers": events(*({"ph": "X", "cat": "kernel", "pid": 0, **far} for far in BEYOND)),
    "ends": events(*({"ph": p, "pid": 0, "tid": 1, "ts": 1} for p in "EEBBB")),
    "base": events(baseTimeNanoseconds="x", distributedInfo={"rank": "7"}, deviceProperties=3),
    "deep": b'{"traceEvents": [' + b'{"a":' * 100_000,
    "in a string": b'{"x": "\\"traceEvents\\": [1]", "traceEvents": [{"ph": "X", "ts": 1, "dur": 2}]}',
    "an end too early": b'{"traceEvents": []}, {"ph": "X"}',
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_left_out(kind, tmp_path):
    (tmp_path / "trace.json").write_bytes(NONSENSE[kind])
    holds_up(tmp_path / "trace.json")
    if kind not in ("not finite", "deep", "in a string", "an end too early"):
        found = audit_traces([tmp_path / "trace.json"])
        names = [one.name for one in found.devices][:2]
        assert names in (["gpu:0", "gpu:1"], ["gpu:", "gpu:0"], ["gpu:0", "gpu:1.5"])
        assert found.work_ns == 25_000 or kind == "rows"


@pytest.mark.parametrize("name", ["torch.json.gz", "cpu.json", "ray.json", "dask.json"])
def test_without_msgspec_the_same_is_read(name, tmp_path, monkeypatch):
    """Every element by Python's json: the slow twin of the typed decoder."""
    FORMATS[name](SCHEDULE, tmp_path / name)
    fast = audit_traces([tmp_path / name])
    monkeypatch.setattr(json_elements, "is_installed", lambda _: False)
    assert audit_traces([tmp_path / name]) == fast


@pytest.mark.parametrize("block", [64, 300, 5000])
def test_blocks_may_end_anywhere(block, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    row = {"ph": "X", "cat": "kernel", "name": 'é}, {"[', "dur": 1, "args": {"l": [{}, {}]}}
    rows = [{**row, "pid": at % 3, "ts": at} for at in range(200)]
    text = json.dumps({"traceEvents": rows, "more": [{}, {}]}, ensure_ascii=False, indent=1)
    path.write_text(text, "utf-8")
    whole = audit_traces([path])
    monkeypatch.setattr(json_elements, "BLOCK_BYTES", block)
    assert audit_traces([path]) == whole
    assert whole.n_spans == 200
    assert not whole.faults


@pytest.mark.parametrize(
    "damaged",
    [
        '{"ph": "X", "cat": "kernel", pid: 0, "ts": 40}',
        '{"ph": "X", bad, "args": [{"a": [{}, {}]}, {"b": 1}], "pid": 0, "ts": 40, "dur": 1}',
    ],
)
def test_a_damaged_event_costs_itself_alone(tmp_path, damaged):
    """What follows is read, also where the end of a list within looks like that of all events."""
    path = tmp_path / "trace.json"
    rows = [f'{{"ph": "X", "cat": "kernel", "pid": 0, "ts": {at}, "dur": 0.5}}' for at in range(100)]
    rows[40] = damaged
    path.write_text('{"traceEvents": [' + ",\n".join(rows) + "]}")
    found = audit_traces([path])
    assert found.n_spans == 99
    assert any("damaged" in one for one in found.faults)


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_file, "FREE_BYTES", 1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b"[" + b" " * (16 << 20)))
    with pytest.raises(FormatError, match="longer than any trace"):
        audit_traces([tmp_path / "bomb.json.gz"])


def test_an_element_that_never_ends_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(json_elements, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(json_elements, "MOST_ELEMENT", 1 << 14)
    monkeypatch.setattr(json_elements, "NEAR", 1 << 8)
    (tmp_path / "long.json").write_bytes(events()[:-2] + b', {"ph": "' + b"x" * (1 << 17))
    found = audit_traces([tmp_path / "long.json"])
    assert found.n_spans == 2
    assert any("damaged" in one for one in found.faults)


def replaced_by_view(database: sqlite3.Connection) -> None:
    database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO k")
    database.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM k")
    database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY")


def other_columns(database: sqlite3.Connection) -> None:
    database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN deviceId TO gpu")


def other_types(database: sqlite3.Connection) -> None:
    rows = [("x", b"y", None, 1.5, "p", 1, 1), (math.inf, 1 << 62, 0, 7, -1, 1, 1)]
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    gpus = [(b"g", 0, 100), (1.5, "0", -1), (None, None, None), (-(1 << 63), 0, (1 << 63) - 1)]
    database.executemany("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?)", gpus)
    graph = (1, 2, 0, 7, 0, "<script>" * 100)
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, ?, ?, ?, ?)", graph)


@pytest.mark.parametrize("change", [replaced_by_view, other_columns, other_types])
def test_hostile_databases(change, tmp_path):
    path = tmp_path / "nsight.sqlite"
    FORMATS["nsight.sqlite"](SCHEDULE, path)
    database = sqlite3.connect(path)
    change(database)
    database.commit()
    database.close()
    holds_up(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no trace of a known format"),
        (b"hello", "no trace of a known format"),
        (b"{}", "no trace"),
        (gzip.compress(bytes(1000))[:12], "nothing can be unpacked"),
        (b'{"traceEvents": 3}', "no trace"),
        (b"2026/03/04 10:00:00.123, 0, 55 %\n" * 3, "no head"),
        (b"[]", "no device did anything"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "pid": 0, "ts": 1, "dur": 0}]}', "in no time"),
        (b"SQLite format 3\0" + b"x" * 100, "no SQLite export"),
        (b"timestamp, index\n1, 2\n", "no trace of a known format"),
        (b"utilization.gpu\n5\n", "no column with a time"),
        (b"timestamp, utilization.gpu [%]\nx, y\n", "no sample"),
        (b"timestamp, utilization.gpu [%]\n1e300, 5\n-7, 5\n", "no sample"),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence(content, said, tmp_path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(EvenloadError, match=said) as caught:
        audit_traces([tmp_path / "x"])
    assert "\n" not in caught.value.message


def test_no_trace_and_a_gap_that_cannot_be_are_refused():
    with pytest.raises(FormatError, match="no trace to audit"):
        audit_traces([])
    with pytest.raises(ConfigError, match="launch gap"):
        audit_traces(["x"], AuditOptions(gap_s=math.nan))


def test_hostile_names_are_shown_not_obeyed(tmp_path):
    bad = "\x1b[31m</script><script>alert(1)</script>\u202e" + "x" * 5000
    rows = [
        {"ph": "X", "name": bad, "cat": bad, "pid": bad + str(at), "tid": bad, "ts": at, "dur": 2}
        for at in (0, 1)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(rows))
    done = CliRunner().invoke(
        audit_command, [str(path), "-o", str(tmp_path / "x.html")], standalone_mode=False
    )
    assert done.exception is None
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 600
    shown = (tmp_path / "x.html").read_text()
    assert "<script>alert" not in shown
    assert "\x1b" not in shown


def test_the_page_does_not_grow_with_the_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST_BARS", 2000)
    path = tmp_path / "trace.json"
    rows = [
        {"ph": "X", "name": "k", "cat": "kernel", "pid": at % 2, "ts": 300.0 * at, "dur": 40 + at % 7}
        for at in range(20_000)
    ]
    path.write_text(json.dumps(rows))
    parts = AuditParts(read_trace(path))
    shown = audit_view(parts, audit_of(parts))
    assert sum(len(row["start"]) for row in shown["timeline"]["rows"]) <= 4000
    assert audit_of(AuditParts(read_trace(path))).n_spans == 20_000
