# command_back.sh: a command over three nodes; one is silent until it is taken for lost, and its worker lives on. No two nodes have room:
# the job waits for that node, whose old worker is ended as it comes back, and runs again on all three.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
. "$(dirname "$0")/command_worker.sh"
begin_nodes a b c
leader=$(on a cluster status -o json | jq -er .leader)
for n in a b c; do [ $n = "$leader" ] || silent=$n; done
job=$(cd "$tmp/work" && on "$leader" run --nodes 3 --workers-per-node 1 --max-restarts 1 --detach -o json -- \
  python3 "$tmp/worker.py" "$tmp/out" "$tmp/hold" | jq -er .job)
job_says() { on "$leader" status "$job" -o json | jq -e "$1"; }
wait_for 60 "three workers" all_in "$tmp/out" 3 0
pid=$(on "$leader" status "$job" -o json | jq -er ".worker[] | select(.node == \"$silent\") | .pid")

control=$(pgrep -P "$(head -n 1 "$tmp/$silent/dtd.lock")" -x dtd-control)
kill -STOP "$control"
wait_for 20 "the job to wait for $silent" job_says '.state == "recovering" and (.reason | test("waits for"))'
kill -0 "$pid" || fail "the worker of $silent has ended with its node's silence"
kill -CONT "$control"
wait_for 30 "three workers again" all_in "$tmp/out" 3 1
! kill -0 "$pid" 2>/dev/null || fail "the earlier worker of $silent lives beside the new one"
rm "$tmp/hold"
wait_for 30 "the end" job_says '.state == "done" and .restarts == 1'
end_nodes
