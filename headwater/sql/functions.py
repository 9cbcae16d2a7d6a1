"""Signatures of the Spark functions known to Headwater, in a compact notation.

``name(parameters) result``. A parameter is a type; a class of types (``any``, ``number``, ...); a type
variable, one capital letter with one value in all its uses: ``N`` a number, ``F`` float or double, ``I`` a
whole number, ``O`` an orderable type, ``S`` string or binary, ``H`` timestamp or timestamp_ntz, others any type;
``(T,int)=>U`` a lambda. ``[...]`` is optional, ``x...`` repeats. Several entries of one name are
alternatives, tried in order; ``!`` after a type forbids conversions to it. Functions beyond this
notation are in ``special.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from headwater.sql.schema import ArrayType, AtomicType, DataType, DecimalType, MapType


@dataclass(frozen=True)
class Pattern:
    """A parameter: ``head`` is a type, class, variable, ``array``, ``map`` or ``=>``."""

    head: str
    parts: tuple[Pattern, ...] = ()

    @property
    def is_variable(self) -> bool:
        return len(self.head) == 1 and self.head.isupper()

    @property
    def text(self) -> str:
        """Describe the parameter for an error message."""
        if self.head.startswith("=>"):
            names = ", ".join("xyz"[i] for i in range(len(self.parts) - 1))
            return f"a lambda ({names}) -> ..."
        if self.parts:
            return f"{self.head}<{', '.join(p.text for p in self.parts)}>"
        return CLASSES.get(self.head, self.head)


@dataclass(frozen=True)
class Signature:
    """One way to call a function."""

    name: str
    parameters: tuple[Pattern, ...]
    required: int
    variadic: bool
    result: Pattern

    @property
    def text(self) -> str:
        """Describe the call for an error message."""
        shown = [p.text for p in self.parameters]
        optional = shown[self.required :]
        tail = "..." if self.variadic else ""
        inner = ", ".join(shown[: self.required]) + "".join(f" [, {o}]" for o in optional)
        return f"{self.name}({inner}{tail})"


CLASSES = {
    "any": "any type", "number": "a number", "N": "a number", "F": "a float or double",
    "I": "a whole number", "O": "an orderable type", "S": "string or binary",
    "H": "a timestamp", "hashed": "any type but a map", "moment": "string, date or timestamp",
    "T": "any type", "U": "any type",
    "K": "any type", "V": "any type", "W": "any type", "A": "any type", "M": "number or interval",
    "words": "string or array<string>",
}  # fmt: skip

_SCALAR = """
abs(M) M | negative(M) M | positive(M) M | sign(M) double | signum(M) double
sqrt(double) double | cbrt(double) double | exp(double) double | expm1(double) double | ln(double) double
log(double,[double]) double | log10(double) double | log2(double) double | log1p(double) double
pow(double,double) double | power(double,double) double | hypot(double,double) double
sin(double) double | cos(double) double | tan(double) double | cot(double) double | sec(double) double
csc(double) double | asin(double) double | acos(double) double | atan(double) double
atan2(double,double) double | sinh(double) double | cosh(double) double | tanh(double) double
asinh(double) double | acosh(double) double | atanh(double) double
degrees(double) double | radians(double) double | rint(double) double | pi() double | e() double
factorial(int) bigint | bit_count(I) int | bit_count(boolean) int
bit_get(I,int) tinyint | getbit(I,int) tinyint
shiftleft(bigint!,int) bigint | shiftright(bigint!,int) bigint | shiftrightunsigned(bigint!,int) bigint
shiftleft(int,int) int | shiftright(int,int) int | shiftrightunsigned(int,int) int
hex(bigint) string | hex(S) string | unhex(string) binary | bin(bigint) string | conv(string,int,int) string
width_bucket(double,double,double,bigint) bigint | isnan(double) boolean | nanvl(F,F) F
upper(string) string | ucase(string) string | lower(string) string | lcase(string) string
initcap(string) string | trim(string,[string]) string | ltrim(string,[string]) string
rtrim(string,[string]) string | btrim(string,[string]) string
length(S) int | len(S) int | char_length(S) int | character_length(S) int | octet_length(S) int
bit_length(S) int | concat_ws(string,words...) string
substring(S,int,[int]) S | substr(S,int,[int]) S | left(S,int) S | right(S,int) S
lpad(S,int,[S]) S | rpad(S,int,[S]) S | repeat(string,int) string | space(int) string
replace(string,string,[string]) string | translate(string,string,string) string
overlay(S,S,int,[int]) S | reverse(array<T>) array<T> | reverse(string) string
instr(string,string) int | locate(string,string,[int]) int | position(string,string,[int]) int
split(string,string,[int]) array<string> | split_part(string,string,int) string
substring_index(string,string,int) string | find_in_set(string,string) int | elt(int,string...) string
regexp_replace(string,string,string,[int]) string | regexp_extract(string,string,[int]) string
regexp_extract_all(string,string,[int]) array<string> | regexp_like(string,string) boolean
regexp(string,string) boolean | rlike(string,string) boolean | like(string,string) boolean
ilike(string,string) boolean | regexp_count(string,string) int | regexp_substr(string,string) string
regexp_instr(string,string) int | startswith(S,S) boolean | endswith(S,S) boolean | contains(S,S) boolean
ascii(string) int | chr(bigint) string | char(bigint) string | base64(binary) string
unbase64(string) binary | encode(string,string) binary | decode(binary,string) string
format_string(string,any...) string | printf(string,any...) string | format_number(number,int) string
soundex(string) string | levenshtein(string,string,[int]) int | luhn_check(string) boolean
url_encode(string) string | url_decode(string) string | parse_url(string,string,[string]) string
str_to_map(string,[string],[string]) map<string,string> | to_binary(string,[string]) binary
to_char(number,string) string | to_varchar(number,string) string
mask(string,[string],[string],[string],[string]) string
hash(hashed...) int | xxhash64(hashed...) bigint
md5(binary) string | sha(binary) string | sha1(binary) string
sha2(binary,int) string | crc32(binary) bigint
date_add(date,int) date | dateadd(date,int) date | date_sub(date,int) date | date_diff(date,date) int
datediff(date,date) int | add_months(date,int) date | months_between(timestamp,timestamp,[boolean]) double
last_day(date) date | next_day(date,string) date | trunc(date,string) date
date_trunc(string,timestamp) timestamp | year(date) int | quarter(date) int | month(date) int | day(date) int
dayofmonth(date) int | dayofweek(date) int | weekday(date) int | dayofyear(date) int | weekofyear(date) int
dayname(date) string | monthname(date) string
hour(timestamp) int | minute(timestamp) int | second(timestamp) int
date_format(timestamp,string) string | to_date(moment,[string]) date
to_timestamp(number,[string]) timestamp | to_timestamp(moment,[string]) timestamp
to_timestamp_ntz(moment,[string]) timestamp_ntz | to_timestamp_ltz(moment,[string]) timestamp
try_to_timestamp(moment,[string]) timestamp
unix_timestamp(moment,[string]) bigint | to_unix_timestamp(moment,[string]) bigint
from_unixtime(bigint,[string]) string | timestamp_seconds(number) timestamp
timestamp_millis(I) timestamp | timestamp_micros(I) timestamp
unix_seconds(timestamp) bigint | unix_millis(timestamp) bigint | unix_micros(timestamp) bigint
unix_date(date) int | date_from_unix_date(int) date | make_date(int,int,int) date
make_timestamp(int,int,int,int,int,number,[string]) timestamp
from_utc_timestamp(timestamp,string) timestamp | to_utc_timestamp(timestamp,string) timestamp
size(array<T>) int | size(map<K,V>) int | cardinality(array<T>) int | cardinality(map<K,V>) int
array_size(array<T>) int | get(array<T>,int) T
array_contains(array<O>,O) boolean | array_position(array<O>,O) bigint | array_remove(array<O>,O) array<O>
array_append(array<T>,T) array<T> | array_prepend(array<T>,T) array<T> | array_insert(array<T>,int,T) array<T>
array_compact(array<T>) array<T> | array_distinct(array<O>) array<O> | array_union(array<O>,array<O>) array<O>
array_intersect(array<O>,array<O>) array<O> | array_except(array<O>,array<O>) array<O>
arrays_overlap(array<O>,array<O>) boolean | array_join(array<string>,string,[string]) string
array_max(array<O>) O | array_min(array<O>) O | array_repeat(T,int) array<T>
array_sort(array<O>) array<O> | array_sort(array<T>,(T,T)=>int!) array<T>
sort_array(array<O>,[boolean]) array<O>
slice(array<T>,int,int) array<T> | flatten(array<array<T>>) array<T>
transform(array<T>,(T)=>U) array<U> | transform(array<T>,(T,int)=>U) array<U>
filter(array<T>,(T)=>boolean) array<T> | filter(array<T>,(T,int)=>boolean) array<T>
exists(array<T>,(T)=>boolean) boolean | forall(array<T>,(T)=>boolean) boolean
aggregate(array<T>,A,(A,T)=>=A) A | aggregate(array<T>,A,(A,T)=>=A,(A)=>U) U
reduce(array<T>,A,(A,T)=>=A) A | reduce(array<T>,A,(A,T)=>=A,(A)=>U) U
zip_with(array<T>,array<U>,(T,U)=>V) array<V>
map_from_arrays(array<K>,array<V>) map<K,V> | map_keys(map<K,V>) array<K> | map_values(map<K,V>) array<V>
map_contains_key(map<K,V>,K) boolean | map_concat(map<K,V>...) map<K,V>
map_filter(map<K,V>,(K,V)=>boolean) map<K,V> | transform_keys(map<K,V>,(K,V)=>U) map<U,V>
transform_values(map<K,V>,(K,V)=>U) map<K,U> | map_zip_with(map<K,V>,map<K,W>,(K,V,W)=>U) map<K,U>
get_json_object(string,string) string | json_array_length(string) int | json_object_keys(string) array<string>
if(boolean,T,T) T | nvl(T,T) T | ifnull(T,T) T | coalesce(T,T...) T | nvl2(any,T,T) T
isnull(any) boolean | isnotnull(any) boolean | typeof(any) string
greatest(O,O,O...) O | least(O,O,O...) O
"""

_VOLATILE = """
rand([bigint]) double | randn([bigint]) double | random([bigint]) double | uuid([bigint]) string
shuffle(array<T>,[bigint]) array<T> | monotonically_increasing_id() bigint | spark_partition_id() int
input_file_name() string | current_date() date | curdate() date | current_timestamp() timestamp
now() timestamp | localtimestamp() timestamp_ntz | current_user() string | current_timezone() string
unix_timestamp() bigint
"""

_AGGREGATE = """
min(O) O | max(O) O | first(T,[boolean]) T | first_value(T,[boolean]) T | last(T,[boolean]) T
last_value(T,[boolean]) T | any_value(T,[boolean]) T | mode(O,[boolean]) O
stddev(double) double | stddev_samp(double) double | stddev_pop(double) double | std(double) double
variance(double) double | var_samp(double) double | var_pop(double) double
skewness(double) double | kurtosis(double) double | corr(double,double) double
covar_pop(double,double) double | covar_samp(double,double) double
regr_slope(double,double) double | regr_intercept(double,double) double | regr_r2(double,double) double
regr_avgx(double,double) double | regr_avgy(double,double) double | regr_count(double,double) bigint
collect_list(T) array<T> | array_agg(T) array<T> | collect_set(O) array<O>
max_by(T,O) T | min_by(T,O) T
bool_and(boolean) boolean | every(boolean) boolean | bool_or(boolean) boolean
some(boolean) boolean | any(boolean) boolean | count_if(boolean) bigint
bit_and(I) I | bit_or(I) I | bit_xor(I) I | approx_count_distinct(any,[double]) bigint
percentile(double,array<double>,[bigint]) array<double> | percentile(double,double,[bigint]) double
median(double) double
listagg(string,[string]) string | string_agg(string,[string]) string
"""

GENERATORS = frozenset(
    [
        "explode",
        "explode_outer",
        "posexplode",
        "posexplode_outer",
        "inline",
        "inline_outer",
        "stack",
        "json_tuple",
    ]
)
WINDOW_FUNCTIONS = frozenset(
    ["row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead", "nth_value"]
)
GROUPINGS = frozenset(["window", "session_window"])
BARE = frozenset(["current_date", "current_timestamp", "current_user"])
"""Functions that Spark allows without parentheses."""

_EXACT_NAMES = "string int bigint double boolean binary date timestamp timestamp_ntz tinyint"
_EXACT = frozenset(_EXACT_NAMES.split())
_WORD = re.compile(r"\s*(=>=|=>|\.\.\.|[A-Za-z_0-9]+!?|[<>(),\[\]])")


def _read(table: str) -> dict[str, tuple[Signature, ...]]:
    found: dict[str, tuple[Signature, ...]] = {}
    for entry in re.split(r"[|\n]", table):
        if entry.strip():
            signature = _signature(entry.strip())
            found[signature.name] = (*found.get(signature.name, ()), signature)
    return found


def _signature(text: str) -> Signature:
    words = _WORD.findall(text)
    name, place, parameters, required, variadic = words[0], 2, [], 0, False
    while words[place] != ")":
        optional = words[place] == "["
        place += optional
        pattern, place = _pattern(words, place)
        parameters.append(pattern)
        required += not optional
        place += optional
        if words[place] == "...":
            variadic, place = True, place + 1
        place += words[place] == ","
    result, _ = _pattern(words, place + 1)
    return Signature(name, tuple(parameters), required - variadic, variadic, result)


def _pattern(words: list[str], place: int) -> tuple[Pattern, int]:
    head, place = words[place], place + 1
    parts: list[Pattern] = []
    if head == "(":
        while words[place] != ")":
            part, place = _pattern(words, place)
            parts.append(part)
            place += words[place] == ","
        arrow = words[place + 1]
        result, place = _pattern(words, place + 2)
        return Pattern(arrow, (*parts, result)), place
    if place < len(words) and words[place] == "<":
        while words[place] != ">":
            part, place = _pattern(words, place + 1)
            parts.append(part)
        place += 1
    return Pattern(head, tuple(parts)), place


SCALARS = _read(_SCALAR)
VOLATILE = _read(_VOLATILE)
AGGREGATES = _read(_AGGREGATE)


@cache
def exact(head: str) -> DataType | None:
    """Return the type named by a pattern's head, or None for classes and variables."""
    if head == "decimal":
        return DecimalType()
    return AtomicType(head) if head in _EXACT else None


def build(pattern: Pattern, variables: dict[str, DataType]) -> DataType:
    """Return the result's type from the types of the variables."""
    if pattern.is_variable:
        return variables[pattern.head]
    if pattern.head == "array":
        return ArrayType(build(pattern.parts[0], variables))
    if pattern.head == "map":
        return MapType(build(pattern.parts[0], variables), build(pattern.parts[1], variables))
    found = exact(pattern.head)
    assert found is not None, f"{pattern} is not a result"
    return found
