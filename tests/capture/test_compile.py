"""polyarr.compile: captured calls equal eager ones bit for bit; changes between runs; refused functions."""

import gc
import random
import re
import threading
import weakref

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops, tree
from polyarr.core.tape import recording
from polyarr.models.gpt import GPTModel
from polyarr.optim import SGD, AdamW, LossScale, Muon, accumulate, warmup_cosine
from polyarr.testing.compare import bits
from polyarr.training.steps import loss_of
from tests.helpers.root import ROOT

PAGE = ROOT / "docs" / "compile.md"
CONFIG = {
    "vocab_size": 17, "context_length": 8, "emb_dim": 16, "n_heads": 2, "n_layers": 2, "drop_rate": 0.2,
    "qkv_bias": True,
}  # fmt: skip


def training(optimizer, gradients, compiled, steps=3):
    """Return the bits of every step of a small GPT with dropout, the random state, and the step function."""
    pa.random.seed(5)
    model = GPTModel(CONFIG)
    state = optimizer.init(model)

    def step(model, state, windows):
        loss, grads = gradients(model, windows)
        return loss, grads, *optimizer.update(grads, state, model)

    fn, found = pa.compile(step) if compiled else step, []
    for i in range(steps):
        windows = pa.asarray(np.random.default_rng(i).integers(0, 17, (3, 9), dtype=np.int32))
        loss, grads, model, state = fn(model, state, windows)
        found.append((bits((loss, grads, model, state)), state["step"]))
    return found, pa.random.get_state(), fn


def again(model, windows):
    """Return the loss of a model whose blocks are checkpointed."""
    model = model.copy()
    model.blocks = [pa.checkpoint(block) for block in model.blocks]
    return loss_of(model, windows)


ADAMW = AdamW(lr=warmup_cosine(1e-2, 2, 6), clip=1.0)
WAYS = {
    "AdamW, a schedule, clipping": (ADAMW, pa.value_and_grad(loss_of)),
    "SGD, accumulation": (SGD(0.1, momentum=0.9), lambda m, w: accumulate(loss_of, m, [(w,), (w[::-1],)])),
    "Muon": (Muon(lr=warmup_cosine(1e-2, 2, 6), clip=1.0), pa.value_and_grad(loss_of)),
    "a loss scale": (AdamW(loss_scale=LossScale()), pa.value_and_grad(lambda m, w: loss_of(m, w) * 4.0)),
    "checkpoints": (ADAMW, pa.value_and_grad(again)),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_with_dropout_is_the_same_to_the_last_bit(backend, way):
    eager, state, _ = training(*WAYS[way], compiled=False)
    got, later, fn = training(*WAYS[way], compiled=True)
    assert got == eager
    assert later == state
    assert len(fn.programs()) == 1  # step number, learning rate and counter are inputs, not constants


def test_training_without_fused_kernels_is_the_same_too(backend):
    with pa.use_backend(backend.without_fused()):
        assert training(*WAYS["checkpoints"], compiled=False)[0] == training(*WAYS["checkpoints"], compiled=True)[0]


UNARY = (ops.tanh, ops.exp, ops.abs, ops.negative, ops.floor, ops.sqrt, ops.square)
BINARY = (ops.add, ops.multiply, ops.subtract, ops.maximum, ops.divide)


def any_graph(seed):
    """Return a random function of a (6, 6), b (1, 6), c (6, 1) and a number: elementwise ops, sums and views."""

    def fn(a, b, c, s):
        draw = random.Random(seed)
        values = [a, b, c, a + b]
        for _ in range(14):
            kind, x, y = draw.choice("ubwsnv"), draw.choice(values), draw.choice(values)
            values.append(
                draw.choice(UNARY)(x * 0.5) if kind == "u"
                else draw.choice(BINARY)(x, y) if kind == "b"
                else ops.where(x < y, x, s) if kind == "w"
                else x + ops.sum(y, axis=draw.choice((0, 1)), keepdims=True) if kind == "s"
                else x * s + 1 if kind == "n"
                else (x.mT if x.shape == (6, 6) else x) + y
            )  # fmt: skip
        return [*draw.sample(values, 3), values[-1]]

    return fn


@pytest.mark.parametrize("seed", range(4))
def test_any_graph_gives_the_same_bits(backend, seed):
    fn = any_graph(seed)
    compiled = pa.compile(fn)
    for run in range(3):
        numbers = np.random.default_rng(10 * seed + run)
        args = [pa.asarray(numbers.normal(size=shape).astype(np.float32)) for shape in ((6, 6), (1, 6), (6, 1))]
        assert bits(compiled(*args, run + 0.5)) == bits(fn(*args, run + 0.5))


# ---- what a run leaves -----------------------------------------------------------------------------------------


def test_results_live_on_when_the_function_runs_again(backend):
    fn = pa.compile(lambda x: (x + 1, x, x[1:], pa.ones((3,))))
    first = fn(pa.asarray([1.0, 2.0]))
    kept = bits(first)
    for i in range(3):
        fn(pa.asarray([10.0 * i, 3.0]))
    assert bits(first) == kept


def test_results_are_trees(backend):
    def fn(x, n):
        return {"b": x, "a": [x + 1, 3, "c"], "n": (n + 1, None)}

    got = pa.compile(fn)(pa.ones(()), 1.5)
    assert tree.map(float, {"b": got["b"], "a": got["a"][:2]}) == {"b": 1, "a": [2, 3]}
    assert (got["a"][2], got["n"]) == ("c", (2.5, None))
    model = pa.compile(lambda m: m.copy().eval())(pa.nn.Dropout(0.5))
    assert type(model) is pa.nn.Dropout
    assert not model.training


def test_an_argument_may_be_rebound(backend):
    def fill(x, value):
        x[1:3] = value
        x += 1
        return pa.sum(x)

    mine, theirs = pa.zeros((5,)), pa.zeros((5,))
    compiled = pa.compile(fill)
    for value in (1.0, 7.0):
        assert bits(fill(mine, value)) == bits(compiled(theirs, value))
        assert bits(mine) == bits(theirs)


def test_what_is_captured_by_name_is_read_at_every_call(backend):
    held = pa.ones((2, 1))

    def fn(x):
        nonlocal held
        y = x @ held.mT  # an op whose inputs are all neither arguments nor captures
        held += 5
        return y

    compiled, x = pa.compile(fn, captures=held), pa.ones((2, 1))
    assert compiled(x).tolist() == [[1, 1], [1, 1]]
    assert held.tolist() == [[6], [6]]
    held += 1
    assert compiled(x).tolist() == [[7, 7], [7, 7]]
    assert held.tolist() == [[12], [12]]


def test_a_captured_module_may_be_differentiated(backend):
    layer = pa.nn.Linear(3, 2)

    def fn(x):
        return pa.value_and_grad(lambda layer, x: pa.sum(pa.tanh(layer(x))))(layer, x)

    compiled, x = pa.compile(fn, captures=layer), pa.ones((4, 3))
    for _ in range(2):
        assert bits(compiled(x)) == bits(fn(x))
        layer.load_parameters(tree.map(lambda p: p + 1, layer.parameters()))


def test_a_method_is_captured_with_its_module(backend):
    class Scale(pa.nn.Module):
        def __init__(self):
            self.by = pa.asarray(2.0)

        @pa.compile
        def __call__(self, x):
            return x * self.by

    scale, x = Scale(), pa.ones((2,))
    assert scale(x).tolist() == [2, 2]
    scale.by += 1
    assert scale(x).tolist() == [3, 3]
    assert pa.grad(lambda s: pa.sum(s(x)))(scale).by.tolist() == 2


def test_donated_arrays_are_deleted_and_their_memory_is_free(on_numpy):
    alive = []

    def exp(out, x):
        alive.append(sum(b() is not None for b in seen))
        return np.exp(x)

    with pa.use_backend(on_numpy._replace(name="seen", kernels={**on_numpy.kernels, ops.exp: exp})):
        fn = pa.compile(lambda x: pa.exp(pa.exp(x + 1)), donate="x")
        for _ in range(2):
            x = pa.ones((2,))
            seen = [weakref.ref(x.buf)]
            assert fn(x).numpy() == pytest.approx(np.exp(np.exp(2)))
        assert alive[-2:] == [0, 0]
        y = pa.ones((2,))
        for used in (x.numpy, lambda: x + 1, lambda: fn(x), lambda: x + y, lambda: y + x, lambda: pa.concat([y, x])):
            with pytest.raises(pa.CaptureError, match="donated to a compiled function"):
                used()


@pytest.mark.parametrize("calls", [1, 2, 9])
def test_device_memory_is_given_back_when_the_function_dies(calls):
    with pa.use_backend("opencl"):
        layers, x = nn.Sequential(*[nn.Linear(2, 2) for _ in range(8)]), pa.ones((2, 2))  # enough arrays to be kept
        fn = pa.compile(lambda m, x: m(x) + pa.asarray(np.arange(1 << 20, dtype=np.float32))[:2])
        gc.collect()
        gc.disable()
        try:
            before = pa.memory_stats().in_use
            for _ in range(calls):
                fn(layers, x)
            pa.synchronize()
            assert pa.memory_stats().in_use >= before + (1 << 22)
            del fn
            assert pa.memory_stats().in_use < before + (1 << 20)
        finally:
            gc.enable()


def test_memory_is_given_back_when_the_function_dies(on_numpy):
    held = [pa.asarray(np.ones(1000))]
    fn = pa.compile(lambda x: x + pa.asarray(np.arange(1000.0)) + held[0], captures=held[0])
    fn(held[0])
    buffers = [weakref.ref(b) for p in fn.programs() for b in p.constants.values() if isinstance(b, np.ndarray)]
    assert len(buffers) == 1
    gc.disable()
    try:
        buffers.append(weakref.ref(held[0].buf))
        held.clear()
        del fn
        assert [b() for b in buffers] == [None, None]
    finally:
        gc.enable()


def test_values_are_dropped_after_their_last_use(on_numpy):
    made, most = [], []

    def exp(out, x):
        found = np.exp(x)
        made.append(weakref.ref(found))
        most.append(sum(b() is not None for b in made))
        return found

    with pa.use_backend(on_numpy._replace(name="counted", kernels={**on_numpy.kernels, ops.exp: exp})):
        fn = pa.compile(lambda x: pa.exp(pa.exp(pa.exp(pa.exp(x)))))
        for _ in range(2):
            made, most = [], []
            fn(pa.asarray(np.zeros(2) - 9))
            assert max(most) == 2


def test_a_checkpoint_computes_again(on_numpy):
    calls = []

    def tanh(out, x):
        calls.append(x)
        return np.tanh(x)

    with pa.use_backend(on_numpy._replace(name="counted", kernels={**on_numpy.kernels, ops.tanh: tanh})):
        kept = pa.checkpoint(lambda x: pa.tanh(pa.tanh(x)))
        fn = pa.compile(pa.grad(lambda x: pa.sum(kept(x) * pa.sum(kept(x)))))
        x = pa.asarray(np.ones(2))
        fn(x)
        calls.clear()
        fn(x)
    assert len(calls) == 6  # two forward, shared by both calls; two more for each call's gradient


# ---- random numbers ---------------------------------------------------------------------------------------------


def test_draws_go_on_where_eager_draws_would(backend):
    def fn(x):
        return pa.random.normal((3,)) + pa.nn.Dropout(0.5)(x), pa.random.uniform((2,))

    compiled, x, found = pa.compile(fn), pa.ones((3,)), []
    for call in (fn, compiled):
        pa.random.seed(3)
        pa.random.uniform(())
        found.append([bits(call(x)), bits(call(x)), bits(pa.random.uniform((2,))), pa.random.get_state()])
    assert found[0] == found[1]
    assert len(compiled.programs()) == 1


def test_a_random_state_may_be_of_arrays(backend):
    state = tuple(pa.asarray(n, dtype="int64") for n in (7, 3))
    fn, found = lambda: pa.random.uniform((4,)), []
    for call in (fn, pa.compile(fn)):
        with pa.random.restored(state):
            found.append([bits(call()), bits(call()), bits(pa.random.get_state())])
    assert found[0] == found[1]


# ---- numbers ------------------------------------------------------------------------------------------------------


def test_evaluate_calls_a_function_at_every_run(backend):
    fn, x = pa.compile(lambda x, n: (x * pa.evaluate(warmup_cosine(1.0, 2, 9), n), n)), pa.ones((2,))
    for n in range(5):
        assert fn(x, n)[0].numpy()[0] == np.float32(warmup_cosine(1.0, 2, 9)(n))
    assert pa.evaluate(max, 1, 2) == 2


def test_what_evaluate_calls_must_keep_to_its_kind():
    fn, x = pa.compile(lambda x, n: x * pa.evaluate(lambda n: n / 2 if n % 2 else n // 2, n)), pa.ones((2,))
    assert fn(x, 4).tolist() == [2, 2]
    with pytest.raises(pa.CaptureError, match=r"<lambda> gave 1.5, and int when it was captured; .* always an int"):
        fn(x, 3)
    assert fn(x, 6).tolist() == [3, 3]
    with pytest.raises(pa.CaptureError, match=r"test_compile.py:\d+: str gave str; .* must give an int or float$"):
        pa.compile(lambda n: pa.evaluate(str, n))(3)


def test_numbers_are_checked_at_every_run(backend):
    fn, x = pa.compile(lambda x, n: x + n), pa.ones((2,), dtype="int8")
    assert fn(x, 3).tolist() == [4, 4]
    with pytest.raises(OverflowError, match="add: y is 300; int8 holds"):
        fn(x, 300)
    window = pa.compile(lambda x, at: ops.slice(x, (at,), steps=(1,), shape=(1,)))
    assert window(pa.arange(3), 2).tolist() == [2]
    with pytest.raises(pa.ShapeError, match=r"slice: .* leaves it"):
        window(pa.arange(3), 3)


@pytest.mark.parametrize("power", [0, 0.0, 1, 2, 3.0])
def test_gradients_of_powers_with_a_number(backend, power):
    fn = pa.grad(lambda x, n: pa.sum(x**n + abs(n) ** x))
    compiled, x = pa.compile(fn), pa.asarray([0.0, 1.0, 2.0, -3.0])
    compiled(x, type(power)(5))
    assert bits(compiled(x, power)) == bits(fn(x, power))


# ---- transforms, other compiled functions, threads -----------------------------------------------------------------


def test_transforms_inside_and_outside(backend):
    x = pa.asarray([1.0, 2.0])
    inside = pa.compile(pa.grad(lambda x: pa.sum(pa.grad(lambda y: pa.sum(y**3))(x) * x)))
    assert inside(x).numpy().tolist() == [9, 36]
    cube = pa.compile(lambda x: pa.sum(x**3))
    assert pa.grad(cube)(x).numpy().tolist() == [3, 12]
    assert not cube.programs()  # the tape had to record it
    with recording():
        assert float(cube(x)) == 9
    outer = pa.compile(lambda x: cube(x) + 1)
    assert [float(outer(x)), float(outer(x * 2))] == [10, 73]
    assert len(cube.programs()) == 1


def test_a_checkpoint_around_sees_what_is_captured_by_name(on_numpy):
    x = pa.ones((4, 3))

    def loss(weight, fn):
        held.rebind(weight)
        return pa.sum(pa.checkpoint(fn)(x))

    held = pa.ones((3, 2))
    compiled = pa.compile(lambda x: pa.tanh(x @ held), captures=held)
    compiled(x)
    assert bits(pa.grad(loss)(pa.ones((3, 2)), compiled)) == bits(pa.grad(loss)(pa.ones((3, 2)), compiled.fn))


def test_threads(backend):
    fn = pa.compile(lambda x: pa.sum(pa.tanh(x * 2) + x, axis=0))
    arrays = [pa.asarray(np.full((200, 3), float(i), np.float32)) for i in range(4)]
    expected = [bits(pa.sum(pa.tanh(x * 2) + x, axis=0)) for x in arrays]
    wrong = []

    def work(i):
        wrong.extend(i for _ in range(20) if bits(fn(arrays[i])) != expected[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len(fn.programs()) == 1


# ---- what goes wrong -----------------------------------------------------------------------------------------------

OUTSIDE: list = []


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x, n: float(x[0]), "reads an array's values"),
        (lambda x, n: x if x[0] > 0 else -x, r"reads an array's values.* or choose by pa\.where$"),
        (lambda x, n: str(x), "reads an array's values"),
        (lambda x, n: x[x > 0], "reads an array's values"),
        (lambda x, n: pa.synchronize(), "reads an array's values"),
        (lambda x, n: x if n > 2 else -x, "asks for the value of a number"),
        (lambda x, n: ops.sum(x, axis=n), "asks for the value of a number"),
        (lambda x, n: pa.zeros((n,)), "asks for the value of a number"),
        (lambda x, n: pa.arange(n), "asks for the value of a number"),
        (lambda x, n: x[n : n + 1], "asks for the value of a number"),
        (lambda x, n: pa.nonzero(x), "reads an array's values"),
        (lambda x, n: x + OUTSIDE[0], r"uses an array float32\[3\] on '.+' that the function was not given"),
        (lambda x, n: -OUTSIDE[0], "was not given"),
        (lambda x, n: OUTSIDE[0], "was not given"),
        (lambda x, n: pa.random.seed(3), "random.seed"),
        (
            lambda x, n: x.to(pa.get_backend("numpy")._replace(name="far", home="far")),
            "takes an array from '.*' to 'far'",
        ),
    ],
)
def test_refusals_name_the_line(backend, fn, says):
    OUTSIDE[:] = [pa.ones((3,))]
    with pytest.raises(pa.CaptureError, match=says) as caught:
        pa.compile(fn)(pa.ones((3,)), 1)
    assert "\n" not in str(caught.value)
    assert "test_compile.py:" in str(caught.value) or fn(OUTSIDE[0], 1) is OUTSIDE[0]


def test_a_refusal_names_no_line_of_a_generated_function():
    with pytest.raises(pa.CaptureError, match=r"^compile: \S*test_compile.py:\d+ asks for the value"):
        pa.compile(lambda first: pa.optim.LossScale(first=first).growth)(8.0)


def test_a_schedule_may_have_numbers_that_change(backend):
    def step(w, lr):
        optimizer = pa.optim.SGD(lr=pa.optim.warmup_cosine(lr, 2, 5))
        return optimizer.update({"w": w}, optimizer.init({"w": w}), {"w": w})[0]["w"]

    compiled, w = pa.compile(step), pa.ones((2,))
    for lr in (0.5, 0.25):
        assert bits(compiled(w, lr)) == bits(step(w, lr))


def test_what_a_capture_leaked_says_so(backend):
    kept = []
    fn = pa.compile(lambda x, n: kept.extend([x, n]) or x + 1)
    fn(pa.ones((2,)), 3)
    for used in (lambda: kept[0] + 1, lambda: kept[0].numpy(), lambda: kept[1] + 1):
        with pytest.raises(pa.CaptureError, match=r"test_compile.py:\d+ uses .* kept while it was captured; return it"):
            used()


def test_containers_that_were_given_may_not_change():
    def fn(state):
        state["step"] = state["step"] + 1
        return state["x"]

    with pytest.raises(
        pa.CaptureError, match=r"^compile: fn changes what is in its argument 'state'; return what is new"
    ):
        pa.compile(fn)({"step": 1, "x": pa.ones(())})
    with pytest.raises(pa.CaptureError, match="changes what is in its argument 'm'"):
        pa.compile(lambda m: m.eval() and None)(pa.nn.Dropout(0.5))


def test_an_error_names_the_step(on_numpy):
    stops = []

    def exp(out, x):
        if stops:
            raise stops[0]
        return np.exp(x)

    with pa.use_backend(on_numpy._replace(name="frail", kernels={**on_numpy.kernels, ops.exp: exp})):
        fn, x = pa.compile(lambda x: pa.exp(x) + 1), pa.ones((2,))
        fn(x)
        for error in (KeyboardInterrupt(), ValueError("broken")):
            stops[:] = [error]
            with pytest.raises(type(error)) as caught:
                fn(x)
            assert caught.value is error
        assert error.__notes__[0].startswith("in step 0, exp, of the compiled <lambda>; captured at ")
        assert "test_compile.py:" in error.__notes__[0]
        stops.clear()
        assert fn(x).numpy() == pytest.approx(np.e + 1)


def test_what_cannot_be_compiled():
    async def later():
        """Not now."""

    def many():
        yield 1

    for fn in (later, many, 3):
        with pytest.raises(TypeError, match="is no plain function; what runs later cannot be captured"):
            pa.compile(fn)
    for transform in (pa.compile, pa.fused):
        with pytest.raises(TypeError, match=rf"^{transform.__name__}: max has no signature; wrap it in a function "):
            transform(max)
    with pytest.raises(TypeError, match=r"^compile: donate names 'y'; <lambda> takes x$"):
        pa.compile(lambda x: x, donate="y")
    with pytest.raises(pa.CaptureError, match=r"an argument is a numpy.ndarray; it must be a polyarr array"):
        pa.compile(lambda x: x)(np.ones(3))
    model = nn.Linear(2, 2)
    model.table = np.ones(2)
    with pytest.raises(pa.CaptureError, match=r"^compile: Linear\.table is a numpy.ndarray; it must be a polyarr"):
        pa.compile(model)(pa.ones(2))


def test_the_page_shows_what_runs(on_numpy):
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    found = {}
    exec(code, found)
    assert len(found["step"].programs()) == 1 and found["state"]["step"] == 5
    first = str(found["step"].programs()[0]).splitlines()[0]
    assert first.startswith("step: ") and first.endswith("inputs, 8 outputs")


def test_the_plain_function_for_debugging(monkeypatch):
    monkeypatch.setenv("POLYARR_COMPILE", "0")
    fn = pa.compile(lambda x: float(x) + 1, donate="x")
    assert fn(pa.ones(())) == 2
    assert fn.programs() == []
