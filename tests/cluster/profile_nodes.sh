# profile_nodes.sh: dtctl profile of a pipeline over two nodes whose monotonic clocks differ by 5,000 s (a time namespace):
# the trace has one time axis, on which messages arrive after they were sent, and states how precise it is.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
unshare --time --monotonic 5000 true 2>/dev/null || skip "no time namespace can be created here"
write_job
begin() { # NODE [PREFIX...]: starts its dtd with two slots
  local node=$1
  shift
  mkdir -p "$tmp/$node"
  printf 'state_dir: %s\nslots: 2\n' "$tmp/$node" >"$tmp/$node.yaml"
  setsid "$@" "$DTD_BIN/dtd" --config "$tmp/$node.yaml" >>"$tmp/$node.out" 2>&1 &
  wait_for 20 "dtd of node $node" on "$node" node
}
guard_nodes a b
begin a
begin b unshare --time --monotonic 5000
for n in a b; do declare "port_$n=$(port)"; done
token=$(on a cluster init $(where a) -o json | jq -er .token)
on b cluster join <<<"$token" $(where b) >/dev/null
wait_for 30 "both nodes" cluster_has a '[.node[] | select(.state == "up")] | length == 2'
job=$(on a submit "$tmp/job.yaml" --detach -o json --set parallel.workers=4 --set parallel.pp=4 --set model.layers=4 \
  --set train.micro_batch=1 --set train.numerics=fast --set checkpoint.every=0 --set checkpoint.dir="$tmp/ckpt" --set train.steps=1000000 | jq -er .job)
steps() { [ "$(on a status "$job" -o json | jq -r .step)" -ge 3 ]; }
wait_for 60 "step 3" steps
on a profile "$job" --to "$tmp/trace.json.gz" -o json >"$tmp/said"
grep -h "^clock" "$tmp"/ckpt/profile/rank-*
awk '/^clock/ { d = $5 - 5e12; exit !(d > -1e9 && d < 1e9) }' "$tmp/ckpt/profile/rank-3" || fail "the clocks of the nodes do not differ"
# Every message arrives after it was sent, but for the error that the trace states.
python3 "$DTD_SOURCE/tests/cluster/profile_check.py" "$tmp/trace.json.gz" --files "$tmp/ckpt/profile" --ranks 4 --steps 3 --pipeline 8 --messages 144 ||
  fail "the trace over two nodes"
jq -e '.clock_error_s > 0 and .clock_error_s < 0.1 and [.ranks[].node] == ["a", "a", "b", "b"] and .ranks[0].clock_error_s == 0 and .ranks[3].clock_error_s > 0' "$tmp/said" >/dev/null ||
  { cat "$tmp/said"; fail "wrong precision of the clocks"; }
zcat "$tmp/trace.json.gz" | jq -e '[.traceEvents[] | select(.name == "process_labels").args.labels | test("^[ab], pid [0-9]+, clock")] == [true, true, true, true]' >/dev/null || fail "the processes have no labels"
on b profile "$job" --steps 1 --to "$tmp/other.json.gz" >"$tmp/said" # by the follower
grep -q "Times of different nodes agree within" "$tmp/said" || { cat "$tmp/said"; fail "the follower"; }
on a cancel --now "$job" >/dev/null
end_nodes
