"""Log-probabilities, echoed prompts and the best of several texts from `polyarr serve`, in process."""

# ruff: noqa: F401, F811  fixtures are imported

import json
import math

import pytest

from tests.helpers.serving import ASK, COMPLETION, LENGTH, SAY, TALK, Client, client, error_of, runner, tiny

# isort: split

from polyarr.models.completion import Completion, TokenLogprob
from polyarr.serving.answers import whole
from polyarr.serving.protocol import CompletionRequest, Limits, read
from polyarr.serving.server import server_of
from polyarr.text import SubwordTokenizer, byte_tokenizer

SCORE = {**ASK, "logprobs": 2, "echo": True, "max_tokens": 0}


def choice(client, **changes):
    (found,) = client(COMPLETION, {**ASK, **changes}).json()["choices"]
    return found


def test_a_prompt_is_scored_as_its_continuation_is(client):
    """A greedy text has the same log-probabilities when it is a prompt."""
    written = choice(client, logprobs=2, max_tokens=8, logit_bias={str(n): -100 for n in range(95, 257)})  # ASCII
    scored = choice(client, **{**SCORE, "prompt": "the" + written["text"]})
    assert scored["text"] == "the" + written["text"] and scored["finish_reason"] == "length"
    found = scored["logprobs"]
    assert found["tokens"] == list(scored["text"]) and found["text_offset"] == list(range(11))
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert found["token_logprobs"][3:] == pytest.approx(written["logprobs"]["token_logprobs"], abs=1e-4)
    assert written["logprobs"]["text_offset"] == list(range(8))
    _, *scored = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    for token, own, top in scored:
        assert top[token] == own and 2 <= len(top) <= 3 and list(top.values()) == sorted(top.values(), reverse=True)


@pytest.mark.parametrize("prompt", ["", "é日😀", [72, 69], [128, 103], [163, 246]])
def test_what_is_echoed_is_the_prompt(client, prompt):
    """Prompts as texts, and as tokens; the last ones end within a character."""
    tokens = prompt if isinstance(prompt, list) else byte_tokenizer().encode(prompt).tolist()
    wanted = byte_tokenizer().decode(tokens)
    found = choice(client, **{**SCORE, "prompt": prompt})
    assert found["text"] == wanted
    assert len(found["logprobs"]["tokens"]) == max(len(tokens), 1)
    assert choice(client, prompt=prompt, echo=True, max_tokens=0)["text"] == wanted
    both = choice(client, prompt=prompt, echo=True, logprobs=0)
    assert both["text"] == wanted + choice(client, prompt=prompt)["text"]
    assert both["logprobs"]["text_offset"][-3] == len(wanted) and len(both["logprobs"]["top_logprobs"][-1]) == 1


def test_tokens_that_the_tokenizer_adds_have_no_text(tiny, runner):
    """The echo of a prompt is the prompt, though its tokens begin with <s>."""
    described = json.loads(byte_tokenizer().to_json())
    described["post_processor"] = {
        "type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }  # fmt: skip
    described["post_processor"]["pair"] = described["post_processor"]["single"]
    service = server_of(tiny[0], SubwordTokenizer(json.dumps(described)), "tiny").service
    found = choice(Client(service, runner), **{**SCORE, "prompt": "the"})
    assert found["text"] == "the" and found["logprobs"]["text_offset"] == [0, 0, 1, 2]
    assert found["logprobs"]["token_logprobs"][0] is None and found["logprobs"]["token_logprobs"][1] < 0
    found = choice(Client(service, runner), **{**SCORE, "prompt": [0, 72]})
    assert found["text"] == "<|endoftext|>h"
    service.worker.close()


def test_a_stream_has_all_log_probabilities(client):
    asked = {**ASK, "prompt": ["é", "the"], "logprobs": 1, "echo": True, "max_tokens": 20, "temperature": 2, "seed": 3}
    choices = client(COMPLETION, asked).json()["choices"]
    events = client.events(COMPLETION, asked)
    for index, found in enumerate(choices):
        mine = [c for event in events for c in event["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in mine) == found["text"]
        for name, values in found["logprobs"].items():
            assert [value for c in mine for value in c["logprobs"][name]] == values
            assert len(values) == (2, 3)[index] + 20
    (event,) = client.events(COMPLETION, {**SCORE, "logprobs": None})
    assert event["choices"] == [{"text": "the", "index": 0, "logprobs": None, "finish_reason": "length"}]


def test_log_probabilities_of_a_chat(client):
    (found,) = client(TALK, {**SAY, "logprobs": True, "top_logprobs": 20}).json()["choices"]
    assert found["logprobs"]["refusal"] is None
    tokens = found["logprobs"]["content"]
    assert len(tokens) == 3 and all(len(one["top_logprobs"]) == 20 for one in tokens)
    for one in tokens:
        first = one["top_logprobs"][0]
        assert {**first, "top_logprobs": one["top_logprobs"]} == one  # greedy
        assert one["bytes"] == (None if "\ufffd" in one["token"] else list(one["token"].encode()))
    plain = client(TALK, {**SAY, "logprobs": True}).json()["choices"][0]["logprobs"]["content"]
    assert [one["top_logprobs"] for one in plain] == [[], [], []]
    assert client(TALK, {**SAY, "logprobs": False}).json()["choices"][0]["logprobs"] is None


def test_the_best_of_several_texts(client):
    asked = {**ASK, "max_tokens": 6, "temperature": 1.5, "seed": 7, "logprobs": 0}
    every = client(COMPLETION, {**asked, "n": 6}).json()["choices"]

    def mean(one):
        return sum(one["logprobs"]["token_logprobs"]) / len(one["logprobs"]["token_logprobs"])

    best = sorted(every, key=mean, reverse=True)[:2]
    found = client(COMPLETION, {**asked, "n": 2, "best_of": 6}).json()
    assert [one["text"] for one in found["choices"]] == [one["text"] for one in best]
    assert [one["index"] for one in found["choices"]] == [0, 1] and found["usage"]["completion_tokens"] == 36
    plain = client(COMPLETION, {**asked, "best_of": 6, "logprobs": None, "echo": True}).json()["choices"]
    assert [(one["text"], one["logprobs"]) for one in plain] == [("the" + best[0]["text"], None)]
    nothing = client(COMPLETION, {**SCORE, "best_of": 3, "prompt": ["a", "b"]}).json()["choices"]
    assert [one["text"] for one in nothing] == ["a", "b"]


def test_a_short_text_is_not_better_than_a_long_one():
    request = CompletionRequest(False, "m", [[1]] * 2, 1, 1, 2, 3, (), None, {}, False, False)
    likely = (("a", 1, -1.0), ("b", 3, -0.5))  # each token of the second is more likely
    texts = [Completion(a * n, n, "stop", (TokenLogprob(1, a, p, (), 0),) * n) for a, n, p in likely]
    assert [one["text"] for one in whole(request, texts)["choices"]] == ["bbb"]


def test_numbers_that_json_lacks_are_the_least():
    request = CompletionRequest(False, "m", [[1]], 1, 1, 1, 1, (), None, {}, False, False, 1)
    tokens = (TokenLogprob(1, "a", -math.inf, (("b", math.nan),), 0),)
    found = whole(request, [Completion("a", 1, "length", tokens)])["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [-9999.0] and found["top_logprobs"] == [{"b": -9999.0, "a": -9999.0}]


def test_prompts_of_the_whole_context_can_be_scored(client):
    found = choice(client, **{**SCORE, "prompt": "a" * LENGTH})
    assert len(found["logprobs"]["token_logprobs"]) == LENGTH
    refused = client(COMPLETION, {**SCORE, "prompt": "a" * (LENGTH + 1)})
    assert refused.status_code == 400 and "it has more than 40 tokens" in error_of(refused)
