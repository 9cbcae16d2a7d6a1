"""The parts of the Nexmark benchmark that need no Spark: the table, and the rows that remain after changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.nexmark.__main__ import markdown
from benchmarks.nexmark.flinkjob import remaining


def test_rows_that_remain_are_those_that_no_change_has_removed(tmp_path: Path) -> None:
    first, then = {"k": "a", "n": 1}, {"k": "a", "n": 2}
    changes: list[dict[str, Any]] = [
        {"before": None, "after": first, "op": "c"},
        {"before": first, "after": None, "op": "d"},
        {"before": None, "after": then, "op": "c"},
    ]
    (tmp_path / "part-0").write_text("".join(json.dumps(change) + "\n" for change in changes))
    (tmp_path / "part-1").write_text(json.dumps({"before": None, "after": then, "op": "c"}) + "\n")
    (tmp_path / ".part-2.inprogress").write_text("half a li")
    assert [json.loads(row) for row in remaining(tmp_path)] == [then, then]


def test_the_table_has_ratios_to_plain_spark_and_says_what_is_missing() -> None:
    queries = [
        {"query": "q1", "rows": 1000, "rows_per_s": {"zones": 500, "one_unit": 900, "plain": 1000, "flink": 2000}},
        {"query": "q6", "rows": 1200, "rows_per_s": {"zones": 1500}},
    ]
    text = markdown(
        {
            "machine": {"cores": 2, "processor": "some processor"},
            **{"spark": "4", "flink": "1", "commit": "0a1b", "events": 1200, "repeats": 1},
            "queries": queries,
            "errors": {"q6 one_unit": "its Spark has ended\nTraceback"},
        }
    )
    assert "| q1 | 1,000 | 500 (0.50×) | 900 (0.90×) | 1,000 | 2,000 (2.00×) |" in text
    assert "| q6 | 1,200 | 1,500 | – | – | – |" in text
    assert "No q6 on plain Spark: " in text and "No q6 on Flink: " in text and "No q4" not in text
    assert text.endswith("No figure of q6 one_unit: its Spark has ended")
