# command_grow.sh: a command job with a range of nodes continues on fewer nodes when one is lost, which `dtctl status`
# shows, and restarts on all of them when the node returns. That is no failure. With --no-grow it stays as it is.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
. "$(dirname "$0")/command_worker.sh"
begin_nodes a b c
leader=$(on a cluster status -o json | jq -er .leader)
for n in a b c; do [ $n = "$leader" ] || lost=$n; done
submit() { (cd "$tmp/work" && on "$leader" run --nodes 2:3 --workers-per-node 1 --max-restarts 1 --detach -o json "$@" -- \
  python3 "$tmp/worker.py" "$tmp/out$#" "$tmp/hold" | jq -er .job); }
job=$(submit)
still=$(submit --no-grow)
wait_for 60 "three workers" all_in "$tmp/out0" 3 0
wait_for 60 "three workers that do not grow" all_in "$tmp/out1" 3 0
was=$(on "$leader" status "$still" -o json | jq -er ".worker[] | select(.node == \"$lost\") | .rank")
kill_node $lost
wait_for 60 "two workers" all_in "$tmp/out0" 2 1
wait_for 60 "two workers that do not grow" all_in "$tmp/out1" 2 1
on "$leader" status | grep -q "^ *$job .* 2/3 " || fail "$(on "$leader" status)"
on "$leader" status "$job" | grep -q "Workers    2 of 3, restarts 1" || fail "$(on "$leader" status "$job")"
on "$leader" status "$job" -o json | jq -e '.workers == 2 and .max_workers == 3' >/dev/null || fail "max_workers"
on $lost up >/dev/null
wait_for 60 "three workers again, by no further restart" all_in "$tmp/out0" 3 1
on "$leader" why "$job" -o json | jq -e '.[-1].seen | test("slots for more than the 2 workers")' >/dev/null || fail "$(on "$leader" why "$job")"
on "$leader" status "$job" -o json | jq -e '.state == "running" and .restarts == 1 and .workers == 3' >/dev/null || fail "$(on "$leader" status "$job")"
says_so() { on "$leader" status "$still" -o json | jq -e '.workers == 2 and (.reason | test("room for 3, but run.grow is false"))'; }
wait_for 20 "the reason of the job that does not grow" says_so
# The output of the rank that left can be read, as all ranks' and as its own.
introduced="(rank $was ran on node $lost in an earlier epoch, with this output:)"
for options in "" "--rank $was"; do
  on "$leader" logs "$still" $options >"$tmp/said" || fail "logs $options: $(cat "$tmp/said")"
  grep -A 1 -F "$introduced" "$tmp/said" | grep -q "rank $was is in" || fail "logs $options: $(cat "$tmp/said")"
done
! on "$leader" logs "$still" --rank 3 2>"$tmp/said" || fail "there has never been a rank 3"
grep -q "has ranks 0 to 1" "$tmp/said" || fail "$(cat "$tmp/said")"
rm "$tmp/hold"
both_done() { on "$leader" status -o json | jq -e 'map(.state) == ["done", "done"]'; }
wait_for 60 "the end" both_done
end_nodes
