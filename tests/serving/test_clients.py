"""`polyarr serve` as a separate process, called by the OpenAI client library."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.core import current
from polyarr.models import GPTModel, Writer, save_pretrained
from polyarr.text import byte_tokenizer
from polyarr.training import load_checkpoint
from polyarr.training.pretrained import import_model
from tests.helpers.pages import BLOCK
from tests.helpers.root import ROOT

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")
PAGE = ROOT / "docs" / "serve.md"
LENGTH = 4096
GPT = {
    "vocab_size": 257, "context_length": LENGTH, "emb_dim": 8, "n_heads": 1, "n_layers": 1, "drop_rate": 0.0,
    "qkv_bias": True, "tie_embeddings": True,
}  # fmt: skip
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
PATIENT = 120  # seconds after which a test fails rather than waits


def served(*args):
    """A server's process, at a port that the system selects, and its address."""
    return process_of(["serve", *map(str, args), "--port", "0", "--backend", "numpy"])


@contextlib.contextmanager
def process_of(words):
    """Return a server's process, after its second line of output, and its address."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    process = subprocess.Popen(
        [sys.executable, "-m", "polyarr", *words],
        env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = process.stdout.readline() + process.stdout.readline()
        assert "http://" in said, process.stderr.read()
        yield process, re.search(r"http://\S+/v1", said)[0]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    monkeypatch.setattr(current, "_default", current._default)  # which commands set


def write_model(folder, **changes):
    """Write a Hugging Face folder with a chat template."""
    pa.random.seed(0)
    save_pretrained(folder, pa.tree.map(lambda p: p * 8, GPTModel({**GPT, **changes})))
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with a chat template."""
    found = tmp_path_factory.mktemp("served")
    with pa.use_backend("numpy"):
        write_model(found / "theirs")
        import_model(found / "theirs", found / "tiny")
    return found / "tiny"


@pytest.fixture(scope="module")
def address(folder):
    with served(folder) as (_, found):
        yield found


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=PATIENT) as found:
        yield found


@pytest.fixture(scope="module")
def writer(folder):
    """The served model, in this process."""
    with pa.use_backend("numpy"):
        model, tokenizer, *_ = load_checkpoint(folder)
        yield Writer(model, tokenizer)


def test_completions(client, writer):
    wanted = writer.complete(["the", "the"], 9, seed=3, temperature=0.9)
    found = client.completions.create(model="tiny", prompt="the", max_tokens=9, temperature=0.9, seed=3, n=2)
    assert [(c.text, c.finish_reason) for c in found.choices] == [(w.text, w.finish) for w in wanted]
    assert found.usage.prompt_tokens == 3 and found.usage.completion_tokens == sum(w.tokens for w in wanted)
    stream = client.completions.create(
        model="tiny", prompt="the", max_tokens=9, temperature=0.9, seed=3, stream=True,
        stream_options={"include_usage": True}, extra_body={"top_k": 257},
    )  # fmt: skip
    *events, last = stream
    assert "".join(event.choices[0].text for event in events) == wanted[0].text
    assert last.usage.completion_tokens == wanted[0].tokens and events[-1].choices[0].finish_reason == wanted[0].finish


def test_chat_completions(client, writer):
    asked = {"model": "tiny", "max_tokens": 9, "temperature": 0}
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "é 日 😀?"}]
    (wanted,) = writer.complete(["system: be brief\nuser: é 日 😀?\nassistant:"], 9, temperature=0.0)
    found = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert (found.message.role, found.message.content) == ("assistant", wanted.text)
    first, *events = client.chat.completions.create(messages=messages, stream=True, **asked)
    assert first.choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events) == wanted.text
    again = [*messages, found.message, {"role": "user", "content": "and?"}]  # as clients go on
    assert client.chat.completions.create(messages=again, **asked).usage.prompt_tokens > 40


def test_structured_output(client):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 5]}}, "required": ["n"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "response_format": wanted, "seed": 1}
    found = client.chat.completions.create(**asked).choices[0]
    assert json.loads(found.message.content)["n"] in (1, 5) and found.finish_reason == "stop"
    with client.chat.completions.stream(**asked) as events:
        assert events.get_final_completion().choices[0].message.content == found.message.content
    with pytest.raises(openai.BadRequestError, match="no place for them"):
        client.chat.completions.create(
            model="tiny", messages=asked["messages"], tools=[{"type": "function", "function": {"name": "now"}}]
        )


def test_log_probabilities_of_a_completion(client, writer):
    asked = {"model": "tiny", "prompt": ["the", "a é"], "temperature": 0, "logprobs": 3, "echo": True}
    found = client.completions.create(**asked, max_tokens=4).choices
    wanted = writer.complete(["the", "a é"], 4, temperature=0, logprobs=3, echo=True)
    for choice, prompt, text in zip(found, asked["prompt"], wanted, strict=True):
        assert choice.text == prompt + text.text
        assert choice.logprobs.tokens == [one.text for one in text.logprobs]
        assert choice.logprobs.token_logprobs[0] is text.logprobs[0].logprob is None
        wanted_logprobs = [one.logprob for one in text.logprobs[1:]]
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(wanted_logprobs, rel=1e-5)
        assert choice.logprobs.top_logprobs[0] is None
    scored = client.completions.create(**asked, max_tokens=0)
    assert [choice.text for choice in scored.choices] == asked["prompt"] and scored.usage.completion_tokens == 0
    assert scored.choices[1].logprobs.token_logprobs == pytest.approx([one.logprob for one in wanted[1].logprobs[:4]])


def test_log_probabilities_of_a_stream_and_a_chat(client):
    asked = {"model": "tiny", "max_tokens": 6, "temperature": 0.5, "seed": 1, "logprobs": True, "top_logprobs": 2}
    asked["messages"] = [{"role": "user", "content": "é"}]
    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    events = client.chat.completions.create(**asked, stream=True)
    parts = [one for e in events if e.choices[0].logprobs for one in e.choices[0].logprobs.content]
    assert parts == whole and len(whole) == 6 and all(len(one.top_logprobs) == 2 for one in whole)
    assert all(one.bytes == list(one.token.encode()) or "\ufffd" in one.token for one in whole)


def test_biases_and_penalties(client, writer):
    asked = {"model": "tiny", "prompt": "the", "max_tokens": 12, "temperature": 0}
    tokens = byte_tokenizer().encode("abc").tolist()
    texts = []
    for penalties in ({}, {"presence_penalty": 2}, {"frequency_penalty": -1.5}):
        how = {"logit_bias": {str(token): 90 for token in tokens}, **penalties}
        (choice,) = client.completions.create(**asked, **how).choices
        (wanted,) = writer.complete(["the"], 12, temperature=0, logit_bias=dict.fromkeys(tokens, 90), **penalties)
        assert choice.text == wanted.text and set(choice.text) <= set("abc")
        texts.append(choice.text)
    assert len(set(texts)) > 1


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "polyarr"


def test_the_client_knows_the_errors(client):
    ask = {"model": "tiny", "prompt": "the"}
    for kind, changes in (
        (openai.NotFoundError, {"model": "gpt-4"}),
        (openai.BadRequestError, {"n": 1000}),
        (openai.BadRequestError, {"max_tokens": LENGTH}),
        (openai.BadRequestError, {"logprobs": 6}),
    ):
        with pytest.raises(kind) as caught:
            client.completions.create(**{**ask, **changes})
        assert caught.value.type == "invalid_request_error" and caught.value.body["message"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{**ask, "max_tokens": LENGTH})
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    assert client.completions.create(**ask).choices


def test_thirty_clients_at_once(client, writer):
    def ask(seed):
        asked = {"model": "tiny", "prompt": f"{seed}", "max_tokens": 8, "seed": seed, "temperature": 1.0}
        if seed % 2:
            return client.completions.create(**asked).choices[0].text
        return "".join(event.choices[0].text for event in client.completions.create(**asked, stream=True))

    with ThreadPoolExecutor(30) as threads:
        found = list(threads.map(ask, range(30)))
    assert found == [writer.complete([f"{seed}"], 8, seed=seed, temperature=1.0)[0].text for seed in range(30)]


def test_an_aborted_stream_blocks_no_other_request(client):
    """The text has thousands of tokens, but the next request is answered soon."""
    ask = {"model": "tiny", "prompt": "the", "temperature": 1.5}
    with client.completions.create(**ask, max_tokens=LENGTH - 3, seed=1, stream=True) as stream:
        assert [next(stream) for _ in range(3)]
    assert client.completions.create(**ask, max_tokens=2).choices


def test_a_signal_lets_what_runs_finish(folder):
    with served(folder) as (process, address):
        ask = {"model": "tiny", "prompt": "the", "max_tokens": 200, "seed": 1, "stream": True}
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=PATIENT) as client:
            stream = client.completions.create(**ask)
            next(stream)
            process.terminate()
            assert [event.choices[0].finish_reason for event in stream][-1] in ("length", "stop")
        out, err = process.communicate(timeout=PATIENT)
        assert (process.returncode, out, err) == (128 + signal.SIGTERM, "stopped\n", "")


def test_a_second_signal_ends_it(folder):
    with served(folder) as (process, address):
        ask = {"model": "tiny", "prompt": "the", "max_tokens": LENGTH - 3, "seed": 1, "stream": True}
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=PATIENT) as client:
            stream = client.completions.create(**ask)
            next(stream)
            process.send_signal(signal.SIGINT)
            with pytest.raises(openai.APIError, match="the server is being stopped"):
                for number, _ in enumerate(stream):
                    if number == 50:
                        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENT)
        assert (process.returncode, out, err) == (130, "stopped\n", "")


def test_other_addresses_are_warned_of(folder):
    with served(folder, "--host", "0.0.0.0", "--name", "mine", "--length", 100) as (process, address):
        port = int(address.split(":")[-1].removesuffix("/v1"))
        assert process.stderr.readline() == (
            f"warning: whoever reaches 0.0.0.0:{port} can use the model; "
            "there is no key (--api-key-file) and no encryption\n"
        )
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            assert client.models.list(extra_headers={"Host": "any.example"}).data[0].id == "mine"
            with pytest.raises(openai.BadRequestError, match="there may be 100"):
                client.completions.create(model="mine", prompt="the", max_tokens=98)


def test_a_key_of_the_environment_and_web_pages(folder, monkeypatch):
    monkeypatch.setenv("POLYARR_API_KEY", "sk-one")
    with served(folder, "--cors", "https://app.example") as (_, address):
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="the API key is wrong"):
                client.models.list()
        with openai.OpenAI(base_url=address, api_key="sk-one", max_retries=0) as client:
            found = client.models.with_raw_response.list(extra_headers={"Origin": "https://app.example"})
            assert found.headers["access-control-allow-origin"] == "https://app.example"


def test_quantized_weights_are_served(folder, writer):
    with pa.use_backend("numpy"):
        small = Writer(writer.model.quantized("int8"), writer.tokenizer)
        wanted, whole = (each.complete(["the"], 5, temperature=0.0, logprobs=1)[0] for each in (small, writer))
    with served(folder, "--weights", "int8") as (_, address), openai.OpenAI(base_url=address, api_key="none") as client:
        found = client.completions.create(model="tiny", prompt="the", max_tokens=5, temperature=0, logprobs=1)
    assert found.choices[0].text == wanted.text
    near, far = (pytest.approx([token.logprob for token in each.logprobs], abs=1e-4) for each in (wanted, whole))
    logprobs = found.choices[0].logprobs.token_logprobs
    assert logprobs == near and logprobs != far


def test_what_cannot_be_served_is_one_line(folder, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for args, reason in (
            ((folder, "--port", port), f"polyarr: 127.0.0.1:{port}: Address already in use"),
            ((folder, "--port", 0, "--host", "no.such.host.invalid"), "polyarr: no.such.host.invalid:0: "),
            ((folder, "--port", 0, "--length", 10**9), "polyarr: server_of: length is 1000000000; it must be"),
            ((folder, "--port", 0, "--cors", "a.example"), "polyarr: CORS: the origin is 'a.example'; it must be"),
            ((folder, "--port", 0, "--api-key", "a b"), "polyarr: --api-key: it must be a key without blanks"),
            ((folder, "--port", 0, "--name", " "), "Invalid value for '--name': it is empty; leave it out"),
            ((tmp_path / "none", "--backend", "none"), f"polyarr: {tmp_path / 'none'}: no such file or folder"),
        ):
            with pytest.raises(SystemExit) as ended:
                main(["serve", "--backend", "numpy", *map(str, args)])
            assert ended.value.code == (2 if "--name" in args else 1)
            out, err = capsys.readouterr()
            assert out == "" and err.count("\n") == 1 and reason in err


def test_the_page_is_what_happens(tmp_path, monkeypatch, capsys):
    """Its commands, requests and programs, at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYARR_BACKEND", "numpy")
    write_model(tmp_path / "SmolLM2-135M-Instruct", context_length=64)
    blocks = [(kind, block.replace("8000", port)) for kind, block in BLOCK.findall(PAGE.read_text())]
    assert [kind for kind, _ in blocks] == ["sh", "bash", "python", "python", "bash", "console", "python"]
    importing, serving = (shlex.split(line) for line in blocks[0][1].splitlines())
    main(importing[1:], standalone_mode=False)
    with process_of(serving[1:]):
        for line in (blocks[1][1] + blocks[4][1]).replace("\\\n", " ").splitlines():
            answer = subprocess.run([*shlex.split(line), "-sS"], capture_output=True, text=True, timeout=PATIENT)
            assert json.loads(answer.stdout).keys() & {"choices", "status"}, answer
        capsys.readouterr()
        for _, block in blocks[2:4] if find_spec("llguidance") else blocks[2:3]:
            exec(block, {})
            assert capsys.readouterr().out
    program = f"import polyarr as pa\npa.set_backend('numpy')\n{blocks[6][1]}"
    found = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=20) as client:
            assert client.models.list().data[0].id == "smol"
        found.terminate()
        assert found.wait(PATIENT) == 0
    finally:
        found.kill()
        found.wait()


def test_without_the_libraries_it_says_what_to_install(folder, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("polyarr.serving", "starlette", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit):
        main(["serve", str(folder), "--backend", "numpy"])
    assert re.match(
        r"polyarr: uvicorn cannot be imported \(.*\); install it with: pip install 'polyarr\[serve\]'\n$",
        capsys.readouterr().err,
    )
