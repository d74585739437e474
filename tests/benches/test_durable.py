"""The tables of the durable commits: what stands in them, from rounds that are given."""

from __future__ import annotations

from durable import Cost, Results, Round


def cells_of(lines: list[str], what: str) -> list[str]:
    (line,) = [one for one in lines if one.startswith(f"| {what} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def rounds(rates: list[float], latencies_us: list[int]) -> list[Round]:
    latencies_ns = [one * 1000 for one in latencies_us]
    return [Round(len(latencies_ns) / rate, latencies_ns) for rate in rates]


# Rates that drift together: the ratios are 0.8, 0.9 and 1.
ROUNDS = {
    "bare": rounds([10_000, 1_000, 100], [100, 200]),
    "transaction_1": rounds([8_000, 900, 100], [110, 250]),
    "transaction_4": rounds([30_000, 2_000, 190], [100, 100, 500]),
}
COSTS = {"bare": Cost(1, 4096), "transaction_1": Cost(2, 10_240), "transaction_4": Cost(0.5, None)}
LINES = Results(ROUNDS, COSTS).tables()


def test_a_ratio_is_of_two_rates_of_the_same_round() -> None:
    assert cells_of(LINES, "eoslog, transaction, 1 thread")[2] == "0.90 [0.80, 1.00], ≥0.9"
    slow = {**ROUNDS, "transaction_1": rounds([800, 80, 8], [110])}
    cells = cells_of(Results(slow, COSTS).tables(), "eoslog, transaction, 1 thread")
    assert cells[2] == "**no**: 0.08 [0.08, 0.08], ≥0.9"


def test_a_row_has_the_rate_the_latencies_and_the_costs() -> None:
    cells = cells_of(LINES, "eoslog, transaction, 1 thread")
    assert cells[1] == "900"
    assert cells[3:] == ["110", "250", "2", "10,240", "10.0"]
    figure = cells_of(LINES, "bytes to disk per byte of value, one thread")
    assert figure[1:3] == ["≤6 bytes", "**no**: 10.0 bytes"]


def test_bytes_that_the_disk_does_not_count_are_no_number() -> None:
    assert cells_of(LINES, "eoslog, transaction, 4 threads")[5:] == ["0.5", "not counted", ""]
    cost = {**COSTS, "transaction_1": Cost(2, None)}
    figure = cells_of(Results(ROUNDS, cost).tables(), "bytes to disk per byte of value, one thread")
    assert figure[2] == "not measured"


def test_a_high_percentile_may_reach_the_larger_of_its_two_bounds() -> None:
    what = "p99 of 4 threads beside 4 p50 or 1.5 p99 of the bare sync"
    assert cells_of(LINES, what)[2] == "**no**: 1.25\u00d7"
    slow_disk = {**ROUNDS, "bare": rounds([10, 10, 10], [500])}
    assert cells_of(Results(slow_disk, COSTS).tables(), what)[2] == "0.67\u00d7"


def test_a_figure_of_a_work_that_did_not_run_is_left_out() -> None:
    assert not any("SQLite" in line or "RocksDB" in line or "column" in line for line in LINES)
