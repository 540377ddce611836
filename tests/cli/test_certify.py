"""``evenload certify``: a certificate where it was asked for, a badge, and an exit code that fails a job."""

import hashlib
import json
import re
from dataclasses import replace

import click
import pytest
from click.testing import CliRunner
from every_command import commands

from evenload.cli.certify import certify
from evenload.errors import ConfigError, FormatError
from evenload.events import EventFile, RunFinished, RunStarted, Span
from evenload.merkle import Log, SigningKey
from evenload.training.chain_link import NO_ORDER, ChainLink


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with EventFile(folder / "events.jsonl") as sink:
        sink(RunStarted(0.0, "three items", 0.0, 3, {"a": {"name": "GPU"}, "b": {"name": "GPU"}}))
        sink(Span("map", "a", "a", 0, 1, 0.0, 1.0))
        sink(Span("map", "a", "a", 1, 1, 1.0, 2.0))
        sink(Span("map", "b", "b", 2, 1, 0.0, 1.0))
        sink(RunFinished(2.0, "done"))
    return folder


def call(*args):
    return CliRunner().invoke(certify, list(map(str, args)), standalone_mode=False)


def test_the_certificate_goes_into_the_run_folder_and_can_be_checked(run):
    made = call(run)
    path = run / "run.cert.json"
    assert (made.return_value, made.stdout.splitlines()) == (0, [str(path)])
    assert made.stderr == "run three items: 2 s, nobody below 1.5 s: 75 % of the best possible\n"
    again = call(path)
    assert (again.return_value, again.stderr) == (0, made.stderr)


def test_a_share_that_is_missed_fails_the_job_in_one_sentence(run, tmp_path):
    target = tmp_path / "x.cert.json"
    assert call(run, "-o", target, "--require", "0.75").return_value == 0
    missed = call(target, "--require", "0.95")
    assert missed.return_value == 1
    assert missed.stderr.splitlines()[1:] == ["error: 75 % of the best possible, less than the 95 % required"]


@pytest.mark.parametrize("status", ["failed", "interrupted", "timed out", None, "failures", "done"])
def test_a_run_that_left_work_undone_passes_no_requirement(run, tmp_path, status):
    """Oracle: what the log says of the end (None: it has none); the share of what was done is the same."""
    *lines, _ = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines))
    if status is not None:
        with EventFile(run / "events.jsonl") as sink:
            sink(RunFinished(2.0, status))
    found, is_whole = call(run, "--require", "0.5"), status in ("failures", "done")
    assert found.return_value == (0 if is_whole else 1)
    assert ("the share is of what was done" in found.stderr) is not is_whole
    assert "75 % of the best possible" in found.stderr


def test_json_and_a_badge(run, tmp_path):
    badge = tmp_path / "badge.svg"
    shown = json.loads(call(run, "--json", "--badge", badge).stdout)
    assert (shown["schema"], shown["kind"], shown["share"], shown["unit"]) == (1, "run", 0.75, "ns")
    assert (shown["achieved"], shown["bound"]) == (2e9, 1.5e9)
    assert shown["files"] == [str(run / "run.cert.json"), str(badge)]
    assert ">75 % of the best possible<" in badge.read_text()


def test_a_perfect_run_whose_devices_nobody_knows_is_not_failed(tmp_path):
    """One long item beside forty short ones is the best possible on equal devices; are they equal?"""
    spans = [Span("map", "a", "a", 40, 1, 0.0, 4.0)]
    spans += [Span("map", "b", "b", k, 1, k * 0.05, k * 0.05 + 0.05) for k in range(40)]
    for name, judged in (("GPU", True), ("", False)):
        devices = {"a": {"name": name}, "b": {"name": name}}
        path = tmp_path / f"{name or 'unknown'}.jsonl"
        with EventFile(path) as sink:
            for event in (RunStarted(0.0, "r", 0.0, 41, devices), *spans, RunFinished(4.0, "done")):
                sink(event)
        said = call(path, "-o", tmp_path / "x.json", "--require", "0.95")
        assert said.return_value == 0
        assert ("cannot be judged" in said.stderr) != judged
        facts = json.loads(call(tmp_path / "x.json", "--json").stdout)
        assert (facts["share"], facts["share_up_to"]) == pytest.approx((1.0 if judged else 0.5, 1.0))
    slow = call(path, "-o", tmp_path / "x.json", "--require", "0.4")
    assert (slow.return_value, "cannot be judged" in slow.stderr) == (0, False)


def test_devices_that_did_nothing_are_named(tmp_path):
    """No speed of theirs is known, so the bound is without them: a share of 100 % must not hide that."""
    with EventFile(tmp_path / "events.jsonl") as sink:
        sink(RunStarted(0.0, "one of two", 0.0, 1, {"a": {}, "lost\x1b[2J": {}}))
        sink(Span("map", "a", "a", 0, 1, 0.0, 2.0))
        sink(RunFinished(2.0, "done"))
    said = call(tmp_path / "events.jsonl", "-o", tmp_path / "x.json").stderr
    assert "did nothing" in said
    assert "lost" in said
    assert "\x1b" not in said
    assert len(json.loads(call(tmp_path / "x.json", "--json").stdout)["idle_devices"]) == 1


@pytest.mark.parametrize(
    ("n_items", "n_devices", "counted", "code"),
    [
        (8, 1, 1.0, 0),
        (8, 2, 0.5, 1),  # one device did all that two could have shared
        (1, 2, 1.0, 0),  # another could not have helped
        (2, 4, 0.5, 1),
    ],
)
def test_what_is_required_counts_devices_that_did_nothing(tmp_path, n_items, n_devices, counted, code):
    events, page = tmp_path / "events.jsonl", tmp_path / "x.json"
    with EventFile(events) as sink:
        sink(RunStarted(0.0, "all on one", 0.0, n_items, {f"gpu:{n}": {} for n in range(n_devices)}))
        for n in range(n_items):
            sink(Span("map", "gpu:0", "gpu:0", n, 1, float(n), n + 1.0))
        sink(RunFinished(float(n_items), "done"))
    for source in (events, page):  # the log, and the certificate that was made of it
        to = ("-o", page) if source == events else ()
        said = call(source, *to, "--require", "0.95", "--badge", tmp_path / "x.svg")
        assert said.return_value == code
        assert f">{counted:.0%}".replace("%", " %") in (tmp_path / "x.svg").read_text()
    assert ("with the devices that did nothing" in said.stderr) == bool(code)
    assert call(page, "--require", "0.95", "--used-only").return_value == 0
    facts = json.loads(call(page, "--json").stdout)
    assert (facts["share"], facts["share_with_idle"]) == (1.0, counted)


@pytest.mark.parametrize("parts", [None, 0, False, {}, ""])
def test_names_are_needed_by_nobody_and_whatever_says_that_a_device_is_no_group_does(run, tmp_path, parts):
    """The checker believes no name."""
    call(run, "-o", tmp_path / "x.json")
    page = json.loads((tmp_path / "x.json").read_text())
    del page["name"]
    for device in page["evidence"]["devices"]:
        del device["name"]
        device["parts"] = parts
    page["evidence"]["devices"].append({"lanes": 1, "parts": []})
    for stage in page["evidence"]["stages"]:
        stage["speeds"].append(None)
        stage["load"].append(0)
    (tmp_path / "x.json").write_text(json.dumps(page))
    assert call(tmp_path / "x.json", "--require", "0.1").return_value == 0


def test_no_option_takes_what_is_no_number():
    """NaN is in every range of click's own type."""
    every = [one for _, command in commands() for one in command.params]
    options = [one for one in every if isinstance(one.type, click.FloatRange)]
    assert len(options) >= 5
    for option in options:
        with pytest.raises(click.BadParameter, match="is no number"):
            option.type.convert("nan", option, None)


@pytest.mark.parametrize("content", ["{}", "no json", '{"format":"\\u001b[2J"}', "[" * 100_000])
def test_what_proves_nothing_is_said_and_fails(tmp_path, command, content):
    (tmp_path / "x.json").write_text(content)
    code, out, err = command("certify", tmp_path / "x.json")
    assert (code, out, "x.json proves nothing: " in err, "\x1b" in err) == (1, "", True, False)


def test_a_run_without_work_cannot_be_certified(tmp_path, command):
    with EventFile(tmp_path / "events.jsonl") as sink:
        sink(RunStarted(0.0, "nothing", 0.0, 0, {}))
    code, _, err = command("certify", tmp_path)
    assert (code, "nothing was measured" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


# --- a training's chain -------------------------------------------------------------------------------

START = ChainLink(
    0, 0, (0, 0), NO_ORDER, "a" * 64, "b" * 64, (0,), {"model": "m", "seed": 7}, {"torch": "2.13"}
)
LINKS = [START]
for k in range(0, 40, 10):
    LINKS.append(replace(START, start=k, stop=k + 10, shares=(5, 7)).behind(LINKS[-1].leaf()))


@pytest.fixture
def chain(tmp_path):
    folder = tmp_path / "chain"
    log_of(folder, LINKS)
    return folder


def log_of(folder, links):
    with Log(folder, origin="example.com/run", threads=1) as log:
        for link in links:
            log.append([link.leaf()])


def refused(kind, says, *args):
    """The command ends with one sentence, exit code 1 for a false chain and 2 for what is none."""
    error = call(*args).exception
    assert type(error) is kind
    assert error.exit_code == (1 if kind is FormatError else 2)
    assert re.search(says, error.message)
    assert "\n" not in error.message
    assert len(error.message) < 400


def root_of(leaves):
    """The root by RFC 6962, section 2.1."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + root_of(leaves[:k]) + root_of(leaves[k:])).digest()


def test_a_chain_that_holds_together_is_told_with_its_root_and_what_that_does_not_show(chain):
    """Oracle: the root that RFC 6962 defines, by hashlib."""
    root = root_of([link.leaf() for link in LINKS]).hex()
    said = call(chain)
    assert (said.return_value, said.stdout) == (0, root + "\n")
    assert "example.com/run: steps 0 to 40, 5 links, each behind the one before" in said.stderr
    assert "not signed: 5 of 5 links" in said.stderr
    assert "TrainingChain.repeat" in said.stderr
    with Log(chain, threads=1) as log:
        log.checkpoint(SigningKey.make("example.com/run"))
        last = replace(LINKS[-1], start=40, stop=50, kernels={"torch": "2.14"})
        log.append([last.behind(LINKS[-1].leaf()).leaf()])
    said = call(chain)
    assert "not signed: 1 of 6 links" in said.stderr
    assert "signed: 5 of 6 links: evenload merkle log check" in said.stderr
    facts = json.loads(call(chain, "--json").stdout)
    assert (facts["schema"], facts["kind"], facts["links"], facts["signed"]) == (1, "training", 6, 5)
    assert (facts["first_step"], facts["last_step"], facts["last"]["run"]["seed"]) == (0, 50, 7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content[:-9], r"the last \d+ bytes are no whole link, behind 4 that hold together"),
        (lambda content: content[:-9] + bytes(9), "no whole link, behind 4"),
        (lambda content: content + b"\n", "the last 1 bytes are no whole link, behind 5"),
        (lambda content: content.replace(b'"stop":20', b'"stop":21', 1), "is damaged at byte"),
    ],
)
def test_a_file_that_was_cut_or_changed_is_a_false_chain(chain, change, says):
    path = chain / "leaves"
    path.write_bytes(change(path.read_bytes()))
    refused(FormatError, says, chain)


def test_links_that_were_logged_anew_are_a_false_chain(tmp_path):
    log_of(tmp_path / "x", [LINKS[k] for k in (0, 2, 1, 3)])
    refused(FormatError, "link 1 has steps 10 to 20", tmp_path / "x")


def test_what_is_no_chain_is_refused(chain, tmp_path):
    with Log(tmp_path / "other", origin="example.com/other", threads=1) as log:
        pass
    refused(ConfigError, "has no link yet", tmp_path / "other")
    with Log(tmp_path / "other", threads=1) as log:
        log.append([b"x" * 65_535])
    refused(ConfigError, "no link of a training's chain", tmp_path / "other")
    for options in (["--require", "0.9"], ["-o", tmp_path / "x"], ["--badge", tmp_path / "x"]):
        refused(ConfigError, "has no share", chain, *options)
    for make in (
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"{" * 3_000_000),
        lambda path: path.write_bytes(b""),
    ):
        (chain / "leaves").unlink()
        make(chain / "leaves")
        refused(ConfigError, "", chain)
