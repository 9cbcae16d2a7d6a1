"""Options of commands that choose a placement. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import bounds, complete
from headwater.cli.bars import Bar
from headwater.cli.out import say
from headwater.core.text import cut

if TYPE_CHECKING:
    from headwater.app.client import PlanRequest
    from headwater.continuum.model import Continuum
    from headwater.dataflow.graph import Dataflow
    from headwater.placement.situation import Limits
    from headwater.placement.usage import Weights
    from headwater.plan.profile import Profile
    from headwater.spark.profiling import ProfiledOperator

Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        help="Choose layers by: optimal, local_search, aels_rp_la, aels_rp, aels, cloud_only, tcep; for each "
        "location by: tsoo_exact, tsoo_robust, atsoo_h, tsoo_h, trcs, fog_only, fc_interplay; "
        "or annotated, by the dataflow's annotations.",
        show_default="annotated",
        autocompletion=complete.strategies,
    ),
]
ProfileFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        help="Operator costs, as JSON (default: assumed); repeatable for other running dataflows.",
        show_default=False,
    ),
]
Compare = Annotated[bool, typer.Option("--compare", help="Compare with all other strategies.")]
MaxLatency = Annotated[
    str | None,
    typer.Option(
        "--max-latency",
        parser=bounds.MAX_LATENCY,
        help="Maximum time from source to sink, such as 1s.",
        show_default="no limit",
    ),
]
MaxBandwidth = Annotated[
    str | None,
    typer.Option("--max-bandwidth", help="Maximum rate into the top layer, such as 125MB/s.", show_default="no limit"),
]
MinBandwidth = Annotated[
    str | None,
    typer.Option(
        "--min-bandwidth", help="Rate into the top layer below which trcs moves operators up.", show_default="50MB/s"
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        "--confidence",
        parser=bounds.CONFIDENCE,
        help="Probability with which tsoo_robust keeps the limits, 0 to 1.",
        show_default="0.9",
    ),
]
Rewrite = Annotated[
    bool,
    typer.Option(
        "--rewrite",
        help="Choose an equivalent dataflow that sends less over links; without marks (to_layer), its layers too.",
    ),
]
WithoutRules = Annotated[
    list[str] | None,
    typer.Option(
        "--no-rewrite-rule",
        help="With --rewrite: a rule to leave out (filter-down, filter-order, select-down, prune-columns, semi-join, "
        "split-aggregate, group-values, drop-early or gather-streams); repeatable.",
        show_default=False,
    ),
]
WeightsOf = Annotated[
    str | None,
    typer.Option("--weights", help="Weights of hosts and network in the cost.", show_default="cpu=0.5,network=0.5"),
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(profile)


def profile(
    flow: Annotated[str, typer.Argument(help="flow.py, flow.py:name or flow.json", show_default=False)],
    sample: Annotated[
        list[str] | None,
        typer.Option(
            "--sample",
            help="Rows of a source: SOURCE=PATH, or PATH where there is one source; {location} is filled in.",
            show_default="the sources' own paths",
        ),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            "--rate",
            help="Rows/s of a source at a location: SOURCE=NUMBER.",
            show_default="by the sample's event times",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the profile.")] = Path("profile.json"),
    cores: Annotated[
        int | None, typer.Option(help="Cores for Spark, 1 to 4096.", parser=bounds.CORES, show_default="all")
    ] = None,
    memory: Annotated[str, typer.Option(help="Heap of Spark, such as 1g or 512m.")] = "1g",
    repeats: Annotated[
        int, typer.Option(help="Runs of each operator, 1 to 1000; the median counts.", parser=bounds.REPEATS)
    ] = 3,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the pickled functions of a JSON dataflow.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as well.")] = False,
) -> None:
    """Measure on Spark the cost, output and state of each operator, over a sample; write a profile for --profile."""
    from headwater.app import loading, profiles
    from headwater.core.quantity import parse_heap

    memory_mb = parse_heap(memory)
    loaded = loading.load_dataflow(flow)
    loading.check_trust(loaded, trust_code=trust_code)
    dataflow = loaded.dataflow
    given = {name: {"*": value} for name, value in _rates(dataflow, rate or ()).items()}
    count = 0
    with Bar("starting Spark", total=len(dataflow.operators)) as bar:

        def observe(seen: ProfiledOperator) -> None:
            nonlocal count
            cost = "too few to tell" if seen.cpu_s is None else f"{seen.cpu_s * 1e6:.2f} µs of a core each"
            bar.say(f"{seen.operator}: {seen.rows_in:,} rows in, {seen.rows_out:,} out, {cost}")
            count += 1
            bar.at(count, what="measuring")

        found = profiles.profile(
            dataflow,
            _samples(dataflow, sample or ()),
            cores=cores,
            memory_mb=memory_mb,
            repeats=repeats,
            python_path=(str(loaded.directory),) if loaded.directory else (),
            observe=observe,
        )
    found = found.model_copy(update={"rates": {**found.rates, **given}})
    out.write_text(found.to_json(), encoding="utf-8")
    if as_json:
        typer.echo(found.to_json(), nl=False)
    say(f"written to {out}")


def _samples(dataflow: Dataflow, given: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse --sample: for each source a path by location."""
    sources = {source.id: source for source in dataflow.sources}
    own = {name: getattr(source, "path", None) for name, source in sources.items()}
    found = {name: path for name, path in own.items() if isinstance(path, str)}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals:
            if len(sources) != 1:
                raise typer.BadParameter(f"--sample {text}: name the source, as SOURCE=PATH")
            name, path = next(iter(sources)), text
        if name not in sources:
            known = ", ".join(sources)
            raise typer.BadParameter(f"--sample {text}: there is no source '{name}', but {known}")
        found[name] = path
    every = dataflow.locations or ("sample",)
    places = {name: every if "{location}" in path else every[:1] for name, path in found.items()}
    return {name: {place: path.replace("{location}", place) for place in places[name]} for name, path in found.items()}


def _rates(dataflow: Dataflow, given: Sequence[str]) -> dict[str, float]:
    """Read --rate."""
    found: dict[str, float] = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise typer.BadParameter(f"--rate {cut(text, 200)}: write SOURCE=NUMBER, such as readings=500") from None
        if name not in {source.id for source in dataflow.sources} or not bounds.RATE.takes(found[name]):
            raise typer.BadParameter(
                f"--rate {cut(text, 200)}: a source of the dataflow, and a number from 0 to {bounds.RATE.most:.0f}"
            )
    return found


def requested(
    dataflow: Dataflow,
    continuum: Continuum,
    *,
    strategy: str | None = None,
    profile: Sequence[Path] | None = None,
    max_latency: str | None = None,
    max_bandwidth: str | None = None,
    min_bandwidth: str | None = None,
    confidence: float | None = None,
    weights: str | None = None,
    rewrite: bool = False,
    without_rules: Sequence[str] | None = None,
    **more: Any,
) -> PlanRequest:
    """Parse the options of a strategy into a plan request; ``more``: its other fields."""
    from headwater.app.client import PlanRequest

    given = {
        "--max-latency": max_latency,
        "--max-bandwidth": max_bandwidth,
        "--min-bandwidth": min_bandwidth,
        "--confidence": confidence,
        "--weights": weights,
    }
    if strategy is None:
        if named := [name for name, value in given.items() if value is not None]:
            raise typer.BadParameter(f"{named[0]} is for --strategy: name one, such as tsoo_exact")
        if profile and not rewrite:
            raise typer.BadParameter("--profile is for --strategy, such as --strategy optimal, and for --rewrite")
    if without_rules and not rewrite:
        raise typer.BadParameter("--no-rewrite-rule is for --rewrite: add it")
    return PlanRequest(
        dataflow=dataflow,
        continuum=continuum,
        strategy=strategy,
        limits=read_limits(max_latency, max_bandwidth, min_bandwidth, confidence),
        weights=read_weights(weights),
        profiles=read_profiles(profile, dataflow.name),
        rewrite=rewrite,
        without_rules=frozenset(without_rules or ()),
        **more,
    )


def read_limits(
    max_latency: str | None, max_bandwidth: str | None, min_bandwidth: str | None, confidence: float | None
) -> Limits:
    """Parse --max-latency, --max-bandwidth and --min-bandwidth."""
    from headwater.core.quantity import parse_bandwidth, parse_duration
    from headwater.placement.situation import Limits

    usual = Limits()
    return Limits(
        max_latency=math.inf if max_latency is None else parse_duration(max_latency),
        max_bandwidth=math.inf if max_bandwidth is None else parse_bandwidth(max_bandwidth),
        min_bandwidth=usual.min_bandwidth if min_bandwidth is None else parse_bandwidth(min_bandwidth),
        confidence=usual.confidence if confidence is None else confidence,
    )


def read_weights(text: str | None) -> Weights:
    """Read --weights."""
    from headwater.placement.usage import Weights

    if text is None:
        return Weights()
    found = {"cpu": 0.0, "network": 0.0}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            found["?"] = math.nan
    if set(found) != {"cpu", "network"} or not all(bounds.WEIGHT.takes(v) for v in found.values()):
        raise typer.BadParameter(
            f"--weights {cut(text, 200)}: write cpu=NUMBER,network=NUMBER, from 0 to {bounds.WEIGHT.most:.0f}"
        )
    return Weights(found["cpu"], found["network"])


def read_profiles(files: Sequence[Path] | None, name: str) -> dict[str, Profile]:
    """Read --profile files, by dataflow; a single one belongs to dataflow ``name``."""
    from headwater.app import profiles

    found = [profiles.read_profile(file) for file in files or ()]
    if len(found) == 1:
        return {name: found[0]}
    named = {profile.dataflow or name: profile for profile in found}
    if len(named) < len(found):
        raise typer.BadParameter("--profile: two files are for the same dataflow")
    return named
