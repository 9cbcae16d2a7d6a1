-- Scalar expressions on which Headwater and Spark agree in type and value, one a line.
str = da
str > ts
str = bo
str = bin
concat(str, 1)
upper(1)
length(a)
length(bo)
substring(str, b, 1)
substring(str, d, 1)
abs(t)
sqrt(a)
ceil(a)
ceil(t)
ceil(f)
ceil(dec)
ceil(b)
round(f,1)
round(dec,1)
round(dec)
round(t)
round(a,-1)
bround(dec,1)
da + 1
da - da
ts - ts
ts - da
da - ts
ts + interval 5 minutes
da + interval 1 day
da + interval 1 hour
da + interval 1 month
ntz - ntz
ts - ntz
interval 5 weeks
interval 100 milliseconds
interval 1 day 2 hours
interval '5 minutes'
interval '1' day * 2
interval 1 day 2 hours + interval 1 second
interval '1 2:03' day to minute
interval 1 hour / 2
ts > '2020-01-01'
ts > da
ts > ntz
bo = 'true'
f + a
f + b
f + dec
f + d
coalesce(f, a)
coalesce(f, b)
coalesce(dec, a)
coalesce(dec, b)
coalesce(dec, d)
coalesce(da, ts)
coalesce(da, str)
coalesce(bo, str)
coalesce(bin, str)
coalesce(arr, array(1.5))
coalesce(st, struct(1L as x, 'a' as y))
coalesce(m, map('a', 2L))
a / 2
a div 2
dec / 2
dec * 2
dec + 1
dec % 3
dec div 2
dec * a
dec / dec2
dec2 * dec2
dec + f
a % t
t + t
t + s
t & a
a | b
a << 1
t << 1
b >> 1
~t
str || 1
str || a
a || b
arr || arr
arr || array(2L)
bin || bin
bin || str
str like 'a'
a like 'a'
a rlike '1'
a in (1, 2L)
a in ('1','2')
ts in ('2020-01-01')
a between 1 and 2.5
m['x']
m[1]
m[ts]
arr[b]
sarr[0]
sts.x
sts[0].x
sts.X
st.X
struct(A, st.x, a+1)
named_struct('p', 1, 'q', str)
nullif(a, 1)
nvl(a, 1L)
nvl2(a, 1, 2.5)
greatest(a, b)
least(da, ts)
a <=> null
null + 1
null || 'a'
null = null
arr = arr
st = st
st < st
'It''s'
'a' 'b'
- -1
1.50
.05
5.
1e3
1e3BD
00012
12345678901
12345678901234567890
-2147483648
2147483648
1.5BD
10Y
0.0
0.00BD
cast(bin as string)
cast(a as boolean)
cast(a as timestamp)
cast(bo as int)
cast(ts as bigint)
cast(ts as decimal(20,3))
cast(d as timestamp)
cast(dec as timestamp)
cast(str as boolean)
cast(str as binary)
cast(arr as string)
cast(m as string)
cast(interval 5 minutes as bigint)
cast(interval 1 day 2 hours as bigint)
cast(interval 5 minutes as string)
cast(interval 5 minutes as decimal(10,2))
cast(a as interval day)
cast(str as interval day to second)
cast(st as struct<p:bigint,q:string>)
try_cast(str as int)
coalesce(cast(a as decimal(38,0)), dec2)
coalesce(cast(a as decimal(30,0)), dec2)
aggregate(arr, 0, (acc, x) -> acc + x)
aggregate(arr, 0L, (acc, x) -> acc + x)
aggregate(array(1.5D), 0D, (acc, x) -> acc + x, acc -> cast(acc as string))
reduce(arr, 0, (acc, x) -> acc + x)
transform(arr, (x, i) -> x + i)
transform(arr, x -> struct(x, x + 1))
array_sort(arr, (l, r) -> l - r)
map_filter(m, (k, v) -> v > 1)
filter(arr, (x, i) -> i > 1)
arrays_zip(arr, sarr)
arrays_zip(arr, array(1))
map_from_entries(array(struct(1, 'a')))
map_from_entries(sts)
map_entries(m)
sequence(1, 5)
sequence(1, b)
sequence(da, da, interval 1 day)
sequence(da, da)
sequence(ts, ts, interval 1 hour)
sequence(da, ts, interval 1 hour)
array_max(arr)
array_position(arr, 1)
array_contains(arr, 1L)
array_remove(arr, 1L)
array_union(arr, array(1L))
array_append(arr, 1L)
array_insert(arr, 1, 5)
array_repeat(str, 2)
concat(arr, array(1L))
concat(bin, bin)
concat()
concat(str)
concat(a, b)
reverse(arr)
reverse(a)
size(m)
element_at(arr, 1)
element_at(m, 'x')
get(arr, b)
try_element_at(m, 'x')
map_contains_key(m, 'x')
map_concat(m, m)
map_concat(m, map('a', 1L))
transform_keys(m, (k, v) -> length(k))
transform_values(m, (k, v) -> v * 1.5)
map_zip_with(m, m, (k, v1, v2) -> v1 + v2)
zip_with(arr, sarr, (x, y) -> concat(x, y))
flatten(array(arr, arr))
slice(arr, 1, 2)
sort_array(arr, false)
array_join(sarr, ',')
array_join(arr, ',')
map(1, 'a', 2L, 'b')
map()
array()
array(1, 2L)
struct()
named_struct('a', 1)
from_json(str, 'a int, b array<string>')
from_json(str, 'array<int>')
from_json(str, 'map<string,int>')
from_json(str, 'struct<a: int>')
from_json(str, 'a int', map('mode','FAILFAST'))
to_json(st)
to_json(arr)
to_json(m)
get_json_object(str, '$.a')
json_array_length(str)
json_object_keys(str)
to_csv(st)
date_part('second', ts)
date_part('hour', ts)
date_part('year', da)
date_part('seconds', ts)
date_part('dow', ts)
date_part('yearofweek', ts)
date_part('day', ts - ts)
extract(week from ts)
extract(second from interval 5 seconds)
timestampadd(HOUR, 1, ts)
timestampadd(HOUR, 1, da)
timestampadd(HOUR, 1, ntz)
timestampdiff(SECOND, ts, ts)
datediff(DAY, ts, ts)
dateadd(DAY, 1, ts)
dateadd(DAY, 1, da)
date_add(da, 1)
date_add(ts, 1)
date_add(str, 1)
date_sub(da, 1)
date_diff(da, da)
dateadd(da, 1)
add_months(da, 1)
months_between(ts, ts)
last_day(da)
next_day(da, 'MON')
trunc(da, 'MM')
date_trunc('hour', ts)
date_trunc('hour', ntz)
date_trunc('hour', da)
date_trunc('hour', str)
year(da)
year(ts)
year(str)
hour(ts)
hour(ntz)
hour(str)
hour(da)
second(ts)
date_format(ts, 'yyyy')
to_date(str)
to_date(ts)
to_date(str, 'yyyy')
to_timestamp(str)
to_timestamp(str, 'yyyy')
to_timestamp(a)
to_timestamp(d)
to_timestamp(ts)
to_timestamp(ntz)
to_timestamp_ntz(str)
to_timestamp_ltz(str)
unix_timestamp(ts)
unix_timestamp(str)
unix_timestamp(str, 'yyyy')
unix_timestamp()
unix_timestamp(da)
to_unix_timestamp(ts)
from_unixtime(b)
from_unixtime(a, 'yyyy')
timestamp_seconds(a)
timestamp_seconds(d)
timestamp_millis(b)
timestamp_micros(b)
unix_seconds(ts)
unix_millis(ts)
unix_millis(ntz)
unix_date(da)
date_from_unix_date(a)
make_date(a, a, a)
make_timestamp(a, a, a, a, a, d)
make_timestamp(a, a, a, a, a, dec)
make_dt_interval(1)
from_utc_timestamp(ts, 'CET')
from_utc_timestamp(str, 'CET')
to_utc_timestamp(ts, 'CET')
current_date
current_date()
current_timestamp
now()
curdate()
dayname(da)
monthname(da)
date(str)
timestamp(str)
timestamp(a)
int(str)
double(a)
string(a)
boolean(a)
decimal(a)
binary(str)
bigint(ts)
abs(interval 5 minutes)
abs(dec)
negative(a)
positive(dec)
sign(a)
signum(a)
sign(interval 5 minutes)
exp(a)
ln(dec)
log(a)
log(2, a)
pow(a, 2)
pow(dec, 2)
power(a, b)
sin(f)
rint(f)
pmod(a, b)
pmod(dec, 2)
mod(a, 2)
mod(dec, 2)
factorial(a)
factorial(b)
hypot(a, b)
degrees(a)
pi()
e()
shiftleft(t, 1)
shiftleft(b, 1)
shiftrightunsigned(a, 1)
bit_count(a)
bit_count(bo)
bit_get(a, 1)
hex(a)
hex(str)
hex(bin)
hex(d)
unhex(str)
bin(a)
conv(str, 10, 16)
conv(a, 10, 16)
try_add(a, b)
try_add(da, 1)
try_subtract(dec, 1)
try_multiply(a, 2)
try_divide(a, 2)
try_divide(dec, 2)
try_mod(a, 2)
width_bucket(d, 0, 10, 5)
isnan(d)
isnan(a)
nanvl(f, d)
nanvl(f, f)
nanvl(a, 1)
rand()
rand(1)
randn()
random()
uuid()
ceil(d, 1)
ceil(dec, 1)
ceil(a, 0)
floor(dec)
round(d)
round(dec, -1)
round(b, 2)
round(s)
upper(str)
trim(str)
trim(a)
ltrim('x', str)
btrim(str, 'x')
length(str)
length(bin)
len(str)
char_length(str)
octet_length(str)
bit_length(str)
concat_ws(',', str, a)
concat_ws(',', sarr, str)
concat_ws(',', arr)
substring(bin, 1, 2)
substring(a, 1, 2)
substr(str, 1)
left(str, 2)
left(bin, 2)
right(str, 2)
lpad(str, 5, ' ')
lpad(str, 5)
lpad(bin, 5)
rpad(str, 5, 'x')
repeat(str, 2)
replace(str, 'a')
replace(str, 'a', 'b')
reverse(str)
translate(str, 'a', 'b')
instr(str, 'a')
locate('a', str)
locate('a', str, 2)
position('a', str)
initcap(str)
split(str, ',')
split(str, ',', 2)
regexp_replace(str, 'a', 'b')
regexp_replace(str, 'a', 'b', 1)
regexp_extract(str, 'a')
regexp_extract(str, '(a)', 1)
regexp_extract_all(str, '(a)', 1)
regexp_like(str, 'a')
regexp(str, 'a')
regexp_count(str, 'a')
regexp_substr(str, 'a')
regexp_instr(str, 'a')
startswith(str, 'a')
startswith(bin, bin)
endswith(str, 'a')
contains(str, 'a')
ascii(str)
chr(a)
char(65)
base64(bin)
base64(str)
unbase64(base64(str))
encode(str, 'utf-8')
decode(bin, 'utf-8')
decode(a, 1, 'x', 'y')
format_string('%d', a)
printf('%s', str)
format_number(d, 2)
format_number(a, 2)
soundex(str)
levenshtein(str, 'a')
levenshtein(str, 'a', 2)
space(2)
overlay(str, 'a', 1)
overlay(str, 'a', 1, 2)
overlay(bin, bin, 1)
substring_index(str, ',', 1)
elt(1, 'a', 'b')
elt(1, a, str)
find_in_set('a', str)
url_encode(str)
url_decode(str)
parse_url(str, 'HOST')
split_part(str, ',', 1)
str_to_map(str)
str_to_map(str, ',', ':')
luhn_check(str)
to_binary(str)
to_binary(str, 'utf-8')
to_char(a, '999999')
to_varchar(a, '999999')
mask(str)
like(str, 'a')
ilike(str, 'a')
rlike(str, 'a')
hash(a, str)
xxhash64(a, str, arr)
md5(str)
md5(bin)
sha1(str)
sha(str)
sha2(str, 256)
crc32(str)
nvl(str, 'a')
ifnull(a, 1)
nullifzero(a)
zeroifnull(a)
zeroifnull(dec)
isnull(a)
isnotnull(a)
equal_null(a, b)
typeof(a)
monotonically_increasing_id()
spark_partition_id()
input_file_name()
array_size(arr)
cardinality(m)
array_distinct(arr)
array_intersect(arr, arr)
array_except(arr, array(1L))
array_min(arr)
array_prepend(arr, 1)
array_compact(arr)
arrays_overlap(arr, arr)
shuffle(arr)
exists(arr, x -> x > 1)
forall(arr, x -> x > 1)
map_from_arrays(sarr, arr)
map_keys(m)
map_values(m)
a | b & 3
a ^ b | 1 & 7
a << 1 + 1
a > 1 = bo
a > 1 IS NULL
NOT a = 1 AND bo OR a IS NOT NULL
!bo
NOT (bo AND a > 1)
-a * 2
-(-1)
- - a
- (a + 1)
~a + 1
1 - -1
a - (b - 1)
a - b - 1
a / (b * 2) % 7
(a + b) * d
a = 1 OR (a = 2 OR a = 3)
a BETWEEN b - 1 AND b + 1 AND bo
a NOT BETWEEN 1 AND 2
a NOT IN (1, 2)
str LIKE '%\\%%'
str LIKE 'a\_b'
str LIKE 'a|_b' ESCAPE '|'
str NOT LIKE 'x%'
str ILIKE 'X%'
str RLIKE '^\\d+$'
str REGEXP r'^\d+$'
bo IS TRUE
bo IS NOT FALSE
(a > 3) IS UNKNOWN
a IS DISTINCT FROM b
a IS NOT DISTINCT FROM b
a <=> b
a == b
a <> b
'tab\there'
'it\'s'
"double 'quoted'"
"a ""b"" c"
'back\\slash'
'line\nbreak'
'\u00e9\101'
'percent \% under \_'
r'raw \n'
'é ü 漢'
''
X'1f'
DATE '2026-01-31'
DATE '2026-01'
TIMESTAMP '2026-01-31 12:00:00'
TIMESTAMP '2026-01-31 12:00:00.123456'
TIMESTAMP '2026-01-31T12:00:00Z'
TIMESTAMP '2026-01-31 12:00:00+02:00'
TIMESTAMP_NTZ '2026-01-31 12:00:00'
TIMESTAMP_LTZ '2026-01-31 12:00:00'
1.5F
1.5e2f
2d
5s
1E-3
1.5E-3BD
0.001
ts + INTERVAL 1 DAY 2 HOURS 3 MINUTES
ts - INTERVAL '1 02:03:04.5' DAY TO SECOND
ts + INTERVAL -5 MINUTES
ts + INTERVAL '-5' MINUTES
ts + INTERVAL - '5' MINUTES
ts + INTERVAL '1' WEEK
ts + INTERVAL 1.5 SECONDS
ts + INTERVAL 1 YEAR 2 MONTHS
ts + INTERVAL '1-2' YEAR TO MONTH
ts + INTERVAL '1 day'
ts + INTERVAL '1 day 2 hours'
ts - INTERVAL 1 HOUR - INTERVAL 1 MINUTE
INTERVAL 1 HOUR + ts
2 * INTERVAL 1 HOUR + ts
ts + a * INTERVAL 1 MINUTE
ts - (ts - INTERVAL 1 HOUR) > INTERVAL 5 MINUTES
(ts - ts) / 2 < INTERVAL 1 DAY
a::bigint + 1
a::string || 'x'
-1::string
CASE WHEN a > 1 THEN 'x' WHEN a > 0 THEN 'y' ELSE 'z' END
CASE a WHEN 1 THEN 1.5 WHEN 2 THEN 2 END
CASE WHEN bo THEN ts ELSE NULL END
CASE WHEN bo THEN da ELSE ts END
TRIM(BOTH 'x' FROM str)
TRIM(LEADING 'x' FROM str)
TRIM(TRAILING 'x' FROM str)
TRIM(BOTH FROM str)
EXTRACT(HOUR FROM ts)
EXTRACT(MONTH FROM da)
POSITION('a' IN str)
SUBSTRING(str FROM 1 FOR 2)
SUBSTRING(str FROM 2)
w.end
w.start + INTERVAL 1 MINUTE
`w`.`start`
(w).end
st.x + 1
sts[0].y
m.x
m['x'] + 1
arr[a - 7]
array(1, 2)[0]
struct(a AS p, b)
struct(a AS `odd name`, st.y, CAST(a AS bigint))
struct(a).a
named_struct('k', str, 'v', st).v.x
`odd name` + 1
`end` + `select`
CamelCase + 1
camelcase + CAMELCASE
transform(arr, x -> x * 2)
transform(arr, x -> x + a)
transform(arr, a -> a + 1)
transform(sts, s -> s.x)
transform(arr, x -> transform(arr, y -> x + y))
filter(arr, x -> x > 1 AND x < 5)
exists(sarr, x -> x LIKE 'a%')
aggregate(arr, 0, (acc, x) -> acc + x, acc -> acc * 2.5)
aggregate(arr, CAST(0 AS double), (acc, x) -> acc + x)
zip_with(arr, arr, (l, r) -> struct(l, r))
array_sort(sts, (l, r) -> CASE WHEN l.x < r.x THEN -1 WHEN l.x > r.x THEN 1 ELSE 0 END)
map_filter(m, (k, v) -> k = 'x' OR v > 1)
coalesce(CAST(NULL AS int), a, 5)
coalesce(a, NULL)
if(a > 1, 'big', NULL)
nvl(dec, 0)
greatest(dec, a, 1.5)
greatest(da, DATE '2020-01-01')
least(str, 'b')
concat(str, '-', CAST(a AS string))
concat(sarr, array('x'))
array(NULL, 1)
map('a', NULL, 'b', 2)
cast(from_unixtime(unix_timestamp(ts)) as timestamp)
cast(dec as decimal(5,1))
cast(a as long)
cast(a as integer)
cast(str as timestamp_ltz)
cast(arr as array<string>)
cast(m as map<string,double>)
try_cast(str as decimal(10,2))
date_part('minute', w.end)
timestampadd(MINUTE, a, ts)
timestampdiff(DAY, w.start, w.end)
date_trunc('HOUR', w.start)
a /* inner */ + 1 -- rest
a in (b, 3)
5 div 2
7 % 3
pmod(-7, 3)
sign(-2.5)
sec(d) + csc(d) + cot(d)
cbrt(d) + expm1(d) + log1p(d) + log10(d) + log2(d)
asin(0.5) + acos(0.5) + atan(0.5) + atan2(1, 2)
sinh(d) + cosh(0.5) + tanh(d) + asinh(d) + acosh(2) + atanh(0.5)
cos(d) + tan(d) + radians(d)
from_csv('1,x', 'a int, b string')
to_char(dec, '99999.99')
chr(65) || char(66)
quarter(ts) + month(ts) + day(ts) + dayofmonth(ts) + dayofweek(ts) + weekday(da) + dayofyear(da)
weekofyear(da) + minute(ts)
year(da) * 12 + month(da)
unix_micros(ts)
ucase(str) || lcase(str) || lower(str)
rtrim(str) || ltrim(str)
character_length(str)
try_to_timestamp('2020-01-01')
datepart('hour', ts)
ceiling(d)
shiftright(a, 1)
getbit(a, 1)
make_ym_interval(1, 2) + da
make_dt_interval(0, 1, a) + ts
current_timezone()
current_user()
localtimestamp()
current_timestamp()
tinyint(a) + smallint(a)
float(a)
mask(str, 'X', 'x', 'n', '-')
st['x'] + 1
sts['x']
sts[0]['y']
