# span.sh: a job of four workers on two of three nodes loses a node with workers: first a follower by kill -9, then the leader
# by kill -9, then the leader by `dtctl down`. Each time the job continues by itself on the other nodes, and ends with the
# parameters of an undisturbed run on one node, bit for bit.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin() { # NODE: starts its dtd with two slots
  mkdir -p "$tmp/$1"
  printf 'state_dir: %s\nslots: 2\n' "$tmp/$1" >"$tmp/$1.yaml"
  setsid "$DTD_BIN/dtd" --config "$tmp/$1.yaml" >>"$tmp/$1.out" 2>&1 &
  wait_for 20 "dtd of node $1" on "$1" node
}
guard_nodes a b c
# Also waits for three voters: with two, the loss of either one would be the loss of the majority.
all_up() { cluster_has "$1" 'all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
state_on() { [ "$(on "$1" status "$job" -o json | jq -r .state)" = "$2" ]; }
step_on() { [ "$(on "$1" status "$job" -o json | jq -r .step)" -ge "$2" ]; }
other() { for n in $nodes; do case " $* " in *" $n "*) ;; *) echo "$n"; return ;; esac; done; }
has_workers() { pgrep -P "$(head -n 1 "$tmp/$1/dtd.lock")" -x dt-worker >/dev/null; }
go_down() { on "$1" down >/dev/null; }

long=(--set train.steps=400 --set model.dim=128 --set checkpoint.every=50 --set parallel.workers=4)
up
job=$(submit "${long[@]}" --set checkpoint.dir="$tmp/quiet")
wait_done "$job" 120
hashes "$tmp/quiet/step-400" >"$tmp/quiet-hashes"
dtctl down >/dev/null

for n in $nodes; do begin $n; declare "port_$n=$(port)"; done
on a cluster init $(where a) >/dev/null
token=$(on a cluster token --uses 2 -o json | jq -er .token)
for n in b c; do on $n cluster join <<<"$token" $(where $n) >/dev/null; done

# lose NAME NODE HOW: runs job NAME and ends one of its nodes by HOW. NODE: `leader`, or `other` for a follower.
lose() {
  local name=$1 leader victim n spare
  for n in $nodes; do wait_for 60 "all nodes, as $n sees it" all_up "$n"; done
  leader=$(cluster a | jq -er .leader)
  spare=$(other "$leader")
  [ "$2" = other ] || on "$leader" node drain "$spare" --reason "the job is to be where the lead is" >/dev/null
  job=$(on "$(other "$leader")" submit "$tmp/job.yaml" "${long[@]}" --set run.nodes=0 --set checkpoint.dir="$tmp/$name" --detach -o json | jq -er .job)
  wait_for 60 "step 60 of job $job" step_on "$leader" 60
  [ "$2" = other ] || on "$leader" node undrain "$spare" >/dev/null
  for n in $nodes; do
    if has_workers "$n" && { [ "$2" = leader ] && [ "$n" = "$leader" ] || { [ "$2" = other ] && [ "$n" != "$leader" ]; }; }; then victim=$n; fi
  done
  [ -n "${victim:-}" ] || fail "$name: no worker on the $2 of $leader"
  begin=$(date +%s%N)
  $3 "$victim"
  n=$(other "$victim")
  [ "$3" = kill_node ] || { echo "it was down after $((($(date +%s%N) - begin) / 1000000)) ms"; cluster_has "$n" ".leader != null and .leader != \"$victim\"" >/dev/null || fail "no other node became the leader"; }
  wait_for 120 "the end of job $job" state_on "$n" done
  on "$n" status "$job" -o json | jq -r '.incident[] | "\(.seen); \(.decided); noticed after \(.detect_ms) ms, stepping again \(.recover_ms) ms later: in all \(.detect_ms + .recover_ms | floor) ms"'
  on "$n" status "$job" -o json | jq -e '[.incident[].decided] | any(test("from step [1-9]"))' >/dev/null || fail "$name: the job restarted from step 0"
  [ "$(on "$n" metrics "$job" -o jsonl | jq .step | sort -n | uniq | wc -l)" = 400 ] || fail "$name: metrics of some steps are missing"
  hashes "$tmp/$name/step-400" >"$tmp/$name-hashes"
  cmp "$tmp/quiet-hashes" "$tmp/$name-hashes" || fail "$name: the final tensors differ from those of the undisturbed run"
  begin "$victim"
}
lose follower other kill_node
lose leader leader kill_node
lose orderly leader go_down
on "$(other "$(cluster a | jq -er .leader)")" status "$job" -o json | jq -e '.restarts == 0' >/dev/null || fail "leaving a node counts as a restart"
end_nodes
