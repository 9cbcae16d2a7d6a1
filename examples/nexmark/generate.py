"""Write the events of the Nexmark benchmark, seeded: people, auctions and bids, as CSV files of five locations.

``python -m examples.nexmark.generate --events 100000 --seed 1 --out DIR`` writes, without a header::

    {location}/person/person-0001.csv ...   the columns of PERSON in streams.py
    {location}/auction/auction-0001.csv ... those of AUCTION
    {location}/bid/bid-0001.csv ...         those of BID
    side_input.csv                          key,value of query 13

Proportions, ids and values follow the published generator: of 50 events, one is a person, three are auctions and 46
are bids; ids increase, and an auction or a bid may name a person or an auction that comes a little later; of two bids
one is for the hot auction, of four bids three are by the hot bidder, of four auctions three are by the hot seller; the
price is 100 times a power of ten between 0 and 6; an auction lasts up to twice the time in which ``in_flight`` further
auctions begin. ``extra`` fills a row up to the published size.

Two things are added. Each person has a home location, where the person enters, sells and bids; so the rows of a
location are those of its people. And a share ``late`` of the events is written up to ``LATENESS_S`` after its time, so
that event time is out of order within a bound.
"""

from __future__ import annotations

import argparse
import heapq
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from math import ceil
from pathlib import Path

from examples.nexmark.streams import KINDS, LOCATIONS, SIDE_ROWS, Bounds

PEOPLE, AUCTIONS, BIDS = 1, 3, 46  # of EPOCH events
EPOCH = PEOPLE + AUCTIONS + BIDS
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
HOT_BATCH = 100  # one of so many people, or auctions, is hot
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS, HOT_CHANNELS = 2, 4, 4, 2  # all but one of so many events name the hot one
LEAD = 10  # people or auctions that may be named before they come
CHANNELS = 10_000
LATENESS_S = 3.0
SIZES = {"person": 200, "auction": 500, "bid": 100}  # bytes of a row, on average, as the published generator counts
NUMBER = 8  # bytes of a number or a time

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Event:
    """One event: its location, its kind, its time in microseconds UTC and its line of CSV."""

    location: str
    kind: str
    micros: int
    line: str


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is generated: ``rate`` events a second of event time over all locations, from ``start`` on."""

    rate: float = 1000.0
    seed: int = 1
    start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)
    in_flight: int = 100
    active_people: int = 1000
    late: float = 0.1

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.in_flight < 1 or self.active_people < 1:
            raise ValueError("rate, in_flight and active_people must be positive")
        if not 0 <= self.late <= 1:
            raise ValueError(f"late is {self.late}: give a share between 0 and 1")

    @property
    def bounds(self) -> Bounds:
        """Return the longest times between an event and the auction or person that it names."""
        back = EPOCH * (max(self.in_flight, HOT_BATCH) // AUCTIONS + 2)
        life = 2 * self.in_flight * EPOCH / AUCTIONS + self.rate  # ends are rounded up by less than a second
        people = EPOCH * (max(self.active_people, HOT_BATCH) + 1)
        return Bounds(
            auction=ceil(max(back, life) / self.rate),
            person=ceil(people / self.rate),
            lead=ceil(EPOCH * (LEAD + 1) / self.rate),
        )

    def micros(self, number: int) -> int:
        """Return the time of an event, in whole milliseconds as microseconds since 1970."""
        return int(self.start.timestamp() * 1000 + number * 1000 / self.rate) * 1000


def events(count: int, workload: Workload) -> Iterator[Event]:
    """Yield this number of events in the order in which they are written: late ones after their time."""
    delays = random.Random(f"late/{workload.seed}")
    held: list[tuple[int, int, Event]] = []
    for number, event in enumerate(in_order(count, workload)):
        late = workload.late and delays.random() < workload.late
        due = event.micros + (int(delays.random() * LATENESS_S * 1e6) if late else 0)
        heapq.heappush(held, (due, number, event))
        while held and held[0][0] <= event.micros:
            yield heapq.heappop(held)[2]
    while held:
        yield heapq.heappop(held)[2]


def in_order(count: int, workload: Workload) -> Iterator[Event]:
    """Yield this number of events in the order of event time."""
    draw, texts = random.Random(workload.seed), _Texts(workload.seed)
    for number in range(count):
        epoch, offset = divmod(number, EPOCH)
        micros = workload.micros(number)
        if offset < PEOPLE:
            person = epoch + FIRST_ID
            yield Event(home(person, workload.seed), "person", micros, _person(person, micros, draw, texts))
        elif offset < PEOPLE + AUCTIONS:
            auction = epoch * AUCTIONS + offset - PEOPLE
            seller = _named_person(epoch, draw, workload, hot=HOT_SELLERS, place=0) + FIRST_ID
            line = _auction(auction + FIRST_ID, seller, micros, draw, texts, workload)
            yield Event(home(seller, workload.seed), "auction", micros, line)
        else:
            auction = _named_auction(epoch, draw, workload) + FIRST_ID
            # The second of a batch: hot bidders and hot sellers are different people.
            bidder = _named_person(epoch, draw, workload, hot=HOT_BIDDERS, place=1) + FIRST_ID
            yield Event(home(bidder, workload.seed), "bid", micros, _bid(auction, bidder, micros, draw, texts))


@cache
def home(person: int, seed: int) -> str:
    """Return the location of a person."""
    return LOCATIONS[zlib.crc32(f"{seed}/{person}".encode()) % len(LOCATIONS)]


def price(draw: random.Random) -> int:
    """Draw a price: 100 to 100,000,000, evenly spread on a logarithmic scale."""
    return round(10 ** (draw.random() * 6) * 100)


def _named_person(epoch: int, draw: random.Random, workload: Workload, *, hot: int, place: int) -> int:
    """Draw the person whom an event names: the hot one, or one of the active people and a few to come."""
    if draw.randrange(hot) > 0:
        return epoch // HOT_BATCH * HOT_BATCH + place
    people = epoch + 1
    active = min(people, workload.active_people)
    return people - active + draw.randrange(active + LEAD)


def _named_auction(epoch: int, draw: random.Random, workload: Workload) -> int:
    """Draw the auction that a bid names: the hot one, or one of those in flight and a few to come."""
    last = epoch * AUCTIONS + AUCTIONS - 1
    if draw.randrange(HOT_AUCTIONS) > 0:
        return last // HOT_BATCH * HOT_BATCH
    first = max(last - workload.in_flight, 0)
    return first + draw.randrange(last - first + 1 + LEAD)


def _person(person: int, micros: int, draw: random.Random, texts: _Texts) -> str:
    values = [
        str(person),
        f"{draw.choice(_FIRST)} {draw.choice(_LAST)}",
        f"{texts.short(draw, 7)}@{texts.short(draw, 5)}.com",
        " ".join(f"{draw.randrange(10_000):04d}" for _ in range(4)),
        draw.choice(_CITIES),
        draw.choice(_STATES),
        _text(micros),
    ]
    return _filled(values, SIZES["person"] - NUMBER - sum(map(len, values[1:6])), draw, texts)


def _auction(auction: int, seller: int, micros: int, draw: random.Random, texts: _Texts, workload: Workload) -> str:
    category = FIRST_CATEGORY + draw.randrange(CATEGORIES)
    begin = price(draw)
    horizon_ms = workload.in_flight * EPOCH / AUCTIONS / workload.rate * 1000
    expires = micros + (1 + draw.randrange(max(int(horizon_ms * 2), 1))) * 1000
    item, description = texts.short(draw, 20), texts.short(draw, 100)
    values = [
        *(str(auction), item, description, str(begin), str(begin + price(draw))),
        *(_text(micros), _text(expires), str(seller), str(category)),
    ]
    return _filled(values, SIZES["auction"] - 6 * NUMBER - len(item) - len(description), draw, texts)


def _bid(auction: int, bidder: int, micros: int, draw: random.Random, texts: _Texts) -> str:
    paid = price(draw)
    if draw.randrange(HOT_CHANNELS) > 0:
        channel = draw.choice(_HOT_CHANNELS)
        url = texts.url(channel)
    else:
        number = draw.randrange(CHANNELS)
        channel = f"channel-{number}"
        url = texts.url(channel)
        if zlib.crc32(channel.encode()) % 10:  # a channel always has one address
            url += f"&channel_id={int(f'{number:032b}'[::-1], 2)}"
    values = [str(auction), str(bidder), str(paid), channel, url, _text(micros)]
    return _filled(values, SIZES["bid"] - 4 * NUMBER, draw, texts)


def _filled(values: list[str], missing: int, draw: random.Random, texts: _Texts) -> str:
    """Return the line of a row with ``extra``, whose size is within a fifth of the missing bytes."""
    extra = texts.exact(draw, draw.randint(round(missing * 0.8), round(missing * 1.2))) if missing > 0 else ""
    return ",".join((*values, extra))


class _Texts:
    """Random texts, cut from one long one."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(f"texts/{seed}")
        self._seed = seed
        self._pool = "".join(draw.choices(_LETTERS, k=65_536))

    def exact(self, draw: random.Random, size: int) -> str:
        """Return a text of this size."""
        at = draw.randrange(len(self._pool) - size)
        return self._pool[at : at + size]

    def short(self, draw: random.Random, most: int) -> str:
        """Return a text of 3 or more letters."""
        return self.exact(draw, 3 + draw.randrange(most - 2))

    @cache  # noqa: B019 - a generator has one, with 10,004 channels
    def url(self, channel: str) -> str:
        """Return the address of a channel."""
        draw = random.Random(f"url/{self._seed}/{channel}")
        parts = "/".join(self.exact(draw, 5) for _ in range(3))
        return f"https://www.nexmark.com/{parts}/item.htm?query=1"


def write_files(out: Path, count: int, workload: Workload, *, files: int = 4) -> Iterator[Path]:
    """Write the events in ``files`` parts, in the order in which they come, and yield each file once it is complete."""
    if files < 1:
        raise ValueError(f"files is {files}: give at least 1")
    out.mkdir(parents=True, exist_ok=True)
    for location in LOCATIONS:
        for kind in KINDS:
            (out / location / kind).mkdir(parents=True, exist_ok=True)
    side = out / "side_input.csv"
    side.write_text("".join(f"{key},value-{key}\n" for key in range(SIDE_ROWS)))
    yield side
    source, size = events(count, workload), -(-count // files)
    for number in range(1, files + 1):
        parts: dict[Path, list[str]] = {}
        for event in islice(source, size):
            path = out / event.location / event.kind / f"{event.kind}-{number:04d}.csv"
            parts.setdefault(path, []).append(event.line)
        for path, lines in parts.items():
            hidden = path.with_name(f".{path.name}.part")
            hidden.write_text("".join(f"{line}\n" for line in lines))
            hidden.replace(path)
            yield path


def _text(micros: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write events from the command line."""
    default = Workload()
    parser = argparse.ArgumentParser(
        prog="examples.nexmark.generate", description="Write seeded events of the Nexmark benchmark as CSV."
    )
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--events", type=int, default=100_000, help="number of events (default %(default)s)")
    parser.add_argument("--rate", type=float, default=default.rate, help="events per second of event time")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--late", type=float, default=default.late, help="share of events that are written late")
    parser.add_argument("--files", type=int, default=4, help="files of each kind and location")
    given = parser.parse_args(arguments)
    if given.events < 1 or given.files < 1:
        parser.error("--events and --files must be at least 1")
    try:
        workload = Workload(rate=given.rate, seed=given.seed, late=given.late)
    except ValueError as error:
        parser.error(str(error))
    written = sum(1 for _ in write_files(given.out, given.events, workload, files=given.files))
    print(f"{given.events} events in {written} files under {given.out}; {workload.bounds}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
