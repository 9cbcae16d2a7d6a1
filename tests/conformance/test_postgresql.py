"""The store in a real PostgreSQL server, which these tests start where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.control.store import Store, StoreReader
from tests.conformance.postgresql import server
from tests.unit import test_memory, test_store
from tests.unit.changes import FIRST
from tests.unit.test_controller_killed import changed_and_killed

CONTRACT = (
    test_store.test_a_wish_is_kept_with_its_plan_and_options,
    test_store.test_journal_and_standings,
    test_memory.test_samples_are_kept_as_they_were_seen,
    test_memory.test_samples_are_bounded,
    test_memory.test_slo_profile_and_what_was_learned,
    test_memory.test_a_decision_is_wanted_watched_and_kept,
    test_memory.test_decisions_are_bounded,
    test_memory.test_what_is_forgotten_and_what_stays,
)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Yield the URL of a separate server."""
    yield from server()


@pytest.fixture
def store(postgresql: str) -> Iterator[Store]:
    made = Store(postgresql)
    with made._writing() as connection:
        from headwater.control.tables import meta, metadata

        for table in reversed(metadata.sorted_tables):
            if table is not meta:
                connection.execute(table.delete())
    yield made
    made.close()


@pytest.mark.parametrize("test", CONTRACT, ids=lambda test: test.__name__)
def test_it_keeps_the_contract(store: Store, test) -> None:  # type: ignore[no-untyped-def]
    test(store)


def test_a_store_of_version_2_gets_what_it_lacks(store: Store, postgresql: str) -> None:
    base = test_memory.lacking(store)
    test_memory.upgraded(postgresql, StoreReader.open, base)


def test_only_one_controller_acts(store: Store) -> None:
    assert store.hold("me", 0.05)
    assert not store.hold("two", 1)


@pytest.mark.long
def test_a_killed_controller_ends_in_the_wanted_plan(store: Store, postgresql: str, tmp_path: Path) -> None:
    changed_and_killed(tmp_path, postgresql, (FIRST, replace(FIRST, wider=True)), seed=11)
