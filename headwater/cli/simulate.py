"""The command that replays rates through schedulers. Thin, as ``headwater.cli`` is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli import complete
from headwater.cli import place as placing
from headwater.cli.bars import Bar
from headwater.cli.control import ContinuumFile, Flow
from headwater.cli.out import Json, print_json
from headwater.cli.place import Confidence, MaxBandwidth, MaxLatency, MinBandwidth, ProfileFiles, WeightsOf

TraceFile = Annotated[
    Path, typer.Option("--trace", help="Rates as CSV: time,source,location,rate.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(simulate)


def simulate(
    flow: Flow,
    continuum: ContinuumFile,
    trace: TraceFile,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            help="Schedulers to compare; annotated: by the dataflow's annotations.",
            autocompletion=complete.schedulers,
        ),
    ] = "tsoo_exact,atsoo_h,annotated",
    profile: ProfileFiles = None,
    max_latency: MaxLatency = None,
    max_bandwidth: MaxBandwidth = None,
    min_bandwidth: MinBandwidth = None,
    confidence: Confidence = None,
    weights: WeightsOf = None,
    forecast: Annotated[
        str | None,
        typer.Option(
            "--forecast",
            help="Decide on predicted rates: last, ewma, trend or holt_winters.",
            show_default="the actual rates",
            autocompletion=complete.forecasts,
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw a PNG as well.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Replay a trace of rates through schedulers: limits kept, cost, and number of changes."""
    from rich.console import Console

    from headwater.app import loading, simulation
    from headwater.continuum.model import Continuum
    from headwater.plan.place import PlacementRequest

    names = list(dict.fromkeys(name.strip() for name in strategy.split(",")))
    limits, counted = (
        placing.read_limits(max_latency, max_bandwidth, min_bandwidth, confidence),
        placing.read_weights(weights),
    )
    desired_states = [PlacementRequest(strategy=name, limits=limits, weights=counted) for name in names]
    loaded = loading.load_dataflow(flow)
    name = loaded.dataflow.name
    with Bar("simulating") as bar:
        found = simulation.simulate(
            loaded.dataflow,
            Continuum.from_yaml(continuum),
            trace,
            desired_states,
            profile=placing.read_profiles(profile, name).get(name),
            forecast=forecast,
            observe=lambda one, done, of: bar.at(done, total=of, what=f"simulating {one}"),
        )
    from headwater.render.simulate import draw, simulation_view

    if plot is not None:
        draw(found, plot, limits)
    if as_json:
        from headwater.placement.replay import simulated

        print_json(simulated(found))
    else:
        Console(highlight=False).print(simulation_view(found, limits))
