"""Checks of untrusted requests: code, and unknown addresses.

A dataflow with pickled functions would run that code in the zones; a continuum with an unknown address would make the
controller send a token there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from headwater.app import deployments, loading
from headwater.app.loading import LoadedDataflow
from headwater.continuum.model import Continuum, Zone
from headwater.continuum.sparksettings import SparkSettings
from headwater.core.errors import DataflowError, Denied
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.optionlists import check_options

_HINT = "apply it with `headwater apply` there, or start the server with `headwater up --trust-code`"


def check_dataflow(dataflow: Dataflow, *, trusted: bool) -> None:
    """Raise Denied where a dataflow contains code, and DataflowError where a connector has an option or URL that is not
    on its allow-list: agents refuse it as well, also from trusted requests.
    """
    if trusted:
        return
    for operator in dataflow.operators:
        check_options(operator)
    try:
        loading.check_trust(LoadedDataflow(dataflow, "the request", is_code=False), trust_code=False)
    except DataflowError as error:
        raise Denied(error.what, where=error.where, hint=_HINT) from error


def check_continuum(continuum: Continuum, store_url: str | None, *, known: Iterable[Zone] = (), trusted: bool) -> None:
    """Raise Denied for addresses, packages or settings of Spark that are neither known nor in an active plan."""
    named = {a: zone.name for zone in continuum.zones for a in _addresses(zone)}
    set_ = {_loading(zone): zone.name for zone in continuum.zones}
    if trusted or not (named or set_.keys() - {SparkSettings()}):
        return
    zones = [*known, *(z for plan in deployments.in_force(store_url).values() for z in plan.continuum.zones)]
    there = {a for zone in zones for a in _addresses(zone)}
    for settings, name in set_.items():
        if settings not in {SparkSettings(), *map(_loading, zones)}:
            raise Denied(
                "names packages or settings of Spark, by which code can be loaded",
                where=f"the request, zone {name}",
                hint=_HINT,
            )
    for address, zone in named.items():
        if address not in there:
            raise Denied(
                f"'{address}' is an unknown address",
                where=f"the request, zone {zone}",
                hint="start the server with `headwater up -c` and the continuum, or apply it there first",
            )


def _loading(zone: Zone) -> SparkSettings:
    """Return the settings of a zone by which code can be loaded."""
    return replace(zone.spark_settings, small=False)


def _addresses(zone: Zone) -> Iterator[str]:
    for node in zone.nodes:
        if node.at is not None:
            yield node.at
        if node.spark not in (None, "local"):
            yield str(node.spark)
    if zone.broker is not None:
        yield str(zone.broker.to_data())
