"""Records beside TRL's SFTTrainer: the same tokens, the same marks and the same loss, one record in a row or packed."""

import json

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import LlamaModel, load_pretrained, save_pretrained
from polyarr.text import byte_tokenizer, load_tokenizer
from polyarr.text.records import encoded_records
from polyarr.text.tokens import IGNORED, PackedRecords, Records
from polyarr.training.steps import loss_of

pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

LENGTH = 112  # tokens of a row; the longest records have more
LLAMA = {
    "vocab_size": 260, "context_length": 128, "emb_dim": 16, "n_heads": 2, "n_layers": 2, "n_kv_heads": 1,
    "hidden_dim": 24, "head_size": 8,
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}|{% endgeneration %}{% else %}{{ m.content }}|{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def messages(n):
    asked, more = ({"role": "user", "content": text} for text in ("x" * 6 * n, "and"))
    answers = [{"role": "assistant", "content": text} for text in ("yes" * (n % 3 + 1), "no")]
    return [asked, answers[0], more, answers[1]]


RECORDS = {
    "assistant_only_loss": [{"messages": messages(n)} for n in range(16)],
    "completion_only_loss": [{"prompt": messages(n)[:3], "completion": messages(n)[3:]} for n in range(16)],
}


@pytest.fixture
def folder(tmp_path, on_numpy):
    pa.random.seed(0)
    save_pretrained(tmp_path / "model", pa.tree.map(lambda p: p * 3, LlamaModel(LLAMA)))
    tokenizer = byte_tokenizer()
    names = dict.fromkeys(("eos_token", "pad_token"), tokenizer.token(tokenizer.end))
    settings = {"chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast", **names}
    (tmp_path / "model" / "tokenizer.json").write_text(tokenizer.to_json())
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def theirs(folder, kind, packing):
    """Return TRL's rows, tokens and labels, and the loss of all of them in one batch."""
    settings = {"report_to": [], "use_cpu": True, "bf16": False, "max_length": LENGTH, "packing": packing, kind: True}
    trainer = trl.SFTTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval(),
        args=trl.SFTConfig(output_dir=str(folder / "out"), **settings),
        train_dataset=datasets.Dataset.from_list(RECORDS[kind]),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder / "model"),
    )
    rows = [trainer.train_dataset[i] for i in range(len(trainer.train_dataset))]
    batch = trainer.data_collator(rows)
    with torch.no_grad():
        return rows, float(trainer.compute_loss(trainer.model.eval(), dict(batch)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RECORDS)
def test_marks_and_losses_are_trls(folder, kind):
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS[kind]))
    tokens = [found for found, _ in encoded_records([folder / "a.jsonl"], load_tokenizer(folder / "model"))]
    records = Records.of(np.concatenate(tokens)).fitting(LENGTH - 1)
    model = load_pretrained(folder / "model")
    rows, loss = theirs(folder, kind, packing=False)
    mine = records.rows(np.arange(len(records)), LENGTH - 1)
    assert len(rows) == len(mine) and records.left_out + records.truncated(LENGTH - 1)[0]
    for row, (inputs, targets) in zip(rows, mine, strict=True):
        size = len(row["input_ids"]) - 1
        assert row["input_ids"][:-1] == inputs[:size].tolist()
        assert row["labels"][1:] == targets[:size].tolist() and (targets[size:] == IGNORED).all()
    packed = PackedRecords(records, LENGTH - 1)
    together = packed.rows(np.arange(len(packed)), LENGTH - 1)
    packed_rows, packed_loss = theirs(folder, kind, packing=True)
    assert len(packed) < len(records) and len(packed_rows) < len(RECORDS[kind])
    assert packed_loss == pytest.approx(loss, rel=1e-4)
    for found in (mine, together):
        assert float(loss_of(model, pa.asarray(found))) == pytest.approx(loss, rel=1e-4)
