# The usage of ranks on other nodes reaches the leader. The next leader has the windows of the killed one, from beside the
# checkpoints, then its own, each once.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin_nodes a b c
leader=$(cluster a | jq -r .leader)
on "$leader" node drain "$leader" --reason "it only leads"
set -- $(for n in a b c; do [ $n = "$leader" ] || echo $n; done)
job=$(on "$1" submit "$tmp/job.yaml" --detach --set train.steps=1000000 --set checkpoint.every=0 --set parallel.workers=2 \
  --set checkpoint.dir="$tmp/ckpt" --set train.numerics=fast -o json | jq -er .job)
ranks() { on "$1" metrics "$job" --ranks -o json; }
has_windows() { [ "$(ranks "$1" | jq length)" -ge "$2" ]; }
wait_for 60 "three windows" has_windows "$1" 3
sleep 1.5 # the last lines reach the file beside the checkpoints within a second
ranks "$1" | jq -c '.[:3][] | .wall_ms' >"$tmp/before"
ranks "$1" | jq -e --arg l "$leader" 'all(.[]; .node | length == 2 and all(.[]; . != $l and . != ""))' >/dev/null || fail "nodes: $(ranks "$1" | jq -c '.[0].node')"

kill_node "$leader"
follows() { cluster_has "$1" ".leader != null and .leader != \"$leader\""; }
wait_for 30 "another leader" follows "$1"
wait_for 90 "windows of the next leader" has_windows "$1" 6
ranks "$1" | jq -c '.[:3][] | .wall_ms' | cmp - "$tmp/before" || fail "windows of the killed leader are missing"
ranks "$1" | jq -e '[.[].wall_ms] | . == (unique | sort)' >/dev/null || fail "a window is there twice"
on "$1" cancel "$job" >/dev/null
end_nodes
