"""Launch geometry by kind of device: work-group sizes, numbers of work-groups, and the share of each work-item.

A CPU runs few and long work-items, each a work-group of its own; a GPU runs many short ones in groups that share rows.
Launchers ask `device.geometry` rather than for the device's kind. Where kernels differ, `kind` names their files and
families.
"""

from typing import Any, ClassVar, NamedTuple

MAX_ITEMS = 2**30  # work-items of a launch, rounded up, must fit an int


class Cut(NamedTuple):
    """Global size, local size, and the elements per work-item (for `elements`: per work-group)."""

    work: tuple[int, ...]
    group: tuple[int, ...]
    each: int


class CpuGeometry:
    """Launch geometry of CPUs."""

    kind = "cpu"
    gemv_rows = 4  # most rows of a GEMV that reads much along k
    quantized_rows = 64  # most rows that read a quantized weight in place
    widens_products = True  # whether products of 16-bit floats are faster in float32
    is_measured = True  # its processor is the host's, whose peak can be timed on one core
    packs, is_timed_in_part = True, True  # products pack operands; tuning times a part of large work

    block = 16384  # elements that are worth a work-group
    items_per_unit = 4  # so that a late core takes fewer
    span = 1024  # elements that are worth a work-item that moves them
    least_axes = 2  # of elementwise kernels: an extra axis costs a division per group, but saves compiling a program
    small_view = 1024  # elements below which an elementwise kernel takes views of any strides: saves compiling others
    looks_ahead = True  # whether expressions have a fast path for stretches of usual values
    row_files = ""  # suffix of the files of row kernels
    groups_per_unit = 8  # of row kernels: enough to balance, each long enough to be worth its start
    norm: ClassVar = {"LANES": 1, "WIDE": 16}

    columns, column_rows, partials = 256, 1, 64  # of a reduction: columns of a group, and partial results of an item
    reduction_group, has_vectors = 1, True
    cast_vectors = 1
    pins_host = False  # whether copies from and to the host are faster with pinned memory
    copies_beside = False  # whether copies of another queue overlap with kernels; here cores do both
    part, parts_per_unit = 1 << 16, 4  # elements that are worth a part, and desired parts per unit
    scan_group, scan_columns, scan_step = 1, 64, 1  # the last: parts of a scan are multiples of it
    scan_turns = 1  # vectors of each work-item that shares a row

    word, moves_rows = 64, True  # bytes that are moved at once; whether a work-item takes whole rows
    adds_atomically = False  # used where results need not be deterministic
    sums_few, least_part = True, 4096  # whether few short slices are summed separately; updates worth a part of them
    sort_tile, sort_span = 4096, 4096  # elements sorted at once; elements that a work-item merges
    tile, tile_rows = 16, 1  # of a transposed copy: side of a tile, and work-items along it

    product_part = 2**13  # of a split k: kernels add up by blocks
    largest_step = 2**62

    def __init__(self, units: int) -> None:
        self.units = units

    def vector(self, itemsize: int) -> int:
        """Return the elements that a work-item moves at once: 1, as the compiler vectorizes loops here."""
        return 1

    def per_item(self, vector: int) -> int:
        """Return the vectors, of this many elements, of each work-item per iteration."""
        return 1

    def draws(self, itemsize: int) -> int:
        """Return the blocks of four random numbers drawn at once, for elements of this size."""
        return 16

    def blocks(self, itemsize: int) -> dict[str, int]:
        """Return macros: GROUP work-items share a BLOCK of elements, VECTOR at a time."""
        return {"GROUP": 1, "BLOCK": 4096, "VECTOR": self.vector(itemsize)}

    def elements(self, size: int, vector: int) -> Cut:
        """Return work-groups of consecutive elements: a few per core, whole vectors each."""
        share = -(-size // (self.units * self.items_per_unit))
        block = max(self.block, (share + 63) // 64 * 64)
        return Cut((-(-size // block),), (1,), block)

    def items(self, total: int, least: int | None = None) -> Cut:
        """Return work-items for neighbors, at least `least` elements each."""
        items = min(8 * self.units, -(-total // (least or self.span)))
        return Cut((items,), (1,), -(-total // items) if items else 1)

    def one_each(self, total: int) -> Cut:
        """Return one work-item per element."""
        return Cut((total,), (1,), 1)

    def row_macros(
        self, rows: int, cols: int, itemsize: int, lined_up: bool, persistent: bool
    ) -> dict[str, int]:
        """Return macros: LANES work-items share a row, ROWS rows a group, WIDE partial results per item."""
        wide = 8 if cols <= 128 else 16 if cols <= 512 else 32  # folding many costs more than a short row itself
        return {"LANES": 1, "WIDE": wide, "ROWS": 1, "NARROW": int(itemsize < 4)}

    def row_groups(self, sets: int, persistent: bool, itemsize: int = 4) -> int:
        """Return the work-groups for sets of rows; persistent ones keep a partial result each."""
        return self.units * self.groups_per_unit

    def row_work(self, groups: int, macros: dict[str, Any]) -> tuple[int, ...]:
        """Return the global size of this many work-groups that share rows."""
        return macros["LANES"], groups * macros["ROWS"]

    def lanes(self, length: int) -> int:
        """Return the work-items that share a row of a reduction."""
        return 1

    def team(self, vectors: int, most: int) -> tuple[int, int]:
        """Return the work-items of a work-group, and those that share a row of this many vectors."""
        return 1, 1

    def scan_lanes(self, length: int, vector: int) -> int:
        """Return the work-items that share a row of a scan."""
        return 1

    def scan_items(self, inner: int) -> int:
        """Return the desired number of work-items of a scan with this many columns."""
        return 2 * self.units

    def scan_part(self, inner: int) -> int:
        """Return the elements that are worth a part of a scan with this many columns."""
        return -(-(1 << 14) // min(inner, self.scan_columns))

    def column_share(self, inner: int) -> int:
        """Return the columns that a work-group reduces."""
        return min(inner, self.columns)

    def rows_per_item(self, rows: int, length: int) -> int:
        """Return the rows that a work-item reduces."""
        if rows * length < self.part:
            return max(rows, 1)
        return max(1, min(-(-rows // (4 * self.units)), self.part))

    def tiles(self, high: int, wide: int, batch: int) -> Cut | None:
        """Return work-groups for the tiles of a transposed copy; None if there are too many."""
        return Cut((high, batch), (1, 1), 1)

    def gemv_columns(self, n: int, along_k: bool) -> int:
        """Return the columns of a GEMV that a work-item computes in turn."""
        return -(-n // (8 * self.units)) if along_k else 1


class ShortCpuGeometry(CpuGeometry):
    """Smaller parts, for a driver that ends the loops of a work-item early; only for tests of its compiler."""

    part = 1 << 11


class GpuGeometry:
    """Launch geometry of GPUs, and of all devices that are not CPUs."""

    kind = "gpu"
    gemv_rows = 16  # most rows of a GEMV that reads much along k
    quantized_rows = 8
    widens_products = False
    is_measured = packs = is_timed_in_part = False

    group, vector_bytes = 256, 16
    items_group = 128
    least_axes = 1
    small_view = 0
    looks_ahead = False

    row_files = "_gpu"
    row_items, groups_per_unit, narrow_groups = 128, 2, 4  # the last: of 16-bit rows
    row_share, most_held = 24, 32  # desired elements of a row per work-item, and the most that fit into registers
    few_rows_share = 8  # likewise where rows leave most units idle, and latency matters
    narrow_share = 8  # likewise of 16-bit rows in persistent groups, which also hold sums of columns in registers
    narrow_lanes = 256  # of 16-bit rows that do not fit into registers
    least_lanes, most_lanes = 8, 512
    most_values = 64  # most elements of all values of a fused group that a work-item holds in registers
    norm: ClassVar = {"LANES": 256, "WIDE": 4}

    columns, column_rows, partials = 32, 8, 4
    reduction_group, largest_group, team_share, has_vectors = 256, 1024, 8, False
    pins_host = copies_beside = True
    cast_vectors = 4  # vectors of each work-item that casts many arrays
    part, parts_per_unit = 1 << 12, 8
    scan_group, scan_columns, scan_step, scan_turns = 256, 1, 64, 2

    word, moves_rows = 16, False
    adds_atomically = True
    sums_few, least_part = False, 4096
    sort_tile = 2048
    sort_long, sort_merges = 1 << 20, 1.6  # elements of a long row; merges that take as long as a radix pass
    tile, tile_rows, most_batches = 32, 8, 65535  # the last: work-groups along the third axis

    product_part = 2**6  # kernels add up one by one
    largest_step = 2**22  # so that offsets inside a tile fit an int

    def __init__(self, units: int) -> None:
        self.units = units

    def vector(self, itemsize: int) -> int:
        """Return the elements that a work-item moves at once."""
        return self.vector_bytes // itemsize

    def per_item(self, vector: int) -> int:
        """Return the vectors, of this many elements, of each work-item."""
        return 4 if vector == 1 else 1

    def draws(self, itemsize: int) -> int:
        """Return the blocks of four random numbers that fill a vector, at least one."""
        return max(1, self.vector(itemsize) // 4)

    def blocks(self, itemsize: int) -> dict[str, int]:
        """Return macros, as CpuGeometry does."""
        vector = self.vector(itemsize)
        return {"GROUP": self.group, "BLOCK": self.group * vector * self.per_item(vector), "VECTOR": vector}

    def elements(self, size: int, vector: int) -> Cut:
        """Return work-groups of consecutive elements."""
        block = self.group * self.per_item(vector) * vector
        return Cut((-(-size // block) * self.group,), (self.group,), block)

    def items(self, total: int, least: int | None = None) -> Cut:
        """Return one work-item per element, or per few neighbors so that an int counts the work-items."""
        span = -(-total // MAX_ITEMS) or 1
        return Cut((-(-total // (span * self.items_group)) * self.items_group,), (self.items_group,), span)

    one_each = items

    def row_macros(
        self, rows: int, cols: int, itemsize: int, lined_up: bool, persistent: bool
    ) -> dict[str, int]:
        """Return the macros of shares.cl; with lined_up, all rows must be aligned to vectors in the same way."""
        vector = self.vector(itemsize)
        even = cols % vector == 0
        if lined_up and not even:
            vector, even = 1, True
        lanes, share = self.least_lanes, self.row_share if rows > self.units else self.few_rows_share
        share = self.narrow_share if persistent and itemsize == 2 else share
        while lanes < self.most_lanes and lanes * share < cols:
            lanes *= 2
        slots = max(1, -(-(cols + (0 if even else 2 * (vector - 1))) // (vector * lanes)))
        held = slots * vector <= self.most_held
        if not held:
            lanes, slots = (self.narrow_lanes, 1) if itemsize == 2 else (lanes, self.row_share // vector)
        rows = max(1, self.row_items // lanes) if held else 1
        return {
            "LANES": lanes, "ROWS": rows, "SLOTS": slots, "HELD": int(held), "EVEN": int(even), "VECTOR": vector,
        }  # fmt: skip

    def row_groups(self, sets: int, persistent: bool, itemsize: int = 4) -> int:
        """Return one work-group per set of rows; fewer if each keeps a partial result."""
        return self.units * (self.narrow_groups if itemsize == 2 else self.groups_per_unit) if persistent else sets

    def row_work(self, groups: int, macros: dict[str, Any]) -> tuple[int, ...]:
        """Return the global size; work-groups lie along the first axis, as the second may be too short."""
        return groups * macros["LANES"], macros["ROWS"]

    def lanes(self, length: int) -> int:
        """Return a power of two that gives each work-item a few elements."""
        lanes = 1
        while lanes < self.reduction_group and lanes * self.partials < length:
            lanes *= 2
        return lanes

    def team(self, vectors: int, most: int) -> tuple[int, int]:
        """Return the work-items of a group, at most `most`, and those that share a row of this many vectors."""
        group, lanes = self.reduction_group, self.lanes(vectors)
        while 2 * group <= min(most, self.largest_group) and group * self.team_share < vectors:
            lanes = group = 2 * group
        return group, lanes

    def scan_lanes(self, length: int, vector: int) -> int:
        """Return a power of two that gives each work-item a few vectors."""
        lanes = 16
        while lanes < self.scan_group and lanes * self.scan_turns * vector < length:
            lanes *= 2
        return lanes

    def scan_items(self, inner: int) -> int:
        """Return the desired number of work-items. Parts of columns are few, as each adds up those before it."""
        return (4096 if inner == 1 else 1024) * self.units

    def scan_part(self, inner: int) -> int:
        """Return the elements that are worth a part of a scan with this many columns."""
        return 4096 if inner == 1 else 64

    def column_share(self, inner: int) -> int:
        """Return the columns that a work-group reduces."""
        return self.columns

    def rows_per_item(self, rows: int, length: int) -> int:
        """Return the rows that the work-items sharing one reduce."""
        return 1

    def tiles(self, high: int, wide: int, batch: int) -> Cut | None:
        """Return a work-group per tile of a transposed copy; None if there are too many."""
        if max(high, batch) > self.most_batches:
            return None
        return Cut((wide * self.tile, high * self.tile_rows, batch), (self.tile, self.tile_rows, 1), 1)

    def gemv_columns(self, n: int, along_k: bool) -> int:
        """Return the columns of a GEMV that a work-item computes."""
        return 1


Geometry = CpuGeometry | GpuGeometry


def geometry_of(features: Any) -> Geometry:
    """Return the launch geometry for a device with these features."""
    cpu = ShortCpuGeometry if features.ends_loops else CpuGeometry
    return (cpu if features.is_cpu else GpuGeometry)(features.compute_units)
