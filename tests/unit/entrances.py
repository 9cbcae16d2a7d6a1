"""All entrances for plans, to compare: Python, command line, REST, dashboard."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

import httpx
from typer import testing
from typer.main import get_command

from headwater import cli
from headwater.app import pools, running
from headwater.app.client import Client, PlanRequest, Proposal
from headwater.app.pools import PoolChange
from headwater.continuum.model import Continuum
from headwater.control.controller import Controller
from headwater.control.executor import Executor
from headwater.control.store import Store
from headwater.core.errors import HeadwaterError
from headwater.dataflow.graph import Dataflow
from headwater.placement.situation import Limits
from headwater.placement.usage import Weights
from headwater.plan.document import to_document
from headwater.plan.edit import Edit, Fuse, Move, Split, Spread
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import Profile
from headwater.plan.steps import CanarySettings, FormerOutputChoice
from headwater.testing.nodes import SimulatedNodes
from headwater.web import problems
from headwater.web.access import Access, Asker
from headwater.web.api.dependencies import Served
from headwater.web.dashboard import proposals
from headwater.web.dashboard.frame import DashboardContext, Frame
from headwater.web.dashboard.sessions import Visitor
from headwater.web.server import make_app
from tests.unit.served import trial

Document = dict[str, Any]
OWNER = "somebody"
_COMMAND = get_command(cli.app)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for a plan, in values that every entrance accepts."""

    flow: Dataflow
    zones: Mapping[str, Any]
    strategy: str | None = None
    max_latency: float | None = None
    """Seconds."""
    max_bandwidth: int | None = None
    """Mbit/s."""
    weights: tuple[float, float] | None = None
    profile: Profile | None = None
    compare: bool = False
    rewrite: bool = False
    without_rules: tuple[str, ...] = ()
    canary: int | None = None
    """Seconds."""
    reset: tuple[str, ...] = ()
    former_output: FormerOutputChoice = "refuse"
    known: bool = False
    """Whether dataflow and zones are those of the deployment, so that REST needs only its name."""

    @property
    def request(self) -> PlanRequest:
        return PlanRequest(
            dataflow=self.flow,
            continuum=Continuum.from_data(dict(self.zones)),
            strategy=self.strategy,
            limits=Limits(
                max_latency=float("inf") if self.max_latency is None else self.max_latency,
                max_bandwidth=float("inf") if self.max_bandwidth is None else self.max_bandwidth * 1e6,
            ),
            weights=Weights() if self.weights is None else Weights(*self.weights),
            profiles={} if self.profile is None else {self.flow.name: self.profile},
            compare=self.compare,
            rewrite=self.rewrite,
            without_rules=frozenset(self.without_rules),
            canary=None if self.canary is None else CanarySettings(seconds=self.canary),
            reset_state=frozenset(self.reset),
            former_output=self.former_output,
        )


@dataclass(frozen=True)
class Refused:
    """A refusal: the status of REST, and the error texts without a terminal's spaces."""

    status: int
    what: tuple[str, ...]


@dataclass(frozen=True)
class Stored:
    """The result of an entrance's change: the document of the wanted plan, and the options of the desired state.

    ``shown``: the steps that the entrance announced.
    """

    plan: Document
    options: tuple[Any, ...]
    shown: list[str]


Answer = Document | Refused
Outcome = Stored | Refused | None
"""None where the entrance announced that there is nothing to do."""


def refusal(error: HeadwaterError) -> Refused:
    found = problems.problem_of(error)
    return Refused(found.status, tuple(_plain(one.detail) for one in found.errors) or (_plain(found.detail),))


def _plain(text: str) -> str:
    return "".join(text.split())


def outline(plan: DeploymentPlan) -> Document:
    """Return the fields of ``plan --json`` and REST that can be compared with the plan itself."""
    return {
        "dataflow": plan.dataflow.name,
        "units": [
            {
                "id": u.id,
                "node": u.node,
                "zone": u.zone,
                "layer": u.layer,
                "operators": list(u.operators),
                "locations": list(u.locations),
                "hosts": list(u.hosts),
                "tag": u.tag,
                "epoch": u.epoch,
            }
            for u in plan.units
        ],
        "channels": [
            {"id": c.id, "operator": c.operator, "from": c.producer, "to": list(c.consumers)} for c in plan.channels
        ],
        "cuts": sorted([p, c] for p, c in plan.deployment.cuts),
    }


def narrowed(told: Mapping[str, Any], to: Document) -> Document:
    """Return an answer reduced to the fields of an outline."""
    unit, channel = (next(iter(to[part]), {}) for part in ("units", "channels"))
    found: Document = {name: told[name] for name in to}
    found["units"] = [{name: u[name] for name in unit} for u in told["units"]]
    found["channels"] = [{name: c[name] for name in channel} for c in told["channels"]]
    return found


# ---------------------------------------------------------------- stores


def copied(store: Path, to: Path) -> Path:
    """Copy a store that is not open."""
    with closing(sqlite3.connect(store)) as one, closing(sqlite3.connect(to)) as other:
        one.backup(other)
    return to


def newest(store: Path, name: str) -> tuple[DeploymentPlan | None, tuple[Any, ...], int]:
    """Return the plan of the newest desired state, its options, and its version."""
    with closing(Store(store)) as opened:
        desired = opened.desired(name)
        options = (desired.goal, sorted(desired.reset_state), desired.canary, desired.former_output)
        return opened.plan(desired.plan) if desired.plan else None, options, desired.version


def stored(store: Path, name: str, shown: list[str]) -> Stored:
    plan, options, _ = newest(store, name)
    assert plan is not None
    return Stored(to_document(plan), options, shown)


def wanted(store: Path, name: str) -> tuple[Document | None, tuple[Any, ...]]:
    """Return the document of a deployment's wanted plan, None if the deployment is to stop, and its options."""
    plan, options, _ = newest(store, name)
    return None if plan is None else to_document(plan), options


def settle(store: Path, name: str, zones: SimulatedNodes) -> DeploymentPlan:
    """Let a controller execute the desired state; return the active plan afterwards."""
    now = [0.0]
    with closing(Store(store)) as opened:
        controller = Controller(
            opened,
            zones.open,
            lease=600,
            executor=lambda ports: Executor(ports, shortest=1.0, look=1.0, clock=lambda: now[0]),
        )
        assert controller.lease.hold()
        for _ in range(3000):
            now[0] += controller.advance(name)
            record = opened.deployment(name)
            if record.version == record.observed_version:
                break
        else:
            raise AssertionError(f"still busy: {record}")
        controller.lease.release()
        assert (record.phase, record.message) == ("running", ""), record
        base = opened.active_plan(name)
        assert base is not None
    return base


# ---------------------------------------------------------------- entrances


class Entrance(Protocol):
    """An entrance that plans, applies and edits over a store; ``apply`` and ``edit`` store at once."""

    def plan(self, asked: Asked, store: Path) -> Answer: ...

    def apply(self, asked: Asked, store: Path) -> Outcome: ...

    def edit(self, name: str, edit: Edit, store: Path) -> Outcome: ...


class Python:
    """``Client``, the reference for the other entrances."""

    def propose(self, request: PlanRequest, store: Path) -> Proposal | Refused:
        try:
            found = Client(str(store)).propose(request)
            _ = found.change
        except HeadwaterError as error:
            return refusal(error)
        return found

    def plan(self, asked: Asked, store: Path) -> Answer:
        found = self.propose(asked.request, store)
        return found if isinstance(found, Refused) else outline(found.plan)

    def apply(self, asked: Asked, store: Path) -> Outcome:
        return self._apply(asked.request, store)

    def edit(self, name: str, edit: Edit, store: Path) -> Outcome:
        return self._apply(PlanRequest(of=name, edits=(edit,)), store)

    def submit(self, asked: Asked, pool: str, store: Path) -> Any:
        zones = asked.request.continuum
        assert zones is not None
        plan = partial(pools.plan_submission, asked.flow, zones, OWNER, str(store), pool=pool)
        return self._pooled(partial(plan, former_output=asked.former_output), store)

    def remove(self, name: str, pool: str, store: Path) -> Any:
        return self._pooled(partial(pools.plan_removal, name, OWNER, str(store)), store)

    @staticmethod
    def _pooled(plan: Callable[[], PoolChange], store: Path) -> Any:
        try:
            change = plan()
            change.apply()
        except HeadwaterError as error:
            return refusal(error)
        found = wanted(store, change.pool.name)
        assert found[0] == (None if change.plan is None else to_document(change.plan))  # the cheapest entrance to check
        assert found[1][-1] == change.former_output
        return found

    def _apply(self, request: PlanRequest, store: Path) -> Outcome:
        found = self.propose(request, store)
        if isinstance(found, Refused) or found.change.same:
            return found if isinstance(found, Refused) else None
        Client(str(store)).apply(found)
        return stored(store, found.plan.dataflow.name, found.change.words)


@dataclass
class CommandLine:
    """``headwater`` in this process, with files."""

    directory: Path
    statuses: dict[int, set[int]] = field(default_factory=dict)
    """The exit codes seen for each status of REST."""

    def files(self, asked: Asked) -> list[str]:
        flow, zones = self.directory / "flow.json", self.directory / "zones.yaml"
        flow.write_text(asked.flow.to_json())
        zones.write_text(json.dumps(asked.zones))
        options = [str(flow), "-c", str(zones)]
        if asked.strategy is not None:
            options += ["--strategy", asked.strategy]
        if asked.max_latency is not None:
            options += ["--max-latency", f"{asked.max_latency}s"]
        if asked.max_bandwidth is not None:
            options += ["--max-bandwidth", f"{asked.max_bandwidth}Mbit/s"]
        if asked.weights is not None:
            options += ["--weights", f"cpu={asked.weights[0]},network={asked.weights[1]}"]
        if asked.profile is not None:
            profile = self.directory / "profile.json"
            profile.write_text(asked.profile.to_json())
            options += ["--profile", str(profile)]
        options += ["--rewrite"] if asked.rewrite else []
        options += [word for rule in asked.without_rules for word in ("--no-rewrite-rule", rule)]
        return options

    def invoke(self, *arguments: str) -> Any:
        """Run a command; return its JSON, or its exit code and error text."""
        result = self._invoke(list(arguments))
        if result.exit_code == 0:
            return json.loads(result.stdout)
        if not isinstance(result.exception, SystemExit):
            raise result.exception
        return (result.exit_code, _plain(result.stderr))

    @staticmethod
    def _invoke(arguments: list[str]) -> Any:
        # Building the command from all modules takes longer than most commands.
        with mock.patch.object(testing, "_get_command", lambda app: _COMMAND):
            return testing.CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "4000"})

    def plan(self, asked: Asked, store: Path) -> Any:
        compare = ["--compare"] if asked.compare else []
        return self.invoke("plan", *self.files(asked), *compare, "--store", str(store), "--json")

    def run(self, asked: Asked) -> Any:
        """Return the plan that ``headwater run`` would execute, in a new directory."""
        seen: list[DeploymentPlan] = []

        def run(plan: DeploymentPlan, *rest: Any, **options: Any) -> Any:
            seen.append(plan)
            raise SystemExit(0)

        with mock.patch.object(running, "run", run):
            place = str(self.directory / "run")
            arguments = ["run", *self.files(asked), "--dir", place, "--json"]
            result = self._invoke(arguments)
        return outline(seen[0]) if seen else (result.exit_code, _plain(result.stderr))

    def apply(self, asked: Asked, store: Path) -> Any:
        more = [f"--canary={asked.canary}s"] if asked.canary is not None else []
        more += [f"--reset-state={unit}" for unit in asked.reset]
        more += self._choice(asked)
        return self._stored(asked.flow.name, store, "apply", *self.files(asked), *more)

    def edit(self, name: str, edit: Edit, store: Path) -> Any:
        match edit:
            case Move():
                at = [] if edit.at is None else ["--at", edit.at]
                words = ["move", edit.operator, "--to", edit.to, *at]
            case Split():
                words = ["split", edit.unit, "--after", edit.after]
            case Fuse():
                words = ["fuse", edit.first, edit.second, *([] if edit.to is None else ["--to", edit.to])]
            case Spread():
                words = ["spread", edit.unit, "--over", ",".join(edit.over)]
        return self._stored(name, store, *words, "--of", name)

    def approve(self, number: int, name: str, store: Path) -> Any:
        return self._stored(name, store, "approve", str(number))

    def submit(self, asked: Asked, pool: str, store: Path) -> Any:
        return self._pooled(pool, store, "submit", *self.files(asked), "--pool", pool, *self._choice(asked))

    def remove(self, name: str, pool: str, store: Path) -> Any:
        return self._pooled(pool, store, "remove", name)

    @staticmethod
    def _choice(asked: Asked) -> list[str]:
        return [] if asked.former_output == "refuse" else [f"--{asked.former_output}"]

    def _pooled(self, pool: str, store: Path, *arguments: str) -> Any:
        told = self.invoke(*arguments, "--owner", OWNER, "--store", str(store), "--json")
        return told if isinstance(told, tuple) else wanted(store, pool)

    def _stored(self, name: str, store: Path, *arguments: str) -> Any:
        told = self.invoke(*arguments, "--store", str(store), "--yes", "--json")
        if isinstance(told, tuple):
            return told
        return stored(store, name, told["steps"]) if told["stored"] else None


class Rest:
    """The REST API, without a network. ``canary`` and similar options are in the form."""

    def __init__(self, nowhere: Path) -> None:
        access = Access(str(nowhere))
        self._app = make_app(Served(store_url=None, access=access))
        self._access = access

    def _answer(self, method: str, path: str, form: Any, store: Path) -> httpx.Response:
        self._app.state.served = Served(store_url=str(store), access=self._access, trust_code=True)

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=trial()) as client:
                return await client.request(method, f"/api/v1{path}", json=form)

        return asyncio.run(ask())

    def ask(self, path: str, form: Any, store: Path) -> Any:
        return self._told(self._answer("POST", path, form, store))

    @staticmethod
    def _told(answer: httpx.Response) -> Any:
        told = answer.json()
        if answer.status_code >= 400:
            details = tuple(_plain(one["detail"]) for one in told["errors"]) or (_plain(told["detail"]),)
            return Refused(answer.status_code, details)
        return told

    def form(self, asked: Asked) -> Document:
        width = None if asked.max_bandwidth is None else asked.max_bandwidth * 125_000.0
        form: Document = {
            "dataflow": asked.flow.name if asked.known else json.loads(asked.flow.to_json()),
            "strategy": asked.strategy,
            "limits": {"max_latency_s": asked.max_latency, "max_bandwidth_bytes_per_s": width},
            "compare": asked.compare,
            "rewrite": asked.rewrite,
            "without_rules": list(asked.without_rules),
            "reset_state": list(asked.reset),
            "former_output": asked.former_output,
        }
        if not asked.known:
            form["continuum"] = dict(asked.zones)
        if asked.weights is not None:
            form["weights"] = dict(zip(("cpu", "network"), asked.weights, strict=True))
        if asked.profile is not None:
            form["profile"] = json.loads(asked.profile.to_json())
        if asked.canary is not None:
            form["canary"] = {"seconds": asked.canary}
        return form

    def plan(self, asked: Asked, store: Path) -> Any:
        return self.ask("/plans", self.form(asked), store)

    def apply(self, asked: Asked, store: Path) -> Any:
        return self._stored(asked.flow.name, "/deployments", self.form(asked), store)

    def edit(self, name: str, edit: Edit, store: Path) -> Any:
        form = {n: value for n, value in vars(edit).items() if n != "after"}
        if isinstance(edit, Split):
            form["after_operator"] = edit.after
        path = f"/deployments/{name}/{type(edit).__name__.lower()}"
        shown = self.ask(path, {**form, "preview": True}, store)
        found = self._stored(name, path, form, store)
        if isinstance(found, Stored):
            assert found.shown == shown["steps"]
        return found

    def approve(self, number: int, name: str, store: Path) -> Any:
        shown = self._answer("GET", f"/decisions/{number}/plan", None, store).json()
        told = self.ask(f"/decisions/{number}/approve", None, store)
        return told if isinstance(told, Refused) else stored(store, name, shown["change"]["steps"])

    def submit(self, asked: Asked, pool: str, store: Path) -> Any:
        form = {n: self.form(asked)[n] for n in ("dataflow", "continuum", "former_output")}
        told = self.ask(f"/pools/{pool}/dataflows", {**form, "owner": OWNER}, store)
        return told if isinstance(told, Refused) else wanted(store, pool)

    def remove(self, name: str, pool: str, store: Path) -> Any:
        told = self._told(self._answer("DELETE", f"/pools/{pool}/dataflows/{name}?owner={OWNER}", None, store))
        return told if isinstance(told, Refused) else wanted(store, pool)

    def _stored(self, name: str, path: str, form: Document, store: Path) -> Any:
        told = self.ask(path, form, store)
        if isinstance(told, Refused):
            return told
        return stored(store, name, told["steps"]) if told["stored"] else None


class Dashboard:
    """The page of a proposal: its content and its button."""

    def approve(self, number: int, name: str, store: Path) -> Outcome:
        shown: list[Any] = []
        page = self._page(number, store, shown.append)
        with mock.patch("nicegui.ui.notify"):
            asyncio.run(page._read())
            steps = [text for body in shown for text in _steps(body)]
            asyncio.run(page._approve())
        return stored(store, name, steps)

    @staticmethod
    def _page(number: int, store: Path, show: Callable[[Any], None]) -> proposals.ProposalPage:
        place = DashboardContext(str(store), None, feed=SimpleNamespace(view=None), home=store.parent)  # type: ignore[arg-type]
        request: Any = SimpleNamespace(url=SimpleNamespace(path="/proposals/1"), cookies={})
        frame = Frame(place, Visitor(None, None), Asker(name=None, role="owner"), request)
        page = object.__new__(proposals.ProposalPage)
        unseen = SimpleNamespace(show=lambda *nodes: None, set_visibility=lambda seen: None)
        page.__dict__.update(_frame=frame, _number=number, _seen=None, _may=True)
        page.__dict__.update(_head=unseen, _note=unseen, _buttons=unseen)
        page.__dict__["_rich"] = SimpleNamespace(show=lambda *nodes: show(nodes))
        return page


def _steps(body: Any) -> Iterator[str]:
    """Yield the lines of the list below the heading of the steps."""
    for before, after in pairwise(body):
        if before[0] == "h2" and before[2] == ["Step by step"]:
            for _, _, (text,) in after[2]:
                yield text


def proposed(store: Path, found: Proposal) -> int:
    """Record a decision with a proposal's plan in the store, as the control loop does; return its number."""
    name = found.plan.dataflow.name
    with closing(Store(store)) as opened:
        assert opened.hold("me", 600) is not None
        number = opened.record_decision(
            "me",
            name,
            mode="advise",
            trigger="gain",
            why="it costs less",
            state="proposed",
            plan=found.plan,
            before=opened.deployment(name).active_plan,
            data={},
        )
        opened.release("me")
    return number
