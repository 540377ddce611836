"""The addresses of the service: what is answered, what is refused, and in which words."""

import asyncio
import json
import re
import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from evenload.cli.serving.proof_app import ProofMetrics, Rules, make_app
from evenload.errors import ConfigError, TaskTimeout
from evenload.zk.proof_service import ProofService

DATA = Path(__file__).parents[2] / "data" / "zk"
WITNESS = (DATA / "public8" / "witness.wtns").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("service")
    for name in ("public8", "multiplier"):
        shutil.copy(DATA / name / "circuit.zkey", made / f"{name}.zkey")
    return made


@pytest.fixture(scope="module")
def metrics():
    return ProofMetrics()


@pytest.fixture(scope="module")
def service(folder, metrics):
    patch = pytest.MonkeyPatch()
    patch.setenv("EVENLOAD_KERNEL_CACHE", str(folder / "cache"))
    keys = [folder / "public8.zkey", folder / "multiplier.zkey"]
    with ProofService(keys, "cpu", most_waiting=3, sink=metrics.sink) as made:
        yield made
    patch.undo()


@pytest.fixture
def ask(service, metrics):
    """``ask(method, path, body)``: (status, JSON or text, headers) of the application."""

    def send(method, path, body=b"", headers=(), *, token="t", rules=None, host="localhost"):
        app = make_app(service, rules or Rules("t", 100_000, DATA), metrics, "localhost")
        given = [(b"host", host.encode()), *headers]
        if token:
            given.append((b"authorization", f"Bearer {token}".encode()))
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
                 "path": path, "raw_path": path.encode(), "query_string": b"", "headers": given,
                 "scheme": "http", "client": ("c", 1), "root_path": ""}  # fmt: skip
        pieces, answer = [body[k : k + 30_000] for k in range(0, len(body), 30_000)] or [b""], []

        async def receive():
            if not pieces:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def sent(message):
            answer.append(message)

        asyncio.run(app(scope, receive, sent))
        content = b"".join(one.get("body", b"") for one in answer[1:]).decode()
        page = json.loads(content) if content.startswith("{") else content
        return answer[0]["status"], page, {k.decode(): v.decode() for k, v in answer[0]["headers"]}

    return send


OURS = "public8/witness.wtns"
JSON = [(b"content-type", b"application/json")]


@pytest.fixture
def with_a_circle(tmp_path):
    """A folder of witnesses in which a link leads to itself."""
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "public8").mkdir()
    shutil.copy(DATA / OURS, tmp_path / OURS)
    return tmp_path


def named(**fields):
    return json.dumps(fields).encode()


def test_a_witness_becomes_a_verified_proof_by_body_and_by_path(ask):
    expected = json.loads((DATA / "public8" / "public.json").read_text())
    for body, headers in ((WITNESS, []), (named(path=OURS, public=expected), JSON)):
        status, page, _ = ask("POST", "/prove/public8", body, headers)
        assert (status, page["schema"], page["key"], page["public"]) == (200, 1, "public8", expected)
        assert page["proof"]["protocol"] == "groth16"
        assert "verify" in page["stages_s"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "why"),
    [
        ("/prove/none", WITNESS, [], 404, "unknown key 'none'"),
        ("/prove/multiplier", WITNESS, [], 400, "the witness has 20 values"),
        ("/prove/public8", b"", [], 400, "not a .wtns file"),
        ("/prove/public8", WITNESS[:-1], [], 400, "section 2"),
        ("/prove/public8", WITNESS[:-32] + bytes(32), [], 422, "does not verify"),
        ("/prove/public8", bytes(100_001), [], 413, "more than 100,000 bytes"),
        ("/prove/public8", b"[]", JSON, 400, r"the request has \[\]"),
        ("/prove/public8", b"{", JSON, 400, "not JSON"),
        ("/prove/public8", named(path=3), JSON, 400, "3 is no path"),
        ("/prove/public8", named(path="../zk.py", more=1), JSON, 400, "the request has"),
        ("/prove/public8", named(path="../test_main.py"), JSON, 400, "leads out of the folder"),
        ("/prove/public8", named(path="/etc/hostname"), JSON, 400, "leads out of the folder"),
        ("/prove/public8", named(path="public8"), JSON, 400, "cannot be read"),
        ("/prove/public8", b'{"path": "\\ud800"}', JSON, 400, "is no path"),
        ("/prove/public8", named(path="circle"), JSON, 400, "no path|cannot be read"),
        ("/prove/public8", bytes(400_001), [(b"content-length", b"400001")], 413, "more than 100,000 bytes"),
        ("/prove", b"", [], 404, "no such address"),
        ("/keys", b"", [], 405, "'POST' is not answered here"),
        ("/prove/public8", named(path="none.wtns"), JSON, 400, "cannot be read"),
        ("/prove/public8", named(path=OURS, public=["1"]), JSON, 400, "the expected public"),
        ("/prove/public8", named(path=OURS, public=[1.5]), JSON, 400, "not a decimal"),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_in_one_sentence(ask, with_a_circle, path, body, headers, status, why):
    found, page, _ = ask("POST", path, body, headers, rules=Rules("t", 100_000, with_a_circle))
    assert (found, page["schema"]) == (status, 1)
    assert re.search(why, page["error"])
    assert len(page["error"]) < 600


def test_files_are_read_only_where_a_folder_was_named(ask):
    status, page, _ = ask("POST", "/prove/public8", named(path=OURS), JSON, rules=Rules("t", 100_000, None))
    assert (status, page["error"]) == (400, "witnesses are not read from files here")


@pytest.mark.parametrize("token", [None, "", "other", "t "])
def test_without_the_token_nothing_is_told(ask, token):
    for method, path in (("GET", "/keys"), ("POST", "/prove/public8"), ("GET", "/none"), ("GET", "/metrics")):
        status, page, headers = ask(method, path, token=token)
        assert (status, page["error"], headers["www-authenticate"]) == (401, "no valid token", "Bearer")
    assert ask("GET", "/keys", token=None, rules=Rules(None, 1, None))[0] == 200


def test_a_page_elsewhere_gets_no_answer(ask):
    status, page, _ = ask("GET", "/keys", host="example.org")
    assert (status, page["schema"], "another name" in page["error"]) == (421, 1, True)
    status, page, _ = ask("GET", "/keys", headers=[(b"origin", b"http://example.org")])
    assert (status, page["schema"], "other pages" in page["error"]) == (403, 1, True)


def test_a_proof_beyond_its_limit_is_told_with_the_option(ask, service, monkeypatch):
    late: Future = Future()
    late.set_exception(TaskTimeout("item 0 ran longer than 600 s", index=0))
    monkeypatch.setattr(service, "submit", lambda *_: late)
    status, page, _ = ask("POST", "/prove/public8", WITNESS)
    assert (status, "--limit" in page["hint"]) == (504, True)
    assert service.n_waiting == 0


def test_no_more_requests_wait_than_may(ask, service):
    with service.admitted(), service.admitted(), service.admitted():
        assert service.n_waiting == 3
        status, page, headers = ask("POST", "/prove/public8", WITNESS)
        assert (status, page["error"], page["hint"]) == (503, "3 requests wait already", "come again later")
        assert int(headers["retry-after"]) >= 1
    assert service.n_waiting == 0
    assert ask("POST", "/prove/public8", WITNESS)[0] == 200


def test_keys_health_and_metrics(ask, service):
    assert ask("POST", "/prove/public8", WITNESS)[0] == 200
    rows = ask("GET", "/keys")[1]["keys"]
    assert [(row["name"], row["wires"], row["public"]) for row in rows] == [
        ("public8", 20, 10),
        ("multiplier", 4, 1),
    ]
    page = ask("GET", "/keys/multiplier/vkey.json")[1]
    assert page == json.loads((DATA / "multiplier" / "vkey.json").read_text())
    assert ask("GET", "/keys/none/vkey.json")[0] == 404
    health = ask("GET", "/health")[1]
    assert (health["workers"], health["waiting"], len(health["pids"])) == (1, 0, 1)
    pytest.importorskip("prometheus_client")
    text = ask("GET", "/metrics")[1]
    assert 'evenload_proof_requests_total{key="public8",status="200"}' in text
    assert "evenload_proof_requests_waiting 0.0" in text
    assert ask("GET", "/prove/public8")[0] == 405


def test_keys_of_one_name_are_refused(folder, tmp_path):
    other = shutil.copy(folder / "public8.zkey", tmp_path / "public8.zkey")
    with pytest.raises(ConfigError, match="several keys are called 'public8'"):
        ProofService([folder / "public8.zkey", Path(other)], "cpu")
    with pytest.raises(ConfigError, match="limit_s=0"):
        ProofService([folder / "public8.zkey"], "cpu", limit_s=0)
    with pytest.raises(ConfigError, match="most_waiting is 0"):
        ProofService([folder / "public8.zkey"], "cpu", most_waiting=0)
