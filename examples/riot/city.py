"""Sensors of three cities, as in RIoTBench's SYS stream, and what its four dataflows share.

Ranges and window sizes are those of RIoTBench's ``tasks_CITY.properties``; cities, sensors and units are ours.
"""

from __future__ import annotations

from pathlib import Path

import headwater as hw
from headwater import iot
from headwater.dataflow.stream import Stream

HERE = Path(__file__).resolve().parent
DATA, RESULTS = str(HERE / "data"), str(HERE / "results")

CITIES = ("boston", "geneva", "singapore")
SENSORS = tuple(f"{city}-{n}" for city in CITIES for n in range(1, 5))
"""The sensors that are known: members of the Bloom filter, and keys of the metadata."""
METADATA = {sensor: f"{sensor.partition('-')[0]},{'roof' if sensor.endswith('1') else 'street'}" for sensor in SENSORS}

RANGES = {
    "temperature": (-12.5, 43.1),
    "humidity": (10.7, 95.2),
    "light": (1345.0, 26282.0),
    "dust": (186.61, 5188.21),
    "airquality_raw": (17.0, 363.0),
}
FIELDS = tuple(RANGES)
UNITS = {"temperature": "Cel", "humidity": "%RH", "light": "lx", "dust": "1/l", "airquality_raw": "mV"}
META = ("longitude", "latitude")
FEATURES, TARGET = FIELDS[:4], FIELDS[4]
"""Columns by which air quality is predicted, and that of air quality."""
MODEL = "ts timestamp, kind string, name string, samples bigint"
"""The message that tells of a trained model: ``kind`` is MLR (linear regression) or DTC (decision tree)."""


def readings(f: hw.DataflowBuilder, data: str) -> Stream:
    """Read the packs in ``{data}/packs/{city}``: a row per reading, with its city and its sensor's position."""
    packs = f.read.json(f"{data}/packs/{{location}}", iot.PACK, location_as="city").named("packs")
    return iot.parse_senml(packs, fields=FIELDS, meta=META)


def publish(rows: Stream, name: str, *, results: str | None, broker: str | None) -> None:
    """Publish rows to a broker's topic ``riot/{name}``; without broker, write them to JSON files in a directory.

    Keep them in memory without both.
    """
    if broker is not None:
        iot.publish_mqtt(rows, f"riot/{name}", broker=broker).named(name)
    elif results is not None:
        rows.write.json(f"{results}/{name}").named(name)
    else:
        rows.write.memory(name)
