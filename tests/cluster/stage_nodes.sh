# data.stage on two nodes: each has a copy of its own, and the losses are those of one node that reads in place.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
guard_nodes a b
begin() { # NODE: starts its dtd with one slot
  mkdir -p "$tmp/$1"
  printf 'state_dir: %s\nslots: 1\n' "$tmp/$1" >"$tmp/$1.yaml"
  setsid "$DTD_BIN/dtd" --config "$tmp/$1.yaml" >>"$tmp/$1.out" 2>&1 &
  wait_for 20 "dtd of node $1" on "$1" node
}
up
job=$(submit --set checkpoint.dir="$tmp/one")
wait_done "$job"
losses "$job" >"$tmp/losses"
dtctl down >/dev/null
for n in $nodes; do begin $n; declare "port_$n=$(port)"; done
on a cluster init $(where a) >/dev/null
on b cluster join <<<"$(on a cluster token -o json | jq -er .token)" $(where b) >/dev/null
wait_for 30 "both nodes up" cluster_has a '[.node[] | select(.state == "up")] | length == 2'
job=$(on a submit "$tmp/job.yaml" --set data.stage=shm --set checkpoint.dir="$tmp/two" --detach -o json | jq -er .job)
done_on() { on "$1" status "$job" -o json | jq -e '.state == "done"'; }
wait_for 90 "the job on two nodes" done_on a
on a metrics "$job" -o jsonl | jq -r '"\(.step) \(.loss)"' | sort -n | cmp - "$tmp/losses" || fail "other losses on two nodes"
notes=$(on a logs "$job" | grep -c "data.stage: the data is in /dev/shm" || true)
[ "$notes" = 2 ] || fail "$notes notes from two nodes"
for n in $nodes; do grep -q "data.stage: the data is in" "$tmp/$n/jobs/$job/io.log" || fail "node $n has no copy"; done
end_nodes
