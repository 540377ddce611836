"""Keys, notes, checkpoints and tiles: the examples of C2SP's pages; no stranger's text is believed."""

import sys

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError, FormatError, MissingExtra
from evenload.merkle import Checkpoint, SigningKey, VerifierKey, read_checkpoint, verify_checkpoint
from evenload.merkle.log.note import signed, signers, split_note
from evenload.merkle.log.tiles import Tile, bundle, bundled, tiles_of

# From c2sp.org/signed-note and c2sp.org/tlog-checkpoint.
EXAMPLE_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
EXAMPLE = (
    "This is an example message.\n\n"
    "— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72"
    "IneyaQM=\n"
)
SOFA = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
KEY = SigningKey("example.com/log", bytes(range(32)))
NOTE = signed(Checkpoint("example.com/log", 5, bytes(32)).text, KEY)


def test_the_pages_own_examples():
    key = VerifierKey.parse(EXAMPLE_KEY)
    assert str(key) == EXAMPLE_KEY
    for note, by in ((EXAMPLE, key), (EXAMPLE.encode(), EXAMPLE_KEY)):
        assert signers(note, by)[0] == "This is an example message.\n"
    found = Checkpoint.parse(SOFA)
    assert (found.origin, found.size, found.text) == ("example.com/behind-the-sofa", 20852163, SOFA)
    assert Tile(0, 1234067, 256).path == "tile/0/x001/x234/067"
    tiles = list(tiles_of(70_000))
    assert [sum(tile.level == k and tile.width == 256 for tile in tiles) for k in range(3)] == [273, 1, 0]
    assert [tile.path for tile in tiles if tile.width < 256] == [
        "tile/0/273.p/112", "tile/1/001.p/17", "tile/2/000.p/1",
    ]  # fmt: skip
    assert [tile.path for tile in tiles_of(256)] == ["tile/0/000", "tile/1/000.p/1"]


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 200_000), st.integers(0, 200_000))
def test_only_what_is_new_is_published_again(a, b):
    old, new = sorted((a, b))
    whole = {tile for tile in tiles_of(old) if tile.width == 256}
    again = list(tiles_of(new, old))
    assert set(again) | whole | set(tiles_of(old)) >= set(tiles_of(new))
    assert not whole & set(again)
    assert len(again) == len(set(again))


def test_signing_keys_are_kept_and_never_replaced(tmp_path):
    path = tmp_path / "key"
    KEY.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.read(path) == KEY
    with pytest.raises(ConfigError, match="is there already"):
        KEY.write(path)
    assert "seed" not in repr(KEY)
    assert SigningKey.make("example.com/a") != SigningKey.make("example.com/a")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="open to others for writing"):
        SigningKey.read(path)
    with pytest.raises(ConfigError, match="keygen"):
        SigningKey.read(tmp_path / "none")


def test_without_cryptography_the_install_line_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    for needs in (lambda: SigningKey.make("a"), lambda: verify_checkpoint(EXAMPLE, EXAMPLE_KEY)):
        with pytest.raises(MissingExtra, match=r"evenload\[zk\]"):
            needs()


@pytest.mark.parametrize(
    "text",
    ["", "a+b", EXAMPLE_KEY[:-1], EXAMPLE_KEY.replace("530d", "530e"), EXAMPLE_KEY.replace("+Aek", "+Bek"),
     EXAMPLE_KEY + "=", "x" * 10_000, 5, None, [], [EXAMPLE_KEY, 7], KEY.secret_text],
)  # fmt: skip
def test_what_is_no_verifier_key(text):
    assert not verify_checkpoint(NOTE, text)
    with pytest.raises(ConfigError) as caught:
        read_checkpoint(NOTE, text)
    assert KEY.secret_text[-40:-20] not in str(caught.value)


def test_a_checkpoint_is_of_its_log_and_of_nobody_else():
    key = KEY.verifier
    found = read_checkpoint(NOTE, key)
    assert (found.origin, found.size, found.root) == ("example.com/log", 5, bytes(32))
    other = SigningKey("example.com/other", bytes(range(32)))
    assert verify_checkpoint(NOTE, [other.verifier, key])
    assert not verify_checkpoint(NOTE, other.verifier)
    assert not verify_checkpoint(NOTE, key, origin="example.com/other")
    both = signed(found.text, KEY, other)
    assert verify_checkpoint(both, key)
    assert verify_checkpoint(both, other.verifier, origin="example.com/log")
    # The key of one log that is trusted says nothing about another that is.
    alone = signed(found.text, other)
    assert not verify_checkpoint(alone, [key, other.verifier])
    with pytest.raises(FormatError, match=r"is of 'example\.com/log', not of 'example\.com/other'"):
        read_checkpoint(alone, [key, other.verifier])
    assert verify_checkpoint(signed(found.text, SigningKey(KEY.name, bytes(32)), other),
                             [key, SigningKey(KEY.name, bytes(32)).verifier])  # fmt: skip
    # One signature of a known key that is wrong spoils the note; those of unknown keys are passed over.
    forged = both.replace("— example.com/other ", "— example.com/other A")
    with pytest.raises(FormatError):
        split_note(forged)
    text, signatures = split_note(both)
    swapped = both.replace("5\n", "6\n", 1)
    assert not verify_checkpoint(swapped, key)
    assert [one.name for one in signatures] == ["example.com/log", "example.com/other"]
    assert text == found.text


@settings(deadline=None, max_examples=examples(300))
@given(
    st.integers(0, len(NOTE.encode()) - 1),
    st.integers(0, 255),
    st.sampled_from(["set", "cut", "put", "twice"]),
)
def test_any_change_of_a_note_is_noticed(at, byte, how):
    content = NOTE.encode()
    changed = {
        "set": content[:at] + bytes([byte]) + content[at + 1 :],
        "cut": content[:at],
        "put": content[:at] + bytes([byte]) + content[at:],
        "twice": content[:at] + content[at:] * 2,
    }[how]
    try:
        same = split_note(changed)[0] == split_note(NOTE)[0]
    except FormatError:
        same = False
    assert not verify_checkpoint(changed, KEY.verifier) or same


@pytest.mark.parametrize(
    "note", ["", "\n\n", "a\n\n", "a\n\n— b\n", "a\n\n— b c\n", "a\tb\n\n", "\udc80\n\n", b"\xff\n\n", 5,
             None, [], "x" * 1_000_001, EXAMPLE + "— a AAAAAAAA\n" * 200]
)  # fmt: skip
def test_what_is_no_note(note):
    assert not verify_checkpoint(note, KEY.verifier)
    with pytest.raises(FormatError):
        split_note(note)


@pytest.mark.parametrize(
    "text", ["", "a\n", "a\n5\n", "a\n05\nAAAA\n", "a\n-1\nAAAA\n", "a\n٣\nAAAA\n", f"a\n{'9' * 30}\nAAAA\n",
             SOFA.replace("=", ""), SOFA[:-1], SOFA + "\n", "\n" + SOFA, SOFA.replace("2I=", "2J=")]
)  # fmt: skip
def test_what_is_no_checkpoint(text):
    with pytest.raises(FormatError):
        Checkpoint.parse(text)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5), st.data())
def test_bundles(entries, draw):
    content = bundle(entries)
    assert bundled(content, len(entries)) == entries
    cut = draw.draw(st.integers(0, len(content)))
    if cut < len(content):
        with pytest.raises(FormatError):
            bundled(content[:cut], len(entries))
    with pytest.raises(FormatError):
        bundled(content + b"\0", len(entries))
