"""``evenload zk serve``: proofs at a port or a socket file, until it is stopped and all are answered."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from evenload._optional import require
from evenload.cli.monitoring.monitoring import watched
from evenload.cli.options import PATH, NumberRange, argument, option, passed_as, quiet_option, shared
from evenload.dashboard.guard import is_loopback
from evenload.errors import ConfigError, quoted

BURST = 256  # connections beyond those that wait, each of which gets its 503


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """The options of ``evenload zk serve``."""

    address: str = argument()
    keys: tuple[Path, ...] = argument(type=PATH, nargs=-1, required=True, metavar="ZKEY...")
    devices: str | None = option("--devices", help="A worker each: all, wgpu:0, cpu*2, ...; default: cpu.")
    level: str | None = option("--level", help="Kernels, as of `evenload zk prove`; default: best.")
    has_token: bool = option("--token/--no-token", default=True, help="Ask for a token on a port.")
    most_waiting: int = option(
        "--most-waiting", type=click.IntRange(1), default=64, show_default=True, help="Requests."
    )
    limit_s: float = option(
        "--limit",
        type=NumberRange(0, min_open=True),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="For one proof.",
    )
    most_witness: str = option(
        "--most-witness", default="256 MiB", show_default=True, help="The largest witness."
    )
    witness_folder: Path | None = option("--witness-folder", type=PATH, help="Requests may name files in it.")
    quiet: bool = shared(quiet_option)


@click.command()
@passed_as(ServeRequest)
def serve(request: ServeRequest) -> int:
    """Serve proofs by the keys ZKEY... at ADDRESS, unix:PATH or HOST:PORT, until Ctrl-C or SIGTERM.

    \b
    evenload zk serve unix:proofs.sock circuit.zkey other.zkey --devices cpu*2
    """
    with watched(f"zk serve {request.address}", None):
        return serve_proofs(request)


def serve_proofs(request: ServeRequest) -> int:
    """Serve proofs until SIGTERM or Ctrl-C; requests that are under way are answered before the end.

    Raises ConfigError for an address that cannot be used, MissingExtra without starlette or uvicorn, and as
    ``ProofService``.
    """
    for package in ("starlette", "uvicorn"):
        require(package, extra="watch", why="serving proofs")
    from evenload._memory_sizes import limit_from
    from evenload.cli.serving.proof_app import ProofMetrics, Rules, make_app
    from evenload.dashboard.limited_server import limited_server
    from evenload.zk.proof_service import ProofService

    most_bytes = limit_from(request.most_witness, "most_witness")
    folder = None if request.witness_folder is None else request.witness_folder.resolve()
    metrics = ProofMetrics()
    with _bound(request.address) as (bound, host, where):
        is_file = bound.family == getattr(socket, "AF_UNIX", None)
        token = _token() if request.has_token and not is_file else None
        service = ProofService(
            request.keys,
            request.devices or "cpu",
            level=request.level,
            most_waiting=request.most_waiting,
            limit_s=request.limit_s,
            sink=metrics.sink,
        )
        with service:
            app = make_app(service, Rules(token, most_bytes, folder), metrics, host)
            server = limited_server(app, most_waiting=BURST + 4 * request.most_waiting)
            click.echo(f"proofs of {', '.join(service.keys)} at {where}")
            if token and not os.environ.get("EVENLOAD_TOKEN"):
                click.echo(f"token {token}")
            with _no_sudden_end(), contextlib.suppress(KeyboardInterrupt):
                asyncio.run(server.serve(sockets=[bound]))
    if not request.quiet:
        click.echo("stopped: every request was answered", err=True)
    return 0


def _token() -> str:
    return os.environ.get("EVENLOAD_TOKEN") or secrets.token_urlsafe(24)


@contextlib.contextmanager
def _no_sudden_end() -> Iterator[None]:
    """uvicorn raises SIGTERM once more when it has ended, which would end this process before its workers."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _bound(address: str) -> Iterator[tuple[socket.socket, str, str]]:
    """(socket, host that requests must name, address to print). Raises ConfigError."""
    if address.startswith("unix:"):
        with _socket_file(Path(address.removeprefix("unix:"))) as bound:
            yield bound, "localhost", address
        return
    from evenload.dashboard.limited_server import listen, parse_address

    hint = "give unix:PATH, 127.0.0.1:8700, or :0 for any free port"
    if ":" not in address:
        raise ConfigError(f"{quoted(address)} is no address", hint=hint)
    host, port = parse_address(address, hint)
    with listen(host, port, hint) as bound:
        name = f"[{host}]" if ":" in host else host
        if not is_loopback(host):
            click.echo("others than this machine can connect: see that the network is trusted", err=True)
        yield bound, host, f"http://{name}:{bound.getsockname()[1]}"


@contextlib.contextmanager
def _socket_file(path: Path) -> Iterator[socket.socket]:
    """A socket file that only this user can connect to; one that nobody listens at is replaced."""
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("this system has no socket files", hint="--serve 127.0.0.1:8700")
    bound = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        with _folder_locked(path.parent):
            _remove_stale(path)
            bound.bind(str(path))
            bound.listen(1024)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"{quoted(str(path))} cannot be used: {error.strerror or error}",
            hint="name a path in a folder of yours, of at most 100 letters",
        ) from error
    except BaseException:
        bound.close()
        raise
    finally:
        os.umask(before)
    made = path.stat()
    try:
        with bound:
            yield bound
    finally:
        with contextlib.suppress(OSError):
            if path.stat().st_ino == made.st_ino:
                path.unlink()


@contextlib.contextmanager
def _folder_locked(folder: Path) -> Iterator[None]:
    """Let one server at a time look at what is in ``folder`` and bind: a socket that is bound and does not
    listen yet refuses connections as a dead one does.
    """
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove_stale(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:  # there is none, or no such folder, which is told when it is bound
        return
    if not is_socket:
        raise ConfigError(f"{quoted(str(path))} is there, and no socket", hint="name another path")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ConfigError(
        f"{quoted(str(path))} is served already", hint="stop that service, or name another path"
    )
