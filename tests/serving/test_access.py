"""Access to a server from other machines: host names, API keys, and limits per client."""

import asyncio

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from polyarr.serving.access import Access, access_of, client_of, read_keys  # noqa: E402
from polyarr.serving.app import Service  # noqa: E402
from polyarr.serving.protocol import Limits, RefusedError  # noqa: E402
from polyarr.serving.server import IdleClosingProtocol  # noqa: E402
from polyarr.serving.worker import Worker  # noqa: E402
from polyarr.text import CharTokenizer  # noqa: E402
from polyarr.text.sandbox import SandboxedTokenizer  # noqa: E402


def ask(access, path="/v1/models", **headers):
    worker = Worker(None, SandboxedTokenizer(CharTokenizer("ab")), waiting=3)
    app = Service(worker, "tiny", Limits(9), access).app()

    async def asked():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

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
    assert ask(access, "/health").status_code == 200


def test_the_file_of_keys(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"sk-one\n\n  sk-two\r\n")
    assert read_keys(path) == {b"sk-one", b"sk-two"}
    for wrong in (b"", b"\n \n", b"two words\n"):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"keys: it must have an API key without blanks on each line"):
            read_keys(path)


def test_one_client_may_not_have_all_places():
    worker = Worker(None, SandboxedTokenizer(CharTokenizer("ab")), waiting=3)
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
    server = Service(None, "tiny", Limits(9))

    async def scenario():
        import uvicorn
        from uvicorn.server import ServerState

        config, state = uvicorn.Config(server.app(), log_config=None), ServerState()
        config.load()
        for peer in ("203.0.113.7", "203.0.113.7", "203.0.113.7", "203.0.113.8", *["127.0.0.1"] * 5):
            IdleClosingProtocol(config, state, {}, most=2).connection_made(Transport(peer))

    asyncio.run(scenario())
    assert aborted == ["203.0.113.7"]
