"""Records for training: conversations, and prompts with completions; which tokens are learned, rows, preparation."""

import json

import numpy as np
import pytest

import polyarr as pa
from polyarr.autograd import value_and_grad
from polyarr.models import GPTModel, LlamaModel
from polyarr.text import ChatTemplate, Corpus, SubwordTokenizer, byte_tokenizer, open_prepared, prepare
from polyarr.text.records import are_records, shown_record
from polyarr.text.tokens import IGNORED, PackedRecords, Records, _best_fit, windows_of
from polyarr.training import Recipe, evaluation_loss, new_run, shuffled_windows
from polyarr.training.steps import gradients, loss_of

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}.{% endif %}|{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
UNMARKED = TURNS.replace("{% generation %}", "").replace("{% endgeneration %}", "")
USER, ANSWER = {"role": "user", "content": "é?"}, {"role": "assistant", "content": "日"}
MODEL = {
    "family": "llama", "context_length": 24, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "n_kv_heads": 1,
    "hidden_dim": 12, "head_size": 4,
}  # fmt: skip


def tokenizer(template=TURNS):
    return SubwordTokenizer(byte_tokenizer().to_json(), None, template and ChatTemplate(template))


def written(folder, *records, name="a.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def shown(folder, record, template=TURNS):
    """Return the parts of the first of two equal records."""
    corpus = Corpus.of_files([written(folder, record, record)], tokenizer(template))
    return shown_record(*corpus.train.record(0), corpus.tokenizer)


def conversation(*messages):
    return {"messages": list(messages)}


def test_answers_are_learned(tmp_path):
    twice = conversation(USER, ANSWER, USER, ANSWER, USER)
    before, after = ("<user>é?.|<assistant>", False), ("日.", True)
    assert shown(tmp_path, twice) == [
        before, after, ("|<user>é?.|<assistant>", False), after, ("|<user>é?.|", False)
    ]  # fmt: skip
    by_turns = [before, ("日.|", True), before, ("日.|", True), ("<user>é?.|", False)]
    assert shown(tmp_path, twice, UNMARKED) == by_turns
    in_parts = {**ANSWER, "content": [{"type": "text", "text": "日"}]}
    assert shown(tmp_path, conversation(USER, in_parts)) == [before, after, ("|", False)]


@pytest.mark.parametrize("template", [TURNS, UNMARKED])
def test_a_message_of_weight_0_is_not_learned(tmp_path, template):
    parts = shown(tmp_path, conversation(USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "content": "b"}), template)
    assert [text.strip("|") for text, is_learned in parts if is_learned] == ["b."]


def test_completions_are_learned(tmp_path):
    plain = {"prompt": "a ", "completion": "b"}
    assert shown(tmp_path, plain, None) == [("a ", False), ("b<|endoftext|>", True)] == shown(tmp_path, plain)
    of_messages = {"prompt": [USER], "completion": [ANSWER]}
    for template in (TURNS, UNMARKED):
        assert shown(tmp_path, of_messages, template) == [("<user>é?.|<assistant>", False), ("日.|", True)]


def test_a_template_that_rewrites_earlier_messages_needs_marks(tmp_path):
    last = "{% for m in messages %}{% if loop.last %}!{% endif %}{{ m.content }}{% endfor %}"
    with pytest.raises(ValueError, match=r"line 1: chat template: it writes earlier messages in another way"):
        shown(tmp_path, conversation(USER, ANSWER, USER), last)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ([1], "it must be a JSON object with messages"),
        (conversation(), "'messages' is empty; it must be a list of messages"),
        ({"messages": 5}, "'messages' is no list"),
        (conversation({"role": "robot", "content": "a"}), "message 1 of 'messages': its role is 'robot'; it must be"),
        (conversation(USER, {"role": "assistant", "content": 5}), "message 2 of 'messages': its content must be"),
        (conversation(USER), "its messages have no answer"),
        (conversation(USER, {**ANSWER, "weight": 0}), "it has no answer to learn"),
        ({**conversation(USER, ANSWER), "tools": [1]}, "it has tools"),
        ({"prompt": "a", "completion": ""}, "its completion is empty"),
        ({"prompt": "a", "completion": [ANSWER]}, "it must have messages, or a prompt and a completion"),
        ({"prompt": "a"}, "it must have messages, or a prompt and a completion"),
        ({"text": "a"}, "it must have messages, or a prompt and a completion"),
    ],
)
def test_a_record_that_is_none_is_named_by_its_line(tmp_path, record, error):
    path = written(tmp_path, conversation(USER, ANSWER), record)
    with pytest.raises(ValueError) as caught:
        Corpus.of_files([path], tokenizer())
    assert str(caught.value).startswith(f"{path}: line 2: {error}") and "\n" not in str(caught.value)


def test_records_need_a_tokenizer_a_template_and_two_of_them(tmp_path):
    path = written(tmp_path, conversation(USER, ANSWER))
    with pytest.raises(ValueError, match="line 1: the tokenizer has no chat template"):
        Corpus.of_files([path], tokenizer(None))
    with pytest.raises(ValueError, match=r"a\.jsonl: it has records; they need the tokenizer of a model"):
        Corpus.of_files([path])
    with pytest.raises(ValueError, match=r"^records: there is 1"):
        Corpus.of_files([path], tokenizer())
    text = written(tmp_path, {"text": "a", "messages": []}, name="b.jsonl")
    assert are_records([path]) and not are_records([text])
    (tmp_path / "c.txt").write_text("a")
    with pytest.raises(ValueError, match=r"c\.txt: not JSON lines"):
        Corpus.of_files([path, tmp_path / "c.txt"], tokenizer())


def many(folder, count=20):
    """Return the corpus of prompts of growing length, with completions of two letters."""
    records = ({"prompt": "a" * n, "completion": "bc"} for n in range(count))
    return Corpus.of_files([written(folder, *records)], tokenizer(None))


def test_rows_are_padded_or_cut_and_shifted(tmp_path):
    records = many(tmp_path).train
    a, b, c, end = records.record(1)[0].tolist()
    assert end == tokenizer(None).end
    assert len(records) == 18 and len(many(tmp_path).validation) == 2
    inputs, targets = windows_of(records, np.array([3]), 7)[0]
    assert inputs.tolist() == [a, a, a, b, c, 0] and targets.tolist() == [IGNORED, IGNORED, b, c, end, IGNORED]
    assert records.rows(np.array([17]), 3)[0].tolist() == [[a] * 3, [IGNORED] * 3]
    assert records.truncated(6) == (13, sum(n + 3 - 7 for n in range(5, 18)))
    fitting = records.fitting(6)
    assert (len(fitting), fitting.left_out) == (7, 11) and fitting.truncated(6) == (2, 1 + 2)
    assert (fitting.rows(np.arange(7), 6)[:, 1] != IGNORED).any(axis=1).all()


def test_packed_records_fill_rows_by_best_fit(tmp_path):
    records = many(tmp_path).train.fitting(9)  # records of 3 to 12 tokens, of which 10 are read
    packed = PackedRecords(records, 9)
    sizes = [min(len(records.record(n)[0]) - 1, 9) for n in range(len(records))]
    rows = packed.rows(np.arange(len(packed)), 9)
    assert rows.shape == (len(packed), 3, 9) and sum(sizes) <= 9 * len(packed)
    assert len(packed) == 7 and sorted(sizes) == [2, 3, 4, 5, 6, 7, 8, 9, 9, 9]
    found = []
    for tokens, targets, starts in rows.tolist():
        at = 0
        while at < 9 and tokens[at]:  # padding is 0, the token "a" is not
            end = at + 1
            while end < 9 and starts[end] == at:
                end += 1
            assert starts[at:end] == [at] * (end - at)
            found.append((tokens[at:end], targets[at:end]))
            at = end
        assert starts[at:] == [at] * (9 - at) and targets[at:] == [IGNORED] * (9 - at)
    due = []
    for size, (inputs, targets) in zip(sizes, records.rows(np.arange(len(records)), 9).tolist(), strict=True):
        due.append((inputs[:size], targets[:size]))
    assert sorted(found) == sorted(due)
    with pytest.raises(ValueError, match=r"^PackedRecords: the rows have 9 inputs; 8 are asked for$"):
        packed.rows(np.arange(1), 8)


def test_each_row_takes_the_record_that_leaves_the_least_space():
    assert _best_fit(np.array([3, 6, 5, 4, 2, 10]), 10) == [[5], [1, 3], [2, 0, 4]]


@pytest.mark.parametrize("kind", ["gpt", "llama", "windows"])
def test_the_loss_of_packed_records_is_that_of_single_ones(tmp_path, kind, backend):
    """No record attends to another, and positions begin anew: losses and gradients are those of single rows."""
    corpus = many(tmp_path).fitting(24)
    packed = PackedRecords(corpus.train, 24)
    rows, alone = packed.rows(np.arange(len(packed)), 24), corpus.train.rows(np.arange(18), 24)
    assert len(rows) == 8
    pa.random.seed(1)
    settings = {name: value for name, value in MODEL.items() if name != "family"} | {"vocab_size": 257}
    if kind == "gpt":
        sizes = ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers")
        model = GPTModel({**{name: settings[name] for name in sizes}, "drop_rate": 0.0, "qkv_bias": True})
    else:
        model = LlamaModel(settings | ({"windows": [3]} if kind == "windows" else {}))
    model = pa.tree.map(lambda p: p * 3, model)
    (loss, grads), (due, due_grads) = (value_and_grad(loss_of)(model, pa.asarray(a)) for a in (rows, alone))
    assert float(loss) == pytest.approx(float(due), rel=1e-5)
    for name, grad in grads.named_parameters().items():
        wanted = due_grads.named_parameters()[name].numpy()
        np.testing.assert_allclose(grad.numpy(), wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max(), err_msg=name)
    together = rows.copy()
    together[:, 2] = 0  # records that attend to each other have another loss
    assert abs(float(loss_of(model, pa.asarray(together))) - float(due)) > 1e-3


def test_records_are_found_across_the_parts_of_a_scan(tmp_path, monkeypatch):
    whole = many(tmp_path).train
    for size in (1, 2, 7):
        monkeypatch.setattr("polyarr.text.tokens._SCANNED", size)
        again = many(tmp_path).train
        assert (again.rows(np.arange(18), 24) == whole.rows(np.arange(18), 24)).all()
        assert len(again.fitting(6)) == 7


def test_each_record_is_drawn_once_in_an_epoch(tmp_path):
    records = many(tmp_path).train
    for count in (18, 6):
        drawn = np.concatenate([shuffled_windows(records, 24, count, 1, draw) for draw in range(18 // count)])
        each = records.rows(np.arange(18), 24)
        assert sorted(row.tobytes() for row in drawn) == sorted(row.tobytes() for row in each)


def test_prepared_records_are_those_of_the_files(tmp_path):
    corpus = many(tmp_path)
    manifest = prepare([tmp_path / "a.jsonl"], tmp_path / "out", tokenizer(None))
    found = open_prepared(tmp_path / "out")
    assert manifest["records"] and manifest["texts"] == 20 and found.digest == corpus.digest
    for mine, theirs in ((found.train, corpus.train), (found.validation, corpus.validation)):
        assert (mine.rows(np.arange(len(mine)), 24) == theirs.rows(np.arange(len(theirs)), 24)).all()
    found.train.check_unchanged()
    [path] = (tmp_path / "out").glob("tokens-*.bin")
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(ValueError, match="does not hold the tokens that were written"):
        open_prepared(tmp_path / "out")


def test_the_loss_is_the_mean_of_learned_tokens(tmp_path):
    """Padding and the other rows of a batch have no influence."""
    corpus = many(tmp_path).fitting(24)
    with pa.use_backend("numpy"):
        pa.random.seed(1)
        settings = {name: value for name, value in MODEL.items() if name != "family"}
        model = LlamaModel({**settings, "vocab_size": 257})
        rows = corpus.train.rows(np.array([2, 9]), 24)
        logits = model(pa.asarray(rows[:, 0])).numpy().astype(float)
        chances = np.log(np.exp(logits).sum(-1))[..., None] - logits
        at = np.argwhere(rows[:, 1] != IGNORED)
        assert len(at) == 6
        losses = [chances[i, t, rows[i, 1, t]] for i, t in at.tolist()]
        assert float(loss_of(model, pa.asarray(rows))) == pytest.approx(np.mean(losses), rel=1e-5)
        alone = windows_of(corpus.train, np.array([2]), 6)
        assert float(loss_of(model, pa.asarray(alone))) == pytest.approx(np.mean(losses[:3]), rel=1e-5)
        records = Records.of(corpus.train._tokens)
        value = evaluation_loss(model, records, 4)
        each = [float(loss_of(model, pa.asarray(records.rows(np.array([n]), 24)))) for n in range(18)]
        assert value == pytest.approx(np.average(each, weights=[2, *[3] * 17]), rel=1e-5)  # the first has no prompt


def test_parts_of_a_step_count_by_their_learned_tokens(tmp_path, backend):
    """Gradients accumulated over two parts are those of one batch; the parts have 2 and 6 learned tokens."""
    corpus = many(tmp_path).fitting(24)
    recipe = Recipe(MODEL, batch_size=3, steps=2, lr=1e-3, min_lr=1e-4, warmup=1)
    settings = {name: value for name, value in MODEL.items() if name != "family"}
    model = LlamaModel({**settings, "vocab_size": 257})
    rows = pa.asarray(corpus.train.rows(np.array([0, 2, 9]), 24))
    for scale in (None, pa.asarray(4.0)):
        whole, parted = (gradients(recipe, model, parts, scale) for parts in ([rows], [rows[:1], rows[1:]]))
        assert float(parted[0]) == pytest.approx(float(whole[0]), rel=1e-6)
        for a, b in zip(pa.tree.leaves(parted[1]), pa.tree.leaves(whole[1]), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


def test_a_run_leaves_out_what_has_nothing_to_learn(tmp_path):
    recipe = Recipe(MODEL, batch_size=2, steps=2, lr=1e-3, min_lr=1e-4, warmup=1, window=19)
    with pa.use_backend("numpy"):
        run = new_run(many(tmp_path), recipe, seed=1)
        assert [part.shape for part in run.windows(0)] == [(2, 2, 19)]
        with pytest.raises(ValueError, match="0 to validate with have an answer that begins in the first 18 tokens"):
            new_run(many(tmp_path), recipe.changed(window=17), seed=1)


def test_tokens_and_marks_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    template = TURNS.replace(".{% endgeneration %}", "{% endgeneration %}")  # an answer ends in a character of 3 bytes
    own = tokenizer(template)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=own._tokenizer, chat_template=template)
    messages = [USER, ANSWER, {"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]
    corpus = Corpus.of_files([written(tmp_path, conversation(*messages), conversation(*messages))], own)
    tokens, is_learned = corpus.train.record(0)
    found = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    assert tokens.tolist() == list(found["input_ids"])
    assert is_learned.tolist() == [mask == 1 for mask in found["assistant_masks"]]
