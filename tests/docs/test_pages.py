"""README.md and the pages of docs/ executed literally; every page with commands or Python is executed by a test."""

import re
from operator import attrgetter

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import LlamaModel, load_pretrained, save_pretrained
from polyarr.text import byte_tokenizer
from tests.helpers.pages import follow, parts_of
from tests.helpers.root import ROOT

TEXT = "ROMEO: But soft, what light through yonder window breaks?\nJULIET: the quick brown fox, def the\n" * 40
LLAMA = {
    "vocab_size": 260, "context_length": 16, "emb_dim": 8, "n_heads": 4, "n_layers": 1, "n_kv_heads": 2,
    "hidden_dim": 12, "head_size": 4, "tie_embeddings": True, "qkv_bias": False,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, on_numpy):
    """A folder with the files that pages mention: a text, and a published model."""
    (tmp_path / "text.txt").write_text(TEXT)
    pa.random.seed(0)
    save_pretrained(tmp_path / "SmolLM2-135M", LlamaModel(LLAMA))
    (tmp_path / "SmolLM2-135M" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    return tmp_path


def test_the_readme(folder):
    """With OpenCL; without the server, which would not end, and without commands that examine the whole machine."""
    pytest.importorskip("pyopencl")
    unused = ("serve", "doctor", "tune", "conformance")
    first, trained_model, *commands = follow(ROOT / "README.md", folder, unused)
    assert "Array(" in first and float(re.search(r"Array\(([\d.e-]+),", trained_model)[1]) < 0.1
    assert len(commands[6]) > 300  # characters, which the model trained from scratch drew
    assert load_pretrained(folder / "tuned").config.n_layers == 1


def test_train_your_own(folder):
    found = follow(ROOT / "docs" / "train-your-own.md", folder)
    assert len(found[2]) > 200 < len(found[3]) and found[2] != found[3] and "loss" in found[1]
    assert "ROMEO: B" in found[5]  # what the text begins with, too
    assert 0 < float(re.search(r"^loss ([\d.]+)$", found[6], re.M)[1]) < 2.5
    assert found[7] == "59 61\n"
    assert {path.name for path in (folder / "runs" / "first").iterdir()} >= {"best.safetensors", "loss.png"}


def test_debugging(folder):
    _, table, found = follow(ROOT / "docs" / "debugging.md", folder)
    first, gradients = found.splitlines()
    assert first == "layers.0: nan or inf after finite numbers"
    assert gradients == "Array(0., float32, 'numpy') layers.0.weight layers.0.bias layers.1.weight layers.1.bias"
    assert re.search(r"^linear +40 ", table, re.M), table
    assert "traceEvents" in (folder / "trace.json").read_text()


def test_transforms(folder):
    *_, loops, lstm = follow(ROOT / "docs" / "transforms.md", folder)
    assert lstm == "(2, 5, 8)\n"
    assert loops.startswith("(100, 3) Array([1.41421")


def test_distributed(folder):
    """On one process, where all collectives are the identity."""
    trained, sharded = follow(ROOT / "docs" / "distributed.md", folder)
    assert float(trained) > 0 and sharded == ""


def test_optimizers(folder):
    """Without the run, which takes minutes."""
    follow(ROOT / "docs" / "optimizers.md", folder, ("train",))


def test_train_on_several_devices(folder):
    """On one process."""
    (said,) = follow(ROOT / "docs" / "train-on-several-devices.md", folder)
    assert re.fullmatch(r"best validation loss \d\.\d\d on 1 rank; .*", said.splitlines()[-1])


def test_images(folder):
    image = pytest.importorskip("PIL.Image")
    for name in ("cats/1", "cats/2", "dogs/1", "dogs/2"):
        (folder / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (40, 30), (255, 128, 0)).save(folder / "photos" / f"{name}.png")
    state = {f"norm.{name}": pa.ones(8) for name in ("weight", "bias", "running_mean", "running_var")}
    state |= {"conv.weight": pa.ones((8, 3, 3, 3)), "conv.bias": pa.ones(8), "norm.num_batches_tracked": pa.asarray(1)}
    pa.save(folder / "net.safetensors", state)
    losses, _, epochs, classes, config, shape = follow(ROOT / "docs" / "images.md", folder)
    assert float(losses.splitlines()[-1]) < float(losses.splitlines()[0]) and len(classes.split(",")) == 8
    assert re.fullmatch(r"epoch 0: \d\.\d{3}\nepoch 1: \d\.\d{3}\n", epochs)
    assert config.startswith("ResNetConfig(blocks=(1, 1), bottleneck=False, num_classes=10")
    assert shape == "(1, 2, 2, 8)\n"


def test_rotated_images_are_those_of_numpy(on_numpy):
    """By quarters of a turn; a half of a pixel away it is the mean of two."""
    page = (ROOT / "docs" / "images.md").read_text()
    (source,) = re.findall(r"^```python\n(def augmented.*?)^@pa", page, re.M | re.S)
    names = {"pa": pa}
    exec(source, names)
    x = np.random.default_rng(0).random((2, 5, 5, 3), "float32")
    found = names["rotated"](pa.asarray(x), pa.asarray([np.pi / 2, -np.pi / 2], dtype="float32"))
    expected = np.stack([np.rot90(x[0]), np.rot90(x[1], -1)])
    np.testing.assert_allclose(found.numpy()[:, 1:-1, 1:-1], expected[:, 1:-1, 1:-1], atol=1e-5)
    rows, columns = np.indices((5, 5), "float32")
    moved = names["sampled"](pa.asarray(x), *(pa.asarray(np.stack([a, a])) for a in (rows, columns + 0.5)))
    padded = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0)))
    np.testing.assert_allclose(moved.numpy(), (padded[:, :, :-1] + padded[:, :, 1:]) / 2, atol=1e-6)


def test_the_backend_in_contributing():
    """Its ten lines are a working backend."""
    (source,) = re.findall(r'^```python\n(""".*?)^```$', (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
    names = {}
    exec(source, names)
    with pa.use_backend(names["start"]()) as backend:
        assert backend.name == "mirror" and pa.exp(pa.zeros(2)).tolist() == [1, 1]


def test_in_python(folder):
    """Everything that a command does."""
    *_, resumed, _, written, inside = follow(ROOT / "docs" / "in-python.md", folder)
    assert "\n8 steps, best validation loss " in resumed and written.count("' length\n") == 2
    assert inside.endswith(" parameters after step 4\n")
    assert load_pretrained(folder / "exported").config.n_kv_heads == 2


def test_add_a_model_family(folder):
    assert follow(ROOT / "docs" / "add-a-model-family.md", folder) == ["(1, 3, 11) (16, 0, 16, 0)\n"]


def test_write_text(folder):
    _, sampled, _, many, scored, small = follow(ROOT / "docs" / "write-text.md", folder)
    assert float(scored) < 0 and sampled.startswith("the quick") and many.count("\n") >= 2 and "' 12 length\n" in many
    assert small in ("length\n", "stop\n")


def test_interop(folder):
    assert follow(ROOT / "docs" / "interop.md", folder) == ["Array(0.5, float32, 'numpy')\n", "numpy\n"]


def test_array_api_code(folder):
    """The table is the one shown."""
    page = ROOT / "docs" / "test-array-api-code.md"
    _, table = follow(page, folder)
    assert f"```text\n{table}```" in page.read_text()


def test_upstream(folder):
    """With SciPy: the printed gradients are those shown."""
    pytest.importorskip("scipy")
    page = ROOT / "docs" / "upstream.md"
    assert f"```text\n{follow(page, folder)[-1]}```" in page.read_text()


LIFE, KERNEL = (ROOT / "docs" / name for name in ("life-of-an-op.md", "write-a-kernel.md"))
QUOTED = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize(("file", "quoted"), QUOTED.findall(LIFE.read_text()) + QUOTED.findall(KERNEL.read_text()))
def test_what_the_life_of_an_op_quotes_is_there(file, quoted):
    """All quoted lines, in order."""
    text, place = (ROOT / file).read_text(), 0
    for lines in quoted.split("...\n"):
        place = text.find(lines.rstrip("\n"), place)
        assert place >= 0, f"{file} has not, or not after what was quoted before: {lines}"


def test_the_life_of_an_op(folder):
    """On OpenCL; the printed program equals the one shown."""
    pytest.importorskip("pyopencl")
    first, gradient, program = follow(LIFE, folder, POLYARR_BACKEND="opencl")
    assert first.startswith("[0.4621") and gradient.startswith("0.4621 [0.0655")
    (shown,) = re.findall(r"^```text\n(.*?)^```$", LIFE.read_text(), re.M | re.S)
    assert re.sub(r"  # .*", "", program) == shown


def test_the_page_of_equivalents_names_what_there_is():
    names = set(re.findall(r"\bpa((?:\.\w+)+)", (ROOT / "docs" / "coming-from.md").read_text()))
    assert len(names) > 80
    for name in names:
        attrgetter(name.removeprefix("."))(pa)


def test_every_page_that_can_be_run_is(folder):
    """A page with commands or Python is named in a test."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert [page.name for page in pages if parts_of(page) and page.name not in tests] == []
