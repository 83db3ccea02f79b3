"""Names of other libraries: what the error says to write instead runs, and computes the same."""

import re

import numpy as np
import pytest

import polyarr as pa
import polyarr.testing
from polyarr.core import names
from tests.helpers.root import ROOT

PLACES = {
    "polyarr": pa, "polyarr.nn": pa.nn, "polyarr.nn.init": pa.nn.init, "polyarr.optim": pa.optim,
    "polyarr.random": pa.random, "polyarr.linalg": pa.linalg, "polyarr.fft": pa.fft, "polyarr.special": pa.special,
    "polyarr.tree": pa.tree, "Array": pa.Array, "Module": pa.nn.Module, "Optimizer": pa.optim.Optimizer,
    "compile": pa.compile, "Generator": pa.random.Generator,
}  # fmt: skip


@pytest.mark.parametrize(("place", "theirs"), [(place, name) for place in PLACES for name in names.HINTS[place]])
def test_names_of_other_libraries_lead_to_what_to_write(place: str, theirs: str) -> None:
    code = names.HINTS[place][theirs]
    assert not hasattr(PLACES[place], theirs)
    assert names.hint(place, theirs) == f"; write {code}"
    assert names.unknown(place, theirs, []) == f"{place} has no '{theirs}'; write {code}"


@pytest.mark.parametrize("code", sorted({code for hints in names.HINTS.values() for code in hints.values()}))
def test_what_to_write_instead_of_other_libraries_names_runs(code: str, on_numpy, tmp_path) -> None:
    if "opencl" in code:
        pytest.importorskip("pyopencl")
    model, optimizer = pa.nn.Linear(3, 2), pa.optim.SGD(lr=0.1)
    grads = pa.tree.map(pa.ones_like, model)
    given = {
        "pa": pa, "x": pa.asarray([[0.5, -1.0, 2.0], [3.0, 0.25, -0.5]]), "y": pa.ones((2, 3)),
        "w": pa.full((2, 3), 0.5), "m": pa.eye(3) * 2, "a": pa.asarray([3.0, 1.0, 2.0]),
        "b": pa.asarray([1.0, 2.0, 5.0]), "i": pa.asarray([0, 1]), "n": 4, "q": 0.5, "f": lambda x: pa.sum(x**2),
        "model": model, "optimizer": optimizer, "grads": grads, "state": optimizer.init(model),
        "z": pa.asarray([1j, -2.0]), "generator": pa.random.Generator(0),
        "path": tmp_path / "weights.safetensors", "fan_in": 3, "fan_out": 2, "pad_width": 1,
    }  # fmt: skip
    exec(code, given)


@pytest.mark.parametrize("name", ["allclose", "average", "cbrt", "cov", "deg2rad", "exp2", "fliplr", "flipud", "frac",
    "fmod", "heaviside", "hstack", "isclose", "kron", "median", "nanmean", "nanstd", "nansum", "nan_to_num", "ptp",
    "rot90", "trapezoid", "vstack", "argwhere", "bincount", "union1d", "intersect1d", "setdiff1d", "tri", "lexsort",
    "nanmax", "quantile"])  # fmt: skip
def test_what_to_write_computes_what_numpy_does(name: str, on_numpy) -> None:
    x, y = np.float32([[0.5, -1.0, 2.0], [3.0, 0.0, -0.5]]), np.float32([[2, 3, 4], [5, 6, 7]])
    a, b, i = np.float32([3, 1, 2]), np.float32([1, 2, 5]), np.int64([0, 2, 2])
    if name.startswith("nan"):
        x[0, 1] = np.nan
    calls = {
        "hstack": ((x, y),), "vstack": ((x, y),), "median": (a,), "trapezoid": (a,), "bincount": (i, None, 4),
        "union1d": (a, b), "intersect1d": (a, b), "setdiff1d": (a, b), "tri": (4,), "average": (x, None, y),
        "lexsort": ((a, b),), "quantile": (a, 0.3),
    } | dict.fromkeys(["allclose", "fmod", "heaviside", "isclose", "kron"], (x, y))  # fmt: skip
    expected = x - np.trunc(x) if name == "frac" else getattr(np, name)(*calls.get(name, (x,)))
    given = {n: pa.asarray(v) for n, v in {"x": x, "y": y, "a": a, "b": b, "i": i, "w": y}.items()}
    found = eval(names.HINTS["polyarr"][name], {"pa": pa, "n": 4, "q": 0.3, **given})
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["segment_max", "segment_min"])
def test_what_to_write_for_extremes_of_segments(name: str, on_numpy) -> None:
    x, i = np.float32([[3], [7], [-1], [7], [2]]), np.int64([2, 0, 2, 0, 0])
    expected = np.float32([7, -np.inf, 3] if name == "segment_max" else [2, np.inf, -1])
    found = lambda x: eval(names.HINTS["polyarr"][name], {"pa": pa, "n": 3, "i": pa.asarray(i), "x": x})
    np.testing.assert_array_equal(found(pa.asarray(x)).numpy(), expected)
    grads = pa.grad(lambda x: pa.sum(found(x)[::2]))(pa.asarray(x)).numpy()
    assert sorted(x[grads == 1]) == sorted(expected[::2]) and grads.sum() == 2


@pytest.mark.parametrize("name", ["lognormal", "exponential", "gumbel", "laplace", "binomial",
    "multivariate_normal", "truncated_normal"])  # fmt: skip
def test_what_to_write_for_a_distribution_has_its_quantiles(name: str, on_numpy) -> None:
    """Of 200,000 draws, within 0.006 of probability."""
    stats, count = pytest.importorskip("scipy.stats"), 200_000
    expected = {
        "lognormal": stats.lognorm(1), "exponential": stats.expon, "gumbel": stats.gumbel_r, "laplace": stats.laplace,
        "truncated_normal": stats.truncnorm(-2, 2), "binomial": stats.binom(4, 0.3),
        "multivariate_normal": stats.norm(0, 2**0.5),
    }  # fmt: skip
    pa.random.seed(5)
    code = names.HINTS["polyarr.random"][name].replace("3,)", f"{count},)").replace("(n, 3)", f"(n, {count})")
    given = {"pa": pa, "n": 4, "q": 0.3, "m": pa.eye(3) * 2}
    if name == "multivariate_normal":
        code, given["n"] = names.HINTS["polyarr.random"][name], count
    found = eval(code, given).numpy()
    for point in expected[name].ppf([0.05, 0.3, 0.5, 0.8, 0.99]):
        assert abs((found <= point).mean() - expected[name].cdf(point)) < 0.006


@pytest.mark.parametrize("name", ["celu", "elu", "selu", "softplus", "log_sigmoid", "softsign", "mish", "relu6",
    "hardtanh", "hard_sigmoid", "hard_swish", "leaky_relu", "normalize", "huber_loss", "cosine_similarity",
    "binary_cross_entropy_with_logits"])  # fmt: skip
def test_what_to_write_for_an_activation_has_a_finite_gradient(name: str, on_numpy) -> None:
    x = pa.asarray([[-1000.0, -100.0, -1.0, 0.0], [1000.0, 100.0, 1.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
    code = names.HINTS["polyarr"][name]
    found = pa.grad(lambda x: pa.sum(eval(code, {"pa": pa, "x": x, "y": pa.zeros((3, 4)), "w": pa.ones((3, 4))})))(x)
    assert pa.all(pa.isfinite(found))


def test_what_to_write_for_a_loss_or_metric_computes_what_pytorch_does(on_numpy) -> None:
    """kl_div takes log-probabilities x and probabilities w, and some of these are 0."""
    p = np.float32([[0.5, 0.25, 0.25], [0.0, 0.9, 0.1]])
    given = {"x": np.log(np.float32([[0.2, 0.3, 0.5], [0.5, 0.25, 0.25]])), "w": p, "y": p[::-1]}
    given |= {"i": np.int64([2, 1])}
    code = names.HINTS["polyarr"]
    found = {n: eval(code[n], {"pa": pa, **{k: pa.asarray(v.copy()) for k, v in given.items()}}).item() for n in
             ("kl_div", "triplet_margin_loss", "accuracy")}  # fmt: skip
    x, w, y = given["x"], given["w"], given["y"]
    logs = np.log(np.where(w > 0, w, 1))
    assert found["kl_div"] == pytest.approx(np.sum(w * (logs - x)) / 2, rel=1e-5)
    near, far = (np.linalg.norm(x - other, axis=-1) for other in (y, w))
    assert found["triplet_margin_loss"] == pytest.approx(np.mean(np.maximum(1 + near - far, 0)), rel=1e-5)
    assert found["accuracy"] == 0.5


def test_the_gradient_of_elu_is_that_of_its_formula(on_numpy) -> None:
    x = np.float32([-1.0, 0.0, 2.0])
    gradient = pa.grad(lambda x: pa.sum(eval(names.HINTS["polyarr"]["elu"], {"pa": pa, "x": x})))(pa.asarray(x))
    np.testing.assert_allclose(gradient.numpy(), np.exp(np.minimum(x, 0)), rtol=1e-6)


def test_names_without_an_equivalent_say_what_to_do() -> None:
    with pytest.raises(AttributeError, match=r"^polyarr has no 'no_grad': gradients are recorded only within pa\.grad"):
        pa.no_grad  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.nn has no 'ModuleList': use a list or dict of Modules"):
        pa.nn.ModuleList  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.nn has no 'LSTM': write a cell of Linear layers"):
        pa.nn.LSTM  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.nn has no 'Dropout2d': multiply x by pa\.nn\.Dropout\(rate\)"):
        pa.nn.Dropout2d  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.nn has no 'utils'; write pa\.optim\.clip_by_global_norm"):
        pa.nn.utils  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr has no 'grid_sample': docs/images\.md"):
        pa.grid_sample  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.optim has no 'StepLR': lr= may be a function of the step"):
        pa.optim.StepLR  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.optim has no 'RAdam': take pa.optim.AdamW, or SGD, RMSprop"):
        pa.optim.RAdam  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.optim has no 'LBFGS': give pa.value_and_grad\(f\) to"):
        pa.optim.LBFGS  # noqa: B018
    with pytest.raises(AttributeError, match=r"attribute 'register_buffer': put arrays that are not trained"):
        pa.nn.Linear(2, 2).register_buffer("table", pa.ones(2))
    with pytest.raises(AttributeError, match=r"^'Linear' object has no attribute 'zero_grad': gradients are values"):
        pa.nn.Linear(2, 2).zero_grad()
    with pytest.raises(AttributeError, match=r"^'SGD' object has no attribute 'step'; write model, state = optimizer"):
        pa.optim.SGD(lr=0.1).step()
    with pytest.raises(AttributeError, match=r"^polyarr.random has no 'split'; write pa.random.drawing_from"):
        pa.random.split  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.nn has no 'relu'; write pa.relu$"):
        pa.nn.relu  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr has no 'Linear'; write pa.nn.Linear$"):
        pa.Linear  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr has no 'clip_grad_norm_'; write pa.optim.clip_by_global_norm$"):
        pa.clip_grad_norm_  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.nn.init has no 'kaiming_normal_'; write pa\.nn\.normal\("):
        pa.nn.init.kaiming_normal_  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.linalg has no 'expm': polyarr has none; SciPy computes it"):
        pa.linalg.expm  # noqa: B018


@pytest.mark.parametrize("name", ["histogram", "cdist", "diag", "tril_indices"])
def test_what_to_write_computes_what_it_says(name: str, on_numpy) -> None:
    x, y = np.float32([[0.5, -1.0, 2.0], [3.0, 0.0, -0.5]]), np.float32([[2, 3, 4], [5, 6, 7]])
    a, b, m = np.float32([3, 1, 2, 1.5]), np.float32([1, 2, 5]), np.float32([[1, 2], [3, 4]])
    expected = {
        "histogram": np.histogram(a, b)[0], "cdist": np.linalg.norm(x[:, None] - y, axis=-1), "diag": np.diag(m),
        "tril_indices": np.tril_indices(4),
    }[name]  # fmt: skip
    given = {n: pa.asarray(v) for n, v in {"x": x, "y": y, "a": a, "b": b, "m": m}.items()}
    found = eval(names.HINTS["polyarr"][name], {"pa": pa, "n": 4, **given})
    for part, due in zip(found, expected, strict=True):
        np.testing.assert_allclose(part.numpy(), due, rtol=1e-6)


@pytest.mark.parametrize("name", ["interp", "polyval", "polyfit", "vander", "corrcoef", "angle", "block", "delete",
    "insert", "fill_diagonal", "sliding_window_view", "gradient", "unravel_index"])  # fmt: skip
def test_what_to_write_computes_what_scientists_expect(name: str, on_numpy) -> None:
    x, y = np.float32([[0.5, -1.0, 2.0], [3.0, 0.0, 9.0]]), np.float32([[2, 3, 4], [5, 6, 7]])
    a, b, z = np.float32([3, 1, 2]), np.float32([1, 2, 5]), np.complex64([1j, -2, 1 + 1j])
    m, i = np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), np.int64([0, 4, 5])
    filled = m.copy()
    np.fill_diagonal(filled, 0)
    expected = {
        "interp": lambda: np.interp(x, b, a), "polyval": lambda: np.polyval(a, x),
        "polyfit": lambda: np.polyfit(b, a, 1),
        "vander": lambda: np.vander(a), "corrcoef": lambda: np.corrcoef(x), "angle": lambda: np.angle(z),
        "block": lambda: np.block([[x, y], [y, x]]), "delete": lambda: np.delete(x, 1, 0),
        "insert": lambda: np.insert(x, [1, 1], y, 0), "fill_diagonal": lambda: filled,
        "sliding_window_view": lambda: np.lib.stride_tricks.sliding_window_view(x, 2, 0).swapaxes(1, 2),
        "gradient": lambda: np.gradient(a)[1:-1], "unravel_index": lambda: np.unravel_index(i, (2, 3)),
    }[name]()  # fmt: skip
    given = {n: pa.asarray(v) for n, v in {"x": x, "y": y, "a": a, "b": b, "z": z, "m": m, "i": i}.items()}
    code = names.HINTS["polyarr"][name]
    found = eval(code.partition(": ")[2] if name == "gradient" else code, {"pa": pa, "n": 3, **given})
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


def test_the_adjoint_of_a_complex_matrix_is_conjugated(on_numpy) -> None:
    x = pa.asarray([[1j, 2.0], [3.0, 4.0]])
    for name in ("H", "mH", "adjoint"):
        assert eval(names.HINTS["Array"][name], {"pa": pa, "x": x})[0, 0].item() == -1j


def test_functions_of_numpy_and_scipy_are_named_where_polyarr_has_none() -> None:
    with pytest.raises(AttributeError, match=r"^polyarr has no 'gcd': polyarr has none; numpy.gcd computes it"):
        pa.gcd  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.random has no 'gamma': draw them by numpy.random.gamma, and"):
        pa.random.gamma  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.random has no 't': draw them by numpy.random, and convert by"):
        pa.random.t  # noqa: B018
    with pytest.raises(AttributeError, match=r"^'Generator' object has no attribute 'normal'; write with pa.ra"):
        pa.random.Generator(0).normal((3,))
    with pytest.raises(AttributeError, match=r"^polyarr has no 'cond'; write pa.where  # or `if`"):
        pa.cond  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.linalg has no 'cond'; write pa.linalg.svdvals"):
        pa.linalg.cond  # noqa: B018
    pytest.importorskip("scipy")
    with pytest.raises(AttributeError, match=r"^polyarr.special has no 'j0': polyarr has none; scipy.special.j0 comp"):
        pa.special.j0  # noqa: B018


def test_other_names_lead_to_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"^polyarr has no 'sofmax'; did you mean softmax\?$"):
        pa.sofmax  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr has no 'zzzzzz'$"):
        pa.zzzzzz  # noqa: B018
    with pytest.raises(ImportError, match="zzzzzz"):
        from polyarr import zzzzzz  # noqa: F401
    with pytest.raises(AttributeError, match=r"^polyarr has no 'volume'$"):  # "divide" would be no help
        pa.volume  # noqa: B018
    from polyarr import training  # a part that the package does not load by itself

    assert training.__name__ == "polyarr.training"


def test_a_part_that_is_not_loaded_says_how_to_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pa, "models", raising=False)
    said = r"^polyarr has no 'models' until that is imported; write import polyarr\.models$"
    with pytest.raises(AttributeError, match=said):
        pa.models  # noqa: B018


@pytest.mark.parametrize(
    ("name", "there"),
    [("cumsum", "pa.cumulative_sum"), ("exp", "pa.exp"), ("ravel", r"x\.flatten\(\)"), ("sideways", ""),
     ("inv", "pa.linalg.inv")],
)
def test_what_is_no_method_leads_to_a_function(name: str, there: str) -> None:
    end = f"; write {there}" if there else ""
    with pytest.raises(AttributeError, match=f"^'Array' object has no attribute '{name}'{end}$"):
        getattr(pa.ones((2, 3)), name)
    assert not hasattr(pa.ones((2, 3)), "__array_interface__")


def test_the_error_inside_a_property_is_shown() -> None:
    class Broken(pa.nn.Module):
        @property
        def width(self) -> int:
            return self.wieght.shape[0]

    with pytest.raises(AttributeError, match=r"^'Broken' object has no attribute 'wieght'$"):
        Broken().width  # noqa: B018


def test_checks_of_gradients_are_found_from_everywhere() -> None:
    for module in (pa, pa.autograd, pa.testing):
        for name in ("gradcheck", "gradgradcheck", "test_util"):
            with pytest.raises(AttributeError, match=f"^{module.__name__} has no '{name}'; write from polyarr.test"):
                getattr(module, name)
    with pytest.raises(AttributeError, match=r"^polyarr.autograd has no 'Function'; write pa.custom_vjp$"):
        pa.autograd.Function  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.testing has no 'assert_close': call numpy.testing.assert"):
        pa.testing.assert_close  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr.testing has no 'check_grad'; did you mean check_grads\?$"):
        pa.testing.check_grad  # noqa: B018
    np.testing.assert_allclose(pa.ones(3), pa.ones(3))


def test_every_table_has_a_place() -> None:
    assert PLACES.keys() == names.HINTS.keys()


def test_parameters_of_compile_are_answered() -> None:
    with pytest.raises(TypeError, match=r"^compile: there is no parameter 'static_argnames'; write constants = 'n'$"):
        pa.compile(lambda x, n: x, static_argnames="n")
    with pytest.raises(TypeError, match=r"^compile: there is no parameter 'fullgraph': a function is always captured"):
        pa.compile(fullgraph=True)


# ---- the page of equivalents ---------------------------------------------------------------------------------------

PREFIXES = {
    "np": "polyarr", "torch": "polyarr", "jnp": "polyarr", "jax": "polyarr", "mx": "polyarr", "F": "polyarr",
    "nn": "polyarr.nn", "x": "Array", "model": "Module", "optax": "polyarr.optim", "optimizer": "Optimizer",
}  # fmt: skip
MODULES = {name: f"polyarr.{name}" for name in ("fft", "linalg", "random", "optim", "tree")} | {"amp": "polyarr.optim"}
FOREIGN = re.compile(rf"\b({'|'.join(PREFIXES)})\.((?:\w+\.)*)(\w+)")
# Names of modules, and those that mean something else elsewhere.
NO_NAME = {"gradcheck", "check_grads", "CUDAGraph", "initialize", "init", "func", "dlpack", "trace", "at"}


def rows() -> list[tuple[str, str, str]]:
    """Return (place, their name, our cell) of docs/coming-from.md."""
    found = []
    for line in (ROOT / "docs" / "coming-from.md").read_text().splitlines():
        *theirs, ours = line.strip("| ").split("|") if line.startswith("| ") else [""]
        for prefix, inner, name in FOREIGN.findall(" ".join(re.findall(r"`[^`]+`", "|".join(theirs)))):
            place = MODULES.get(inner.rstrip(".").rpartition(".")[2], PREFIXES[prefix])
            found.append((place, name, ours))
    return found


@pytest.mark.parametrize(("place", "name", "ours"), rows())
def test_the_page_of_equivalents_agrees_with_the_errors(place: str, name: str, ours: str) -> None:
    if hasattr(PLACES[place], name) or name in NO_NAME:
        return
    code = names.HINTS[place].get(name) or names.hint(place, name)
    written = re.findall(r"(?:pa|x|model|optimizer|world|programs|POLYARR_\w+)\b(?:\.\w+)*", code)
    assert code and any(w in ours for w in written), f"{name}: the error says {code!r}, the page {ours}"


def test_the_page_has_the_parameters_of_compile() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text()
    assert [name for name in names.HINTS["compile"] if f"`{name}" not in page] == []
