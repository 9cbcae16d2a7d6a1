"""A session of the Spark that started a Python process, without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.connectors.sparkclient import DIRECTORY_VARIABLE, own_session
from headwater.core.errors import UserCodeError


def test_no_other_spark_is_started_where_none_started_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    with pytest.raises(UserCodeError, match="for_each_batch"), own_session():
        pass
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    with pytest.raises(UserCodeError, match="is ending"), own_session():
        pass
