"""LeNet and ResNet: parameters; ResNet's names against torchvision's, and its results against PyTorch's."""

import importlib
import re

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, optim
from polyarr.extras import extra
from polyarr.models import LeNet, PretrainedError, ResNetConfig, ResNetModel, load_resnet, save_resnet
from polyarr.models.resnet import PRESETS
from tests.helpers.root import ROOT

SMALL = {"blocks": (2, 1), "bottleneck": False, "num_classes": 5, "width": 4}
BOTTLENECKS = {**SMALL, "bottleneck": True}
IMAGES = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype("float32")  # as PyTorch has them
DIGITS = np.array([4, 0, 2])


def ours(images):
    return pa.asarray(images.transpose(0, 2, 3, 1))


def new(config):
    """Return a model with random weights and statistics."""
    pa.random.seed(1)
    model = ResNetModel(config)
    drawn = {
        name: pa.random.uniform(a.shape, low=0.5, high=1.5)
        for name, a in model.named_parameters().items()
        if a.ndim == 1
    }
    return model.with_arrays(drawn)


@pytest.mark.parametrize(("preset", "count"), [("resnet-18", 11_689_512), ("resnet-50", 25_557_032)])
def test_a_resnet_has_as_many_parameters_as_torchvisions(preset, count):
    with nn.shapes_only():
        assert ResNetModel(PRESETS[preset]).num_parameters(only_trainable=True) == count


def test_lenet_is_that_of_the_paper():
    with nn.shapes_only():
        assert LeNet().num_parameters() == 61_706
    with pytest.raises(
        ValueError, match=r"^LeNet: size is 8, padding is 'valid'; the second pool must leave something$"
    ):
        LeNet(8)


def test_no_images_have_no_logits(on_numpy):
    assert LeNet(8, padding="same")(pa.ones((0, 8, 8, 1))).shape == (0, 10)


def test_lenet_sees_images_of_digits(on_numpy):
    model = LeNet(8, padding="same")
    step = pa.value_and_grad(lambda m, x, t: pa.cross_entropy(m(x), t))
    loss, grads = step(model, ours(IMAGES[:, :1, :8, :8]), pa.asarray(DIGITS))
    assert np.isfinite(float(loss)) and all(pa.any(g != 0) for g in grads.named_parameters().values())


def test_what_is_written_has_torchvisions_names_and_comes_back(on_numpy, tmp_path):
    model, path = new(BOTTLENECKS), tmp_path / "resnet.safetensors"
    save_resnet(path, model)
    with extra("safetensors").safe_open(path, framework="numpy") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    norm = ("weight", "bias", "running_mean", "running_var")
    due = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{a}" for a in norm)}
    for block, shortcut in (("layer1.0", True), ("layer1.1", False), ("layer2.0", True)):
        due |= {f"{block}.conv{i}.weight" for i in (1, 2, 3)} | {f"{block}.bn{i}.{a}" for i in (1, 2, 3) for a in norm}
        if shortcut:
            due |= {f"{block}.downsample.0.weight", *(f"{block}.downsample.1.{a}" for a in norm)}
    assert shapes.keys() == due
    assert shapes["conv1.weight"] == (4, 3, 7, 7) and shapes["layer2.0.downsample.0.weight"] == (32, 16, 1, 1)
    again = load_resnet(path)
    assert again.config == model.config and not again.training
    for name, a in model.named_parameters().items():
        np.testing.assert_array_equal(again.named_parameters()[name].numpy(), a.numpy(), err_msg=name)
    narrow = load_resnet(path, dtype="bfloat16")
    assert narrow.head.weight.dtype == pa.bfloat16 and narrow.norm.statistics.mean.dtype == pa.float32


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda held: {}, "it has no blocks called layer1.0 and so on; it must hold a ResNet with torchvision's names"),
        (lambda held: {**held, "fc.weight": None}, "it has no fc.weight with 2 axes; it must hold a ResNet"),
        (lambda held: {**held, "bn1.running_var": None}, "missing bn1.running_var$"),
        (lambda held: {**held, "extra": held["fc.bias"]}, "unknown extra$"),
        (lambda held: {**held, "layer1.999999.conv1.weight": held["fc.bias"]}, "it has no blocks called layer1.0"),
        (lambda held: {**held, "fc.bias": held["fc.bias"][:3]}, r"fc.bias is \[3\] and must be \[5\]$"),
        (lambda held: {**held, "fc.bias": held["fc.bias"] * np.nan}, "fc.bias holds numbers that are not finite$"),
        (
            lambda held: {**held, "fc.bias": held["fc.bias"].astype("int32")},
            "fc.bias is of I32 and must be of F64, F32",
        ),
    ],
)
def test_a_file_of_another_model_is_one_line(on_numpy, tmp_path, change, text):
    path = tmp_path / "resnet.safetensors"
    save_resnet(path, new(SMALL))
    held = change(extra("safetensors.numpy").load_file(path))
    extra("safetensors.numpy").save_file({name: a for name, a in held.items() if a is not None}, path)
    with pytest.raises(PretrainedError, match=rf"^load_resnet: {re.escape(str(path))}: .*{text}") as caught:
        load_resnet(path)
    assert "\n" not in str(caught.value)


def test_errors_are_one_line(tmp_path):
    for make, kind, text in (
        (lambda: ResNetConfig((2, 0)), ValueError, r"^ResNetConfig: blocks is \(2, 0\); it must be positive$"),
        (lambda: ResNetConfig(()), ValueError, r"^ResNetConfig: blocks is \(\); it must be positive$"),
        (lambda: ResNetModel({"depth": 3}), ValueError, "^ResNetConfig: .*'depth'"),
        (
            lambda: save_resnet(tmp_path / "a", nn.Linear(1, 1)),
            TypeError,
            "^save_resnet: model is a Linear; it must be a",
        ),
        (lambda: load_resnet(tmp_path / "none.safetensors"), FileNotFoundError, "no such file"),
    ):
        with pytest.raises(kind, match=text):
            make()
    (tmp_path / "resnet.pth").write_bytes(b"")
    with pytest.raises(PretrainedError, match="pickled weights are never read"):
        load_resnet(tmp_path / "resnet.pth")


@pytest.fixture
def torch_resnet(monkeypatch):
    """The benchmark's ResNet in PyTorch, with torchvision's names."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("resnet").torch_resnet


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [SMALL, BOTTLENECKS], ids=["plain", "bottlenecks"])
def test_logits_a_step_and_running_statistics_are_those_of_pytorch(torch_resnet, backend, tmp_path, config):
    import torch

    model, path = new(config), tmp_path / "resnet.safetensors"
    save_resnet(path, model)
    net = torch_resnet(model.config)
    held = extra("safetensors.numpy").load_file(path)
    missing = net.load_state_dict({n: torch.from_numpy(a) for n, a in held.items()}, strict=False)
    assert not missing.unexpected_keys and all(n.endswith("num_batches_tracked") for n in missing.missing_keys)
    images, digits = torch.from_numpy(IMAGES), torch.from_numpy(DIGITS)

    model = load_resnet(path)
    with torch.no_grad():
        assert np.abs(model(ours(IMAGES)).numpy() - net.eval()(images).numpy()).max() < 1e-4

    theirs = net.train()(images)
    torch.nn.functional.cross_entropy(theirs, digits).backward()

    def loss_of(model, x, targets):
        with nn.observing(model) as (model, seen):
            logits = model(x)
        return pa.cross_entropy(logits, targets), (logits, seen)

    step = pa.value_and_grad(loss_of, has_aux=True)
    (_, (logits, seen)), grads = step(model.train(), ours(IMAGES), pa.asarray(DIGITS))
    assert np.abs(logits.numpy() - theirs.detach().numpy()).max() < 1e-4
    save_resnet(path, model.with_arrays(seen))
    after, slopes = extra("safetensors.numpy").load_file(path), dict(net.named_parameters())
    for name, a in net.state_dict().items():
        if "running" in name:
            assert np.abs(after[name] - a.numpy()).max() < 1e-5 * max(1, np.abs(after[name]).max()), name
    g = grads.conv.weight.numpy().transpose(0, 3, 1, 2)
    assert np.abs(g - slopes["conv1.weight"].grad.numpy()).max() < 1e-3 * np.abs(g).max()
    assert optim.SGD(0.1).update(grads, optim.SGD(0.1).init(model), model)


@pytest.mark.filterwarnings("ignore")
def test_a_deep_networks_logits_are_as_exact_as_pytorchs(torch_resnet, backend, tmp_path):
    """Fifty layers with random norms give logits near 1,000, of which float32 itself loses more than 1e-4."""
    import torch

    model, path = new(PRESETS["resnet-50"]), tmp_path / "resnet.safetensors"
    save_resnet(path, model)
    net = torch_resnet(model.config).eval()
    held = extra("safetensors.numpy").load_file(path)
    net.load_state_dict({n: torch.from_numpy(a) for n, a in held.items()}, strict=False)
    images = torch.from_numpy(IMAGES)
    with torch.no_grad():
        theirs, exact = net(images).numpy(), net.double()(images.double()).numpy()
    found = load_resnet(path)(ours(IMAGES)).numpy()
    assert np.abs(found - exact).max() < max(1e-4, 2 * np.abs(theirs - exact).max())
