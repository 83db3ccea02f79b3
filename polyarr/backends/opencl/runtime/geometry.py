"""How work is cut for a device: into groups of which size, how many, and what each work-item takes.

A CPU wants few and long work-items, each a group of its own; a GPU wants many short ones in groups that share rows.
Launchers ask `device.geometry`, so that none asks what the device is. Where the kernels themselves differ, `kind` is
what their files and families are called by.
"""

from typing import Any, ClassVar, NamedTuple


class Cut(NamedTuple):
    """Global size, local size, and how much one work-item (of `elements`, one group) takes."""

    work: tuple[int, ...]
    group: tuple[int, ...]
    each: int


class CpuGeometry:
    """For a CPU."""

    kind = "cpu"
    is_measured = True  # its processor is the host's, and its peak can be timed on one core
    packs, is_timed_in_part = True, True  # products copy what they read; tuning times a part of large work

    block = 16384  # elements that are worth a group
    items_per_unit = 4  # so that a core that comes late takes fewer
    span = 1024  # elements that are worth a work-item that moves them
    least_axes = 2  # of elementwise kernels: one more costs a division per group, and saves a program to compile
    looks_ahead = True  # whether a faster form is taken where a stretch of elements allows it
    row_files = ""  # how the names of the files of kernels that work row by row end
    groups_per_unit = 8  # of rows: enough to balance, each long enough to be worth its start
    linear: ClassVar = {"LANES": 1, "WIDE": 64, "SLICES": 1}
    norm: ClassVar = {"LANES": 1, "WIDE": 16}
    column_sums: ClassVar = {"COLUMNS": 1, "SPLIT": 1, "TILE": 16}

    columns, column_rows, partials = 256, 1, 64  # of a reduction: a group's, and what a work-item keeps
    reduction_group, has_vectors = 1, True
    pins_host = False  # whether copies from and to the host are faster where a driver has pinned its memory
    copies_beside = False  # whether another queue's copies run beside kernels; here cores do both
    part, parts_per_unit = 1 << 16, 4  # elements that are worth a part, and parts that there should be
    scan_group, scan_columns, scan_step = 1, 64, 1  # the last: what parts of a scan are multiples of
    scan_turns = 1  # vectors of each work-item that shares a row

    word, moves_rows = 64, True  # bytes that are moved at once; whether a work-item takes whole rows
    adds_atomically = False  # where the order need not be the same every time
    sums_few, least_part = True, 4096  # whether few short slices are summed apart; updates that are worth a part of it
    sort_tile, sort_span = 4096, 4096  # elements that are sorted at once, elements that a work-item merges
    tile, tile_rows = 16, 1  # of a transposed copy: its side, and work-items down it

    product_part = 2**13  # of a deep product: a kernel adds up by blocks
    largest_step = 2**62

    def __init__(self, units: int) -> None:
        self.units = units

    def vector(self, itemsize: int) -> int:
        """Elements that a work-item moves at once: the compiler makes vectors of loops here."""
        return 1

    def per_item(self, vector: int) -> int:
        """Vectors of so many elements for each work-item and turn."""
        return 1

    def draws(self, itemsize: int) -> int:
        """Blocks of four random numbers that are drawn at once, for elements of this size."""
        return 16

    def blocks(self, itemsize: int) -> dict[str, int]:
        """GROUP work-items share a BLOCK of elements, VECTOR at a time."""
        return {"GROUP": 1, "BLOCK": 4096, "VECTOR": self.vector(itemsize)}

    def elements(self, size: int, vector: int) -> Cut:
        """Groups of consecutive elements: a few per core, whole vectors each."""
        share = -(-size // (self.units * self.items_per_unit))
        block = max(self.block, (share + 63) // 64 * 64)
        return Cut((-(-size // block),), (1,), block)

    def items(self, total: int, least: int | None = None) -> Cut:
        """Work-items for neighbours, at least so many each."""
        items = min(8 * self.units, -(-total // (least or self.span)))
        return Cut((items,), (1,), -(-total // items) if items else 1)

    def one_each(self, total: int) -> Cut:
        """A work-item each."""
        return Cut((total,), (1,), 1)

    def row_macros(self, rows: int, cols: int, itemsize: int, lined_up: bool) -> dict[str, int]:
        """LANES work-items share a row, ROWS rows share a work-group, WIDE partial results per work-item."""
        wide = 8 if cols <= 128 else 16 if cols <= 512 else 32  # folding many costs more than a short row itself
        return {"LANES": 1, "WIDE": wide, "ROWS": 1}

    def row_groups(self, sets: int, persistent: bool) -> int:
        """How many groups take the sets of rows; persistent ones leave a partial result each."""
        return self.units * self.groups_per_unit

    def row_work(self, groups: int, macros: dict[str, Any]) -> tuple[int, ...]:
        """The global size of so many groups that share rows."""
        return macros["LANES"], groups * macros["ROWS"]

    def lanes(self, length: int) -> int:
        """Work-items that share a row of a reduction."""
        return 1

    def team(self, vectors: int, most: int) -> tuple[int, int]:
        """Work-items of a group, and of a team that shares a row of vectors."""
        return 1, 1

    def scan_lanes(self, length: int, vector: int) -> int:
        """Work-items that share a row of a scan."""
        return 1

    def scan_items(self, inner: int) -> int:
        """Work-items that should be at work in a scan, of so many columns."""
        return 2 * self.units

    def scan_part(self, inner: int) -> int:
        """Elements that are worth a part of a scan, of so many columns."""
        return -(-(1 << 14) // min(inner, self.scan_columns))

    def column_share(self, inner: int) -> int:
        """Columns that a group reduces."""
        return min(inner, self.columns)

    def rows_per_item(self, rows: int, length: int) -> int:
        """Rows that a work-item reduces."""
        if rows * length < self.part:
            return max(rows, 1)
        return max(1, min(-(-rows // (4 * self.units)), self.part))

    def tiles(self, high: int, wide: int, batch: int) -> Cut | None:
        """Groups for the tiles of a transposed copy; None if there are too many."""
        return Cut((high, batch), (1, 1), 1)

    def thin_columns(self, n: int, along_k: bool) -> int:
        """Columns of a thin product that a work-item takes, one after the other."""
        return -(-n // (8 * self.units)) if along_k else 1


class GpuGeometry:
    """For a GPU, and for whatever is no CPU."""

    kind = "gpu"
    is_measured = packs = is_timed_in_part = False

    group, vector_bytes = 256, 16
    items_group = 128
    least_axes = 1
    looks_ahead = False

    row_files = "_gpu"
    row_items, groups_per_unit = 128, 2
    row_share, most_held = 24, 32  # elements of a row that a work-item should take at once, and that it can hold
    few_rows_share = 8  # the same where rows leave most units idle: then a row's time is that of its steps
    least_lanes, most_lanes = 8, 512
    most_values = 64  # elements that it can hold of all that steps of a group give
    linear: ClassVar = {"LANES": 32, "SLICES": 8, "DEPTH": 4}
    norm: ClassVar = {"LANES": 256, "WIDE": 4}
    column_sums: ClassVar = {"COLUMNS": 8, "SPLIT": 32, "TILE": 1}

    columns, column_rows, partials = 32, 8, 4
    reduction_group, largest_group, team_share, has_vectors = 256, 1024, 8, False
    pins_host = copies_beside = True
    part, parts_per_unit = 1 << 12, 8
    scan_group, scan_columns, scan_step, scan_turns = 256, 1, 64, 2

    word, moves_rows = 16, False
    adds_atomically = True
    sums_few, least_part = False, 4096
    sort_tile = 2048
    sort_long, sort_merges = 1 << 20, 1.6  # elements of a long row, and merges that take it as long as a digit
    tile, tile_rows, most_batches = 32, 8, 65535  # the last: groups along the third axis

    product_part = 2**6  # a kernel adds up one by one
    largest_step = 2**22  # so that offsets inside a tile fit an int

    def __init__(self, units: int) -> None:
        self.units = units

    def vector(self, itemsize: int) -> int:
        """Elements that a work-item moves at once."""
        return self.vector_bytes // itemsize

    def per_item(self, vector: int) -> int:
        """Vectors of so many elements for each work-item."""
        return 4 if vector == 1 else 1

    def draws(self, itemsize: int) -> int:
        """As many as fill a vector, but at least one."""
        return max(1, self.vector(itemsize) // 4)

    def blocks(self, itemsize: int) -> dict[str, int]:
        """As a CPU's."""
        vector = self.vector(itemsize)
        return {"GROUP": self.group, "BLOCK": self.group * vector * self.per_item(vector), "VECTOR": vector}

    def elements(self, size: int, vector: int) -> Cut:
        """Groups of consecutive elements."""
        block = self.group * self.per_item(vector) * vector
        return Cut((-(-size // block) * self.group,), (self.group,), block)

    def items(self, total: int, least: int | None = None) -> Cut:
        """A work-item each, in whole groups."""
        return Cut((-(-total // self.items_group) * self.items_group,), (self.items_group,), 1)

    one_each = items

    def row_macros(self, rows: int, cols: int, itemsize: int, lined_up: bool) -> dict[str, int]:
        """What shares.cl needs for so many rows of this length; lined_up if all must lie in vectors in the same way."""
        vector = self.vector(itemsize)
        even = cols % vector == 0
        if lined_up and not even:
            vector, even = 1, True
        lanes, share = self.least_lanes, self.row_share if rows > self.units else self.few_rows_share
        while lanes < self.most_lanes and lanes * share < cols:
            lanes *= 2
        slots = -(-(cols + (0 if even else 2 * (vector - 1))) // (vector * lanes))
        held = slots * vector <= self.most_held
        slots = max(slots, 1) if held else self.row_share // vector
        rows = max(1, self.row_items // lanes) if held else 1
        return {
            "LANES": lanes, "ROWS": rows, "SLOTS": slots, "HELD": int(held), "EVEN": int(even), "VECTOR": vector,
        }  # fmt: skip

    def row_groups(self, sets: int, persistent: bool) -> int:
        """One for each set, unless each leaves a partial result: then they are few."""
        return self.units * self.groups_per_unit if persistent else sets

    def row_work(self, groups: int, macros: dict[str, Any]) -> tuple[int, ...]:
        """The global size of so many groups that share rows, which may be too many for the second axis."""
        return groups * macros["LANES"], macros["ROWS"]

    def lanes(self, length: int) -> int:
        """A power of two that gives each a few elements."""
        lanes = 1
        while lanes < self.reduction_group and lanes * self.partials < length:
            lanes *= 2
        return lanes

    def team(self, vectors: int, most: int) -> tuple[int, int]:
        """Work-items of a group, at most so many, and of a team that shares a row of vectors."""
        group, lanes = self.reduction_group, self.lanes(vectors)
        while 2 * group <= min(most, self.largest_group) and group * self.team_share < vectors:
            lanes = group = 2 * group
        return group, lanes

    def scan_lanes(self, length: int, vector: int) -> int:
        """A power of two that gives each a few vectors."""
        lanes = 16
        while lanes < self.scan_group and lanes * self.scan_turns * vector < length:
            lanes *= 2
        return lanes

    def scan_items(self, inner: int) -> int:
        """As a CPU's. Parts of columns are few: each adds up what all before it have found."""
        return (4096 if inner == 1 else 1024) * self.units

    def scan_part(self, inner: int) -> int:
        """As a CPU's."""
        return 4096 if inner == 1 else 64

    def column_share(self, inner: int) -> int:
        """Columns that a group reduces."""
        return self.columns

    def rows_per_item(self, rows: int, length: int) -> int:
        """Rows that the work-items which share one reduce."""
        return 1

    def tiles(self, high: int, wide: int, batch: int) -> Cut | None:
        """A group for each tile of a transposed copy; None if there are too many."""
        if max(high, batch) > self.most_batches:
            return None
        return Cut((wide * self.tile, high * self.tile_rows, batch), (self.tile, self.tile_rows, 1), 1)

    def thin_columns(self, n: int, along_k: bool) -> int:
        """Columns of a thin product that a work-item takes."""
        return 1


Geometry = CpuGeometry | GpuGeometry


def geometry_of(features: Any) -> Geometry:
    """How to cut work for a device with these features."""
    return (CpuGeometry if features.is_cpu else GpuGeometry)(features.compute_units)
