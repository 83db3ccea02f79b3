"""Chat templates: kept in model folders and checkpoints, sandboxed, errors in one line."""

import json

import pytest

import polyarr as pa
from polyarr.models import LlamaModel, save_pretrained
from polyarr.text import (
    CharTokenizer,
    ChatTemplate,
    SubwordTokenizer,
    byte_tokenizer,
    load_tokenizer,
    same_tokens,
    tokenizer_from_dict,
)
from polyarr.training import load_checkpoint
from polyarr.training.pretrained import export_model, import_model, special_tokens

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
# As Llama's kin write theirs.
CHATML = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ASKED = [{"role": "user", "content": "é 日?"}]
WRITTEN = "<s><|im_start|>user\né 日?<|im_end|>\n<|im_start|>assistant\n"
LLAMA = {
    "vocab_size": 260, "context_length": 32, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "n_kv_heads": 1,
    "hidden_dim": 12, "head_size": 4, "tie_embeddings": True,
}  # fmt: skip


def write(source, **tokens):
    return ChatTemplate(source, tokens).write(ASKED)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_json())
    return tmp_path


def configure(folder, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


def test_a_conversation_is_written_as_the_template_has_it():
    assert write(CHATML, bos_token="<s>") == WRITTEN
    assert write("{{ messages | tojson(indent=None) }}") == json.dumps(ASKED, ensure_ascii=False)
    given = "ensure_ascii=true, indent=1, separators=(',', '='), sort_keys=true"
    shown = json.dumps(ASKED, ensure_ascii=True, indent=1, separators=(",", "="), sort_keys=True)
    assert write("{{ messages | tojson(" + given + ") }}") == shown
    assert len(write("{{ strftime_now('%Y') }}")) == 4
    assert write("{% for m in messages %}{% continue %}{% endfor %}{{ tools }}") == "None"


def test_of_answers_in_channels_the_final_one_is_written():
    """As the template of gpt-oss wants it, which refuses the channels of an earlier answer."""
    source = (
        "{% for message in messages %}"
        "{% set is_answer = message.role == 'assistant' %}"
        "{% if is_answer and '<|channel|>' in message.content %}{{ raise_exception('no') }}{% endif %}"
        "{{ '<|start|>' + message.role }}{% if is_answer %}{{ '<|channel|>final' }}{% endif %}"
        "{{ '<|message|>' + message.content + '<|end|>' }}{% endfor %}<|start|>assistant"
    )
    thought = "<|channel|>analysis<|message|>Hm."
    told = f"{thought}<|end|><|start|>assistant<|channel|>final<|message|>Hello!"
    for said, kept in ((told, "Hello!"), ("Hello!", "Hello!"), (thought, "")):
        found = ChatTemplate(source).write([*ASKED, {"role": "assistant", "content": said}, *ASKED])
        user = "<|start|>user<|message|>é 日?<|end|>"
        assert found == f"{user}<|start|>assistant<|channel|>final<|message|>{kept}<|end|>{user}<|start|>assistant"
    other = ChatTemplate("{{ messages[1].content }}")
    assert other.write([*ASKED, {"role": "assistant", "content": told}]) == told


def test_what_a_template_marks_as_generated_is_written_as_it_is():
    """Names set inside the block are unknown after it, as in transformers."""
    marked = "{% for m in messages %}{%- generation -%} {{ m.content }}{% set x = 1 %} {% endgeneration %}{% endfor %}"
    assert write(marked + "{{ x is defined }}") == "é 日? False"
    with pytest.raises(ValueError, match=r"^chat template: Unexpected end of template"):
        write("{% generation %}")


def test_the_template_is_in_either_file_and_under_the_name_default(folder):
    assert configure(folder).chat is None
    assert configure(folder, chat_template="a", bos_token={"content": "<s>"}).chat == ChatTemplate(
        "a", {"bos_token": "<s>"}
    )
    several = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "c"}]
    assert configure(folder, chat_template=several).chat.source == "c"
    for nothing in ([], [1], [{"name": "other", "template": "b"}], 5, "", {}):
        assert configure(folder, chat_template=nothing).chat is None
    (folder / "chat_template.jinja").write_text("d")
    assert configure(folder, chat_template="a").chat.source == "d"


def test_it_goes_from_a_folder_to_a_checkpoint_and_out_again(folder):
    with pa.use_backend("numpy"):
        save_pretrained(folder / "theirs", LlamaModel(LLAMA))
        (folder / "tokenizer.json").rename(folder / "theirs" / "tokenizer.json")
        configure(folder / "theirs", chat_template=CHATML, bos_token="<s>", eos_token="<|endoftext|>")
        import_model(folder / "theirs", folder / "run")
        found = load_checkpoint(folder / "run").tokenizer
        assert found.chat.write(ASKED) == WRITTEN
        export_model(folder / "run", folder / "out")
    again = load_tokenizer(folder / "out")
    assert same_tokens(again, found) and (again.chat, again.special.names) == (found.chat, found.special.names)
    exported = json.loads((folder / "out" / "config.json").read_text())
    assert (exported["bos_token_id"], exported["eos_token_id"]) == (None, found.end)  # <s> is no token here


def test_the_tokens_that_begin_and_end_a_text_are_exported_as_numbers():
    tokenizer = SubwordTokenizer(byte_tokenizer().to_json(), None, ChatTemplate("a", {"bos_token": "!"}))
    assert special_tokens(tokenizer) == {"bos_token_id": tokenizer.encode("!")[0], "eos_token_id": tokenizer.end}
    assert special_tokens(CharTokenizer("ab")) == {}


def test_it_decides_no_token(folder):
    plain, chatty = configure(folder), configure(folder, chat_template="a")
    assert same_tokens(plain, chatty) and plain.to_dict() != chatty.to_dict()
    assert not same_tokens(plain, CharTokenizer("ab")) and CharTokenizer("ab").chat is None
    assert tokenizer_from_dict(chatty.to_dict()).chat == chatty.chat and "chat" not in plain.to_dict()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('no\ntools') }}", "no tools"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception.__globals__['json'] }}", "unsafe"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "too big"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ strftime_now(5) }}", "strftime"),
        ("{{ messages | tojson(default=strftime_now) }}", "unexpected keyword argument 'default'"),
        ("{{ messages | tojson(cls=namespace) }}", "unexpected keyword argument 'cls'"),
        ("{% for i in messages %}" * 500, "recursion"),
    ],
)
def test_what_a_template_may_not_do_is_one_line(source, reason):
    with pytest.raises(ValueError, match=r"^chat template: [^\n]+$") as caught:
        write(source)
    assert reason in str(caught.value)


def test_what_is_no_template_is_refused():
    with pytest.raises(ValueError, match=r"a chat template of 1,000,001 characters; there may be 1,000,000"):
        ChatTemplate("a" * 1_000_001)
    good = ChatTemplate("a", {"bos_token": "b"}).to_dict()
    assert ChatTemplate.from_dict(json.loads(json.dumps(good))).to_dict() == good
    for wrong in (None, {}, {**good, "more": 1}, {**good, "template": 1}, {**good, "tokens": {"bos_token": 1}}):
        with pytest.raises(ValueError, match="ChatTemplate: "):
            ChatTemplate.from_dict(wrong)
    with pytest.raises(ValueError, match="of the names bos_token, eos_token"):
        ChatTemplate.from_dict({**good, "tokens": {"messages": "b"}})
