# dates.sh: three nodes whose dates differ by days, set by a preloaded library. Of two ranks on such nodes, `dtctl why` shows
# the error that was recorded first. `dtctl events --since`, the age in `dtctl status` and the usage in dtd-web's metrics
# depend neither on the date of the asking node nor on that of the leader, also after another node has begun to lead.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
library=$DTD_BIN/../tests/libclock_step.so
[ -e "$library" ] || skip "no $library"
write_job
guard_nodes a b c
declare -A days=([a]=0 [b]=3 [c]=-2)
dated() { # NODE COMMAND...: runs it with the date of the node
  local node=$1
  shift
  ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 DTD_TEST_CLOCK=$tmp/$node.clock LD_PRELOAD=$library "$@"
}
on() { local node=$1; shift; DTD_DIR=$tmp/$node dated "$node" "$DTD_BIN/dtctl" "$@"; }
for n in $nodes; do
  mkdir "$tmp/$n"
  python3 -c 'import struct, sys; open(sys.argv[1], "wb").write(struct.pack("q", int(sys.argv[2]) * 86400))' "$tmp/$n.clock" "${days[$n]}"
  echo "${days[$n]}" >"$tmp/$n/days"
  printf 'state_dir: %s\nslots: %d\nweb: {listen: "127.0.0.1:%d"}\n' "$tmp/$n" "$([ $n = a ] && echo 1 || echo 2)" "$(port)" >"$tmp/$n.yaml"
  dated $n setsid "$DTD_BIN/dtd" --config "$tmp/$n.yaml" >>"$tmp/$n.out" 2>&1 &
  wait_for 30 "dtd of node $n" on "$n" node
  declare "port_$n=$(port)"
done
on a cluster init $(where a) >/dev/null
token=$(on a cluster token --uses 2 -o json | jq -er .token)
for n in b c; do on $n cluster join <<<"$token" $(where $n) >/dev/null; done
all_up() { cluster_has "$1" 'all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
for n in $nodes; do wait_for 60 "three voters, as $n sees it" all_up $n; done
[ "$(cluster a | jq -er .leader)" = a ] || fail "a does not lead"

# The rank on b fails first, and the one on c follows. By dates, b's error is of the leader's future and c's is older.
cat >"$tmp/fail.sh" <<'S'
dir=$1 node=$(basename "$(dirname "$(dirname "$(dirname "$TORCHELASTIC_ERROR_FILE")")")")
record() {
  printf '{"message": {"message": "%s", "extraInfo": {"py_callstack": "at line 7", "timestamp": "%s"}}}' "$1" \
    $(($(date +%s) + $(cat "$dir/$node/days") * 86400)) >"$TORCHELASTIC_ERROR_FILE"
  touch "$dir/recorded-$node"
}
await() { until [ -e "$1" ]; do sleep 0.1; done; }
if [ "$node" = b ]; then
  record "the cause"
  await "$dir/recorded-c"
  exit 1
fi
trap 'exit 1' TERM
await "$dir/recorded-b"
sleep 5
record "the consequence"
sleep 60 & wait
S
rc=0
(cd "$tmp" && DTD_DIR=$tmp/a "$DTD_BIN/dtctl" run --nodes 2 --workers-per-node 2 --max-restarts 0 -- sh "$tmp/fail.sh" "$tmp") >"$tmp/said" 2>&1 || rc=$?
[ $rc = 4 ] || fail "exit status $rc: $(cat "$tmp/said")"
grep -q "rank [0-3] at .*: the cause" "$tmp/said" || fail "dtctl run: $(cat "$tmp/said")"
failed=$(on c status -o json | jq -er '.[-1].job')
on c why "$failed" -o json >"$tmp/why"
jq -r '.[0].error' "$tmp/why" | grep -q "^rank [0-3] at .*: the cause" || fail "another error is shown as the first: $(cat "$tmp/why")"
shown=$(date -d "$(jq -r '.[0].error' "$tmp/why" | sed -n 's/^rank [0-3] at \([^ ]*Z\): .*/\1/p')" +%s) now=$(date +%s)
[ "$shown" -le "$now" ] && [ "$shown" -gt $((now - 600)) ] || fail "the date of the error is not the leader's: $(cat "$tmp/why")"

job=$(on b submit "$tmp/job.yaml" --set train.steps=1000000 --set parallel.workers=4 --set run.nodes=2 --set checkpoint.every=100 --set checkpoint.keep_last=2 --set checkpoint.dir="$tmp/ck" --detach -o json | jq -er .job)
saved() { on "$1" status "$job" -o json | jq -e '.checkpoint_step >= 100'; }
wait_for 60 "a checkpoint of the job" saved b

# What is asked of node $1. The events of the nodes are older than a second.
check_ages() {
  local n age
  sleep 2
  for n in $1; do
    on "$n" events --since 1h --type joined | grep -q joined || fail "$n: events --since 1h has no event of the last hour"
    ! on "$n" events --since 1s --type joined | grep . || fail "$n: events --since 1s has older events"
    age=$(on "$n" status "$job" -o json | jq -er .age_ms)
    [ "$age" -gt 1000 ] && [ "$age" -lt 900000 ] || fail "$n: the job is $age ms old"
  done
}
check_ages "a b c"

# dtd-web asks the leader for the usage of the last half minute.
web=$(on b web -o json | jq -er .address)
has_usage() {
  python3 - "$web" "$job" <<'S'
import re, sys, urllib.request
base, token = sys.argv[1].split("/#token=")
page = urllib.request.urlopen(urllib.request.Request(base + "/metrics", headers={"Authorization": "Bearer " + token})).read().decode()
sys.exit(not re.search(r'^dtd_train_rank_compute_seconds\{job_id="%s"' % sys.argv[2], page, re.M))
S
}
wait_for 30 "the usage of ranks in the metrics of b" has_usage

# The next leader has another date.
kill_node a
led_by_another() { cluster_has b '.leader == "b" or .leader == "c"'; }
wait_for 30 "another leader" led_by_another
wait_for 30 "the job at the new leader" saved b
check_ages "b c"
wait_for 60 "the usage of ranks at the new leader" has_usage
end_nodes
