# Makes a table with a row for each kind, from the faults and from $step, the lines of the job's metrics.jsonl. A fault is
# noticed when a node is shown as lost or the job has an incident. The job continues at the end of the last gap of more
# than half a second between steps, in the time from the fault until all nodes were up again. A dash: there was no gap.
def ends($from; $to):
  [$step[].wall_ms | select(. >= $from - 2000 and . <= $to)] | sort | . as $t
  | [range(1; length) | select($t[.] > $from and $t[.] - $t[. - 1] > 500) | $t[.] - $from] | last;
def middle: sort | .[(length - 1) / 2 | floor];
def seconds: if length == 0 then "-" else [middle, max] | map(. / 10 | round / 100 | tostring) | join(" / ") end;
map(. + {again: ends(.begun; .ended)}) | group_by(.kind)[]
| "| \(.[0].kind | gsub("_"; " ")) | \(length) | \(map(select(.seen)) | length) | \([.[] | select(.seen) | .seen - .begun] | seconds) | \(map(select(.again)) | length) | \([.[] | select(.again) | .again] | seconds) |"
