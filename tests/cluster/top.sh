# top.sh: dtctl top in a pseudo terminal, with a real dtd and job: overview, job, events, output, map, a smaller and a larger
# window, a control that is killed, a cancel by keys, and an end that leaves the terminal as it was, also by a signal.
. "$(dirname "$0")/lib.sh"
cd "$tmp"
write_job
up
job=$(submit --set train.steps=1000000 --set checkpoint.every=50 --set checkpoint.keep_last=2 --set "name=esc-job")
wait_for 30 "the first steps" reached "$job" 20
python3 "$DTD_SOURCE/tests/cluster/top_side.py" "$DTD_BIN/dtctl" "$job" "$(pgrep -P "$(head -n 1 "$DTD_DIR/dtd.lock")" -x dtd-control)" "${1:-}"
is_state "$job" canceled || fail "$(status "$job")"

# batch mode, one object, and refusals
dtctl top --once >once && grep -q "^ *$job esc-job" once || fail "$(cat once)"
dtctl top -b -n 2 -d 0.2 >twice && [ "$(grep -c "^ *$job esc-job" twice)" = 2 ] || fail "$(cat twice)"
! grep -q $'\x1b' twice || fail "escape sequences in a file"
# the numbers of the node are those of the machine
measured() { dtctl top --once -o json | jq -e ".nodes[0] | .cores == $(nproc) and .memory_bytes == $(($(awk '$1 == "MemTotal:" {print $2}' /proc/meminfo) * 1024)) and
  .memory_free_bytes < .memory_bytes and .load >= 0 and .used == 0"; }
wait_for 10 "the numbers of the node" measured
dtctl top "$job" --once -o json | jq -e '.job.state == "canceled" and (.nodes | length) == 1 and .nodes[0].slots > 0' >/dev/null ||
  fail "$(dtctl top "$job" --once -o json)"
rc=0
dtctl top 77 --once 2>error || rc=$?
[ $rc = 3 ] && grep -q "no job 77" error || fail "$rc $(cat error)"
dtctl down >/dev/null
rc=0
dtctl top --once 2>error || rc=$?
[ $rc = 75 ] && grep -q "dtctl up" error || fail "$rc $(cat error)"

# two nodes: the leader has the numbers of both
. "$DTD_SOURCE/tests/cluster/several.sh"
begin_nodes a b
both() { on b top --once -o json | jq -e "[.nodes[] | select(.state == \"up\" and .cores == $(nproc) and .memory_bytes > 0)] | length == 2"; }
wait_for 20 "the numbers of two nodes" both
on b events --type joined -o json | jq -es 'map(.node) | sort == ["a", "b"]' >/dev/null || fail "$(on b events)"
end_nodes
