# clock.sh: three nodes whose wall clocks differ by days, set by a preloaded library. The nodes of a job's workers are days
# behind the leader. Then they are set, the leader is killed, and the next one is days ahead: a running job with a time
# limit goes on in its epoch, ends at its limit, its checkpoints and metrics are complete, a job that is submitted then
# runs, and a token for an hour, made before, admits a node that is behind.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
library=$DTD_BIN/../tests/libclock_step.so
[ -e "$library" ] || skip "no $library"
write_job
guard_nodes a b c d
declare -A days=([a]=0 [b]=-2 [c]=-3 [d]=-2)
set_clock() { # NODE DAYS: also of the processes that run there already
  python3 -c 'import struct, sys; f = open(sys.argv[1], "r+b"); f.write(struct.pack("q", int(sys.argv[2]) * 86400))' "$tmp/$1.clock" "$2"
  days[$1]=$2
}
begin() { # NODE: starts its dtd with a clock of its own
  mkdir -p "$tmp/$1"
  truncate -s 8 "$tmp/$1.clock"
  set_clock "$1" "${days[$1]}"
  printf 'state_dir: %s\nslots: %d\n' "$tmp/$1" "$([ "$1" = a ] && echo 1 || echo 2)" >"$tmp/$1.yaml"
  ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 DTD_TEST_CLOCK=$tmp/$1.clock LD_PRELOAD=$library setsid "$DTD_BIN/dtd" --config "$tmp/$1.yaml" >>"$tmp/$1.out" 2>&1 &
  wait_for 20 "dtd of node $1" on "$1" node
}
for n in a b c; do begin $n; declare "port_$n=$(port)"; done
logged_day() { sed -n 's/^\([0-9-]*\)T.* started version.*/\1/p' "$tmp/$1/control.log" | tail -n 1; }
[ "$(logged_day c)" \< "$(logged_day b)" ] && [ "$(logged_day b)" \< "$(logged_day a)" ] || fail "the clocks do not differ: $(logged_day a) $(logged_day b) $(logged_day c)"

on a cluster init $(where a) >/dev/null
token=$(on a cluster token --uses 2 -o json | jq -er .token)
for n in b c; do on $n cluster join <<<"$token" $(where $n) >/dev/null; done
all_up() { cluster_has "$1" 'all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
for n in a b c; do wait_for 60 "three voters, as $n sees it" all_up $n; done

token=$(on a cluster token --hours 1 -o json | jq -er .token) # it has the addresses of all three

# Node a leads and has too few slots for a rank, so that its loss does not end the epoch of the job.
leader=$(cluster a | jq -er .leader)
[ "$leader" = a ] || fail "$leader leads, and its clock is not that of the first leader"
for n in a b c; do [ $n = "$leader" ] || follower=$n; done
long=(--set train.steps=1000000 --set parallel.workers=4 --set run.nodes=2 --set checkpoint.every=20 --set checkpoint.keep_last=2)
job=$(on "$follower" submit "$tmp/job.yaml" "${long[@]}" --set run.max_seconds=25 --set checkpoint.dir="$tmp/limit" --detach -o json | jq -er .job)
began=$(date +%s)
step_of() { on "$1" status "$job" -o json | jq -r .step; }
reached() { [ "$(step_of "$1")" -ge "$2" ]; }
wait_for 30 "steps of the job" reached "$follower" 40
set_clock b 2
set_clock c 3
sleep $((began + 12 - $(date +%s) > 0 ? began + 12 - $(date +%s) : 0)) # a count that begins again with the next leader is seen
[ "$(cluster "$follower" | jq -r .leader)" = a ] || fail "the lead has moved"
kill_node "$leader"
wait_for 30 "another leader" cluster_has "$follower" ".leader != null and .leader != \"$leader\""
second=$(cluster "$follower" | jq -er .leader)
echo "the lead went from $leader (${days[$leader]} days) to $second (${days[$second]} days)"
before=$(step_of "$follower")
wait_for 20 "further steps" reached "$follower" $((before + 40))
on "$follower" status "$job" -o json | jq -e '.epoch == 1 and .state == "running"' >/dev/null || fail "the new leader ended the epoch: $(on "$follower" why "$job")"
other=$(on "$follower" submit "$tmp/job.yaml" --set parallel.workers=1 --set checkpoint.dir="$tmp/other" --detach -o json | jq -er .job)
is() { on "$follower" status "$1" -o json | jq -e ".state == \"$2\""; }
wait_for 60 "the end of the job at its limit" is "$job" failed
took=$(($(date +%s) - began))
[ $took -ge 24 ] && [ $took -le 35 ] || fail "a limit of 25 s was reached after $took s"
on "$follower" status "$job" -o json | jq -e '.reason | contains("run.max_seconds (25) reached")' >/dev/null || fail "$(on "$follower" why "$job")"
wait_for 60 "the end of the second job" is "$other" done

begin d
port_d=$(port)
on d cluster join <<<"$token" $(where d) >/dev/null || fail "the token for an hour does not admit node d"

# The catalog has what is on the disk, newest by step, and the metrics of all steps are there.
folders=$(ls "$tmp/limit" | sed -n 's/^step-//p' | sort -n | xargs)
listed=$(on "$follower" ckpt ls "$job" -o json | jq -r '[.[].step] | sort | map(tostring) | join(" ")')
[ "$folders" = "$listed" ] || fail "checkpoints: $folders; the catalog has $listed"
last=$(step_of "$follower")
[ "$(on "$follower" metrics "$job" -o jsonl | jq .step | sort -n | uniq | wc -l)" = "$last" ] || fail "metrics of some of the $last steps are missing"
end_nodes
