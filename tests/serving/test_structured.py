"""Structured output: JSON of a schema, and calls of tools, whole and streamed."""

# ruff: noqa: F401, F811  fixtures are imported

import json

import jsonschema
import pytest

from tests.helpers.serving import COMPLETION, LLAMA, TALK, Client, error_of, runner

# isort: split

import polyarr as pa
from polyarr.models import LlamaModel
from polyarr.models.completion import Completion, Part
from polyarr.models.shared_writer import SharedWriter
from polyarr.serving.answers import Events, whole
from polyarr.serving.protocol import CompletionRequest, _tools
from polyarr.serving.server import server_of
from polyarr.serving.tools import CallReader, Format, ToolCall, Tools
from polyarr.text import CharTokenizer, ChatTemplate, SubwordTokenizer, byte_tokenizer
from polyarr.text.constraints import Constraints
from polyarr.text.grammar import json_rule

pytest.importorskip("llguidance")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "é"]}, "maxItems": 2},
        "next": {"$ref": "#/$defs/next"},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "$defs": {"next": {"type": "boolean"}},
}
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rom", "Bern"]}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {**WEATHER, "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now"}},
]
CHAT = """{% if tools %}Tools, as <tool_call>: {% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}
{%- for m in messages %}{{ m.role }}:{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments.city }}{% endfor %}
{%- endfor %}a:"""
SAY = {"model": "tiny", "messages": [{"role": "user", "content": "é?"}], "max_tokens": 300}


def model_of(**changes):
    pa.random.seed(0)
    return pa.tree.map(lambda p: p * 4, LlamaModel({**LLAMA, "context_length": 1000, **changes}))


@pytest.fixture(scope="module")
def client(runner):
    with pa.use_backend("numpy"):
        tokenizer = SubwordTokenizer(byte_tokenizer().to_json(), None, ChatTemplate(CHAT))
        service = server_of(model_of(), tokenizer, "tiny", batch=4).service
    yield Client(service, runner)
    service.worker.close()


def asked(client, **changes):
    found = client(TALK, {**SAY, **changes})
    assert found.status_code == 200, found.text
    return found.json()["choices"]


def schema_of(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}}


def test_texts_follow_a_schema(client):
    for seed in range(6):
        for choice in asked(client, **schema_of(SCHEMA), seed=seed, n=2):
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    found = client(COMPLETION, {"model": "tiny", "prompt": "a", "max_tokens": 300, **schema_of(SCHEMA)}).json()
    jsonschema.validate(json.loads(found["choices"][0]["text"]), SCHEMA)


def test_a_stream_is_the_text_without_one(client):
    options = {**schema_of(SCHEMA), "seed": 3}
    (wanted,) = asked(client, **options)
    events = client.events(TALK, {**SAY, **options})
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == wanted["message"]["content"] and events[-1]["choices"][0]["finish_reason"] == "stop"


def test_any_object(client):
    (found,) = asked(client, response_format={"type": "json_object"}, logit_bias={"34": 2, "125": 100}, seed=1)
    assert isinstance(json.loads(found["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "response_format: Invalid type: strin"),
        ({"pattern": "(", "type": "string"}, "response_format: regex parse error: ( ^ error: unclosed group"),
        ({"$ref": "http://a.example/b"}, "response_format: Resource 'http://a.example/b' is not present"),
        ({"enum": []}, "response_format: Unsatisfiable"),
        ({"enum": ["a" * 100] * 1000}, "response_format: it has 104,"),
        (json.loads('{"items":' * 200 + "{}" + "}" * 200), "response_format: recursion limit exceeded"),
        (json.loads('{"items":' * 900 + "{}" + "}" * 900), "response_format: recursion limit exceeded"),
    ],
)
def test_bad_schemas_are_refused(client, schema, reason):
    found = client(TALK, {**SAY, **schema_of(schema)})
    assert found.status_code == 400 and reason in error_of(found)
    assert asked(client, **schema_of({"type": "boolean"}))[0]["message"]["content"] in ("true", "false")


def test_formats_that_do_not_exist(client):
    for given, reason in (
        ({"type": "xml"}, 'response_format.type: "xml" was given; it must be "text", "json_object" or "json_schema"'),
        ({"type": "json_schema"}, "response_format.json_schema is missing; it is required"),
    ):
        found = client(TALK, {**SAY, "response_format": given})
        assert found.status_code == 400 and error_of(found) == reason


def test_required_calls_have_arguments_of_the_schema(client):
    for seed in range(4):
        (found,) = asked(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        (call,) = found["message"]["tool_calls"]
        assert found["finish_reason"] == "tool_calls" and found["message"]["content"] is None
        assert call["type"] == "function" and call["id"].startswith("call_")
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "weather":
            jsonschema.validate(arguments, WEATHER)
        else:
            assert (call["function"]["name"], arguments) == ("now", {})


def test_a_named_function_is_called_whole_and_streamed(client):
    options = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}, "seed": 2}
    (found,) = asked(client, **options)
    assert found["finish_reason"] == "stop"
    events = [event["choices"][0] for event in client.events(TALK, {**SAY, **options})]
    (call,) = [call for event in events for call in event["delta"].get("tool_calls", ())]
    assert call["index"] == 0 and call["function"] == found["message"]["tool_calls"][0]["function"]
    assert events[-1]["finish_reason"] == "stop" and not any(event["delta"].get("content") for event in events)


def test_the_template_gets_tools_calls_and_results(client):
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rom"}'}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    tools = "Tools, as <tool_call>: " + json.dumps(TOOLS[1])
    wanted = tools + "user:?assistant:<tool_call>weather Romtool:sunnya:"
    asks = {"messages": messages, "max_tokens": 1, "temperature": 0}
    found = client(TALK, {**SAY, **asks, "tools": TOOLS[1:]}).json()
    assert found["usage"]["prompt_tokens"] == len(wanted.encode())
    none = client(TALK, {**SAY, **asks, "tools": TOOLS, "tool_choice": "none"}).json()
    assert none["usage"]["prompt_tokens"] == len(wanted) - len(tools)


HERMES = Tools(("now", "weather"), Format("<tool_call>\n", "\n</tool_call>", "arguments"))
BARE = Tools(("now", "weather"), Format("", "", "parameters"))
ONE = '{"name": "weather", "arguments": {"city": "Rom"}}'
CALL, NOW = ToolCall("weather", '{"city": "Rom"}'), ToolCall("now", "{}")


@pytest.mark.parametrize(
    ("tools", "text", "wanted"),
    [
        (HERMES, f"<tool_call>\n{ONE}\n</tool_call>", ("", [CALL])),
        (HERMES, f"I see. \n<tool_call>{ONE}</tool_call>\n", ("I see.", [CALL])),
        (HERMES, f'<tool_call>{ONE}</tool_call>\n<tool_call>{{"name": "now", "arguments": {{}}', None),
        (HERMES, f'<tool_call>{ONE}</tool_call>\n<tool_call>{{"name": "now", "arguments": {{}}}}', ("", [CALL, NOW])),
        (HERMES, "a <tool_cal b <tool_call> c </tool_call> d ", ("a <tool_cal b <tool_call> c </tool_call> d ", [])),
        (HERMES, "a < b\n", ("a < b\n", [])),
        (HERMES, ONE, (ONE, [])),
        (BARE, ONE, ("", [CALL])),
        (BARE, f" {ONE.replace('arguments', 'parameters')} ", ("", [CALL])),
        (BARE, f"Look: {ONE}", (f"Look: {ONE}", [])),
        (BARE, ONE.replace("weather", "war"), (ONE.replace("weather", "war"), [])),
        (BARE, "  ", ("  ", [])),
    ],
)
def test_calls_are_found_in_any_pieces(tools, text, wanted):
    whole = CallReader(tools).add(text, True)
    if wanted:
        assert whole == wanted
    for size in (1, 2, 7):
        reader, found = CallReader(tools), ("", [])
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        for number, piece in enumerate(pieces):
            content, calls = reader.add(piece, number == len(pieces) - 1)
            found = found[0] + content, found[1] + calls
        assert found == whole


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None), ({"parallel_tool_calls": False}, 1), ({"tool_choice": "required"}, None),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, 1),
    ],
)  # fmt: skip
def test_a_request_says_how_many_calls_there_may_be(fields, most):
    tokenizer = SubwordTokenizer(byte_tokenizer().to_json(), chat=ChatTemplate("{{ tools }}"))
    tools = [{"type": "function", "function": {"name": name}} for name in ("now", "weather")]
    assert _tools({"tools": tools, **fields}, tokenizer).most == most


def test_only_one_call_where_calls_are_not_parallel():
    text = f"<tool_call>{ONE}</tool_call><tool_call>{ONE}</tool_call>"
    assert CallReader(Tools(HERMES.names, HERMES.format, 1)).add(text, True) == ("", [CALL])
    assert CallReader(HERMES).add(text, True) == ("", [CALL, CALL])


def test_streamed_calls_are_numbered():
    """Also those that become complete together, and after text."""
    request = CompletionRequest(True, "m", [[1]], 1, 1, 1, 99, (), None, {}, True, False, tools=HERMES)
    events, call = Events(request), f"<tool_call>{ONE}</tool_call>"
    pieces = (f"Look: {call}", call + call[:9], call[9:])
    parts = [Part(0, piece, n, None) for n, piece in enumerate(pieces, 1)] + [Part(0, "", 4, "stop")]
    deltas = [json.loads(event)["choices"][0]["delta"] for part in parts for event in events.of(part)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1, 2] and len({call["id"] for call in calls}) == 3


@pytest.mark.parametrize(("tools", "finish", "found"), [
    (HERMES, "stop", "tool_calls"), (HERMES, "length", "length"),
    (Tools(HERMES.names, HERMES.format, 1, is_named=True), "stop", "stop"),
])  # fmt: skip
def test_an_answer_with_calls_ends_for_them_unless_it_was_cut(tools, finish, found):
    request = CompletionRequest(True, "m", [[1]], 1, 1, 1, 99, (), None, {}, False, False, tools=tools)
    text = f"<tool_call>{ONE}</tool_call>"
    assert whole(request, [Completion(text, 9, finish)])["choices"][0]["finish_reason"] == found


def test_a_text_with_a_grammar_is_the_same_alone_and_beside_others(backend):
    writer = SharedWriter(model_of(), byte_tokenizer(), 3, 256)
    grammar = f"start: {json_rule(SCHEMA)}"

    def begin(seed):
        how = {"temperature": 0} if seed == 1 else {"top_p": 0.9, "logit_bias": {50: 3.0}} if seed == 2 else {}
        return writer.begin(["ab"], 200 if seed % 3 else 20, seed=seed, grammar=grammar if seed % 3 else None, **how)

    def written(calls):
        texts = dict.fromkeys(calls, "")
        while not writer.is_idle:
            for call, part in writer.step():
                texts[call] += part.text
        return [*texts.values()]

    together = written([begin(seed) for seed in range(8)])
    assert [*map(json.loads, (text for seed, text in enumerate(together) if seed % 3))]
    assert together == [text for seed in range(8) for text in written([begin(seed)])]
    writer.constraints.close()


def test_a_grammar_that_fails_ends_its_text_alone():
    with pa.use_backend("numpy"):
        writer = SharedWriter(model_of(), byte_tokenizer(), 2, 256)
        ended, end = [], writer.constraints.end
        writer.constraints.end = lambda one: ended.append(one) or end(one)
        bad, good = (writer.begin(["ab"], 100, seed=1, grammar=f"start: {one}") for one in ("(", json_rule(SCHEMA)))
        text = ""
        while not writer.is_idle:
            text += "".join(part.text for call, part in writer.step() if call is good)
        assert bad.is_done and bad.error and good.error is None
        assert ended == [*bad.constraints, *good.constraints]  # the worker need not keep them
        jsonschema.validate(json.loads(text), SCHEMA)
        writer.constraints.close()


@pytest.mark.parametrize("tokenizer", [byte_tokenizer, lambda: CharTokenizer("abc")], ids=["with an end", "without"])
def test_a_grammar_of_nothing_ends_a_text_before_its_first_token(tokenizer, on_numpy):
    tokenizer = tokenizer()
    writer = SharedWriter(model_of(vocab_size=tokenizer.vocab_size), tokenizer, 2, 256)
    for how in ({}, {"logprobs": 1}, {"echo": True}, {"echo": True, "logprobs": 1}):
        calls = [writer.begin(["ab"], 20, grammar=grammar, **how) for grammar in ('start: ""', 'start: "a"')]
        parts = []
        while not writer.is_idle:
            parts += writer.step()
        assert [call.error for call in calls] == [None, None]
        ends = [next(part for call, part in parts if call is one and part.finish) for one in calls]
        assert [(part.tokens, part.text, part.finish) for part in ends] == [(0, "", "stop"), (1, "a", "stop")]
        assert (len(ends[0].logprobs) > 0) == (len(how) == 2)  # those of the prompt
    writer.constraints.close()


def test_texts_go_on_when_the_worker_was_stopped():
    constraints = Constraints(byte_tokenizer())
    text, tokens = constraints.begin('start: "abc"'), byte_tokenizer().encode("abc").tolist()
    found = []
    for token in tokens:
        (mask,) = constraints.masks([text])
        found += mask.nonzero()[0].tolist()
        text.tokens.append(token)
        constraints._sandbox._process.kill()
        constraints._sandbox._process.wait()
    assert found == tokens and constraints.masks([text]) == [None]
    constraints.close()
