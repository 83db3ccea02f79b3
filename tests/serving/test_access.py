"""Access to a server from other machines: host names, API keys, and limits per client."""

import asyncio
from types import SimpleNamespace

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from polyarr.serving.access import Access, access_of, api_keys, check_origins, client_of  # noqa: E402
from polyarr.serving.app import Service  # noqa: E402
from polyarr.serving.protocol import Limits, RefusedError  # noqa: E402
from polyarr.serving.server import IdleClosingProtocol  # noqa: E402
from polyarr.serving.worker import Worker  # noqa: E402
from polyarr.text import CharTokenizer  # noqa: E402
from polyarr.text.sandbox import SandboxedTokenizer  # noqa: E402
from tests.helpers.serving import Scripted  # noqa: E402


def ask(access, path="/v1/models", method="GET", **headers):
    worker = Worker(Scripted(CharTokenizer("ab")), SandboxedTokenizer(CharTokenizer("ab")), waiting=3)
    app = Service(worker, "tiny", Limits(9), access).app()

    async def asked():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, headers=named)

    try:
        return asyncio.run(asked())
    finally:
        worker.close()


def test_names_by_which_it_may_be_called():
    beyond = access_of("0.0.0.0", 32, ["models.example", "*.Inner.example"])
    for host in ("models.example", "MODELS.example:8000", "a.inner.example", "a.b.inner.example", "127.0.0.1", "[::1]"):
        assert ask(beyond, host=host).status_code == 200
    for host in ("evil.example", "inner.example", "xinner.example", "models.example.evil", "[::1", "*.inner.example@b"):
        found = ask(beyond, host=host)
        assert found.status_code == 403 and "is not this server's name" in found.json()["error"]["message"]
    assert ask(access_of("0.0.0.0", 32), host="any.example").status_code == 200
    assert ask(access_of("127.0.0.1", 32), host="any.example").status_code == 403
    assert ask(access_of("127.0.0.1", 32, ["any.example"]), host="any.example").status_code == 200


def test_api_keys():
    access = Access(keys=frozenset({b"sk-one", b"sk-two"}))
    for key in ("Bearer sk-one", "bearer sk-two", "Bearer  sk-two "):
        assert ask(access, authorization=key).status_code == 200
    for key in ("Bearer sk-on", "Bearer sk-onee", "Basic sk-one", "sk-one", "Bearer", "Bearer \xe9", "Bearer "):
        found = ask(access, authorization=key.encode("latin-1"))
        assert found.status_code == 401 and found.headers["www-authenticate"] == "Bearer"
        error = found.json()["error"]
        assert error["type"] == "invalid_request_error" and error["message"].startswith("Authorization: ")
        assert "sk-" not in found.text
    assert ask(access, authorization="Bearer wrong").json()["error"]["code"] == "invalid_api_key"
    assert ask(access).status_code == ask(access, "/v1/completions").status_code == 401
    assert (ask(access, "/health").status_code, ask(access, "/healthy").status_code) == (200, 401)


def test_the_file_of_keys(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"sk-one\n\n  sk-two\r\n")
    assert api_keys(path, None) == {b"sk-one", b"sk-two"}
    assert api_keys(path, "sk-é") == {b"sk-one", b"sk-two", "sk-é".encode()} and api_keys(None, None) == frozenset()
    for wrong in ("", " ", "two words"):
        with pytest.raises(ValueError, match=r"^--api-key: it must be a key without blanks$"):
            api_keys(None, wrong)
    for wrong in (b"", b"\n \n", b"two words\n"):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"keys: it must have an API key without blanks on each line"):
            api_keys(path, None)


def test_web_pages_of_allowed_origins():
    """A browser asks before it sends JSON or a key; a page of another origin gets no permission, and no answer."""
    access = access_of("127.0.0.1", 32, keys=[b"sk"], origins=["https://app.example", "http://localhost:3000"])
    asking = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type"}
    for origin in access.origins:
        found = ask(access, "/v1/completions", "OPTIONS", origin=origin, **asking)
        assert found.status_code == 200 and found.headers["access-control-allow-origin"] == origin
        assert found.headers["access-control-allow-headers"] == "authorization,content-type"
        found = ask(access, origin=origin, authorization="Bearer sk").headers
        assert found["access-control-allow-origin"] == origin
        assert found["access-control-expose-headers"] == "retry-after"  # which clients need when the queue is full
        refused = ask(access, origin=origin)
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == origin
        assert ask(access, origin=origin, authorization="Bearer sk", host="evil.example").status_code == 403
    for origin in ("https://evil.example", "http://app.example", "https://app.example.evil", "null"):
        assert ask(access, "/v1/completions", "OPTIONS", origin=origin, **asking).status_code == 400
        assert "access-control-allow-origin" not in ask(access, origin=origin, authorization="Bearer sk").headers
    anybody = Access(origins=frozenset("*"))
    assert ask(anybody, origin="https://any.example").headers["access-control-allow-origin"] == "*"
    assert ask(Access(), "/v1/completions", "OPTIONS", origin="https://app.example", **asking).status_code == 405


@pytest.mark.parametrize("origin", ["", "app.example", "https://", "https://a/", "https://A.example", "http://a b"])
def test_what_is_no_origin(origin):
    check_origins(["*", "https://app.example", "http://[::1]:80"])
    with pytest.raises(ValueError, match=r"^CORS: the origin is '.*'; it must be such as https://app.example or "):
        check_origins([origin])


def test_one_client_may_not_have_more_tokens():
    worker = Worker(Scripted(CharTokenizer("ab")), SandboxedTokenizer(CharTokenizer("ab")), waiting=3)
    with worker.slot("a") as one, worker.slot("a") as other, worker.slot("b") as third:
        with pytest.raises(RefusedError, match=r"^1,001 tokens, and your other requests have 0; together there may"):
            worker.reserve(one, 1001, 1000)
        worker.reserve(one, 600, 1000)
        with pytest.raises(RefusedError, match=r"^401 tokens, and your other requests have 600; together") as no:
            worker.reserve(other, 401, 1000)
        assert no.value.status == 429
        worker.reserve(other, 400, 1000)
        worker.reserve(third, 1000, 1000)
    with worker.slot("a") as one:
        worker.reserve(one, 1000, 1000)
    worker.close()


def test_clients_are_addresses_or_keys():
    scope = {"client": ("10.0.0.1", 9), "headers": [(b"authorization", b"Bearer  k1 ")]}
    assert Access().client(scope) == Access(keys=frozenset({b"k1"})).client(scope) == "10.0.0.1"
    assert Access(keys=frozenset({b"k1", b"k2"})).client(scope) == "k1"


def test_one_client_may_not_have_all_places():
    worker = Worker(Scripted(CharTokenizer("ab")), SandboxedTokenizer(CharTokenizer("ab")), waiting=3)
    with worker.slot("a", 2), worker.slot("a", 2):
        with pytest.raises(RefusedError, match="2 of your requests are here already"), worker.slot("a", 2):
            pass
        with worker.slot("b", 2):
            assert worker.requests == 3
            with worker.slot("c", 2), pytest.raises(RefusedError, match="4 requests are here"), worker.slot("d", 2):
                pass
    assert worker.requests == 0 and not worker._clients
    worker.close()
    assert access_of("0.0.0.0", 32).slots == 8 and access_of("0.0.0.0", 0).slots == 1
    assert access_of("127.0.0.1", 32).slots is None and access_of("::1", 32, per_client=5).slots == 5


def test_what_one_client_is():
    assert client_of("203.0.113.7") == client_of("::ffff:203.0.113.7") == "203.0.113.7"
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:2") != client_of("2001:db8:0:1::1")
    assert client_of("fe80::1%eth0") == client_of("fe80::2")
    assert (client_of(""), client_of("a socket")) == ("", "a socket")


def test_one_client_may_not_have_all_connections(monkeypatch):
    """The test simulates a client on another machine."""
    aborted = []

    class Transport:
        def __init__(self, peer):
            self.peer = peer

        def get_extra_info(self, name, default=None):
            return {"peername": (self.peer, 1), "sockname": ("203.0.113.1", 80)}.get(name, default)

        def abort(self):
            aborted.append(self.peer)

    monkeypatch.setattr(IdleClosingProtocol, "_watch", lambda self, before: None)
    server = Service(SimpleNamespace(at_once=1), "tiny", Limits(9))

    async def scenario():
        import uvicorn
        from uvicorn.server import ServerState

        config, state = uvicorn.Config(server.app(), log_config=None), ServerState()
        config.load()
        for peer in ("203.0.113.7", "203.0.113.7", "203.0.113.7", "203.0.113.8", *["127.0.0.1"] * 5):
            IdleClosingProtocol(config, state, {}, most=2).connection_made(Transport(peer))

    asyncio.run(scenario())
    assert aborted == ["203.0.113.7"]
