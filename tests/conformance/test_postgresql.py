"""The store in a real PostgreSQL server, which these tests start where it is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.control.store import Store, StoreReader
from tests.conftest import free_port
from tests.unit import test_memory, test_store
from tests.unit.changes import FIRST
from tests.unit.test_controller_killed import changed_and_killed

SECONDS = 60
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


def programs() -> Path | None:
    """Find the directory of the server's programs, which Debian keeps out of the path."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin")]
    if found := shutil.which("initdb"):
        places.append(Path(found).parent)
    return next((p for p in sorted(places, reverse=True) if (p / "pg_ctl").exists()), None)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Yield the URL of a separate server, which accepts all users on loopback."""
    pytest.importorskip("psycopg")
    bin_ = programs()
    if bin_ is None:
        pytest.skip("PostgreSQL's server is not installed")
    user = None
    place = Path(tempfile.mkdtemp(prefix="headwater-postgresql-"))
    if os.geteuid() == 0:  # it does not run as root
        user = "nobody"
        entry = pwd.getpwnam(user)
        os.chown(place, entry.pw_uid, entry.pw_gid)
    port = free_port()

    def do(program: str, *words: str) -> None:
        command = [str(bin_ / program), "-D", str(place / "data"), *words]
        quiet = subprocess.DEVNULL  # a pipe would be held open by the server
        subprocess.run(command, user=user, cwd=place, check=True, timeout=SECONDS, stdin=quiet, stdout=quiet)

    try:
        do("initdb", "--auth=trust", "--username=headwater", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={place}"
        do("pg_ctl", "start", "--wait", "--log", str(place / "log"), "-o", options)
        try:
            yield f"postgresql://headwater@127.0.0.1:{port}/postgres"
        finally:
            do("pg_ctl", "stop", "--mode=immediate")
    finally:
        shutil.rmtree(place, ignore_errors=True)


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
