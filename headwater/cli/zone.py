"""The command that runs a zone's agent."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import bounds, complete
from headwater.cli.out import LogLines, print_line
from headwater.cli.serve import Tls, TlsCertificate, TlsKey
from headwater.cli.signals import STOPS, SignalEvent, on_signals
from headwater.cli.sparkoptions import Conf, ConfFile, Packages, Quick, spark_settings
from headwater.core.errors import DeploymentError

if TYPE_CHECKING:
    from headwater.core.permissions import Permissions
    from headwater.core.requirement import Capabilities

_CLOSE_SECONDS = 5.0


def _allow(option: str, what: str) -> Any:
    return typer.Option(option, help=f"{what}; repeatable, '*' for all.", show_default="nothing")


AllowRead = Annotated[list[str] | None, _allow("--allow-read", "A directory or URL that dataflows may read")]
AllowWrite = Annotated[list[str] | None, _allow("--allow-write", "A directory that dataflows may write")]
AllowConnect = Annotated[
    list[str] | None, _allow("--allow-connect", "HOST:PORT that dataflows may connect to, such as *.plant:5432")
]
AllowSecret = Annotated[
    list[str] | None, _allow("--allow-secret", "A secret, such as DB_PASSWORD, that dataflows may send to these hosts")
]


class WhenFull(StrEnum):
    """Action of a unit whose output buffer is full."""

    block = "block"
    drop_oldest = "drop_oldest"
    drop_newest = "drop_newest"
    fail = "fail"


class Delivery(StrEnum):
    """Delivery of a channel whose writer failed in mid-batch."""

    exactly_once = "exactly_once"
    at_least_once = "at_least_once"


def zone(
    name: Annotated[
        str,
        typer.Argument(
            help="The zone's name in the continuum.",
            show_default=False,
            autocompletion=complete.zones,
        ),
    ],
    directory: Annotated[Path, typer.Option("--dir", help="Directory of all its data.", show_default=False)],
    listen: Annotated[str, typer.Option(help="host:port; port 0 takes a free one.")] = "127.0.0.1:7070",
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls: Tls = None,
    cores: Annotated[
        int | None,
        typer.Option(help="Cores for Spark, 1 to 4096.", parser=bounds.CORES, show_default="the host's n_cpu"),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Heap of Spark.", show_default="half the host's memory")] = None,
    packages: Packages = "",
    conf: Conf = None,
    conf_file: ConfFile = None,
    share_spark: Annotated[
        Path | None,
        typer.Option(
            help="Directory of a Spark that agents of this machine share; not for a zone with `spark:`. No catch-up.",
            show_default=False,
        ),
    ] = None,
    quick: Quick = False,
    trigger: Annotated[
        str, typer.Option(help="Time between two batches, 0s to 24h.", parser=bounds.trigger)
    ] = "500 milliseconds",
    max_buffer: Annotated[
        str, typer.Option(help="Largest size of one channel on disk, from 4KiB.", parser=bounds.MAX_BUFFER)
    ] = "1GiB",
    when_full: Annotated[WhenFull, typer.Option(help="What to do when a channel is full.")] = WhenFull.block,
    delivery: Annotated[
        Delivery, typer.Option(help="Delivery of the channels it writes; at least once is faster.")
    ] = Delivery.exactly_once,
    state_store: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_STATE_STORE",
            help="Store for state transfers: a directory or URI, the same for all zones.",
            show_default=False,
        ),
    ] = None,
    catch_up: Annotated[
        bool,
        typer.Option(
            envvar="HEADWATER_CATCH_UP",
            help="Let a unit that moves here catch up with the running one before it takes over.",
        ),
    ] = True,
    offer: Annotated[
        list[str] | None,
        typer.Option(
            "--offer",
            help="A capability of its host, such as gpu=true; cores and memory are measured. Repeatable.",
            show_default=False,
        ),
    ] = None,
    idle: Annotated[
        str,
        typer.Option(
            help="Time without units after which its Spark ends; the next unit starts it again.",
            parser=bounds.IDLE,
        ),
    ] = "5min",
    allow_read: AllowRead = None,
    allow_write: AllowWrite = None,
    allow_connect: AllowConnect = None,
    allow_secret: AllowSecret = None,
    keep_from: Annotated[
        list[Path] | None,
        typer.Option(
            "--keep-from",
            help="A further path of Headwater's own, out of reach of dataflows; repeatable.",
            show_default="its --dir, --state-store, ~/.headwater",
        ),
    ] = None,
    stand_in: Annotated[
        bool,
        typer.Option("--stand-in", help="Accept every requirement of the plan, for tests."),
    ] = False,
    log_format: LogLines = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print its address as a line of JSON.")] = False,
) -> None:
    """Run the agent of a zone, or of a host that has an address of its own: its Spark, units and links.

    Dataflows may read, write and reach only what the --allow options list, whatever the controller sends.

    HEADWATER_TOKEN holds its credential, which `headwater token NAME` prints, or HEADWATER_TOKEN_FILE names a file
    with it. Units keep running when the agent is killed, and the next agent adopts them; SIGTERM ends units and
    Spark, SIGINT (Ctrl-C) and SIGHUP the agent only.

    Without --tls-cert it makes a certificate of its own, in its directory, which the controller recognizes by the
    credential.
    """
    import logging

    from headwater.agent.agent import Agent
    from headwater.channels.credential import own_credential
    from headwater.channels.logserver import LogServer
    from headwater.core.address import PLAIN, TLS, is_loopback
    from headwater.core.logs import begin_logging
    from headwater.core.quantity import parse_duration, parse_heap, parse_size
    from headwater.disk.durable import make_directory, write_atomically
    from headwater.disk.openfiles import allow_open_files
    from headwater.disk.settings import ChannelSettings, UnitSettings
    from headwater.spark.sparks import Sparks
    from headwater.tls.listener import clear_text_warning, listener_tls
    from headwater.tracing.spans import begin_tracing, end_tracing

    begin_logging(log_format, zone=name)
    allow_open_files()
    begin_tracing("headwater-agent", **{"headwater.zone": name})
    directory = directory.resolve()
    make_directory(directory)
    credential, derived = own_credential(name)
    if derived:
        logging.warning("this agent has the site secret: give it only its credential, by `headwater token %s`", name)
    permissions = _permissions(read=allow_read, write=allow_write, connect=allow_connect, secrets=allow_secret)
    sparks = Sparks(
        directory / "spark",
        cores=cores,
        memory_mb=parse_heap(memory) if memory else None,
        quick=quick,
        settings=spark_settings(packages, conf, conf_file),
        secrets=permissions.secrets,
        shared=share_spark,
    )
    channel = ChannelSettings(max_bytes=parse_size(max_buffer), when_full=when_full.value, delivery=delivery.value)
    settings = UnitSettings(
        trigger=trigger, channel=channel, state_store=state_store, catch_up=catch_up and share_spark is None
    )
    if stand_in and offer:
        raise typer.BadParameter("--offer and --stand-in exclude each other")
    offers = None if stand_in else offers_of(offer or ())
    agent = Agent(
        name,
        directory,
        sparks,
        settings,
        offers=offers,
        idle=parse_duration(idle),
        permissions=permissions,
        reserved=[*(keep_from or ()), *(file for file in (tls_cert, tls_key, conf_file) if file is not None)],
    )
    tell: Callable[[str], None] = logging.info if log_format == "json" else typer.echo
    host = listen.rpartition(":")[0]
    with _only_agent(directory):
        secured = listener_tls(
            host, directory / "tls", asked=tls, certificate=tls_cert, key=tls_key, credential=credential
        )
        pair = secured.pair if secured else None
        server = LogServer(
            listen,
            credential=credential,
            find=agent.find_log,
            actions=agent.actions(),
            tls=pair,
            sent_meter=agent.sent_meter,
        )
        scheme = TLS if secured else "" if is_loopback(host) else PLAIN
        address = f"{scheme}{host}:{server.port}"
        warning = clear_text_warning(host) if secured is None else None
        if warning:
            logging.warning("this agent listens at %s %s", address, warning)
        done = SignalEvent()
        how: list[int] = []

        def end(number: int) -> None:
            how.append(number)
            done.set()

        on_signals((*STOPS, signal.SIGHUP), end)
        agent.begin()
        record = {
            "node": name,
            "pid": os.getpid(),
            "address": address,
            "certificate": secured.fingerprint if secured else None,
        }
        write_atomically(directory / "agent.json", json.dumps(record))
        if as_json:
            print_line(record)
        else:
            tell(f"{name} listens at {address}{f', certificate {secured.fingerprint}' if secured else ''}")
        done.wait()
        units = signal.SIGTERM in how
        if not as_json:
            tell("ending with its units" if units else "ending; its units keep running")
        agent.end(units=units)
        end_tracing()
        closing = threading.Thread(target=server.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        (directory / "agent.json").unlink(missing_ok=True)
    # Requests that still wait must not keep the process alive.
    os._exit(0)


def _permissions(**lists: list[str] | None) -> Permissions:
    """Return the agent's permissions of its options; refuse malformed ones."""
    from headwater.core.permissions import Permissions, malformed

    for kind, entries in lists.items():
        for entry in entries or ():
            if (hint := malformed(kind, entry)) is not None:
                raise typer.BadParameter(f"--allow-{kind.removesuffix('s')} {entry}: {hint}")
    return Permissions(**{kind: tuple(entries or ()) for kind, entries in lists.items()})


def offers_of(given: Sequence[str]) -> Capabilities:
    """Return the host's capabilities: cores and memory as measured, and those of --offer."""
    from headwater.core.requirement import Capabilities, Requirement
    from headwater.spark.cores import share_of
    from headwater.spark.memory import memory_total

    cores = share_of(os.getpid())
    found: dict[str, object] = {"n_cpu": int(cores) if cores.is_integer() else cores, "memory": memory_total()}
    for text in given:
        predicates = Requirement.parse(text, where="--offer").predicates
        if any(p.operator != "=" for p in predicates):
            raise typer.BadParameter(f"--offer {text}: write NAME=VALUE, such as gpu=true")
        found |= {p.attribute: p.value for p in predicates}
    return Capabilities(found)


class _only_agent:  # noqa: N801 (reads as a statement)
    """Keep a second agent out of a directory."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / ".agent.lock"

    def __enter__(self) -> None:
        import fcntl

        self._open = self._file.open("a")
        try:
            fcntl.flock(self._open, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._open.close()
            raise DeploymentError(
                "an agent runs in this directory", where=str(self._file.parent), hint="give another --dir"
            ) from error

    def __exit__(self, *_: object) -> None:
        self._open.close()
