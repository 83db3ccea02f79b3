"""vmap: axes, trees, Modules, changes in place, random numbers, and what it refuses."""

import threading

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops, tree
from polyarr.core.backend import Backend
from polyarr.core.errors import BatchingError
from tests.helpers.examples import close, given


def loop(fn, *args, out: int = 0) -> np.ndarray:
    """Return fn for each example of arguments mapped along axis 0, as vmap should."""
    return np.stack([fn(*(a[i] for a in args)).numpy() for i in range(len(args[0]))], axis=out)


# ---- axes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("out_axis", [0, 1, -1])
def test_axes_of_inputs_and_results(backend: Backend, in_axis, out_axis) -> None:
    x = given(2, 3, 4)
    fn = lambda a: pa.tanh(a) @ pa.ones(a.shape[1])
    examples = np.moveaxis(x.numpy(), in_axis, 0)
    due = np.stack([np.tanh(e) @ np.ones(e.shape[1]) for e in examples], axis=out_axis)
    close(pa.vmap(fn, in_axes=in_axis, out_axes=out_axis)(x), due)


def test_an_argument_that_is_not_mapped(backend: Backend) -> None:
    x, w = given(4, 3), given(3, 5)
    close(pa.vmap(lambda w, x: x @ w, in_axes=(None, 0))(w, x), x.numpy() @ w.numpy())
    close(pa.vmap(lambda w, x: x @ w, in_axes=(1, None))(w, x[0]), w.numpy().T @ x.numpy()[0])


def test_trees_of_axes(backend: Backend) -> None:
    given_tree = {"a": given(4, 3), "b": [given(3), given(3, 4)]}
    axes = ({"a": 0, "b": [None, 1]},)
    fn = lambda t: {"sum": t["a"] + t["b"][0], "both": (t["b"][0], t["b"][1] * 2)}
    found = pa.vmap(fn, in_axes=axes, out_axes={"sum": 1, "both": (None, 0)})(given_tree)
    close(found["sum"], (given_tree["a"].numpy() + given_tree["b"][0].numpy()).T)
    close(found["both"][0], given_tree["b"][0].numpy())
    close(found["both"][1], 2 * given_tree["b"][1].numpy().T)


def test_arguments_by_name_are_mapped_along_axis_0(backend: Backend) -> None:
    x, y = given(4, 3), given(4)
    close(pa.vmap(lambda x, *, y: x * y)(x, y=y), x.numpy() * y.numpy()[:, None])


def test_results_that_are_the_same_for_all_examples(backend: Backend) -> None:
    x, w = given(4), given(3)
    same, spread, number = pa.vmap(lambda x: (w * 2, w, 3), out_axes=(None, 1, 0))(x)
    close(same, 2 * w.numpy())
    close(spread, np.stack([w.numpy()] * 4, axis=1))
    assert number.tolist() == [3, 3, 3, 3] and number.dtype == pa.int64
    assert pa.vmap(lambda x: (x, 3, "name"), out_axes=(0, None, 0))(x)[1:] == (3, "name")


def test_no_example_and_one_example(backend: Backend) -> None:
    fn = lambda x: pa.sum(pa.softmax(x)) + x[pa.argmax(x)] + x[1:][0]
    assert pa.vmap(fn)(given(0, 3)).shape == (0,)
    close(pa.vmap(fn)(x := given(1, 3)), [fn(x[0]).numpy()])


def test_axis_size_maps_over_nothing(backend: Backend) -> None:
    assert pa.vmap(lambda: pa.asarray([1.0, 2.0]), axis_size=3)().tolist() == [[1.0, 2.0]] * 3


# ---- nesting -----------------------------------------------------------------------------------------------------


def test_three_deep(backend: Backend) -> None:
    a, b, c = given(2, 3), given(4, 3), given(5, 3)
    fn = lambda a, b, c: pa.sum(pa.sin(a) * b) / (1 + pa.abs(c[0]))
    inner = pa.vmap(fn, in_axes=(None, None, 0))
    all_pairs = pa.vmap(pa.vmap(inner, in_axes=(None, 0, None)), in_axes=(0, None, None))
    due = [[[fn(a[i], b[j], c[k]).item() for k in range(5)] for j in range(4)] for i in range(2)]
    close(all_pairs(a, b, c), due)


def test_an_inner_vmap_closes_over_what_the_outer_one_maps(backend: Backend) -> None:
    x, y = given(3, 4), given(2, 4)
    found = pa.vmap(lambda a: pa.vmap(lambda b: pa.sum(a * b) + a[0])(y))(x)
    close(found, x.numpy() @ y.numpy().T + x.numpy()[:, :1])


# ---- Modules -----------------------------------------------------------------------------------------------------


def test_a_module_that_all_examples_share(backend: Backend) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    x = given(5, 4)
    close(pa.vmap(model)(x), model(x).numpy())
    grads = pa.vmap(pa.grad(lambda m, a: pa.sum(m(a) ** 2)), in_axes=(None, 0))(model, x)
    for i in range(5):
        one = pa.grad(lambda m, a: pa.sum(m(a) ** 2))(model, x[i])
        for name, g in tree.by_name(one).items():
            close(tree.by_name(grads)[name][i], g.numpy(), 1e-4)


def test_an_ensemble_of_modules(backend: Backend) -> None:
    models = [nn.Linear(3, 2) for _ in range(4)]
    stacked = tree.unflatten(models[0], [pa.stack(leaves) for leaves in zip(*map(tree.leaves, models), strict=True)])
    x = given(6, 3)
    found = pa.vmap(lambda m, x: m(x), in_axes=(0, None))(stacked, x)
    close(found, np.stack([m(x).numpy() for m in models]))


def test_a_convolution_with_shared_and_with_own_weights(backend: Backend) -> None:
    x, weight = given(3, 2, 5, 5, 4), given(3, 6, 3, 3, 4)
    close(pa.vmap(pa.conv, in_axes=(0, None))(x, weight[0]), loop(lambda a: pa.conv(a, weight[0]), x), 1e-4)
    close(pa.vmap(pa.conv)(x, weight), loop(pa.conv, x, weight), 1e-4)


# ---- changes in place --------------------------------------------------------------------------------------------


def test_a_mapped_array_changes_for_each_example_and_the_callers_does_not(backend: Backend) -> None:
    x = given(4, 3)
    before = x.numpy()

    def fn(a):
        a[0] = a[1] * 2
        a += 1
        return a

    due = before + 1
    due[:, 0] = before[:, 1] * 2 + 1
    close(pa.vmap(fn)(x), due)
    close(x, before)


def test_an_array_made_inside_takes_mapped_values(backend: Backend) -> None:
    x = given(4, 3)

    def fn(a):
        found = pa.zeros(3)
        found[1] = a[0]
        found[a > 0] = 7.0
        return found

    due = np.zeros((4, 3), np.float32)
    due[:, 1] = x.numpy()[:, 0]
    due[x.numpy() > 0] = 7
    close(pa.vmap(fn)(x), due)


def test_an_array_around_vmap_takes_shared_values_only(backend: Backend) -> None:
    x, outside = given(4, 3), pa.zeros(3)

    def shared(a):
        outside[0] = 5.0
        return a + outside

    close(pa.vmap(shared)(x), x.numpy() + np.array([5.0, 0, 0], np.float32))
    assert outside.tolist() == [5.0, 0.0, 0.0] and outside.device == backend.name

    def mapped(a):
        outside[0] = a[0]
        return a

    with pytest.raises(BatchingError, match=r"vmap: .*test_vmap.py:\d+ writes mapped values into an array float32"):
        pa.vmap(mapped)(x)
    assert outside.tolist() == [5.0, 0.0, 0.0]


# ---- random numbers ----------------------------------------------------------------------------------------------


def test_random_numbers_are_refused_unless_asked_for() -> None:
    with pytest.raises(BatchingError, match="draws random numbers from a key that all examples share; say rand"):
        pa.vmap(lambda x: x + pa.random.normal((3,)))(given(4, 3))
    with pytest.raises(BatchingError, match="randomness is 'often'; it must be 'error', 'same' or 'different'"):
        pa.vmap(pa.sin, randomness="often")


def test_random_numbers_that_are_the_same_or_different(backend: Backend) -> None:
    x = pa.zeros((4, 3))
    draw = lambda x: x + pa.random.uniform((3,))
    pa.random.seed(1)
    same = pa.vmap(draw, randomness="same")(x).numpy()
    pa.random.seed(1)
    close(same, np.stack([pa.random.uniform((3,)).numpy()] * 4))
    different = pa.vmap(draw, randomness="different")(x).numpy()
    assert len(np.unique(different)) == 12


def test_dropout_has_the_gradient_of_its_own_mask(backend: Backend) -> None:
    x = pa.ones((4, 50))
    fn = lambda a: pa.dropout(a, 3, 4, rate=0.5)
    value = pa.vmap(fn, randomness="different")(x)
    grads = pa.vmap(pa.grad(lambda a: pa.sum(fn(a))), randomness="different")(x)
    close(grads, value.numpy())
    assert len({row.tobytes() for row in value.numpy()}) == 4


def test_draws_inside_advance_the_generator_outside(on_numpy) -> None:
    x = given(4, 3)

    def fn(x):
        noisy = pa.vmap(lambda a: pa.dropout(a, *pa.random.draw(), rate=0.5), randomness="different")(x)
        return noisy, pa.random.uniform((2,))

    found = []
    for call in (fn, pa.compile(fn)):
        pa.random.seed(3)
        results = [call(x), call(x)]
        assert pa.random.get_state() == (3, 4)
        found.append([a.tolist() for pair in results for a in pair])
    assert found[0] == found[1] and found[0][0] != found[0][2]


def test_a_checkpoint_draws_the_same_numbers_again(on_numpy) -> None:
    x, found = given(4, 3), []
    for wrap in (lambda f: f, pa.checkpoint):
        fn = wrap(lambda a: pa.sum(pa.sin(pa.dropout(a, *pa.random.draw(), rate=0.5))))
        total = lambda x, fn=fn: pa.sum(pa.vmap(fn, randomness="different")(x))
        for transform in (pa.grad(total), pa.compile(pa.grad(total))):
            pa.random.seed(3)
            found.append(transform(x).numpy())
    for other in found[1:]:
        close(other, found[0])


def test_nested_vmaps_draw_as_each_of_them_says(on_numpy) -> None:
    draw = lambda x: x + pa.random.uniform(())
    inner = pa.vmap(draw, randomness="different")
    each = pa.vmap(inner, randomness="different")(pa.zeros((3, 5))).numpy()
    rows = pa.vmap(inner, randomness="same")(pa.zeros((3, 5))).numpy()
    assert len(np.unique(each)) == 15 and len(np.unique(rows)) == 5
    with pytest.raises(BatchingError, match="draws random numbers"):
        pa.vmap(inner)(pa.zeros((3, 5)))


def test_a_mapped_key_draws_what_a_loop_draws(backend: Backend) -> None:
    counters = pa.asarray([1, 5, 9])
    found = pa.vmap(lambda c: ops.random_bits(7, c, shape=(6,)))(counters)
    assert found.tolist() == [ops.random_bits(7, c, shape=(6,)).tolist() for c in (1, 5, 9)]


# ---- what is refused ---------------------------------------------------------------------------------------------

READS = "reads the values of a mapped array"


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: 1.0 if x[0] > 0 else 2.0, lambda x: float(x[0]), lambda x: x.numpy(), lambda x: x[x > 0],
        lambda x: x[0].item(), lambda x: np.asarray(x), lambda x: pa.nonzero(x), lambda x: repr(x),
    ],
)  # fmt: skip
def test_values_of_a_mapped_array_are_not_known(fn) -> None:
    with pytest.raises(BatchingError, match=rf"^vmap: .*test_vmap.py:\d+ {READS} .*which differ by example"):
        pa.vmap(fn)(given(4, 3))


def test_values_of_a_shared_array_are_known() -> None:
    w = pa.asarray([2.0, 3.0])
    assert pa.vmap(lambda x: x * float(w[0]) if w[1] > 2 else x)(pa.asarray([1.0, 2.0])).tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: pa.vmap(3), "fn is a int; it must be a function"),
        (lambda x: pa.vmap(pa.sin, in_axes=None)(x), "no argument is mapped"),
        (lambda x: pa.vmap(pa.sin, in_axes=3)(x), r"argument 0 is float32\[4, 3\]; it has no axis 3"),
        (lambda x: pa.vmap(pa.add, in_axes=(0,))(x, x), "in_axes has 1 entries for 2 arguments"),
        (lambda x: pa.vmap(pa.add, in_axes=(0, 1))(x, x), "argument 1 has 3 examples, argument 0 has 4"),
        (lambda x: pa.vmap(pa.add)(x, 2.0), "argument 1 is a float; it must be an array, or have the axis None"),
        (lambda x: pa.vmap(pa.sin, in_axes=({"a": 0},))([x]), r"in_axes is .* for argument 0, which is a list"),
        (lambda x: pa.vmap(pa.sin, in_axes=(True,))(x), "in_axes is True for argument 0"),
        (lambda x: pa.vmap(lambda a: {"b": a})({"a": [x, x[0]]}), r"argument 0 at a.1 has 3 examples, .* has 4"),
        (lambda x: pa.vmap(pa.sin, out_axes=None)(x), r"out_axes is None for a result float32\[3\] that is mapped"),
        (lambda x: pa.vmap(pa.sin, out_axes=5)(x), r"out_axes is 5 for a result float32\[3\]; it must be from -2 to 1"),
        (lambda x: pa.vmap(pa.sin, axis_size=3)(x), "argument 0 has 4 examples, axis_size has 3"),
    ],
)
def test_errors_have_one_line(on_numpy, call, message) -> None:
    with pytest.raises(BatchingError, match=message) as caught:
        call(given(4, 3))
    assert str(caught.value).startswith("vmap: ") and "\n" not in str(caught.value)


def test_an_array_that_outlives_its_vmap() -> None:
    kept = []
    pa.vmap(lambda x: (kept.append(x), x)[1])(given(2))
    with pytest.raises(BatchingError, match="uses an array that a mapped function kept; return it"):
        kept[0] + 1


def test_an_error_of_the_function_names_the_shape_of_one_example() -> None:
    with pytest.raises(pa.ShapeError, match=r"x is float32\[3\], y is float32\[4\]"):
        pa.vmap(lambda x: x @ pa.ones(4))(given(2, 3))
    assert pa.vmap(pa.sin)(given(2)).shape == (2,)  # nothing is left of the failed call


@pytest.mark.parametrize("home", ["host", "elsewhere"])
def test_an_array_moves_to_another_backend_and_its_gradient_back(on_numpy, home) -> None:
    other = on_numpy._replace(name="other", home=home, dlpack=None)
    x, w = given(4, 3), given(3)
    fn = lambda x: pa.sum((x.to(other) * w.to(other)).to("numpy") * x)
    close(pa.vmap(lambda x: x.to(other) * 2)(x), 2 * x.numpy())
    assert pa.vmap(lambda x: x.to(other) * 2)(x).device == "other"
    close(pa.vmap(pa.grad(fn))(x), 2 * x.numpy() * w.numpy())
    close(pa.grad(lambda x: pa.sum(pa.vmap(fn)(x)))(x), 2 * x.numpy() * w.numpy())


def test_threads_map_at_the_same_time() -> None:
    found: dict[int, np.ndarray] = {}
    xs = [given(5, 3) for _ in range(4)]

    def work(i: int) -> None:
        for _ in range(20):
            found[i] = pa.vmap(pa.grad(lambda x: pa.sum(pa.sin(x))))(xs[i]).numpy()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, x in enumerate(xs):
        close(found[i], np.cos(x.numpy()))


def test_an_array_around_nested_vmaps_can_be_changed_in_place(on_numpy) -> None:
    x, total = given(2, 3), pa.zeros(3)

    def inner(y):
        total[0] = 2.0
        return y + total

    found = pa.vmap(lambda a: pa.vmap(inner)(x) * a)(x)
    close(total, [2, 0, 0])
    close(found, (x.numpy() + total.numpy()) * x.numpy()[:, None])
    step = pa.compile(lambda x: pa.vmap(lambda a: pa.vmap(inner)(x) * a)(x), captures=[total])
    total[0] = 0.0
    close(step(x), found.numpy())
    close(total, [2, 0, 0])


def test_a_checkpoint_in_nested_vmaps_leaves_what_it_reads(on_numpy) -> None:
    x, w = given(2, 3), given(3)
    fn = lambda wrap: lambda a: pa.vmap(lambda b: pa.grad(lambda b: pa.sum(wrap(lambda b: pa.sin(b) * w * a)(b)))(b))(x)
    close(pa.vmap(fn(pa.checkpoint))(x), pa.vmap(fn(lambda f: f))(x).numpy())
    tangent = lambda wrap: lambda a: pa.vmap(lambda b: pa.jvp(wrap(lambda b: pa.sin(b) * w * a), (b,), (w,))[1])(x)
    close(pa.vmap(tangent(pa.checkpoint))(x), pa.vmap(tangent(lambda f: f))(x).numpy())
    close(w * 1, w.numpy())
