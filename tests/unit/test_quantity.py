"""Sizes, bandwidths and durations: parsing, refusals, formatting."""

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import HeadwaterError
from headwater.core.quantity import (
    MOST_BITS_PER_S,
    MOST_BYTES,
    MOST_SECONDS,
    QuantityError,
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth,
    parse_duration,
    parse_heap,
    parse_interval,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GiB", 16 * 2**30),
        ("512 MB", 512 * 10**6),
        (" 1.5 KiB ", 1536),
        (".5kB", 500),
        ("10kb", 10_000),
        ("2gib", 2 * 2**30),
        ("0B", 0),
        ("0.1GiB", 107374182),
        ("2PiB", 2 * 2**50),
        ("9007199254740993B", 2**53 + 1),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "16", "2g", "2G", "16Mb", "1b", "-1GiB", "1e3MB", "1,5GB", "GiB", "1 2 MB", "٣MB", "9" * 5000 + "B"],
)
def test_no_size(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_size(text)
    assert isinstance(caught.value, HeadwaterError)
    assert isinstance(caught.value, ValueError)
    assert text[:50] in str(caught.value)
    assert "16GiB" in str(caught.value.hint)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("10Mbit/s", 1e7),
        ("10mbit", 1e7),
        ("10 MBit/s", 1e7),
        ("125MB/s", 1e9),
        ("1Gbit/s", 1e9),
        ("1Kibit/s", 1024.0),
        ("1KiB/s", 8192.0),
        ("9600 bit/s", 9600.0),
        ("0.1kbit/s", 100.0),
    ],
)
def test_bandwidth(text: str, bandwidth: float) -> None:
    assert parse_bandwidth(text) == bandwidth


@pytest.mark.parametrize("text", ["10Mbps", "10mbps", "10Mb/s", "10mb/s", "10", "10MB", "fast", "9" * 390 + "Gbit"])
def test_no_bandwidth(text: str) -> None:
    with pytest.raises(QuantityError, match=text[:20]):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("10ms", 0.01),
        ("1.5 s", 1.5),
        ("30 seconds", 30.0),
        ("2 min", 120.0),
        ("1h", 3600.0),
        ("1 Day", 86400.0),
        ("5us", 5e-6),
        ("5µs", 5e-6),
        ("0s", 0.0),
    ],
)
def test_duration(text: str, duration: float) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["10", "10m", "1h30min", "-1s", "soon", "1 s s"])
def test_no_duration(text: str) -> None:
    with pytest.raises(QuantityError, match=text):
        parse_duration(text)


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (format_size(0), "0B"),
        (format_size(16 * 2**30), "16GiB"),
        (format_size(16 * 10**9), "16GB"),
        (format_size(123456789), "118MiB"),
        (format_size(123456789, exact=True), "123456789B"),
        (format_size(-1024), "-1KiB"),
        (format_bandwidth(None), "unlimited"),
        (format_bandwidth(1e7), "10Mbit/s"),
        (format_bandwidth(999_999_600.0), "1Gbit/s"),
        (format_bandwidth(1234567.0, exact=True), "1234567.0bit/s"),
        (format_duration(0), "0s"),
        (format_duration(0.02), "20ms"),
        (format_duration(0.9999996), "1s"),
        (format_duration(0.0009999996), "1ms"),
        (format_duration(90), "90s"),
        (format_duration(5400), "90min"),
        (format_duration(1e9), "11574d"),
    ],
)
def test_shown(shown: str, wanted: str) -> None:
    assert shown == wanted


@given(st.integers(0, MOST_BYTES))
def test_exact_size_is_read_back(size: int) -> None:
    assert parse_size(format_size(size, exact=True)) == size


@given(st.floats(0, MOST_BITS_PER_S))
def test_exact_bandwidth_is_read_back(value: float) -> None:
    assert parse_bandwidth(format_bandwidth(value, exact=True)) == value


@given(st.floats(0, MOST_SECONDS))
def test_exact_duration_is_read_back(value: float) -> None:
    assert parse_duration(format_duration(value, exact=True)) == value


@given(st.floats(1e-8, 3e10))
def test_shown_is_within_three_digits(value: float) -> None:
    assert parse_duration(format_duration(value)) == pytest.approx(value, rel=5.1e-3)
    # A mean of sizes may be shown as 10.5B; sizes are parsed as whole bytes, so the value is rounded twice.
    assert parse_size(format_size(value + 1)) == pytest.approx(value + 1, rel=5.1e-3, abs=0.551)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_size, parse_bandwidth, parse_duration):
        try:
            assert parse(text) >= 0
        except QuantityError as error:
            assert error.hint


def test_error_survives_pickling() -> None:
    with pytest.raises(QuantityError) as caught:
        parse_size("2g")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, QuantityError)
    assert str(again) == str(caught.value)


@pytest.mark.parametrize(
    ("parse", "text", "hint"),
    [
        (parse_size, "8192PiB", "at most 8191PiB"),
        (parse_size, "9" * 390 + "GiB", "at most 8191PiB"),
        (parse_heap, "9999999999999999999g", "at most 8191PiB"),
        (parse_heap, "0g", "write 1g"),
        (parse_bandwidth, "1000001Tbit/s", "at most 1000000Tbit/s"),
        (parse_duration, "1" + "0" * 20 + "h", "at most 365250 days"),
        (parse_duration, "365251 days", "at most 365250 days"),
        (parse_interval, "1001 years", "at most 1000 years"),
        (parse_interval, "-600 years -600 years", "at most 1000 years"),
    ],
)
def test_quantities_have_bounds(parse: Callable[[str], object], text: str, hint: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse(text)
    assert hint in str(caught.value.hint)
    assert len(str(caught.value)) < 200
