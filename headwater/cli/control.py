"""Commands that write desired states or act on them: apply, stop, up, down. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headwater.cli import bounds, complete
from headwater.cli import place as placing
from headwater.cli.bars import Bar
from headwater.cli.out import Json, LogLines, print_json, print_line, say
from headwater.cli.place import (
    Confidence,
    MaxBandwidth,
    MaxLatency,
    MinBandwidth,
    ProfileFiles,
    Rewrite,
    Strategy,
    WeightsOf,
    WithoutRules,
)
from headwater.cli.serve import (
    ComputeLimit,
    Listen,
    Tls,
    TlsCertificate,
    TlsKey,
    TlsOptions,
    TrustHttp,
    served,
)
from headwater.cli.signals import stopped_by_signals
from headwater.cli.sparkoptions import Conf, ConfFile, Packages, Quick, spark_settings, write_settings

if TYPE_CHECKING:
    from headwater.app.client import Client, Preview, Proposal
    from headwater.app.view import Status
    from headwater.continuum.model import Continuum
    from headwater.dataflow.graph import Dataflow
    from headwater.plan.model import DeploymentPlan
    from headwater.plan.steps import CanarySettings, FormerOutputChoice

Flow = Annotated[str, typer.Argument(help="flow.py, flow.py:name or flow.json", show_default=False)]
ContinuumFile = Annotated[Path, typer.Option("--continuum", "-c", help="The zones, as YAML.", show_default=False)]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="HEADWATER_STORE",
        help="Path, or postgresql://user@host/database.",
        show_default=".headwater/headwater.db",
    ),
]
Home = Annotated[Path, typer.Option("--home", help="Directory of this machine's agents.")]
Name = Annotated[
    str,
    typer.Argument(help="The dataflow's name.", show_default=False, autocompletion=complete.deployments),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the change until its units run.")]
Reset = Annotated[
    list[str] | None,
    typer.Option(
        "--reset-state",
        help="A unit whose state may be dropped; repeatable.",
        show_default=False,
        autocompletion=complete.units,
    ),
]
Canary = Annotated[
    str | None,
    typer.Option(
        "--canary",
        parser=bounds.CANARY,
        help="Change zone by zone, and watch each for this time, such as 60s.",
        show_default=False,
    ),
]
Factor = Annotated[
    float,
    typer.Option(
        "--factor", help="Allowed growth of the shares of dead letters and late rows, 0 to 1000000.", parser=bounds.LOAD
    ),
]
Append = Annotated[bool, typer.Option("--append", help="Where sinks hold output of other runs, write after it.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Where sinks hold output of other runs, first remove it.")]
Trust = Annotated[bool, typer.Option("--trust-code", help="Trust the pickled functions of a JSON dataflow.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (apply, stop, up, down, token):
        app.command()(command)


def apply(
    flow: Flow,
    continuum: ContinuumFile,
    store: StoreOption = None,
    yes: Yes = False,
    canary: Canary = None,
    factor: Factor = 2.0,
    reset_state: Reset = None,
    append: Append = False,
    overwrite: Overwrite = False,
    wait: Wait = False,
    trust_code: Trust = False,
    strategy: Strategy = None,
    profile: ProfileFiles = None,
    max_latency: MaxLatency = None,
    max_bandwidth: MaxBandwidth = None,
    min_bandwidth: MinBandwidth = None,
    confidence: Confidence = None,
    weights: WeightsOf = None,
    rewrite: Rewrite = False,
    no_rewrite_rule: WithoutRules = None,
    as_json: Json = False,
) -> None:
    """Show what a dataflow would change, and store it as the desired state."""
    from headwater.app.client import Client

    dataflow, zones = loaded(flow, continuum, trust_code=trust_code)
    request = placing.requested(
        dataflow,
        zones,
        strategy=strategy,
        profile=profile,
        max_latency=max_latency,
        max_bandwidth=max_bandwidth,
        min_bandwidth=min_bandwidth,
        confidence=confidence,
        weights=weights,
        rewrite=rewrite,
        without_rules=no_rewrite_rule,
        reset_state=frozenset(reset_state or ()),
        canary=canary_of(canary, factor),
        former_output=former_output(append, overwrite),
    )
    client = Client(store)
    propose(client, client.propose(request), yes, wait=wait, as_json=as_json)


def propose(client: Client, proposal: Proposal, yes: bool, *, wait: bool, as_json: bool) -> None:
    """Show the changes of a proposal, ask, store it as the desired state, and follow it on request."""
    from headwater.app import deployments

    found, plan = proposal.change, proposal.plan
    name = plan.dataflow.name
    if not as_json:
        tell_rewriting(proposal)
        show_change(plan, found)
    if found.same:
        if (profile := proposal.request.profiles.get(name)) is not None:
            deployments.keep_profile(name, profile, client.store_url)
        if as_json:
            print_json({**vars(found.shown()), "stored": False})
        return
    agree(yes, as_json=as_json)
    version = client.apply(proposal)
    tell_stored(client, plan, found, version, wait=wait, as_json=as_json)


def tell_rewriting(proposal: Proposal) -> None:
    """Print what rewrite rules have changed, and what they save."""
    if proposal.rewriting is not None:
        for line in proposal.rewriting.words:
            say(line)


def agree(yes: bool, *, as_json: bool) -> None:
    """Ask for confirmation, unless given; end the command without it."""
    if not yes and not _agreed(as_json=as_json):
        say("nothing was stored")
        raise typer.Exit(1)


def tell_stored(
    client: Client, plan: DeploymentPlan, found: Preview, version: int, *, wait: bool, as_json: bool
) -> None:
    """Print the wanted version, and follow it on request."""
    name = plan.dataflow.name
    if as_json:
        print_json({**vars(found.shown()), "stored": True, "version": version})
    else:
        say(f"{name}: version {version} is wanted")
    if wait:
        follow(name, version, client.store_url, quiet=as_json)


def stop(
    name: Name,
    store: StoreOption = None,
    forget: Annotated[bool, typer.Option("--forget", help="Delete its state and channels as well.")] = False,
    finish: Annotated[bool, typer.Option("--finish", help="Use up all input and close windows first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Stop a deployment at batch boundaries; its state stays, and `apply` continues with it."""
    from headwater.app import deployments

    if forget and finish:
        raise typer.BadParameter("--forget and --finish exclude each other")
    if forget and not yes and not _agreed(as_json=as_json, what=f"delete all data of {name}?"):
        say("nothing was stored")
        raise typer.Exit(1)
    goal: Literal["stop", "forget", "finish"] = "forget" if forget else "finish" if finish else "stop"
    version = deployments.stop(name, store, how=goal)
    if as_json:
        print_json({"name": name, "version": version, "goal": goal})
    else:
        say(f"{name}: version {version} is wanted")
    if wait:
        follow(name, version, store, quiet=as_json)


def up(
    continuum: Annotated[
        Path | None,
        typer.Option("--continuum", "-c", help="Zones to open at the start.", show_default="at first use"),
    ] = None,
    store: StoreOption = None,
    home: Home = Path(".headwater"),
    share_spark: Annotated[
        bool,
        typer.Option(help="Let the zones on this machine use one Spark; a zone with `spark:` has its own."),
    ] = True,
    quick: Quick = False,
    packages: Packages = "",
    conf: Conf = None,
    conf_file: ConfFile = None,
    listen: Listen = None,
    trust_code: TrustHttp = False,
    compute_limit: ComputeLimit = "5min",
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            help="[HOST:]PORT of /metrics for Prometheus; without a host, on this machine only.",
            show_default="nowhere",
        ),
    ] = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls: Tls = None,
    log_format: LogLines = "text",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print messages as JSON on standard output, one object per line.")
    ] = False,
) -> None:
    """Run the controller: reconcile zones with the store's desired state, until Ctrl-C.

    Zones with `at:` are reached at that address, with the site secret in HEADWATER_TOKEN, or in the file that
    HEADWATER_TOKEN_FILE names. The agents of all others are started on this machine, and keep running when the
    controller ends (`headwater down` ends all of it).
    --quick, --packages, --conf and --conf-file are for the agents that it starts.

    While nobody has a token (`headwater owner NAME --token`), REST API and dashboard are in trial mode: reachable
    from this machine only, with all rights, by the link that is printed on a terminal, and by the
    token in ~/.headwater/web-token.

    REST API, dashboard and metrics speak TLS where other machines reach them, by default with a certificate that is
    made in the home's directory `tls`.
    """
    from headwater.agent.agents import SETTINGS
    from headwater.app import deployments
    from headwater.continuum.model import Continuum
    from headwater.core.logs import begin_logging
    from headwater.core.quantity import parse_duration
    from headwater.disk.openfiles import allow_open_files
    from headwater.tracing.spans import begin_tracing, end_tracing

    allow_open_files()
    if log_format == "json":
        begin_logging(log_format)
    begin_tracing("headwater-controller")
    known = Continuum.from_yaml(continuum) if continuum else None
    nodes, zones = (known.nodes, known.zones) if known else ((), ())
    spark = spark_settings(packages, conf, conf_file)
    if spark.conf:
        write_settings(home / SETTINGS, spark)
    options = (
        *(("--quick",) if quick else ()),
        *(("--packages", ",".join(spark.packages)) if spark.packages else ()),
        *(("--conf-file", str((home / SETTINGS).absolute())) if spark.conf else ()),
        *(text for file in (*_files_of(store), *_key_of(tls_key)) for text in ("--keep-from", file)),
    )
    limit = None if compute_limit == "none" else parse_duration(compute_limit)
    if limit == 0:
        raise typer.BadParameter("--compute-limit must be longer than 0s")
    stop = stopped_by_signals()

    def tell(text: str) -> None:
        if as_json:
            print_line({"at": time.time(), "text": text})
        elif log_format == "json":
            logging.info(text)
        else:
            say(text)

    secured = TlsOptions(tls, tls_cert, tls_key)
    serving: dict[str, Any] = {"trust_code": trust_code, "zones": zones, "tls": secured, "compute_limit": limit}
    with served(listen, metrics, store, home, say=tell, **serving):
        deployments.up(store, home=home, options=options, shares_spark=share_spark, nodes=nodes, stop=stop, say=tell)
    end_tracing()
    tell("stopped; all units keep running")


def _files_of(store: str | None) -> tuple[str, ...]:
    """Return the files of a store on this machine."""
    if store is None or "://" in store:
        return ()
    path = str(Path(store).absolute())
    return (path, f"{path}-wal", f"{path}-shm", f"{path}-journal")


def _key_of(file: Path | None) -> tuple[str, ...]:
    """Return the path of a certificate's key, where there is one."""
    return (str(file.absolute()),) if file is not None else ()


def down(home: Home = Path(".headwater"), as_json: Json = False) -> None:
    """End all that `headwater up` runs on this machine: controller, agents, units, Sparks; their state stays."""
    from headwater.app import deployments

    ended = deployments.down(home)
    if as_json:
        print_json({"ended": ended})
    else:
        say(f"ended: {', '.join(ended)}" if ended else "no agent runs here")


def token(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The zone, or the host with an address.", show_default=False, autocompletion=complete.zones
        ),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Print a new site secret instead.")] = False,
    as_json: Json = False,
) -> None:
    """Print the credential of a zone's agent, derived from the site secret of the controller.

    Set it as HEADWATER_TOKEN of that agent. The site secret is read from HEADWATER_TOKEN, or from the file named
    by HEADWATER_TOKEN_FILE; keep it where `headwater up` runs, and nowhere else. With two secrets, separated by a
    comma, the agent accepts both.
    """
    import secrets

    from headwater.channels.credential import SiteSecret

    if new == (name is not None):
        raise typer.BadParameter("give the name of a zone, or --new")
    text = secrets.token_urlsafe(32) if name is None else SiteSecret.read().of(name).text
    if as_json:
        print_json({"name": name, "token": text})
    else:
        typer.echo(text)


# ---------------------------------------------------------------- parts


def loaded(flow: str, continuum: Path, *, trust_code: bool) -> tuple[Dataflow, Continuum]:
    """Load a trusted dataflow and a continuum."""
    from headwater.app import loading
    from headwater.continuum.model import Continuum

    found = loading.load_dataflow(flow)
    loading.check_trust(found, trust_code=trust_code)
    return found.dataflow, Continuum.from_yaml(continuum)


def canary_of(text: str | None, factor: float) -> CanarySettings | None:
    from headwater.core.quantity import parse_duration
    from headwater.plan.steps import CanarySettings

    return CanarySettings(seconds=parse_duration(text), factor=factor) if text is not None else None


def former_output(append: bool, overwrite: bool) -> FormerOutputChoice:
    """Return the choice of two options that exclude each other."""
    if append and overwrite:
        raise typer.BadParameter("--append and --overwrite exclude each other")
    return "append" if append else "overwrite" if overwrite else "refuse"


def show_change(planned: DeploymentPlan, found: Preview) -> None:
    """Show the changes of applying a plan."""
    from rich.console import Console

    from headwater.render.deployment import change_view

    for warning in planned.warnings:
        say(f"warning: {warning}")
    Console(highlight=False).print(change_view(planned.dataflow.name, found.diff, found.words))


def agree_on_terminal(yes: bool, *, as_json: bool) -> None:
    """Ask for confirmation on a terminal, unless given; elsewhere go on."""
    if not yes and not as_json and _is_terminal():
        agree(yes, as_json=as_json)


def _agreed(*, as_json: bool, what: str = "apply this?") -> bool:
    """Ask on a terminal; raise elsewhere."""
    if as_json or not _is_terminal():
        raise typer.BadParameter("cannot ask without a terminal: give --yes")
    return typer.confirm(what, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def follow(name: str, version: int, store: str | None, *, quiet: bool) -> None:
    """Follow a version to its end, with a bar on a terminal."""
    from headwater.app import deployments

    with Bar(f"{name}: version {version}") as bar:

        def observe(now: Status) -> None:
            done, steps = (now.change.done, now.change.steps) if now.change else (0, 0)
            bar.at(done, total=steps or None, what=f"{name}: {now.phase}")

        tell = (lambda text: None) if quiet else bar.say
        ended = deployments.follow(name, version, store, stop=stopped_by_signals(), observe=observe, say=tell)
    if ended is None:
        say("stopped waiting; the controller continues")
