-- Accepted by Spark, refused by Headwater: a string where a number is needed fails at run time, on the first
-- row that holds no number; the others are not worth their place in the table, or do not stream.
str > 1
str = 1.5
str + 1
str + 1.5
-str
substring(str, str, 1)
substring(str, '1', 1)
abs(str)
sqrt(str)
floor(str)
sum(str)
avg(str)
coalesce(str, 1)
coalesce(a, str)
coalesce(arr, sarr)
if(bo, a, str)
str in (1)
str in ('a', 1)
str between 1 and 2
'true' and bo
NOT str
'a' AND bo
nullif(str, 1)
array(1, 'a')
from_json(str, 'a INT, A INT')
make_interval(0, 0, 0, 1)
convert_timezone('CET', ntz)
log(str)
to_number(str, '999999')
sentences(str)
collate(str, 'UTF8_LCASE')
stddev(str)
percentile_approx(str, 0.5)
histogram_numeric(a, 5)
stddev(distinct a)
