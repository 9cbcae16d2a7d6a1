"""Apply fission, fusion and migration at random to generated dataflows: the sinks equal the batch run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from headwater.app import deployments
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.dataflow.sources import Source
from headwater.plan import edit
from headwater.plan.build import annotated, build
from headwater.plan.deployment import Deployment
from headwater.plan.diff import diff
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import Controller, apply
from tests.deployments.flows import rows
from tests.deployments.generated import dataflows
from tests.deployments.test_generated import law, repeated
from tests.deployments.test_handover import malformed, written

CONTINUUM = Continuum.from_text("""
name: histories
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  S1: {layer: site, parent: C1, hosts: {s1: {n_cpu: 1, memory: 1GiB}}}
  E1: {layer: edge, parent: S1, locations: [L1, L2], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E4: {layer: edge, parent: S1, locations: [L4], hosts: {e4: {n_cpu: 1, memory: 1GiB}}}
""")


class History(RuleBasedStateMachine):
    """One dataflow and the changes of its deployment while rows flow."""

    place: Path
    controller: Controller
    endpoint: LocalEndpoint
    numbers: Iterator[int]
    done: list[str]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        number = next(self.numbers)
        self.store = str(self.place / "store.db")
        self.out = self.place / f"out{number}"
        made = {at: broken(of, at) for at, of in repeated(rows(60, seed=number)).items()}
        self.malformed = sorted(str(r["v"]) for of in made.values() for r in of if "broken" in str(r["v"]))
        source = BoundedSource(self.place / f"in{number}", made, rows_per_file=6)
        drawn = dataflows(source.path, f"history{number}", str(self.out))
        self.flow = data.draw(drawn).build()
        self.released = iter(source.release())
        self.controller.name = self.flow.name
        for id_ in self.flow.order:  # shown with a failure
            config = {k: v for k, v in self.flow[id_].config().items() if k not in ("function", "schema_text")}
            note(f"{id_}: {self.flow[id_].kind} of {self.flow[id_].inputs}: {config}")
        self.plan = build(self.flow, CONTINUUM, annotated(self.flow, CONTINUUM))
        self.controller.carry_out(apply(self.plan, self.store), kill=False)
        self.feed()

    @rule()
    def feed(self) -> None:
        next(self.released, None)

    @rule(data=st.data(), kill=st.booleans())
    def change(self, data: st.DataObject, kill: bool) -> None:
        possible = dict(self._possible())
        if not possible:
            return
        what = data.draw(st.sampled_from(sorted(possible)))
        plan = possible[what]
        self.feed()
        change = self.controller.end_of(apply(plan, self.store), kill=kill)
        print(f"{self.flow.name}: {what}: {change.outcome} {change.message}", flush=True)
        self.done.append(f"{what}: {change.outcome}")
        if change.outcome == "done":
            self.plan = plan

    def _possible(self) -> Iterator[tuple[str, DeploymentPlan]]:
        """Return the plans that edits lead to and to which state can be transferred."""
        for what, change in self._edits().items():
            with contextlib.suppress(HeadwaterError):
                plan = build(self.flow, CONTINUUM, change(self.plan))
                if diff(self.plan, plan).units:
                    yield what, plan

    def _edits(self) -> dict[str, Callable[[DeploymentPlan], Deployment]]:
        """Return all edits by their effect; some of them may be impossible."""
        found: dict[str, Callable[[DeploymentPlan], Deployment]] = {}
        for id_ in self.flow.order:
            if isinstance(self.flow[id_], Source):
                continue
            for layer in ("edge", "site", "cloud"):
                others = [x for x in self.flow.locations if self.plan.layer(id_, x) != layer]
                for at in (None, *others) if others else ():
                    name = f"move {id_} to {layer}" + (f" at {at}" if at else "")
                    found[name] = lambda plan, i=id_, to=layer, x=at: edit.move(plan, i, to, location=x)
        for unit in self.plan.units:
            for id_ in unit.operators:
                if any(c in unit.operators for c in self.flow.consumers[id_]):
                    found[f"split {unit.id} after {id_}"] = lambda plan, u=unit.id, i=id_: edit.split(plan, u, i)
        for channel in self.plan.channels:
            for reader in channel.consumers:
                for layer in {self.plan.unit(u).layer for u in (channel.producer, reader)}:
                    found[f"fuse {channel.producer} with {reader} in {layer}"] = (
                        lambda plan, a=channel.producer, b=reader, to=layer: edit.fuse(plan, a, b, layer=to)
                    )
        return found

    def teardown(self) -> None:
        if not hasattr(self, "plan"):
            return
        for _ in self.released:
            pass
        self.controller.carry_out(deployments.stop(self.flow.name, self.store, how="finish"), kill=False)
        expected = batch_result(self.endpoint.session(), self.flow, CONTINUUM)
        for sink, table in expected.items():
            if table.num_rows:
                assert not compare(table, written(self.out / sink))
            else:
                assert not [f for f in (self.out / sink).rglob("*.parquet") if not f.name.startswith(".")]
        assert malformed(self.place, self.flow.name) == self.malformed
        self.controller.carry_out(deployments.stop(self.flow.name, self.store, how="forget"), kill=False)


def broken(made: list[Any], location: str) -> list[Any]:
    """Make every thirteenth row malformed."""
    return [{**r, "v": f"broken {location} {n}"} if n % 13 == 0 else r for n, r in enumerate(made)]


def hold(endpoint: LocalEndpoint, place: Path, *, histories: int, steps: int) -> list[str]:
    """Draw and run histories; return the changes that were made."""
    controller = Controller("history0", place, seed=9)
    made: list[str] = []
    try:
        History.place, History.controller, History.endpoint = place, controller, endpoint
        History.numbers, History.done = iter(range(10**6)), made
        run_state_machine_as_test(
            History,
            settings=settings(law(histories), stateful_step_count=steps),
        )
    finally:
        controller.end()
        deployments.down(place)
    return made


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_any_history_equals_one_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made = hold(endpoint, tmp_path, histories=8, steps=8)
    assert sum(m.endswith(": done") for m in made) >= 8
