# stop_two.sh: after the removal of one of three nodes, the leader shuts down regularly at once; then each of the two nodes
# shuts down in turn, several times. Each time the other node leads alone within seconds, and accepts and completes a job
# while the first one is away.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin_nodes a b c
other() { for n in $nodes; do [ $n = "$1" ] || { echo $n; return; }; done; }
leads() { cluster_has "$1" ".leader == \"$1\""; }
leader() { cluster ${nodes%% *} | jq -r .leader; }
job_done() { on "$1" status "$2" -o json | jq -e '.state == "done"'; }

# stop_one NODE WORD: shuts the node down, uses the other one meanwhile, and starts the node again.
stop_one() {
  local rest=$(other "$1") begin=$(date +%s%N) job
  on "$1" down >/dev/null
  echo "$2: $1 is down after $((($(date +%s%N) - begin) / 1000000)) ms"
  wait_for 20 "$rest to lead without $1" leads "$rest"
  job=$(on "$rest" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/$2" --detach -o json | jq -er .job)
  wait_for 60 "a job on the remaining node" job_done "$rest" "$job"
  on "$1" up >/dev/null
  wait_for 30 "both up" cluster_has "$rest" '[.node[] | select(.state == "up")] | length == 2'
}

first=$(leader)
dead=$(other "$first")
kill_node "$dead"
wait_for 20 "its loss to be noticed" cluster_has "$first" "any(.node[]; .name == \"$dead\" and .state == \"lost\")"
on "$first" cluster remove "$dead"
nodes="$first $(for n in a b c; do case $n in $first | $dead) ;; *) echo $n ;; esac; done)"
stop_one "$first" removed
for round in 1 2 3; do
  stop_one "$(leader)" "leader-$round"
  stop_one "$(other "$(leader)")" "follower-$round"
done
end_nodes
