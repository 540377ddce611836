"""A log in a folder, held against an independent implementation (tlog-scales), and what it refuses."""

import base64
import hashlib
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tlog_scales.backend import LocalBackend
from tlog_scales.reader import TilesReader
from tlog_scales.signing import PlainEd25519Signer, Vkey, VkeySet
from tlog_scales.tlog import Checkpoint as OtherCheckpoint
from tlog_scales.tlog import ConsistencyProof as OtherGrowth
from tlog_scales.tlog import InclusionProof as OtherInclusion
from tlog_scales.writer import TilesWriter

from evenload.errors import ConfigError, FormatError
from evenload.merkle import (
    Log,
    Quorum,
    SigningKey,
    check_published,
    read_checkpoint,
    verify_checkpoint,
    verify_growth,
    verify_inclusion,
)
from evenload.merkle.log.leaf_file import LeafFile

NAME = "example.com/log"
KEY = SigningKey(NAME, bytes(range(32)))


@pytest.fixture
def opened(tmp_path):
    with Log(tmp_path / "log", origin=NAME, threads=1) as log:
        yield log


def leaves_of(n, seed=0):
    return [hashlib.sha256(b"%d %d" % (seed, k)).digest()[: k % 33] * (1 + k % 3) for k in range(n)]


def leaf_hash(leaf):
    return hashlib.sha256(b"\0" + leaf).digest()


@pytest.mark.parametrize("counts", [[1, 2], [255, 1, 1], [256, 300], [3, 0, 700, 1]])
def test_another_implementation_reads_what_is_published(opened, counts):
    reader, key = TilesReader(LocalBackend(opened.folder)), Vkey.from_string(str(KEY.verifier))
    notes, leaves = [], []
    for round_, n in enumerate(counts):
        more = leaves_of(n, round_)
        leaves += more
        assert opened.append(more) == range(len(leaves) - n, len(leaves))
        notes.append(opened.checkpoint(KEY))
        theirs = reader.get_checkpoint()
        assert len(VkeySet(key).verify(theirs.signatures, theirs)) == 1
        assert (theirs.origin, theirs.size) == (NAME, len(leaves))
        assert theirs.root_hash == reader.calculate_root_hash() == opened.root
        for k in {0, len(leaves) // 2, len(leaves) - 1}:
            ours = opened.prove_inclusion(k)
            assert reader.get_entry(k) == leaves[k] == opened[k]
            assert reader.get_inclusion_proof(k, len(leaves)).node_hashes == list(ours.path)
            OtherInclusion(k, ours.size, list(ours.path)).check(leaf_hash(leaves[k]), theirs.root_hash)
            text = opened.inclusion_text(k)
            assert verify_inclusion(text, leaves[k], KEY.verifier)
            assert not verify_inclusion(text, leaves[k] + b"x", KEY.verifier)
        for old in map(OtherCheckpoint.from_text, notes):
            growth = OtherGrowth(old.size, len(leaves), list(opened.prove_consistency(old.size).path))
            growth.check(old.root_hash, theirs.root_hash)
            assert verify_growth(opened.growth_text(old.size), notes[0], str(KEY.verifier)) == (
                old.size == counts[0]
            )
    assert check_published(opened.folder, KEY.verifier).size == len(leaves)


@pytest.mark.parametrize("n", [1, 256, 600])
def test_what_another_implementation_publishes_is_checked(tmp_path, n):
    folder, leaves = tmp_path / "theirs", leaves_of(n)
    writer = TilesWriter.create(folder, NAME)
    for some in (leaves[: n // 2], leaves[n // 2 :]):
        for leaf in some:
            writer.add_leaf(leaf)
        writer.commit([PlainEd25519Signer(NAME, KEY.seed)])
    found = check_published(folder, KEY.verifier, threads=1)
    with Log(tmp_path / "ours", origin=NAME, threads=1) as log:
        log.append(leaves)
        assert (found.size, found.root) == (n, log.root)


def test_each_node_and_entry_of_a_published_log_is_looked_at(opened):
    opened.append(leaves_of(300))
    opened.checkpoint(KEY)
    files = [path for path in sorted((opened.folder / "tile").rglob("*")) if path.is_file()]
    assert len(files) == 5
    for path in [*files, opened.folder / "checkpoint"]:
        content = path.read_bytes()
        for k in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:k] + bytes([content[k] ^ 1]) + content[k + 1 :])
            with pytest.raises(FormatError):
                check_published(opened.folder, KEY.verifier, threads=1)
        for other in (content[:-1], content + b"\0", b""):
            path.write_bytes(other)
            with pytest.raises(FormatError):
                check_published(opened.folder, KEY.verifier, threads=1)
        path.unlink()
        with pytest.raises(FormatError, match="cannot be read"):
            check_published(opened.folder, KEY.verifier, threads=1)
        path.write_bytes(content)
    assert check_published(opened.folder, KEY.verifier, threads=1).size == 300


def test_partial_tiles_go_when_the_whole_one_is_there(opened):
    for n in (10, 20, 226, 1):
        opened.append(leaves_of(n))
        opened.checkpoint(KEY)
        assert check_published(opened.folder, KEY.verifier, threads=1).size == len(opened)
    names = {
        path.relative_to(opened.folder).as_posix() for path in opened.folder.rglob("*") if path.is_file()
    }
    assert names == {"leaves", "checkpoint", "tile/0/000", "tile/entries/000", "tile/0/001.p/1",
                     "tile/entries/001.p/1", "tile/1/000.p/1"}  # fmt: skip


def test_a_log_is_opened_again_and_goes_on(tmp_path):
    leaves = leaves_of(70)
    with Log(tmp_path, origin=NAME) as log:
        log.append(
            np.frombuffer(b"".join(leaves[32].ljust(40)[:40] for _ in range(5)), np.uint8).reshape(5, 40)
        )
        log.append(leaves)
        log.checkpoint(KEY)
        log.append([b"not signed yet"])
        root = log.root
    with Log(tmp_path) as log:
        assert (len(log), log.root, log.signed_size, log.origin) == (76, root, 75, NAME)
        assert log.prove_inclusion(3).size == 75
        assert log.prove_inclusion(75, 76).verify(b"not signed yet", root)
        assert log.checkpoint(KEY) == (tmp_path / "checkpoint").read_text(encoding="utf-8")
        with pytest.raises(ConfigError, match="leaf 76 among 76"):
            log.prove_inclusion(76)
        for bad in (76, -1, "3"):
            with pytest.raises((IndexError, ConfigError)):
                log[bad]
    with pytest.raises(ConfigError, match=r"not 'example\.com/other'"):
        Log(tmp_path, origin="example.com/other")


def test_the_empty_log(opened):
    note = opened.checkpoint(KEY)
    assert read_checkpoint(note, KEY.verifier).root == hashlib.sha256().digest()
    opened.append([b""])
    opened.checkpoint(KEY)
    text = opened.growth_text(0)
    assert verify_growth(text, note, KEY.verifier)
    assert verify_inclusion(opened.inclusion_text(0), b"", KEY.verifier)
    assert check_published(opened.folder, KEY.verifier, threads=1).size == 1


def test_one_process_appends_and_others_read(opened):
    opened.append([b"a", b"b"])
    opened.checkpoint(KEY)
    with pytest.raises(ConfigError, match="another process"):
        Log(opened.folder)
    with Log(opened.folder, is_writable=False, threads=1) as reader:
        opened.append([b"c"])
        assert (len(reader), reader.signed_size) == (2, 2)
        assert verify_inclusion(reader.inclusion_text(1), b"b", KEY.verifier)
        for forbidden in (lambda: reader.append([b"x"]), lambda: reader.checkpoint(KEY)):
            with pytest.raises(ConfigError, match="only to read"):
                forbidden()


def test_leaves_that_come_while_a_reader_looks_are_read_and_not_taken_for_damage(opened, monkeypatch):
    """Oracle: what another writer appended between the reader's last look and its look at the file's size."""
    opened.append([b"a"])
    reader, sizes = LeafFile.open(opened.folder / "leaves", is_writable=False), os.fstat
    late = [[b"b"], [b"c"]]

    def later(fd):
        while late:
            opened.append(late.pop(0))
        return sizes(fd)

    monkeypatch.setattr(os, "fstat", later)
    assert [leaf for leaves in reader.load() for leaf in leaves] == [b"a", b"b", b"c"]
    assert reader.n_cut == 0
    reader.close()


@pytest.mark.parametrize(
    "leaves", [b"abc", "abc", 5, None, ["a"], [b"good", 5], [bytes(65_536)], [np.zeros(3)]]
)
def test_what_are_no_leaves(opened, leaves):
    with pytest.raises(ConfigError):
        opened.append(leaves)
    assert len(opened) == 0
    opened.append([bytes(65_535)])


def test_folders_that_are_no_log(tmp_path):
    with pytest.raises(ConfigError, match="origin="):
        Log(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(ConfigError, match="files that are no log"):
        Log(tmp_path, origin=NAME)
    for name in ("two\nlines", "two words", "a+b", "a\x7f", "\udc80", "x" * 256, ""):
        with pytest.raises(ConfigError, match="is no origin"):
            Log(tmp_path / "new", origin=name)
        with pytest.raises(ConfigError, match="no name of a key"):  # so that nothing could be signed
            SigningKey(name, bytes(32))
    folder = tmp_path / "other"
    folder.mkdir()
    for content in (b"", b"\n", b"evenload-log-1 \n", os.urandom(100)):
        (folder / "leaves").write_bytes(content)
        with pytest.raises(FormatError, match="no leaves of a log"):
            Log(folder)
    (folder / "leaves").unlink()
    os.mkfifo(folder / "leaves")
    for is_writable in (True, False):
        with pytest.raises((ConfigError, FormatError)):
            Log(folder, is_writable=is_writable)


def test_only_the_logs_own_key_signs(opened):
    opened.append([b"a"])
    for key in (SigningKey("example.com/other", bytes(32)), KEY.verifier, str(KEY.verifier), None):
        with pytest.raises(ConfigError, match="the key is of"):
            opened.checkpoint(key)
    with pytest.raises(ConfigError, match="no checkpoint"):
        opened.inclusion_text(0)
    witness = SigningKey("witness.example/1", bytes(32))
    note = opened.checkpoint(KEY, witness)
    assert verify_checkpoint(note, [KEY.verifier, witness.verifier])


def test_a_closed_log_does_nothing_more(tmp_path):
    """Another process may have gone on: what this one signed would take the log back."""
    old = Log(tmp_path / "log", origin=NAME, threads=1)
    old.append([b"a"])
    old.checkpoint(KEY)
    old.close()
    with Log(tmp_path / "log", threads=1) as new:
        new.append([b"b"])
        new.checkpoint(KEY)
    for forbidden in (lambda: old.checkpoint(KEY), lambda: old.append([b"c"]), lambda: old[0]):
        with pytest.raises(ConfigError, match="is closed"):
            forbidden()
    assert check_published(tmp_path / "log", KEY.verifier).size == 2


def test_what_was_signed_and_is_not_there_stops_the_log(tmp_path):
    with Log(tmp_path, origin=NAME) as log:
        log.append([b"a", b"b"])
        before = (tmp_path / "leaves").read_bytes()
        log.append([b"c"])
        log.checkpoint(KEY)
    (tmp_path / "leaves").write_bytes(before)
    with pytest.raises(FormatError, match="3 leaves is not one of the 2"):
        Log(tmp_path)
    (tmp_path / "leaves").write_bytes(before)
    other = tmp_path / "fork"
    with Log(other, origin=NAME) as log:
        log.append([b"a", b"b", b"C"])
    (other / "checkpoint").write_bytes((tmp_path / "checkpoint").read_bytes())
    with pytest.raises(FormatError, match="nothing else may ever be signed"):
        Log(other)


@pytest.mark.parametrize("n_bytes", [1, 40, 100])
def test_a_checkpoint_that_was_cut_is_named(tmp_path, n_bytes):
    with Log(tmp_path, origin=NAME) as log:
        log.append([b"a", b"b"])
        whole = log.checkpoint(KEY)
    (tmp_path / "checkpoint").write_text(whole[:n_bytes])
    with pytest.raises(FormatError, match="checkpoint: ") as caught:
        Log(tmp_path)
    assert "restore" in (caught.value.hint or "")
    with pytest.raises(FormatError, match=r"^checkpoint: "):
        check_published(tmp_path, KEY.verifier)
    (tmp_path / "checkpoint").write_text(whole)
    with Log(tmp_path) as log:
        assert log.append([b"c"]) == range(2, 3)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    with Log(tmp_path_factory.mktemp("log"), origin=NAME, threads=1) as log:
        log.append(leaves_of(11))
        old = log.checkpoint(KEY)
        log.append(leaves_of(9))
        log.checkpoint(KEY)
        return log.inclusion_text(3), log.growth_text(11), old, leaves_of(11)[3]


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_a_changed_proof_is_false_and_raises_nothing(texts, draw):
    for k, check in enumerate([lambda text: verify_inclusion(text, texts[3], KEY.verifier),
                               lambda text: verify_growth(text, texts[2], KEY.verifier)]):  # fmt: skip
        content = texts[k].encode()
        assert check(texts[k])
        at = draw.draw(st.integers(0, len(content) - 1))
        other = draw.draw(st.binary(max_size=3))
        n = draw.draw(st.integers(0, 40))
        changed = content[:at] + other + content[at + n :]
        assert check(changed) == (changed == content) or b"\nextra " in changed


@pytest.mark.parametrize(
    "strange", [None, 5, "", b"\xff", [], object(), float("nan"), "c2sp.org/tlog-proof@v1\n\n"]
)
def test_strange_values_are_false(texts, strange):
    inclusion, growth, old, leaf = texts
    assert not verify_inclusion(strange, leaf, KEY.verifier)
    assert not verify_inclusion(inclusion, strange, KEY.verifier)
    assert not verify_inclusion(inclusion, leaf, strange)
    assert not verify_growth(strange, old, KEY.verifier)
    assert not verify_growth(growth, strange, KEY.verifier)
    assert not verify_growth(growth, old, strange)
    assert not verify_checkpoint(strange, KEY.verifier)


def test_views_of_a_leaf(texts):
    released = memoryview(texts[3])
    released.release()
    assert not verify_inclusion(texts[0], released, KEY.verifier)
    assert verify_inclusion(
        texts[0], memoryview(b"".join(bytes([x, 0]) for x in texts[3]))[::2], KEY.verifier
    )


def test_extra_lines_are_passed_over(texts):
    text, _, _, leaf = texts
    head, rest = text.split("\n", 1)
    assert verify_inclusion(f"{head}\nextra aGVsbG8=\n{rest}", leaf, KEY.verifier)
    assert not verify_inclusion(f"{head}\nextra aGVsbG8=\nextra aGVsbG8=\n{rest}", leaf, KEY.verifier)


def answer_of(number, note, seconds=1679315147):
    """What a witness answers, by C2SP's tlog-cosignature, made without evenload."""
    secret = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    text = note[: note.rfind("\n\n") + 1]
    signed = secret.sign(f"cosignature/v1\ntime {seconds}\n{text}".encode())
    key = Vkey(f"w{number}.example", None, 4, secret.public_key().public_bytes_raw())
    content = key.key_id.to_bytes(4, "big") + seconds.to_bytes(8, "big") + signed
    return key, f"\u2014 {key.name} {base64.b64encode(content).decode()}\n"


def test_of_its_witnesses_enough_have_to_have_cosigned(opened):
    opened.append(leaves_of(5))
    note = opened.checkpoint(KEY)
    answers = [answer_of(number, note) for number in range(3)]
    keys = [key.serialize() for key, _ in answers]
    assert opened.cosigned(answers[0][1] + answers[2][1], keys) == (opened.folder / "checkpoint").read_text()
    theirs = TilesReader(LocalBackend(opened.folder)).get_checkpoint()
    asked = VkeySet(Vkey.from_string(str(KEY.verifier)), *(key for key, _ in answers))
    assert len(asked.verify(theirs.signatures, theirs)) == 3
    for at_least in (None, 1, 2, 3):
        rule, is_enough = Quorum(KEY.verifier, keys, at_least), at_least in (1, 2)
        assert verify_inclusion(opened.inclusion_text(3), opened[3], rule) is is_enough
        if is_enough:
            assert check_published(opened.folder, rule).size == 5
        else:
            with pytest.raises(FormatError, match="2 of the witnesses have signed, and 3 have to"):
                check_published(opened.folder, rule)
    twice = Quorum(KEY.verifier, keys[:1] * 3)
    assert twice.at_least == 1
    opened.cosigned(answer_of(0, note, 1700000000)[1], keys)  # a later one in the place of the first
    assert (opened.folder / "checkpoint").read_text().count("w0.example") == 1
    with Log(opened.folder, is_writable=False) as again:
        assert verify_checkpoint(again.inclusion_text(0).partition("\n\n")[2], Quorum(KEY.verifier, keys, 2))


def test_cosignatures_of_others_of_another_text_or_time_are_refused(opened):
    opened.append(leaves_of(2))
    first = opened.checkpoint(KEY)
    key, line = answer_of(1, first)
    _, theirs = answer_of(2, first)
    late = base64.b64decode(line.split()[2])
    late = late[:4] + (1).to_bytes(8, "big") + late[12:]
    for wrong in (
        theirs,
        f"\u2014 {key.name} {base64.b64encode(late).decode()}\n",
        "",
        "nonsense\n",
        line + theirs,
    ):
        with pytest.raises(FormatError):
            opened.cosigned(wrong, key.serialize())
    opened.append(leaves_of(1))
    second = opened.checkpoint(KEY)
    with pytest.raises(FormatError, match="not one of this text"):
        opened.cosigned(line, key.serialize())
    assert (opened.folder / "checkpoint").read_text() == second
    with pytest.raises(ConfigError, match="at_least=2 of 1 witnesses"):
        Quorum(KEY.verifier, [key.serialize()], 2)
