"""Times of Spark as times of records, and back: instants, in whatever zone they are shown."""

import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from read_back import records_in
from recording_writer import RecordingWriter

from eoslog.errors import InvalidTimestampError
from eoslog.spark import write_partitions
from eoslog.spark.arrow_rows import append_batches
from eoslog.spark.rows import append_rows
from eoslog.spark.timestamps import TIME_MAX_MS, spark_times

pa = pytest.importorskip("pyarrow")

# As Spark takes them. Arrow knows no more than the first six, and those only by a database.
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "UTC+05:30",
    "+05:45",
    "GMT+8",
    "UTC+8",
    "Z",
    "CST",
    "In no database",
)
REPEATED_HOUR_US = 1_761_438_600_000_000  # 2025-10-26 00:30 UTC in Berlin.
INSTANTS_US = (
    0,
    1,
    999,
    1000,
    REPEATED_HOUR_US,
    REPEATED_HOUR_US + 3_600_999_999,
    1_743_296_399_999_999,  # Before and after Berlin's clocks go forward.
    1_743_296_400_000_000,
    1_762_061_400_123_456,  # New York goes back.
    1_741_503_600_999_999,  # New York goes forward.
    1_743_863_400_000_001,  # Lord Howe goes back, by half an hour.
    1_759_591_800_999_999,  # Lord Howe goes forward.
    253_402_300_799_999_999,  # The end of the year 9999.
    253_402_250_400_000_000,
)
LAST_US = 2**63 - 1


def records_of(times, unit="us", zone="UTC"):
    column = pa.array(times, pa.timestamp(unit, zone))
    writer = RecordingWriter()
    values = [b"%d" % number for number in range(len(times))]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values), "timestamp": column})
    append_batches(writer, iter([batch]), "orders")
    return [record.timestamp_ms for record in writer.records]


def rows_of(*moments):
    writer = RecordingWriter()
    append_rows(writer, ({"value": b"v", "timestamp": moment} for moment in moments), "orders")
    return [record.timestamp_ms for record in writer.records]


@pytest.mark.parametrize("zone", ZONES)
def test_a_column_of_instants_in_any_zone(zone):
    times_us = [*INSTANTS_US, LAST_US]
    assert records_of(times_us, zone=zone) == [instant // 1000 for instant in times_us]


def test_a_machine_without_a_database_of_zones():
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"]).returncode:
        pytest.skip("no name space of mounts")
    found = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c"),
            'mount -t tmpfs none /usr/share/zoneinfo && exec "$0" -c "$1"',
            sys.executable,
            "import pyarrow as pa\n"
            "from eoslog.spark.arrow_rows import _timestamps\n"
            "column = pa.array([1_999], pa.timestamp('us', 'UTC'))\n"
            "print(*_timestamps(pa.RecordBatch.from_pydict({'timestamp': column})))",
        ],
        capture_output=True,
        text=True,
    )
    assert found.stdout == "1\n", found.stderr


@pytest.mark.parametrize(
    ("unit", "divisor"), [("s", 1e-3), ("ms", 1), ("us", 1_000), ("ns", 1_000_000)]
)
def test_a_column_of_each_unit(unit, divisor):
    second = int(1_000 * divisor)
    times = [0, second, 2 * second - 1]
    assert records_of(times, unit) == [int(one / divisor) for one in times]
    assert records_of([second, None], unit)[0] == 1_000
    assert records_of([second, None], unit)[1] > 1_700_000_000_000
    with pytest.raises(InvalidTimestampError, match=f"timestamp -1 {unit} is before 1970"):
        records_of([second, -1], unit)


def test_a_column_of_seconds_that_spark_cannot_hold():
    with pytest.raises(ValueError, match="no time that Spark can hold"):
        records_of([2**62], "s")


@pytest.mark.parametrize("early_us", [-1, -999, -1000, -1001, -(2**63)])
def test_a_column_from_before_1970_is_refused(early_us):
    with pytest.raises(InvalidTimestampError, match=f"timestamp {early_us} us is before 1970"):
        records_of([5, early_us, None])


@pytest.fixture(params=[*ZONES[:6], "IST-05:30", "EST5EDT,M3.2.0,M11.1.0"])
def local_zone(request, monkeypatch):
    """The process's zone, as glibc takes it."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_local_datetimes_are_those_that_spark_makes(local_zone):
    sql_types = pytest.importorskip("pyspark.sql.types")
    made = {}
    for instant in INSTANTS_US:
        try:
            made[instant] = sql_types.TimestampType().fromInternal(instant)
        except ValueError:
            assert instant > 253_402_200_000_000_000  # In the year 10000 there.
    assert rows_of(*made.values()) == [instant // 1000 for instant in made]


def test_the_last_local_datetime(local_zone):
    (found,) = rows_of(datetime.max)
    assert abs(found - 253_402_300_799_999) <= 14 * 3_600_000


@pytest.mark.parametrize("zone", ZONES[:6])
def test_datetimes_with_a_zone(zone):
    instants = INSTANTS_US[:-2]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moments = [(epoch + timedelta(microseconds=one)).astimezone(ZoneInfo(zone)) for one in instants]
    assert rows_of(*moments) == [instant // 1000 for instant in instants]


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min,
        datetime.min.replace(tzinfo=UTC),
        datetime(1969, 12, 30),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=timezone(timedelta(minutes=1))),
    ],
)
def test_a_datetime_from_before_1970_is_refused(moment):
    with pytest.raises(InvalidTimestampError, match=r"row 1 .* timestamp -.* is before 1970"):
        rows_of(datetime.now(UTC), moment)


def test_a_read_gives_every_time_that_spark_can_hold():
    times_ms = [0, 1, -1, -1_000, -TIME_MAX_MS, TIME_MAX_MS]
    found, beyond = spark_times(np.array(times_ms, np.int64))
    assert (found.tolist(), beyond) == ([1000 * one for one in times_ms], None)
    found, beyond = spark_times(np.array([TIME_MAX_MS + 1, 5, -TIME_MAX_MS - 1], np.int64))
    assert (found.tolist(), beyond.tolist()) == ([0, 5_000, 0], [True, False, True])


@pytest.mark.spark
def test_writes_and_a_read_in_zones_of_a_session(spark, store_path):
    zone_of_session = "spark.sql.session.timeZone"
    before = spark.conf.get(zone_of_session)
    zones = ("Europe/Berlin", "GMT+8", "CST")
    instant_us = REPEATED_HOUR_US + 999
    query = f"SELECT 'v' AS value, timestamp_micros({instant_us}) AS timestamp"
    try:
        for zone in zones:
            spark.conf.set(zone_of_session, zone)
            writer = spark.sql(query).write.format("eoslog").mode("append")
            writer.options(store=str(store_path), topic="orders").save()
        write_partitions(spark.sql(query), store_path, "orders")
        read = spark.read.format("eoslog").options(store=str(store_path), subscribe="orders")
        at = f"timestamp_micros({REPEATED_HOUR_US})"
        rows = read.load().selectExpr(f"timestamp = {at} AS is_it", "unix_micros(timestamp) AS us")
        assert set(rows.collect()) == {(True, REPEATED_HOUR_US)}
    finally:
        spark.conf.set(zone_of_session, before)
    times_ms = [record.timestamp_ms for record in records_in(store_path)]
    assert times_ms == [REPEATED_HOUR_US // 1000] * (len(zones) + 1)
