# The usage of ranks on other nodes reaches the leader. The next leader has the windows of the killed one, from beside the
# checkpoints, then its own, each once.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin() { # NODE: starts its dtd with one slot, so that two ranks are on two nodes
  mkdir -p "$tmp/$1"
  printf 'state_dir: %s\nslots: 1\n' "$tmp/$1" >"$tmp/$1.yaml"
  setsid "$DTD_BIN/dtd" --config "$tmp/$1.yaml" >>"$tmp/$1.out" 2>&1 &
  wait_for 20 "dtd of node $1" on "$1" node
}
for n in a b c; do begin $n; done
begin_nodes a b c
job=$(on a submit "$tmp/job.yaml" --detach --set train.steps=1000000 --set checkpoint.every=0 --set checkpoint.dir="$tmp/ckpt" \
  --set train.numerics=fast -o json | jq -er .job)
ranks() { on "$1" metrics "$job" --ranks -o json; }
has_windows() { [ "$(ranks "$1" | jq length)" -ge "$2" ]; }
wait_for 60 "three windows" has_windows a 3
sleep 1.5 # lines reach the file beside the checkpoints within a second
leader=$(cluster a | jq -r .leader)
n=$(for n in a b c; do [ $n = "$leader" ] || echo $n; done | head -n 1)
ranks "$n" | jq -c '.[:3][] | .wall_ms' >"$tmp/before"
ranks "$n" | jq -e 'all(.[]; (.node | unique | length) == 2 and (.compute_s | length) == 2)' >/dev/null || fail "$(ranks "$n" | jq -c '.[0]')"

kill_node "$leader"
follows() { cluster_has "$n" ".leader != null and .leader != \"$leader\""; }
wait_for 30 "another leader" follows
new_windows() { ranks "$n" | jq -e --argjson last "$(tail -n 1 "$tmp/before")" 'map(select(.wall_ms > $last + 8000)) | length >= 2'; }
wait_for 90 "windows of the next leader" new_windows
ranks "$n" | jq -c '.[:3][] | .wall_ms' | cmp - "$tmp/before" || fail "windows of the killed leader are missing"
ranks "$n" | jq -e '[.[].wall_ms] | . == (unique | sort)' >/dev/null || fail "a window is there twice"
on "$n" cancel "$job" >/dev/null
end_nodes
