"""Headers of one rank's arithmetic, on an emulated GPU, against plain Python; those of several ranks are tested by the
experts that are made of them."""

from __future__ import annotations

import cmath
import ctypes
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.compile.toolchain import ffi_root, include_arguments, library_arguments
from rank_emulator import World, build, compile_cuda

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(900),
]

RESULTS = 1 << 16
"""Byte of the segment where results lie."""

Call = Callable[..., list[float]]


@pytest.fixture(scope="module")
def library() -> bytes:
    source = Path(__file__).with_name("building_blocks.cu").read_text()
    found = ("-Xlinker", f"-rpath={ffi_root() / 'lib'}")
    # Optimised less, compiles take half of the time, and such short runs no longer.
    flags = ["-DPKB_LIGHT_FFI", "-Xcicc=-O1", *include_arguments(), *library_arguments()]
    return compile_cuda(source, [*flags, *found], machine_code=False)


@pytest.fixture
def call(library: bytes, compiled_before: Path) -> Iterator[Call]:
    """Runs a function of the library on some numbers, and gives so many results."""
    with World(build(compiled_before), world_size=1, detect_races=True) as world:

        def run(name: str, numbers: list[float], results: int, *arguments: object) -> list[float]:
            memory = world.memory(0).cast("f")
            for i, number in enumerate(numbers):
                memory[i] = number
            segment = world.segments[0]

            def body(_: int) -> None:
                first = (ctypes.c_void_p(segment), ctypes.c_void_p(segment + RESULTS))
                getattr(world.load(library), name)(*first, *arguments, ctypes.c_void_p(world.stream()))
                world.synchronize()

            ended = world.run(body)
            assert ended.outcome.name == "OK", ended.message
            assert not world.findings().findings
            return list(memory[RESULTS // 4 : RESULTS // 4 + results])

        yield run


def test_a_step_of_adam_is_that_of_the_paper(call: Call) -> None:
    draw, n = random.Random(0), 100
    x, g, m = ([draw.gauss(0, 1) for _ in range(n)] for _ in range(3))
    v = [draw.random() for _ in range(n)]
    lr, beta1, beta2, eps, decay, step = 0.1, 0.9, 0.98, 1e-2, 0.3, 5
    constants = (ctypes.c_double * 5)(lr, beta1, beta2, eps, decay)
    got = call("run_adam", [*x, *g, *m, *v], 3 * n, n, constants, ctypes.c_long(step))
    for i in range(n):
        moment, square = beta1 * m[i] + (1 - beta1) * g[i], beta2 * v[i] + (1 - beta2) * g[i] ** 2
        root = math.sqrt(square / (1 - beta2**step)) + eps
        updated = x[i] * (1 - lr * decay) - lr * moment / (1 - beta1**step) / root
        assert [got[i], got[n + i], got[2 * n + i]] == pytest.approx([updated, moment, square], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize("columns", [1, 63, 129, 777])
def test_rows_within_and_beyond_registers_are_normalised(columns: int, threads: int, call: Call) -> None:
    draw = random.Random(columns)
    x = [draw.gauss(0, 2) for _ in range(columns)]
    root = math.sqrt(sum(value * value for value in x) / columns + 0.5)
    got = call("run_rms_norm", x, columns, columns, ctypes.c_float(0.5), threads)
    assert got == pytest.approx([value / root for value in x], rel=1e-5)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("columns", "threads"), [(1, 32), (129, 32), (63, 96), (777, 96)])
def test_gradients_of_a_normalised_row_are_those_of_its_formula(
    columns: int, threads: int, centred: bool, call: Call
) -> None:
    """Against central differences of the norm in float64, of rows within and beyond registers."""
    draw = random.Random(columns)
    x, slope = ([draw.gauss(0.5, 2) for _ in range(columns)] for _ in range(2))

    def deviations(row: list[float]) -> tuple[list[float], float]:
        mean = sum(row) / columns if centred else 0.0
        return [value - mean for value in row], math.sqrt(sum((value - mean) ** 2 for value in row) / columns + 0.5)

    def loss(changed: int, step: float) -> float:
        row, root = deviations([value + step * (i == changed) for i, value in enumerate(x)])
        return product(slope, row) / root

    row, root = deviations(x)
    arguments = (columns, ctypes.c_float(1 / root), int(centred), threads)
    got = call("run_norm_backward", [*slope, *(value / root for value in row)], columns, *arguments)
    for i in range(0, columns, max(1, columns // 40)):
        assert got[i] == pytest.approx((loss(i, 1e-4) - loss(i, -1e-4)) / 2e-4, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "columns", "slabs", "across"),
    [(1, 4, 1, 8), (33, 36, 1, 8), (50, 68, 3, 8), (23, 33, 5, 32), (3, 40, 7, 8)],
)
def test_gradients_of_gain_and_bias_are_sums_over_rows(
    rows: int, columns: int, slabs: int, across: int, call: Call
) -> None:
    """Whole numbers, whose sums are exact, in tiles and slabs that do not divide; some slabs have no row."""
    draw = random.Random(rows)
    dy, x_hat = ([float(draw.randint(-9, 9)) for _ in range(rows * columns)] for _ in range(2))
    got = call("run_sum_columns", [*dy, *x_hat], 2 * columns, rows, columns, slabs, across)
    for column in range(columns):
        own, other = dy[column::columns], x_hat[column::columns]
        assert [got[column], got[columns + column]] == [product(own, other), sum(own)]


@pytest.mark.parametrize(("length", "lines"), [(1, 3), (2048, 4), (1440, 2), (77, 2), (30, 16), (23, 1)])
def test_lines_of_any_length_are_transformed(length: int, lines: int, call: Call) -> None:
    """Of every radix, of prime factors that have none, and as many numbers as a block holds."""
    draw = random.Random(length)
    numbers = [draw.gauss(0, 1) for _ in range(2 * length * lines)]
    got = call("run_transform_lines", numbers, len(numbers), lines, length)
    for line in range(lines):
        first = 2 * length * line
        z = [complex(*numbers[first + 2 * n : first + 2 * n + 2]) for n in range(length)]
        for k in {0, 1, length // 2, length - 1, *(draw.randrange(length) for _ in range(4))} & set(range(length)):
            expected = sum(value * cmath.exp(-2j * cmath.pi * (k * n % length) / length) for n, value in enumerate(z))
            error = abs(complex(*got[first + 2 * k : first + 2 * k + 2]) - expected)
            assert error < 5e-6 * math.sqrt(2 * length), (line, k)


@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize(("n", "offset"), [(1, 0.0), (50, 300.0), (500, -300.0)])
def test_parts_of_a_softmax_join_whatever_their_size(n: int, offset: float, threads: int, call: Call) -> None:
    """Exponentials of the numbers themselves are no float32, and some threads have none."""
    draw = random.Random(n)
    x = [offset + draw.gauss(0, 5) for _ in range(n)]
    expected = max(x) + math.log(sum(math.exp(value - max(x)) for value in x))
    assert call("run_log_sum_exp", x, 1, n, threads) == pytest.approx([expected], abs=1e-3)


@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize(("k", "tail"), [(0, None), (7, None), (9, None), (0, 0.3), (9, 0.2), (5, 0.999999)])
def test_a_filter_keeps_the_likeliest(k: int, tail: float | None, threads: int, call: Call) -> None:
    """Of multiples of 1/4 several are equal: the k-th largest is one of many, and top-p parts equal ones."""
    draw = random.Random(7)
    x = [round(4 * draw.gauss(0, 2)) / 4 for _ in range(120)]
    kept = sorted(x)
    if k:
        kept = [value for value in kept if value >= kept[-k]]
    mass, out = sum(map(math.exp, kept)), 0.0
    while tail is not None and len(kept) > 1 and (out + math.exp(kept[0])) / mass <= tail:
        out += math.exp(kept.pop(0))
    normaliser = math.log(sum(map(math.exp, kept)))
    arguments = (len(x), k, ctypes.c_float(tail or 0.0), int(tail is not None), threads)
    border, got, stay, own = call("run_filter", x, 4, *arguments)
    assert got == pytest.approx(normaliser, abs=1e-4)
    if k or tail is not None:
        assert border == kept[0]
    assert stay == (math.inf if tail is None else kept.count(kept[0]))
    assert own == (pytest.approx(x[0] - normaliser, abs=1e-4) if x[0] >= kept[0] else -math.inf)


@pytest.mark.parametrize(("experts", "tokens"), [(3, 1100), (40, 70), (1, 1)])
def test_pairs_are_numbered_by_expert_and_token(experts: int, tokens: int, call: Call) -> None:
    """More experts than lanes, more tokens than threads, and experts that nobody chose."""
    draw = random.Random(tokens)
    chosen = [[expert % 7 != 5 and draw.random() < 0.3 for _ in range(tokens)] for expert in range(experts)]
    expected = [float(token) for row in chosen for token, is_chosen in enumerate(row) if is_chosen]
    numbers = [float(is_chosen) for row in chosen for is_chosen in row]
    assert call("run_list_pairs", numbers, len(expected), experts, tokens) == expected


@pytest.mark.parametrize(("lanes", "size"), [(8, 8), (32, 128)])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_largest_of_each_list_are_chosen_and_of_equal_ones_as_many_as_fit(
    lanes: int, size: int, k: int, call: Call
) -> None:
    """Four lists of a warp, or one; multiples of 1/2, of which several are equal."""
    draw, lists = random.Random(k), 32 // lanes
    x = [[round(2 * draw.gauss(0, 1)) / 2 for _ in range(size)] for _ in range(lists)]
    got = call("run_mark_largest", [value for values in x for value in values], lists * size, lanes, k)
    for i, values in enumerate(x):
        marks = got[i * size : (i + 1) * size]
        assert sorted(value for value, mark in zip(values, marks, strict=True) if mark) == sorted(values)[-k:]


@pytest.mark.parametrize(("items", "classes", "blocks"), [(0, 3, 2), (50, 1, 2), (700, 5, 3), (900, 16, 4)])
def test_items_are_listed_by_class_in_their_order(items: int, classes: int, blocks: int, call: Call) -> None:
    draw = random.Random(items)
    x = [float(draw.randrange(classes)) for _ in range(items)]
    got = call("run_list_by_class", x, items + classes + 1, items, classes, blocks)
    assert got[:items] == sorted(range(items), key=x.__getitem__)
    assert got[items:] == [sum(value < c for value in x) for c in range(classes + 1)]


def test_blocks_know_the_sums_before_them(call: Call) -> None:
    x = [5.0, 0.0, 7.0]
    got = call("run_sum_before_blocks", x, 18, 3)
    for turn in range(3):
        numbers = [value + turn for value in x]
        assert got[6 * turn : 6 * turn + 3] == [sum(numbers[:block]) for block in range(3)]
        assert got[6 * turn + 3 : 6 * turn + 6] == 3 * [sum(numbers)]


@pytest.mark.parametrize(("n", "bits"), [(1, 32), (1000, 16), (4096, 32), (4097, 32), (9000, 16), (5000, 64)])
def test_keys_are_sorted_within_and_beyond_a_tile(n: int, bits: int, call: Call) -> None:
    """Few high digits, and many of the lowest."""
    draw = random.Random(n)
    x = [float(draw.choice((draw.randrange(60000), draw.randrange(40)))) for _ in range(n)]
    assert call("run_sort", x, n, n, bits) == sorted(x)


def number_at(matrix: int, i: int) -> float:
    """What `building_blocks.cu` fills matrices with: multiples of 1/128, which bfloat16 holds."""
    return ((i * 2654435761 + matrix * 40503) % 2**32 >> 16 & 255) / 128 - 1


NO_MASK = 1 << 30


def rows_of(matrix: int, rows: int, head: int) -> list[list[float]]:
    """A matrix of `building_blocks.cu`."""
    return [[number_at(matrix, i * head + e) for e in range(head)] for i in range(rows)]


def product(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("rows", "cols", "depth"), [(1, 1, 8), (20, 40, 304), (33, 9, 37)])
def test_thin_products_are_sums_of_products(rows: int, cols: int, depth: int, call: Call) -> None:
    """More columns than a round has, and depths that no vector divides."""
    a, b = rows_of(0, rows, depth), rows_of(1, cols, depth)
    expected = [product(row, column) for row in a for column in b]
    assert call("run_multiply_thin", [], rows * cols, rows, cols, depth) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("rows", "keys", "split", "diagonal", "head", "is_half"),
    [
        (70, 150, 0, NO_MASK, 64, True),
        (20, 150, 0, 100, 64, True),
        (130, 40, 0, -5, 128, True),
        (20, 150, 130, 120, 64, True),
        (9, 40, 0, 20, 24, True),
        (9, 70, 33, 60, 24, False),
    ],
)
def test_attention_is_a_softmax_of_products(
    rows: int, keys: int, split: int, diagonal: int, head: int, is_half: bool, call: Call
) -> None:
    """On tensor cores and CUDA cores, with masks that hide whole rows, and with keys in two parts."""
    scale = 0.7
    q, k, v = (rows_of(which, count, head) for which, count in enumerate((rows, keys, keys)))
    arguments = (rows, keys, split, diagonal, head, ctypes.c_float(scale), int(is_half))
    got = call("run_attention", [], rows * head + rows, *arguments)
    for i in range(rows):
        seen = min(keys, max(0, diagonal + i + 1))
        scores = [scale * product(q[i], k[j]) for j in range(seen)]
        largest = max(scores, default=0.0)
        weights = [math.exp(score - largest) for score in scores]
        lse = largest + math.log(sum(weights)) if seen else -math.inf
        row = [sum(w * v[j][e] for j, w in enumerate(weights)) / sum(weights) if seen else 0.0 for e in range(head)]
        assert got[rows * head + i] == pytest.approx(lse, abs=2e-3)
        assert got[i * head : (i + 1) * head] == pytest.approx(row, abs=8e-3 if is_half else 1e-4)


@pytest.mark.parametrize(
    ("rows", "keys", "diagonal", "head", "is_half"),
    [(70, 40, NO_MASK, 64, True), (20, 130, 60, 64, True), (20, 70, 0, 128, True), (40, 9, 3, 24, False)],
)
def test_gradients_of_attention_are_those_of_its_formula(
    rows: int, keys: int, diagonal: int, head: int, is_half: bool, call: Call
) -> None:
    """On tensor cores and CUDA cores, with tiles whose queries see few keys or none of a block."""
    scale = 0.3
    q, k, v, dout = (rows_of(which, count, head) for which, count in enumerate((rows, keys, keys, rows)))
    dq, dk, dv = ([[0.0] * head for _ in range(count)] for count in (rows, keys, keys))
    for i in range(rows):
        seen = range(min(keys, max(0, diagonal + i + 1)))
        weights = [math.exp(scale * product(q[i], k[j])) for j in seen]
        shares = [weight / sum(weights) for weight in weights]
        slopes = [product(dout[i], v[j]) for j in seen]
        mean = sum(share * slope for share, slope in zip(shares, slopes, strict=True))
        for j, share, slope in zip(seen, shares, slopes, strict=True):
            for e in range(head):
                dq[i][e] += scale * share * (slope - mean) * k[j][e]
                dk[j][e] += scale * share * (slope - mean) * q[i][e]
                dv[j][e] += share * dout[i][e]
    expected = [element for matrix in (dq, dk, dv) for row in matrix for element in row]
    got = call(
        "run_attention_backward", [], len(expected), rows, keys, diagonal, head, ctypes.c_float(scale), int(is_half)
    )
    largest = max(map(abs, expected))
    assert got == pytest.approx(expected, rel=2e-2 if is_half else 1e-3, abs=(2e-2 if is_half else 1e-4) * largest)
