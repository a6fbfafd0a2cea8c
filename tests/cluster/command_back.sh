# command_back.sh: a command job on three nodes. One node's control is stopped until the node is declared lost; its worker
# continues to run. Two nodes are too few for the job, so it waits for the third. When that is back, its old worker is
# killed, and the job runs again on all three.
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
kill -0 "$pid" || fail "the worker of $silent ended when its node was declared lost"
kill -CONT "$control"
wait_for 30 "three workers again" all_in "$tmp/out" 3 1
! kill -0 "$pid" 2>/dev/null || fail "the earlier worker of $silent runs beside the new one"
rm "$tmp/hold"
wait_for 30 "the end" job_says '.state == "done" and .restarts == 1'
end_nodes
