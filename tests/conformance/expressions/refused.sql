-- Refused by Headwater and by Spark.
da + b
ts + '5'
ts = 1
bo = 1
coalesce(a, da)
coalesce(st, struct(1L as p, 'a' as q))
not a
a and bo
if(a, 1, 2)
arr[str]
arr['1']
greatest(a, str)
greatest(1)
m = m
m < m
cast(bin as int)
cast(a as binary)
cast(a as date)
cast(bo as timestamp)
cast(da as int)
cast(ts as boolean)
cast(ntz as bigint)
cast(d as binary)
cast(str as array<int>)
cast(interval 5 minutes as double)
try_cast(a as date)
try_cast(a as binary)
aggregate(array(1.5D), 0, (acc, x) -> acc + x)
array_sort(arr, (l, r) -> cast(l - r as bigint))
arrays_zip(st.x, arr)
array_position(arr, '1')
array_contains(arr, str)
array_append(arr, 'a')
size(str)
element_at(arr, b)
element_at(m, 1)
named_struct(str, 1)
from_json(str, str)
to_json(a)
date_part('epoch', ts)
unix_timestamp(a)
from_unixtime(ts)
localtimestamp
round(dec, a)
concat_ws(',', m)
xxhash64(a, m)
md5(a)
iff(bo, 1, 2)
count()
sum(bo)
min(m)
collect_set(m)
max_by(a, m)
bool_and(a)
count_if(a)
grouping(a)
product(a)
nosuch
a +* 1
a b
SELECT a FROM t
(SELECT 1)
a IN (SELECT 1)
row_number() OVER (ORDER BY a)
a; b
a AND
st.nosuch
a.x
nosuch_function(a)
interval 1 month 1 day + ts
DATE '2026-13-01'
300Y
sum(sum(a))
length(sum(count(*)))
transform(arr, (x, y, z) -> x)
transform(a, x -> x)
upper()
substring(str)
a < arr
st = a
arr = sarr2
-bo
~d
d & 1
arr + 1
ts * 2
ts + ts
da - 'x' + 1
bo + bo
CASE WHEN a THEN 1 END
CASE WHEN bo THEN a ELSE da END
if(bo, a, da)
array(a, ts)
map(1)
cast(a as nosuch)
flatten(arr)
sequence('a', 'b')
date_trunc(ts)
sum(str, a)
max_by(a)
element_at(str, 1)
explode(a)
sort_array(m)
array_max(a)
from_json(str, 'nonsense')
from_json(str, 'bigint')
concat(arr, NULL)
percentile_approx(bo, 0.5)
