# command_nodes.sh follower|leader: a command job on three nodes, each with its own port to the one store. A node, the
# leader or a follower, is killed, and the job continues on the other two, as its range of nodes allows.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
. "$(dirname "$0")/command_worker.sh"
begin_nodes a b c
rank_on() { jq -r .MASTER_PORT "$tmp/out/$1-of-6-restart-0"; }
job=$(cd "$tmp/work" && umask 026 && on b run --nodes 2:3 --workers-per-node 2 --max-restarts 2 --detach -o json -- \
  python3 "$tmp/worker.py" "$tmp/out" "$tmp/hold" | jq -er .job)
wait_for 60 "six workers" all_in "$tmp/out" 6 0
[ "$(rank_on 0)" = "$(rank_on 1)" ] || fail "two ports on one node"
[ "$(rank_on 0)" != "$(rank_on 2)" ] && [ "$(rank_on 2)" != "$(rank_on 4)" ] || fail "one port on two nodes"
for rank in 0 1 2 3 4 5; do
  jq -e ".GROUP_RANK == \"$((rank / 2))\" and .LOCAL_RANK == \"$((rank % 2))\" and .GROUP_WORLD_SIZE == \"3\"
    and .umask == \"026\"" "$tmp/out/$rank-of-6-restart-0" >/dev/null || fail "wrong group, local rank or umask of rank $rank"
done

leader=$(on b cluster status -o json | jq -r .leader)
for n in a b c; do
  [ "$n" = "$leader" ] && role=leader || role=follower
  [ $role != "$1" ] || lost=$n
  [ $role = "$1" ] || left=$n
done
kill -9 "$(head -n 1 "$tmp/$lost/dtd.lock")"
wait_for 60 "four workers after the loss" all_in "$tmp/out" 4 1
jq -es 'map(.umask) == ["026", "026", "026", "026"]' "$tmp/out"/?-of-4-restart-1 >/dev/null || fail "the umask of the second attempt"
on "$left" why "$job" | grep -q "node $lost was lost" || fail "$(on "$left" why "$job")"
rm "$tmp/hold"
job_done() { on "$left" status "$job" -o json | jq -e '.state == "done" and .workers == 4'; }
wait_for 60 "the end" job_done
stray() { pgrep -f "$tmp/worker.py" >/dev/null; }
! stray || fail "workers still run after the end of the job"
end_nodes
