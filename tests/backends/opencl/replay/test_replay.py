"""OpenCL's replay of programs: recorded launches give the results of the launchers, whatever changes between runs.

The programs are written by hand; the conformance kit compares captured ones.
"""

import gc
import random
import threading
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.errors import DeviceMemoryError
from polyarr.core.program import Program, Step, assigned, lookup
from polyarr.core.spec import Spec, float32, uint32
from polyarr.core.spec import bool as bool_
from polyarr.testing.compare import bits

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.polyarr_backend("opencl")
X, ROW, TURNED = Spec((4, 6), float32), Spec((1, 6), float32), Spec((6, 4), float32)
FIXED = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": (0.1,), "decoupled": True}


class Writer:
    """A recorder of a program."""

    def __init__(self, backend):
        self.backend, self.constants, self.inputs, self.scalars, self.specs = backend, {}, [], {}, {}
        self.scalar_steps, self.steps, self.size = [], [], 0

    def value(self):
        self.size += 1
        return self.size - 1

    def constant(self, value):
        self.constants[found := self.value()] = value
        return found

    def array(self):
        self.inputs.append(self.value())
        return self.inputs[-1]

    def number(self, kind):
        self.scalars[found := self.array()] = kind
        return found

    def count(self, call, *inputs):
        self.scalars[found := self.value()] = int
        self.scalar_steps.append(Step(None, "number", call, inputs, {}, found, "file.py:1"))
        return found

    def step(self, op, out, *inputs, call=None, **params):
        outputs = self.step_value(out)
        inputs = (self.constant(out), *inputs)
        self.steps.append(Step(op, "kernel", call or self.backend.kernels[op], inputs, params, outputs, "file.py:2"))
        return outputs

    def step_value(self, out):
        if type(out) is tuple and type(out) is not Spec:
            return tuple(map(self.step_value, out))
        self.specs[found := self.value()] = out
        return found

    def program(self, *outputs):
        return Program(
            "f", tuple(self.scalar_steps), tuple(self.steps), self.size, self.constants, tuple(self.inputs), outputs,
            self.specs, self.scalars, frozenset(self.inputs),
        )  # fmt: skip


@pytest.fixture
def write(backend, gated):
    return Writer(backend)


class Runs:
    """A program run by its launchers and replayed, with a count of fallbacks to the launchers."""

    def __init__(self, backend, program):
        self.backend, self.program, self.times = backend, program, 0
        self.run = backend.replay(program, self._plain)

    def _plain(self, inputs):
        self.times += 1
        return self.plain(inputs)

    def plain(self, inputs):
        values = {**self.program.constants, **dict(zip(self.program.inputs, inputs, strict=True))}
        for step in self.program.scalar_steps + self.program.steps:
            values.update(assigned(step.outputs, step.call(*lookup(values, step.inputs), **step.params)))
        return [values[slot] for slot in self.program.outputs]

    def check(self, *inputs):
        """Check that both ways agree; return the buffers of the replay."""
        wanted, found = self.plain([*inputs]), self.run([*inputs])
        for a, b in zip(wanted, found, strict=True):
            assert a == b if isinstance(a, (int, float)) else self.bits(a) == self.bits(b)
        return found

    def bits(self, buf):
        return self.backend.download(buf).tobytes()


def drawn(backend, seed, shape=(4, 6)):
    return backend.upload(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def chain(write, count=3):
    """Return y = tanh(...tanh(x * 0.5).mT...): outputs have memory of their own, intermediates are in regions.

    A kernel that reads a transposed array cannot work in place.
    """
    x = write.array()
    y = write.step(ops.multiply, X, x, write.constant(0.5))
    for n in range(count - 1):
        turned = TURNED if n % 2 == 0 else X
        y = write.step(ops.tanh, turned, write.step(ops.permute_dims, turned, y, axes=(1, 0)))
    return write.program(y)


def test_arrays_and_numbers_change_from_run_to_run(backend, write):
    x, at, n, rate = write.array(), write.array(), write.number(int), write.number(float)
    after = write.count(lambda n: n + 1, n)
    scaled = write.step(ops.multiply, X, x, rate)
    bits = write.step(ops.random_bits, Spec((5,), uint32), after, n, write.constant(None), shape=(5,))
    row = write.step(ops.slice, ROW, scaled, (n, write.constant(0)), steps=(1, 1), shape=(1, 6))
    product = write.step(ops.matrix_product, Spec((4, 1), float32), x, write.step(
        ops.permute_dims, Spec((6, 1), float32), row, axes=(1, 0)))  # fmt: skip
    changed = write.step(ops.slice_update, X, x, row, (n, write.constant(0)), steps=(1, 1))
    taken_ = write.step(ops.take, Spec((2, 6), float32), changed, at, axis=0)
    moments = [(write.step(ops.negative, X, x),), (write.step(ops.square, X, x),)]
    one = write.constant(1.0)
    update = write.step(
        ops.adamw, ((X,),) * 3, (x,), (scaled,), *moments, rate, after, one, **FIXED)  # fmt: skip
    drops = write.step(ops.dropout, X, x, n, after, rate=0.5)
    runs = Runs(backend, write.program(bits, row, product, taken_, update[0][0], update[2][0], drops, x, after))
    for run in range(5):
        at_run = backend.upload(np.array([run % 4, 1], np.int32))
        runs.check(drawn(backend, run), at_run, run % 4, 0.25 + run)
    assert runs.times == 0, "the launchers ran every time"


def test_results_live_on_and_nothing_else_does(backend, write):
    runs, x = Runs(backend, chain(write)), drawn(backend, 0)
    for _ in range(2):
        runs.run([x])
    before = backend.memory()["in use"]
    first = runs.run([x])[0]
    each, bits = backend.memory()["in use"] - before, runs.bits(first)
    second = runs.run([drawn(backend, 1)])[0]
    del x
    assert runs.bits(first) == bits != runs.bits(second)
    assert backend.memory()["in use"] - before == 2 * each - each  # first and second, without x


def test_memory_serves_again_and_trim_reaches_it(backend, write):
    runs, x = Runs(backend, chain(write, 20)), drawn(backend, 0)
    for _ in range(3):
        runs.check(x)
    (repetition,) = runs.run._recorded.values()
    (block,) = repetition._blocks
    regions = regions_of(repetition)
    assert block.nbytes == 2 * max(128, backend.home.part_alignment)
    assert [region.nbytes for region in regions] == [128, 128]
    assert block.handle and all(region.handle for region in regions)
    backend.home.trim()
    assert not block.handle and not any(region.handle or region.kept for region in regions)
    runs.check(x)


def test_blocks_take_the_place_of_the_first_runs_memory(backend, write, monkeypatch):
    monkeypatch.setattr(import_module("polyarr.backends.opencl.replay.memory_plan"), "MAX_BLOCK_BYTES", 1)
    runs, x, device = Runs(backend, chain(write, 20)), drawn(backend, 0), backend.home
    gc.collect()  # arrays of other tests go back to the pool now, and not during this one
    device.pool.free_held()
    unused = device.pool.managed_bytes - device.pool.active_bytes  # the pool rounds sizes up
    lost = [device.empty(X) for _ in range(100)]
    del lost
    for _ in range(2):
        runs.run([x])
    assert device.pool.managed_bytes - device.pool.active_bytes < unused + 50 * 128
    runs.check(x)


def test_blocks_hold_regions_side_by_side(backend, monkeypatch):
    plan, device = import_module("polyarr.backends.opencl.replay.memory_plan"), backend.home
    monkeypatch.setattr(plan, "MAX_BLOCK_BYTES", 1 << 12)
    sizes = [5000, 4096, 3000, 1000, 200, 130, 1, 1]
    blocks, step = plan.blocks_of([*map(plan.Region, sizes)], device), device.part_alignment
    assert [region.nbytes for block in blocks for _, region in block.regions] == sizes
    assert [len(block.regions) for block in blocks] == [1, 1, 2, 4]
    for block in blocks:
        ends = [-(-(start + region.nbytes) // step) * step for start, region in block.regions]
        assert [start for start, _ in block.regions] == [0, *ends[:-1]] and block.nbytes == ends[-1]


def test_allocations_share_regions_and_few_bytes_are_lost():
    plan, total, needed = import_module("polyarr.backends.opencl.replay.memory_plan"), 0, 0
    for seed in range(300):
        draw, uses = random.Random(seed), {}
        for n in range(12):
            first = draw.randrange(9)
            ref = import_module("polyarr.backends.opencl.replay.recording").MemoryRef(draw.choice((1, 2, 4)))
            ref.times = 1 << first | 1 << min(9, first + draw.randrange(4))
            uses[ref] = [(ref, n)]
        regions = plan.regions_for(uses)
        for region in regions:
            held = [ref for ref, _ in region.uses]
            assert max(ref.nbytes for ref in held) == region.nbytes
            assert all(sum(time in range(*ref.span) for ref in held) <= 1 for time in range(10))
        total += sum(region.nbytes for region in regions)
        needed += max(sum(ref.nbytes for ref in uses if time in range(*ref.span)) for time in range(10))
    assert needed <= total < 1.05 * needed


def test_other_layouts_and_shared_memory_are_recorded_anew(backend, write):
    x, y = write.array(), write.array()
    square = Spec((4, 4), float32)
    runs = Runs(backend, write.program(write.step(ops.subtract, square, x, y)))
    base, other = drawn(backend, 0, (4, 4)), drawn(backend, 1, (4, 4))
    turned = base._replace(strides=(1, 4))
    for pair in [(base, other), (turned, other), (base, base), (base, turned), (other, base), (turned, turned)] * 2:
        runs.check(*pair)
    assert len(runs.run._recorded) == 5 and runs.times == 0
    for step in range(5, 13):  # too many
        long = drawn(backend, 2, (60,))
        for _ in range(2):
            runs.check(long._replace(shape=(4, 4), strides=(step, 1)), other)
    assert len(runs.run._recorded) == 8 and runs.times > 0


def windows(backend, long, starts):
    """Return slices of one memory, as batches of a dataset are: 4 rows of 6 from each start on."""
    for start in starts:
        yield long._replace(shape=(4, 6), strides=(6, 1), offset=start)


def test_one_recording_serves_slices_with_any_offset(backend, write):
    x, y, at = write.array(), write.array(), write.array()
    total, turned = write.step(ops.add, X, x, y), write.step(ops.permute_dims, Spec((6, 4), float32), y, axes=(1, 0))
    product = write.step(ops.matrix_product, Spec((4, 4), float32), x, turned)
    summed = write.step(ops.sum, Spec((6,), float32), x, axis=(0,), keepdims=False)
    rows = write.step(ops.take, Spec((2, 6), float32), y, at, axis=0)
    flipped = write.step(ops.slice, X, x, tuple(map(write.constant, (3, 0))), steps=(-1, 1), shape=(4, 6))
    later = write.step(ops.slice, ROW, x, tuple(map(write.constant, (2, 0))), steps=(1, 1), shape=(1, 6))
    taken_ = write.step(ops.take, Spec((2, 6), float32), write.step(ops.tanh, ROW, later), at, axis=0)
    again = write.step(ops.take, Spec((2, 6), float32), later, at, axis=0)
    runs = Runs(backend, write.program(total, product, summed, rows, flipped, later, taken_, again))
    long, at_run = drawn(backend, 0, (400,)), backend.upload(np.array([0, 0], np.int32))
    for a in windows(backend, long, (1, 4, 300, 9, 64)):
        for b in windows(backend, long, (5, 12, 7, 20)):
            runs.check(a, b, at_run)
    assert len(runs.run._recorded) == 4 and runs.times == 0  # aligned to 16 bytes or not


def test_a_launcher_that_must_know_where_an_input_begins_is_recorded_for_that_place(backend, write):
    device, copies = backend.home, backend.kernels[ops.positive]
    told = []

    def looks(out, x):
        told.append(x.offset if x.offset == 3 else -1)
        return copies(out, x)

    x, y = write.array(), write.array()
    runs = Runs(backend, write.program(write.step(ops.positive, X, x, call=looks), write.step(ops.tanh, X, y)))
    long = drawn(backend, 0, (400,))
    for _ in range(3):
        for a, b in zip(windows(backend, long, (3, 5)), windows(backend, long, (7, 9)), strict=True):
            with device.lock:
                runs.check(a, b)
    assert len(runs.run._recorded) == 2 and runs.times == 0
    assert told.count(3) == 3 + 2  # by the launchers each time; and before and after it is known to decline


def test_in_a_guarded_block_the_launchers_run_and_with_a_launch_callback_what_was_recorded(backend, write):
    program = chain(write)
    runs, x, launches = Runs(backend, program), drawn(backend, 0), []
    for _ in range(2):
        runs.run([x])
    with backend.guarded():
        runs.run([x])
    assert runs.times == 1
    with backend.observing(launches.append):
        runs.run([x])
    assert [launch.name for launch in launches] == ["elementwise"] * 3
    assert [launch.step[1].op for launch in launches] == [ops.multiply, ops.tanh, ops.tanh]
    runs.run([x])
    assert runs.times == 1


@pytest.mark.parametrize("count", [1, 9])  # kernels that note it; of nine, each reads the time in memory
def test_a_bad_index_is_raised_by_the_next_read_of_the_thread_that_gave_it(backend, write, count):
    """Another thread raises it, too, if it uses an array that was made later, but not with one made before."""
    (x, at), taken_ = (write.array(), write.array()), Spec((2, 6), float32)
    runs = Runs(backend, write.program(*[write.step(ops.take, taken_, x, at, axis=0) for _ in range(count)]))
    data, negative = drawn(backend, 0), partial(backend.kernels[ops.negative], taken_)
    made = [runs.run([data, backend.upload(np.array(n, np.int32))])[0] for n in ([0, 1], [3, 2], [1, 9], [2, 0])]

    def elsewhere():
        backend.download(negative(made[1]))
        with pytest.raises(IndexError, match="index 9 is out of range for an axis of length 4"):
            backend.download(negative(made[3]))
        found = runs.run([data, backend.upload(np.array([0, 7], np.int32))])
        with pytest.raises(IndexError, match="index 7"):
            backend.download(found[0])
        done.append(1)

    done = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert done
    with pytest.raises(IndexError, match="index 9 is out of range for an axis of length 4"):
        backend.download(made[3])
    runs.check(data, backend.upload(np.array([0, 1], np.int32)))


def reads(device, negative, x, n):
    return negative(X, x) if device.read(x).any() else x


def asks(device, negative, x, n):
    return negative(X, x) if n > 1 else x


def makes_the_same_again(device, negative, x, n):
    return device.upload(np.ones((4, 6), np.float32))


@pytest.mark.parametrize("launcher", [reads, asks, makes_the_same_again])
def test_a_launcher_that_cannot_be_spared_is_not_recorded(backend, write, launcher):
    x, n = write.array(), write.number(int)
    call = partial(launcher, backend.home, backend.kernels[ops.negative])
    runs = Runs(backend, write.program(write.step(ops.negative, X, x, n, call=lambda out, *args: call(*args))))
    for n in range(6):
        runs.check(drawn(backend, 0), n)
    assert not runs.run._recorded and runs.times >= 3


def test_an_error_names_the_step_and_leaves_the_program_usable(backend, write, monkeypatch):
    x, n = write.array(), write.number(int)
    inverse = write.count(lambda n: 12 // n, n)
    turned = write.step(ops.permute_dims, TURNED, write.step(ops.multiply, X, x, inverse), axes=(1, 0))
    runs, data = Runs(backend, write.program(write.step(ops.tanh, TURNED, turned))), drawn(backend, 0)
    for n in (1, 2):
        runs.check(data, n)
    with pytest.raises(ZeroDivisionError) as told:
        runs.run([data, 0])
    assert "in step 0" in told.value.__notes__[0] and "file.py:1" in told.value.__notes__[0]
    module, device = import_module("polyarr.backends.opencl.replay.memory_plan"), backend.home
    faults = (
        (module.Region, "bind", 3, KeyboardInterrupt),  # of the input, of the output, of what is in between
        (device, "allocate", 1, DeviceMemoryError),
        (device.commands, "repeat", 1, RuntimeError),
    )
    for owner, name, time, error in faults:
        device.trim()  # so that all arguments are bound
        monkeypatch.setattr(owner, name, failing(getattr(owner, name), time, error))
        with pytest.raises(error):
            runs.run([data, 3])
        monkeypatch.undo()
        runs.check(drawn(backend, 2), 4)


def test_memory_may_be_given_back_in_the_middle_of_a_run(backend, monkeypatch):
    """Allocations free memory for themselves: arguments for overwritten inputs are bound again, too."""
    device, allocate = backend.home, backend.home.allocate

    def with_room(sizes, **options):
        device.trim()
        return allocate(sizes, **options)

    monkeypatch.setattr(device, "allocate", with_room)

    def step(x, y):
        return x * 2.0, pa.softmax(y @ y, axis=0) @ y

    compiled = pa.compile(step, donate=("x", "y"))
    pair = expected = [pa.asarray(np.random.default_rng(i).standard_normal((9, 9), np.float32)) for i in range(2)]
    pair = [a + 0.0 for a in pair]
    for _ in range(4):
        pair, expected = compiled(*pair), step(*expected)
    assert bits(pair) == bits(expected)


def test_an_interrupt_while_arguments_are_bound_leaves_the_program_usable(backend, write, monkeypatch):
    runs, kernel = Runs(backend, chain(write)), import_module("polyarr.backends.opencl.runtime.commands").Kernel
    runs.run([drawn(backend, 0)])
    monkeypatch.setattr(kernel, "repeated", failing(kernel.repeated, 2, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        runs.run([drawn(backend, 1)])
    monkeypatch.undo()
    runs.check(drawn(backend, 2))
    (repetition,) = runs.run._recorded.values()
    assert len(repetition._commands) == 3 and sum(len(region.uses) for region in regions_of(repetition)) == 4


def regions_of(repetition):
    """Return the regions of memory that only the program uses."""
    return [region for block in repetition._blocks for _, region in block.regions]


def failing(call, time, error):
    """Return the function with an exception in the n-th call."""
    times = []

    def fails(*args):
        times.append(1)
        if len(times) == time:
            raise error
        return call(*args)

    return fails


def test_a_result_overwrites_unreferenced_memory(backend, write):
    p, g, m, v, step = (*(write.array() for _ in range(4)), write.number(int))
    one = write.constant(1.0)
    new = write.step(ops.adamw, ((X,),) * 3, (p,), (g,), (m,), (v,), one, step, one, **FIXED)
    program = write.program(*(found for (found,) in new))
    runs, squares = Runs(backend, program), backend.kernels[ops.square]
    wanted = held = [drawn(backend, 0), drawn(backend, 1), squares(X, drawn(backend, 2))]
    for n in range(1, 6):
        gradient = drawn(backend, n)
        wanted = runs.plain([wanted[0], gradient, *wanted[1:], n])
        before = [buf.memory.int_ptr for buf in held]
        mine, kept = held[1] if n == 3 else None, runs.bits(held[1])  # the first moments are still referenced
        inputs = [held.pop(0), gradient, *held, n]
        held.clear()
        held = runs.run(inputs)
        assert [*map(runs.bits, held)] == [*map(runs.bits, wanted)]
        same = [buf.memory.int_ptr == address for buf, address in zip(held, before, strict=True)]
        assert same == [n > 1, n > 1 and n != 3, n > 1]
        assert mine is None or runs.bits(mine) == kept


def exponentials(write, x):
    return write.step(ops.exp, X, write.step(ops.square, X, write.step(ops.negative, X, x)))


IN_PLACE = {
    "a chain of elementwise ops": lambda write, x: exponentials(write, x),
    "of both operands one": lambda write, x: write.step(ops.add, X, exponentials(write, x), x),
    "an operand twice": lambda write, x: write.step(ops.multiply, X, x, x),
    "where": lambda write, x: write.step(ops.where, X, write.step(ops.isnan, Spec((4, 6), bool_), x), x, x),
    "an updated window": lambda write, x: write.step(
        ops.slice_update, X, x, write.step(ops.sum, ROW, x, axis=(0,), keepdims=True),
        tuple(map(write.constant, (2, 0))), steps=(1, 1)),
    "added rows": lambda write, x: write.step(
        ops.scatter_add, X, x, write.constant(write.backend.upload(np.array([1, 3], np.int32))),
        write.constant(drawn(write.backend, 5, (2, 6))), axis=0),
    "dropout": lambda write, x: write.step(ops.dropout, X, x, write.constant(7), write.constant(3), rate=0.5),
}  # fmt: skip


@pytest.mark.parametrize("way", IN_PLACE)
def test_a_donated_input_is_overwritten(backend, write, way):
    x = write.array()
    runs, kept = Runs(backend, write.program(IN_PLACE[way](write, x))), []
    for n in range(6):
        wanted, given = runs.bits(runs.plain([drawn(backend, n)])[0]), [drawn(backend, n)]
        address, mine = given[0].memory.int_ptr, given[0] if n in (2, 4) else None  # it is still referenced
        before = mine and runs.bits(mine)
        (found,) = runs.run(given)
        kept.append((found, wanted))
        assert (found.memory.int_ptr == address) == (n > 0 and mine is None)
        assert mine is None or runs.bits(mine) == before
    assert all(runs.bits(found) == wanted for found, wanted in kept) and runs.times == 0
    (repetition,) = runs.run._recorded.values()
    assert way != "a chain of elementwise ops" or repetition._blocks == []


def test_gradients_of_a_layer_lie_where_what_they_are_made_of_lay(backend):
    """For 50 rows of 40: the memory of the activation's input and output, and no more."""

    def loss(x, weight, further):
        return ops.sum(ops.square(ops.linear(ops.linear(x, weight, activation="gelu_tanh"), further)))

    shapes = (50, 8), (40, 8), (8, 40)
    args = [pa.asarray(np.random.default_rng(0).standard_normal(shape, np.float32)) for shape in shapes]
    gradients = pa.grad(lambda args: loss(*args))
    compiled, device = pa.compile(gradients), backend.home
    before = {*device.replays}
    assert bits(compiled(args)) == bits(gradients(args)) == bits(compiled(args))
    (repetition,) = {*device.replays} - before
    assert sum(region.nbytes == 8000 for region in regions_of(repetition)) == 2


NOT_IN_PLACE = {
    "read later": lambda write, x: (write.step(ops.add, X, later, x) for later in [
        write.step(ops.permute_dims, X, write.step(ops.tanh, TURNED, write.step(
            ops.permute_dims, TURNED, write.step(ops.exp, X, x), axes=(1, 0))), axes=(1, 0))]),
    "an output too": lambda write, x: (write.step(ops.exp, X, x), x),
    "of another width": lambda write, x: (write.step(ops.isnan, Spec((4, 6), bool_), x),),
    "repeated": lambda write, x: (write.step(ops.add, Spec((4, 4, 6), float32), x, write.constant(
        drawn(write.backend, 1, (4, 4, 6)))),),
    "a part of it": lambda write, x: (write.step(ops.exp, ROW, write.step(
        ops.slice, ROW, x, tuple(map(write.constant, (1, 0))), steps=(1, 1), shape=(1, 6))),),
    "far less than it": lambda write, x: (write.step(ops.exp, Spec((1,), float32), write.step(
        ops.slice, Spec((1,), float32), write.step(ops.reshape, Spec((24,), float32), x, shape=(24,)),
        (write.constant(0),), steps=(1,), shape=(1,))),),
    "read in two ways": lambda write, x: (write.step(ops.add, Spec((24,), float32), flat := write.step(
        ops.reshape, Spec((24,), float32), x, shape=(24,)), write.step(
            ops.slice, Spec((24,), float32), flat, (write.constant(23),), steps=(-1,), shape=(24,))),),
    "a row of it again and again": lambda write, x: (write.step(ops.add, X, write.step(  # beside alike ones
        ops.slice, ROW, x, tuple(map(write.constant, (0, 0))), steps=(1, 1), shape=(1, 6)),
        write.step(ops.add, X, *(write.constant(drawn(write.backend, n)) for n in (1, 2)))),),
    "turned": lambda write, x: (write.step(ops.exp, TURNED, write.step(ops.permute_dims, TURNED, x, axes=(1, 0))),),
}  # fmt: skip


@pytest.mark.parametrize("way", NOT_IN_PLACE)
def test_an_input_is_not_written_over(backend, write, way, monkeypatch):
    monkeypatch.setattr(import_module("polyarr.backends.opencl.replay.memory_plan"), "SMALL_BYTES", 0)
    x = write.array()
    runs = Runs(backend, write.program(*NOT_IN_PLACE[way](write, x)))
    for n in range(3):
        wanted, given = runs.plain([drawn(backend, n)]), [drawn(backend, n)]
        address = given[0].memory.int_ptr
        found = runs.run(given)
        assert [*map(runs.bits, found)] == [*map(runs.bits, wanted)]
        assert n == 0 or way == "read later" or found[0].memory.int_ptr != address


def test_adamw_does_not_write_over_a_parameter_of_which_another_is_a_part(backend, write):
    flat, part = Spec((4096,), float32), Spec((64,), float32)
    x, g, n = write.array(), write.array(), write.number(int)
    zeros = (write.constant(0),)
    rest = write.step(ops.slice, part, x, zeros, steps=(1,), shape=(64,))
    small = write.step(ops.slice, part, g, zeros, steps=(1,), shape=(64,))
    m, v = (write.constant(drawn(backend, seed, shape)) for seed, shape in ((1, (4096,)), (2, (64,))))
    one, specs = write.constant(1.0), (flat, part)
    params, grads, moments = (x, rest), (g, small), (m, v)
    settings = FIXED | {"weight_decay": (0.0, 0.0)}
    squares = tuple(write.constant(backend.kernels[ops.square](s, drawn(backend, 3, s.shape))) for s in specs)
    new = write.step(ops.adamw, (specs,) * 3, params, grads, moments, squares, one, n, one, **settings)
    runs = Runs(backend, write.program(*new[0]))
    for step in range(1, 5):
        wanted = runs.plain([drawn(backend, 7, (4096,)), drawn(backend, 8, (4096,)), step])
        given = [drawn(backend, 7, (4096,)), drawn(backend, 8, (4096,)), step]
        address = given[0].memory.int_ptr
        found = runs.run(given)
        assert [*map(runs.bits, found)] == [*map(runs.bits, wanted)]
        assert found[0].memory.int_ptr != address


def test_threads_replay_the_same_program(backend, write):
    runs = Runs(backend, chain(write, 5))
    wanted = [runs.bits(runs.plain([drawn(backend, i)])[0]) for i in range(2)]
    wrong, barrier = [], threading.Barrier(2)

    def work(i):
        barrier.wait()
        x = drawn(backend, i)
        wrong.extend(n for n in range(20) if runs.bits(runs.run([x])[0]) != wanted[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_all_memory_that_launchers_allocate_is_reported(backend):
    device, told = backend.home, []
    room = device.plans[import_module("polyarr.backends.opencl.runtime.device").allocation_of](X)
    with device.lock:
        device.commands.recording = SimpleNamespace(allocated=lambda memory, nbytes: told.append((memory, nbytes)))
        try:
            given = [device.empty(X).memory, *(b.memory for b in device.fresh_all([X, X], [room] * 2))]
            given += device.allocate([100])
        finally:
            device.commands.recording = None
    assert told == [(memory, 128) for memory in given]


def test_what_launchers_upload_while_they_are_recorded_stays(backend, write):
    """For example the words by which work-groups synchronize, which must be 0 again at every launch."""
    device, add = backend.home, backend.kernels[ops.add]
    kept = []

    def adds(out, x):
        if not kept:
            kept.append(device.upload(np.ones((4, 6), np.float32)))
        return add(out, x, kept[0])

    x = write.array()
    runs = Runs(backend, write.program(write.step(ops.add, X, write.step(ops.add, X, x, call=adds), x)))
    for n in range(3):
        first = runs.run([drawn(backend, n)])[0]
        assert runs.bits(first) == runs.bits(runs.plain([drawn(backend, n)])[0])
