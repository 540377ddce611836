"""``evenload merkle``: roots and proofs of files, checked anywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._private_files import write_named
from evenload.cli.bench.selections import merkle_bench
from evenload.cli.merkle.leaf_file import LeafInput, TreeKind, leaf_options, scheme_options
from evenload.cli.merkle.log_group import log
from evenload.cli.options import PATH, json_option, page_json
from evenload.errors import ConfigError

if TYPE_CHECKING:
    from evenload.merkle import Scheme
    from evenload.merkle.partition import ParallelRoot


@click.group()
def merkle() -> None:
    """Merkle trees of files: roots, proofs, and checks of proofs.

    Schemes: rfc6962 (SHA-256, as in Certificate Transparency), bitcoin, openzeppelin (Keccak-256,
    StandardMerkleTree), poseidon (over BN254), rfc6962-blake2s.
    """


merkle.add_command(merkle_bench, "bench")
merkle.add_command(log)


@merkle.command()
@scheme_options
@leaf_options
@click.option("--devices", help="Hash on these devices together: all, cpu*2, wgpu:0. FILE must be binary.")
@click.option("--strategy", default="measured", show_default=True, help="How blocks are dealt to --devices.")
@click.option("--dash", "has_dash", is_flag=True, help="With --devices: show it in the browser.")
@json_option
def root(
    leaves: LeafInput, kind: TreeKind, devices: str | None, strategy: str, has_dash: bool, as_json: bool
) -> int:
    """Print the root of the leaves in FILE, or in what comes on stdin (-).

    A binary file is read once, in 16 MiB of memory. A .npy file must hold uint8 [n, width].
    """
    scheme = kind.to_scheme()
    page: dict[str, Any] = {"schema": 1, "scheme": kind.scheme}
    if devices is not None:
        leaves.require_binary("--devices maps a binary file")
        done = _root_over(devices, leaves, has_dash, scheme, strategy)
        digest, size, is_mutated = done.root, done.size, done.is_mutated
        summary = done.parts.summary
        page |= {"wall_s": done.parts.wall_s, "bound_s": summary.bound_s, "devices": list(summary.devices)}
    elif has_dash or strategy != "measured":
        said = "--dash shows the work" if has_dash else "--strategy deals to the workers"
        raise ConfigError(f"{said} of devices", hint="say which: --devices all")
    else:
        digest, size, is_mutated = _root_here(leaves, scheme)
    if is_mutated:
        click.echo("warning: equal neighbours: leaves may be repeated (CVE-2012-2459)", err=True)
    text = leaves.shown(digest)
    page |= {"leaves": size, "root": text, "mutated": is_mutated}
    click.echo(page_json(page) if as_json else text)
    return 0


def _root_here(leaves: LeafInput, scheme: "Scheme") -> tuple[bytes, int, bool]:
    """The root, the number of leaves, and whether leaves may be repeated; hashed by this process."""
    from evenload.merkle import RootStream, StandardTree

    if scheme.odd == "heap":
        tree = StandardTree(leaves.all_leaves())
        return tree.root, len(tree), False
    stream = RootStream(scheme)
    if leaves.is_text:
        stream.update_records(leaves.text_leaves())
    else:
        for rows in leaves.blocks():
            stream.update(rows)
    return stream.root(), len(stream), stream.is_mutated


def _root_over(
    devices: str, leaves: LeafInput, has_dash: bool, scheme: "Scheme", strategy: str
) -> "ParallelRoot":
    """The root, hashed by ``devices`` together, as a run that can be followed."""
    from evenload.cli.monitoring.monitoring import Monitors, recorded
    from evenload.cli.monitoring.step_events import Steps
    from evenload.executor import Executor
    from evenload.merkle import parallel_root

    name = f"merkle {Path(leaves.file).name}"
    with (
        recorded(name, Monitors(has_dash)) as log,
        Steps(log, name, "hash", None, None),
        Executor(devices, events=log) as executor,
    ):
        return parallel_root(
            leaves.file, executor=executor, scheme=scheme, width=leaves.width, strategy=strategy
        )


@merkle.command()
@scheme_options
@leaf_options
@click.argument("indices", nargs=-1, type=int, metavar="[INDEX]...")
@click.option(
    "--grown-from", type=int, metavar="SIZE", help="Prove that FILE begins with its first SIZE leaves."
)
@click.option("-o", "--out", type=PATH, help="Write the proofs there.")
def prove(
    leaves: LeafInput, indices: tuple[int, ...], kind: TreeKind, grown_from: int | None, out: Path | None
) -> int:
    """Prove that the leaves INDEX are in the tree of FILE; one JSON object a line.

    For openzeppelin, several leaves give one multiproof.
    """
    scheme = kind.to_scheme()
    if not indices and grown_from is None:
        raise ConfigError("nothing to prove", hint="name leaves by their index, or use --grown-from")
    proofs = _proofs(leaves, scheme, indices, grown_from)
    text = "".join(page_json(proof.to_json()) + "\n" for proof in proofs)
    if out is None:
        click.echo(text, nl=False)
        return 0
    write_named(out, text)
    click.echo(str(out))
    return 0


def _proofs(
    leaves: LeafInput, scheme: "Scheme", indices: tuple[int, ...], grown_from: int | None
) -> list[Any]:
    from evenload.merkle import MerkleTree, StandardTree

    if scheme.odd == "heap":
        if grown_from is not None:
            raise ConfigError(
                "an openzeppelin tree has no consistency proofs", hint="use rfc6962 or rfc6962-blake2s"
            )
        tree = StandardTree(leaves.all_leaves())
        return [tree.prove(indices[0]) if len(indices) == 1 else tree.prove_many(indices)]
    grown = MerkleTree(scheme=scheme)
    if leaves.is_text:
        grown.append_records(leaves.text_leaves())
    else:
        for rows in leaves.blocks():
            grown.append(rows)
    proofs: list[Any] = [*grown.prove_many(indices)]
    if grown_from is not None:
        proofs.append(grown.prove_consistency(grown_from))
    return proofs


@merkle.command()
@click.argument("proofs", type=PATH)
@click.option("--root", "root_text", required=True, help="The root that you trust, in hexadecimal.")
@click.option("--old-root", help="The older root that you trust, for a proof of growth.")
@click.option("--size", type=int, help="Leaves of the tree, if you know. Give it for bitcoin and poseidon.")
@click.option(
    "--leaf", "leaves", multiple=True, help="Your leaf in hexadecimal, one for each that is proved."
)
@click.option("--leaf-hash", "hashes", multiple=True, help="Its hash instead, computed by yourself.")
@click.option(
    "--reverse", is_flag=True, help="Roots and leaves are written backwards, as Bitcoin shows them."
)
@json_option
def verify(
    proofs: Path, root_text: str, old_root: str | None, leaves: tuple[str, ...], hashes: tuple[str, ...],
    size: int | None, reverse: bool, as_json: bool,
) -> int:  # fmt: skip
    """Check the PROOFS in a file against a root. Exit code 0: all are valid, 1: one is not.

    A proof says nothing without a root from elsewhere, and nothing about a leaf that you do not give: the
    leaf hash in the file is only a remark. Leaves of several proofs are given in the proofs' order. A file of
    more than 10 MB is refused unread: split it by lines.
    """
    from evenload._bounded_json import MAX_JSON_BYTES
    from evenload._private_files import text_named
    from evenload.merkle.check import Claims, check_proofs
    from evenload.merkle.scheme import from_hex

    step = -1 if reverse else 1
    claims = Claims(
        from_hex(root_text, "--root")[::step],
        None if old_root is None else from_hex(old_root, "--old-root")[::step],
        [from_hex(leaf, "--leaf", None)[::step] for leaf in leaves],
        [from_hex(node, "--leaf-hash")[::step] for node in hashes],
        size,
    )
    text = text_named(proofs, MAX_JSON_BYTES, "give a file of proofs, a line each")
    answers = check_proofs(text.splitlines(), claims)
    is_valid = all(answers)
    if as_json:
        click.echo(page_json({"schema": 1, "valid": is_valid, "proofs": answers}))
    else:
        n_wrong = answers.count(False)
        click.echo("valid" if is_valid else f"not valid: {n_wrong} of {len(answers)}")
    return 0 if is_valid else 1
