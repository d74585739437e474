"""The Python of docs/spark.md runs as it stands."""

import re
from pathlib import Path

import pytest
from read_back import records_in

import eoslog

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
ROWS = 50


@pytest.mark.spark
def test_the_code_of_the_page_runs(spark, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    rows = {"customer": [f"c{number % 7}" for number in range(ROWS)], "cents": list(range(ROWS))}
    parquet.write_table(pa.table(rows), tmp_path / "orders.parquet")
    eoslog.open(tmp_path / "data", create=True).close()
    monkeypatch.chdir(tmp_path)
    # Spark's own working directory is another one.
    code = "\n".join(blocks).replace('"orders.parquet"', repr(f"file://{tmp_path}/orders.parquet"))
    exec(compile(code, str(PAGE), "exec"), {})
    # One version by write_partitions, one by the two halves.
    assert len(records_in(tmp_path / "data", "orders")) == 2 * ROWS
