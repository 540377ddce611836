"""``evenload merkle log``: a log from the command line, and what it says to bad input."""

import base64
import json

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from evenload.cli.merkle.group import merkle
from evenload.errors import FormatError
from evenload.merkle import VerifierKey

LEAVES = "first\nsecond\nthird\n"


def call(*args):
    arguments = ["log", *map(str, args)]
    return CliRunner().invoke(merkle, arguments, catch_exceptions=False, standalone_mode=False)


@pytest.fixture
def refused(command):
    def told(*args):
        code, out, err = command("merkle", "log", *args)
        assert out == ""
        return code, err

    return told


@pytest.fixture
def made(tmp_path):
    """(folder with a signed log of three leaves, its verifier key)."""
    (tmp_path / "lines").write_text(LEAVES)
    key = call("keygen", "example.com/log", "-o", tmp_path / "key").stdout.strip()
    call("append", tmp_path / "log", tmp_path / "lines", "--lines", "--origin", "example.com/log")
    assert call("sign", tmp_path / "log", "--key", tmp_path / "key").stdout.startswith("example.com/log\n3\n")
    return tmp_path, key


def test_append_sign_prove_verify_check(made):
    folder, key = made
    assert call("prove", folder / "log", 1, "-o", folder / "proof").return_value == 0
    for leaf, code, word in ((b"second", 0, "valid"), (b"third", 1, "not valid")):
        done = call("verify", folder / "proof", "--key", key, "--leaf", leaf.hex())
        assert (done.return_value, done.stdout) == (code, word + "\n")
    (folder / "mine").write_bytes(b"second")
    shown = call("verify", folder / "proof", "--key", key, "--leaf-file", folder / "mine", "--json").stdout
    assert json.loads(shown)["valid"] is True
    old = folder / "old"
    old.write_bytes((folder / "log" / "checkpoint").read_bytes())
    (folder / "rows").write_bytes(bytes(5 * 16))
    added = call("append", folder / "log", folder / "rows", "--width", 16, "--json").stdout
    assert json.loads(added) == {"schema": 1, "origin": "example.com/log", "added": 5, "size": 8}
    call("sign", folder / "log", "--key", folder / "key")
    (folder / "growth").write_text(call("prove", folder / "log", "--grown-from", 3).stdout, encoding="utf-8")
    for checkpoint, code in ((old, 0), (folder / "log" / "checkpoint", 1)):
        done = call("verify", folder / "growth", "--key", key, "--old-checkpoint", checkpoint)
        assert done.return_value == code
    assert call("check", folder / "log", "--key", key).stdout == "8 leaves, as example.com/log has signed\n"


def test_what_witnesses_answered_is_published_and_asked_for(made):
    folder, key = made
    note = (folder / "log" / "checkpoint").read_text()
    text, lines, keys = note[: note.rfind("\n\n") + 1].encode(), "", []
    for number in (1, 2):
        secret = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        witness = VerifierKey(f"w{number}.example", secret.public_key().public_bytes_raw(), b"\x04")
        content = witness.key_id + bytes(8) + secret.sign(b"cosignature/v1\ntime 0\n" + text)
        keys += ["--witness", str(witness)]
        lines += f"\u2014 {witness.name} {base64.b64encode(content).decode()}\n"
    (folder / "answers").write_text(lines.splitlines(keepends=True)[0])
    assert call("cosign", folder / "log", folder / "answers", *keys).stdout == note + lines[: len(lines) // 2]
    asked = ("check", folder / "log", "--key", key, *keys)
    assert call(*asked, "--at-least", 1).stdout == "3 leaves, as example.com/log has signed\n"
    with pytest.raises(FormatError, match="1 of the witnesses have signed, and 2 have to"):
        call(*asked)
    call("prove", folder / "log", 1, "-o", folder / "proof")
    proof = ("verify", folder / "proof", "--key", key, *keys, "--leaf", b"second".hex())
    assert call(*proof, "--at-least", 1).stdout == "valid\n"


def test_bad_input_is_one_sentence(made, refused):
    folder, key = made
    log, proof = folder / "log", folder / "proof"
    call("prove", log, 1, "-o", proof)
    other = call("keygen", "example.com/other", "-o", folder / "other").stdout.strip()
    cases = {
        ("keygen", "example.com/log", "-o", folder / "key"): (2, "is there already"),
        ("keygen", "two words", "-o", folder / "new"): (2, "no name of a key"),
        ("append", folder / "none", folder / "lines", "--lines"): (2, "no log that can be opened"),
        ("append", log, folder / "lines", "--lines", "--origin", "example.com/x"): (2, "origin is"),
        ("append", log, folder / "missing", "--lines"): (2, "cannot be read"),
        ("sign", log, "--key", folder / "other"): (2, "the key is of"),
        ("sign", log, "--key", folder / "lines"): (2, "no signing key"),
        ("prove", log): (2, "one thing is proved at a time"),
        ("prove", log, 3): (2, "no leaf 3"),
        ("prove", log, "--grown-from", 4): (2, "not in 1..3"),
        ("verify", proof, "--key", key): (2, "says nothing by itself"),
        ("verify", proof, "--key", "nonsense", "--leaf", "00"): (2, "verifier key"),
        ("verify", proof, "--key", other, "--leaf", "00"): (1, "by no key that was given"),
        ("verify", folder / "lines", "--key", key, "--leaf", "00"): (1, "this is none"),
        ("verify", folder, "--key", key, "--leaf", "00"): (2, "is a directory"),
        ("check", folder, "--key", key): (1, "cannot be read"),
        ("check", log, "--key", (folder / "key").read_text()): (2, "which nobody else may see"),
    }
    for arguments, (code, words) in cases.items():
        found, said = refused(*arguments)
        assert (found, words in said) == (code, True), (arguments, said)
        assert "Traceback" not in said
        assert (folder / "key").read_text()[40:60] not in said
    assert not (folder / "new").exists()
    assert call("check", log, "--key", key).return_value == 0


def test_what_was_added_before_a_line_that_is_no_leaf_is_told(made, refused):
    folder, _ = made
    (folder / "long").write_text("x\n" * 20_000 + "y" * 70_000 + "\n")
    code, said = refused("append", folder / "log", folder / "long", "--lines")
    assert (code, "line 20001 has 70,000 bytes" in said) == (2, True)
    assert f"the first 16384 leaves of {folder / 'long'} were added" in said
    (folder / "none").write_text("")
    assert call("append", folder / "log", folder / "none", "--lines").stdout == f"{3 + 16_384}\n"
