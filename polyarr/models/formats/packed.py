"""Quantized weights in Hugging Face folders, of AWQ and GPTQ: integers in int32 words, with zero points and scales."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from polyarr.core.spec import float16, float32, int8
from polyarr.models.formats.mxfp4 import with_mxfp4
from polyarr.models.formats.tables import Format
from polyarr.ops.quantized import QUANTIZED_BLOCK
from polyarr.saving.tensor_file import finite

_WORD = 32  # bits of a packed word
_PARTS = ("qweight", "qzeros", "scales")
_GROUPS = "g_idx"
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which 4 bits of a word have its first number, its second and so on
_MIDDLE_OF_4_BITS = 8  # the zero point of symmetric codes, and of all of Q4_0
_ZEROS_OF_GPTQ = {"gptq": True, "gptq_v2": False}  # whether zero points are stored minus one
_SCALES = ("F64", "F32", "F16", "BF16")


class Packing(NamedTuple):
    """How the weights of a folder are quantized: its quantization_config.

    Attributes:
        bits: Bits of a code.
        group_size: Number of inputs that share a scale and a zero point; -1 for all.
        is_awq: Whether the format is AWQ's, or else GPTQ's.
        has_order: Whether GPTQ has sorted the inputs (desc_act), and every weight states the groups of its inputs.
        is_minus_one: Whether zero points are stored minus one.
    """

    bits: int
    group_size: int
    is_awq: bool
    has_order: bool = False
    is_minus_one: bool = False


class PackedTensor(NamedTuple):
    """Weight (n, k) of a linear layer in the format of AWQ or GPTQ: (code - zero point) * scale.

    Attributes:
        name: Name of the weight, as it would be without quantization.
        shape: [n, k].
        dtype: Dtype of the scales, as safetensors files name it.
        packing: How it is quantized.
        parts: Stored arrays by the last part of their names: qweight, qzeros (groups, n * bits / 32), scales
            (groups, n), and maybe g_idx (k,), the group of each input. GPTQ's qweight is (k * bits / 32, n), AWQ's is
            (k, n * bits / 32).
    """

    name: str
    shape: list[int]
    dtype: str
    packing: Packing
    parts: Mapping[str, Any]

    def read(self, dtype: np.dtype | None = None) -> np.ndarray:
        """Return the weight (n, k) in a floating-point dtype, rounded once; None: the scales' dtype, or float32.

        Raises:
            ValueError: A number is not finite, or g_idx names a group that is not there.
        """
        groups, scale = self._groups(), self.parts["scales"].read()
        wide = np.promote_types(scale.dtype, float32)  # a product of float16 and 8 bits is exact
        weight = _by_input(scale.astype(wide), groups)
        weight *= self._numbers()
        return finite(self.name, weight, dtype or wide)

    @property
    def kind(self) -> str:
        """Type of GGUF whose blocks hold the weight without loss, "Q4_0" or "Q8_0", or "packed" if none does."""
        groups, zeros, scale = self._groups(), self._zeros(), self.parts["scales"].read()
        if len(groups) % QUANTIZED_BLOCK or (groups != np.repeat(groups[::QUANTIZED_BLOCK], QUANTIZED_BLOCK)).any():
            return "packed"
        with np.errstate(over="ignore"):
            if not np.array_equal(scale.astype(float16).astype(scale.dtype), scale):
                return "packed"
        if self.packing.bits == 4 and (zeros == _MIDDLE_OF_4_BITS).all():
            return "Q4_0"
        limits, largest = np.iinfo(int8), 2**self.packing.bits - 1
        return "Q8_0" if -int(zeros.max()) >= limits.min and largest - int(zeros.min()) <= limits.max else "packed"

    def codes(self) -> np.ndarray:
        """Return the codes of a QuantizedLinear: uint8 (n, k / 2) for the kind "Q4_0", int8 (n, k) for "Q8_0"."""
        if self.kind == "Q8_0":
            return self._numbers().astype(int8)
        n, k = self.shape
        halves = self._codes().reshape(n, k // QUANTIZED_BLOCK, 2, QUANTIZED_BLOCK // 2)
        return (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(n, k // 2)

    def scale(self) -> np.ndarray:
        """Return the scales of a QuantizedLinear, float16 (n, k / 32)."""
        return finite(self.name, _by_input(self.parts["scales"].read(), self._groups()[::QUANTIZED_BLOCK]), float16)

    def _numbers(self) -> np.ndarray:
        """Return the codes minus their zero points, int16 (n, k)."""
        return self._codes() - _by_input(self._zeros().astype(np.int16), self._groups())

    def _codes(self) -> np.ndarray:
        """Return the codes, uint8 (n, k)."""
        words = self.parts["qweight"].read()
        # GPTQ packs codes of consecutive inputs into a word, AWQ those of consecutive outputs.
        found = _unpacked(words if self.packing.is_awq else np.ascontiguousarray(words.T), self.packing)
        return np.ascontiguousarray(found.T) if self.packing.is_awq else found

    def _zeros(self) -> np.ndarray:
        """Return the zero points, uint8 (groups, n)."""
        words, bits = self.parts["qzeros"].read().view(np.uint32), self.packing.bits
        if self.packing.is_minus_one:  # one is added to every number of a word at once, with carries, as GPTQModel does
            words = words + np.uint32(sum(1 << shift for shift in range(0, _WORD, bits)))
        return _unpacked(words, self.packing)

    def _groups(self) -> np.ndarray:
        """Return the group of each input, ints (k,)."""
        (_, k), count = self.shape, self.parts["scales"].shape[0]
        if _GROUPS not in self.parts:
            return np.arange(k) // _group_size(self.packing, k)
        groups = self.parts[_GROUPS].read()
        if not (0 <= groups).all() or not (groups < count).all():
            name = self.name.removesuffix("weight") + _GROUPS
            raise ValueError(f"{name} has numbers from {groups.min()} to {groups.max()}; it has {count} groups")
        return groups


def _by_input(a: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the numbers (n, k) of each input, for numbers of groups (groups, n) and the groups of inputs (k,)."""
    return np.take(np.ascontiguousarray(a.T), groups, axis=1)  # NumPy is slow where arrays differ in their order


def _unpacked(words: np.ndarray, packing: Packing) -> np.ndarray:
    """Return the numbers, uint8 (rows, columns * 32 / bits), in words of 32 bits (rows, columns)."""
    count = _WORD // packing.bits
    words, found = words.view(np.uint32), np.empty((*words.shape, count), np.uint8)
    for i, place in enumerate(_AWQ_ORDER if packing.is_awq else range(count)):
        found[:, :, i] = words >> np.uint32(place * packing.bits) & np.uint32(2**packing.bits - 1)
    return found.reshape(len(words), -1)


def _group_size(packing: Packing, k: int) -> int:
    return max(k, 1) if packing.group_size == -1 else packing.group_size


# ---- reading a folder ----------------------------------------------------------------------------------------------


def with_packed(tensors: Mapping[str, Any], settings: Mapping[str, Any], form: Format) -> Mapping[str, Any]:
    """Return the tensors of a folder with a PackedTensor or MXFP4Tensor for each quantized weight's stored arrays.

    Args:
        tensors: Tensors of the folder by full name.
        settings: Content of its config.json.
        form: Format of the model.

    Raises:
        ValueError: The quantization is not one that polyarr reads, or stored arrays are missing or do not fit.
    """
    if settings.get("quantization_config") is None:
        return tensors
    if _method(settings["quantization_config"]) == "mxfp4":
        return with_mxfp4(tensors)
    packing = packing_of(settings["quantization_config"])
    if any(layer.transposed for layer in form.layers.values()):
        raise ValueError("its weights are quantized and stored as (in, out); polyarr reads quantized (out, in) alone")
    found = dict(tensors)
    for stem in [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]:
        parts = {last: found.pop(f"{stem}.{last}") for last in (*_PARTS, _GROUPS) if f"{stem}.{last}" in found}
        if f"{stem}.weight" in found:
            raise ValueError(f"{stem} has both a weight and a qweight; it must have one of them")
        found[f"{stem}.weight"] = _packed_tensor(stem, packing, parts)
    return found


def packing_of(given: Any) -> Packing:
    """Return how weights are quantized, by the quantization_config of a config.json.

    Raises:
        ValueError: polyarr does not read such weights.
    """
    method = _method(given)
    bits = _known(given, "bits", None, (4,) if method == "awq" else (4, 8))
    size = given.get("group_size", 128)
    if type(size) is not int or not (size > 0 or size == -1):
        raise ValueError(f"its quantization_config has group_size {size!r}; it must be a positive int, or -1")
    if method == "awq":
        _known(given, "version" if "version" in given else "format", "gemm", ("gemm",))
        _known(given, "zero_point", True, (True,))
        return Packing(bits, size, is_awq=True)
    name = "checkpoint_format" if "checkpoint_format" in given else "format"
    zeros = _known(given, name, "gptq", tuple(_ZEROS_OF_GPTQ))
    has_order = _known(given, "desc_act", False, (False, True))
    return Packing(bits, size, is_awq=False, has_order=has_order, is_minus_one=_ZEROS_OF_GPTQ[zeros])


def _method(given: Any) -> str:
    """Return the quant_method of a quantization_config."""
    if not isinstance(given, dict):
        raise ValueError(f"its quantization_config holds {type(given).__name__}; it must be a dict")
    return _known(given, "quant_method", None, ("awq", "gptq", "mxfp4"))


def _known(given: Mapping[str, Any], name: str, default: Any, known: tuple) -> Any:
    """Return a setting of a quantization_config, which must be one of the known values; texts in lower case."""
    value = default if given.get(name) is None else given[name]
    value = value.lower() if isinstance(value, str) else value
    if not any(type(value) is type(one) and value == one for one in known):
        listed = " or ".join(map(repr, known))
        raise ValueError(f"its quantization_config has {name} {value!r}; polyarr reads {listed}")
    return value


def _packed_tensor(stem: str, packing: Packing, parts: Mapping[str, Any]) -> PackedTensor:
    """Return the weight that stored arrays are, which must be all there and fit."""
    due_parts = (*_PARTS, _GROUPS) if packing.has_order else _PARTS
    if missing := [f"{stem}.{last}" for last in due_parts if last not in parts]:
        raise ValueError(f"missing {', '.join(missing)}")
    shape, count = parts["qweight"].shape, _WORD // packing.bits
    if len(shape) != 2:
        raise ValueError(f"{stem}.qweight is {shape}; it must have 2 dimensions")
    n, k = (shape[1] * count, shape[0]) if packing.is_awq else (shape[1], shape[0] * count)
    if n % count:
        raise ValueError(f"{stem}.qweight is {shape}; its columns must be a multiple of {count}")
    groups = math.ceil(k / _group_size(packing, k))
    due = {"qweight": shape, "qzeros": [groups, n // count], "scales": [groups, n], _GROUPS: [k]}
    for last, part in parts.items():
        if part.shape != due[last]:
            raise ValueError(f"{stem}.{last} is {part.shape} and must be {due[last]} beside a qweight {shape}")
        dtypes = _SCALES if last == "scales" else ("I32",)
        if part.dtype not in dtypes:
            raise ValueError(f"{stem}.{last} is of {part.dtype} and must be of {', '.join(dtypes)}")
    return PackedTensor(f"{stem}.weight", [n, k], parts["scales"].dtype, packing, parts)
