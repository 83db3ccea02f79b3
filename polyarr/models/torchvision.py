"""ResNet weights in safetensors files with torchvision's array names, read and written."""

import errno
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyarr import creation
from polyarr.core.array import Array
from polyarr.core.spec import Spec, as_dtype
from polyarr.models.pretrained import StoredTensor, Tensors, check_tensors, errors_with_path, open_tensors
from polyarr.models.resnet import ResNetConfig, ResNetModel
from polyarr.nn import shapes_only
from polyarr.saving.tensor_file import Source, write_arrays

# torchvision's names of a layer's arrays, by polyarr's.
_ARRAYS = {
    "weight": "weight",
    "bias": "bias",
    "statistics.mean": "running_mean",
    "statistics.variance": "running_var",
}
_IGNORED = ".num_batches_tracked"  # not needed by running statistics with a fixed momentum


def load_resnet(path: str | os.PathLike[str], *, dtype: Any = "float32") -> ResNetModel:
    """Load a ResNet from a safetensors file with torchvision's array names.

    The configuration follows from the names and shapes of the arrays. Nothing is ever unpickled: save the weights of a
    .pth file with safetensors.torch.save_file(model.state_dict(), path) first.

    Args:
        path: The safetensors file.
        dtype: Dtype of the model's parameters.

    Returns:
        A model in evaluation mode, for images of shape (B, H, W, C).

    Raises:
        OSError: The file cannot be read.
        PretrainedError: The file is damaged, or holds another model.
    """
    path, dtype = Path(path), as_dtype(dtype)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    with errors_with_path("load_resnet", path):
        tensors = open_tensors(path)
        with shapes_only():
            model = ResNetModel(_config_of(tensors)).astype(dtype)
        names, leaves = names_of(model.config), model.named_parameters()
        shapes = {names[own]: [*_theirs(leaf.shape)] for own, leaf in leaves.items()}
        check_tensors(tensors, shapes, lambda name: name.endswith(_IGNORED))
        found = {own: creation.asarray(_read(tensors[names[own]], leaf.dtype)) for own, leaf in leaves.items()}
    return model.load_parameters(found).eval()


def save_resnet(path: str | os.PathLike[str], model: ResNetModel, *, dtype: Any = "float32") -> None:
    """Write a ResNet into a safetensors file whose arrays torchvision's model loads with load_state_dict.

    Args:
        path: The safetensors file.
        model: The model.
        dtype: Dtype of the written weights.

    Raises:
        TypeError: `model` is not a ResNetModel.
        OSError: The file cannot be written.
    """
    if not isinstance(model, ResNetModel):
        raise TypeError(f"save_resnet: model is a {type(model).__name__}; it must be a ResNetModel")
    dtype, names = as_dtype(dtype), names_of(model.config)
    leaves = model.named_parameters().items()
    arrays = {names[own]: Source(Spec(_theirs(a.shape), dtype), partial(_written, a, dtype)) for own, a in leaves}
    write_arrays(Path(path), arrays, {"format": "pt"})


def names_of(config: ResNetConfig) -> dict[str, str]:
    """Return torchvision's names by polyarr's, for all arrays that a model of this configuration may have."""
    return {f"{own}.{a}": f"{theirs}.{b}" for own, theirs in _layers(config) for a, b in _ARRAYS.items()}


def _layers(config: ResNetConfig) -> Iterator[tuple[str, str]]:
    """Yield the name of each layer in polyarr and in torchvision."""
    yield from (("conv", "conv1"), ("norm", "bn1"), ("head", "fc"))
    for stage, count in enumerate(config.blocks):
        for block in range(count):
            own, theirs = f"stages.{stage}.{block}", f"layer{stage + 1}.{block}"
            yield from ((f"{own}.convs.{i}", f"{theirs}.conv{i + 1}") for i in range(3))
            yield from ((f"{own}.norms.{i}", f"{theirs}.bn{i + 1}") for i in range(3))
            yield from ((f"{own}.shortcut.{i}", f"{theirs}.downsample.{i}") for i in range(2))


def _theirs(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an array in torchvision, whose filters have channels before height and width."""
    return (shape[0], shape[-1], *shape[1:-1]) if len(shape) == 4 else shape


def _config_of(tensors: Tensors) -> ResNetConfig:
    """Return the configuration of the model that the arrays belong to."""
    counts: dict[int, int] = {}
    for found in filter(None, (re.match(r"layer(\d+)\.(\d+)\.", name) for name in tensors)):
        stage, block = int(found[1]), int(found[2])
        counts[stage] = max(counts.get(stage, 0), block + 1)
    if not counts or sorted(counts) != [*range(1, len(counts) + 1)] or sum(counts.values()) > len(tensors):
        raise ValueError("it has no blocks called layer1.0 and so on; it must hold a ResNet with torchvision's names")
    (width, channels, *_), (classes, _) = (_shape(tensors, name, n) for name, n in (("conv1", 4), ("fc", 2)))
    blocks = tuple(counts[stage] for stage in sorted(counts))
    return ResNetConfig(blocks, "layer1.0.conv3.weight" in tensors, classes, channels, width)


def _shape(tensors: Tensors, layer: str, axes: int) -> list[int]:
    name = f"{layer}.weight"
    if name not in tensors or len(tensors[name].shape) != axes:
        raise ValueError(f"it has no {name} with {axes} axes; it must hold a ResNet with torchvision's names")
    return tensors[name].shape


def _read(stored: StoredTensor, dtype: np.dtype) -> np.ndarray:
    """Return an array in polyarr's layout."""
    host = stored.read(dtype)
    return np.moveaxis(host, 1, -1) if host.ndim == 4 else host


def _written(leaf: Array, dtype: np.dtype) -> np.ndarray:
    host = leaf.numpy().astype(dtype, copy=False)
    return np.moveaxis(host, -1, 1) if host.ndim == 4 else host
