# auto_layout.sh: a job with parallel: auto on three nodes loses one of them, and the planner chooses another layout for
# the workers that are left, which status, events and the report show. The lost node returns, and the job grows again. In
# canonical numerics its tensors equal those of one worker with a fixed layout, bit for bit; in float64 on the reference
# kernels its losses do.
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
all_up() { cluster_has "$1" 'all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
of_job() { on "$1" status "$job" -o json | jq -e "$2"; }
long=(--set train.steps=300 --set model.dim=128 --set model.layers=4 --set checkpoint.every=20 --set train.schedule=constant)
sed -i 's/ micro_batch: 2,//' "$tmp/job.yaml"
up
whole=$(submit "${long[@]}" --set parallel.workers=1 --set checkpoint.dir="$tmp/whole")
wait_done "$whole" 120
hashes "$tmp/whole/step-300" >"$tmp/whole-hashes"
proof=$(submit "${long[@]}" --set train.steps=40 --set parallel.workers=1 --set train.numerics=proof --set train.dtype=float64 --set checkpoint.dir="$tmp/proof")
wait_done "$proof" 120
losses "$proof" >"$tmp/proof-losses"
# The planner is free: `workers` is left out, which means all slots of this node, and at least one.
sed -i 's/^parallel:.*/parallel: auto/' "$tmp/job.yaml"
job=$(submit "${long[@]}" --set train.steps=4 --set checkpoint.dir="$tmp/slots")
wait_done "$job"
status "$job" | jq -e '.workers == .max_workers and (.layout_why | test(": [0-9.e-]+ s a step")) and (.spec_yaml | test("min_workers: 1"))' >/dev/null || { status "$job"; fail "all slots are not used"; }
# A resume may fix a key. It is as if the file had it: min_workers, which dtd has set to 1, is no obstacle.
job=$(dtctl resume "$job" --more 4 --workers 4 --set parallel.tp=2 --detach -o json 2>"$tmp/err" | jq -er .job) || fail "$(cat "$tmp/err")"
wait_done "$job"
status "$job" | jq -e '.workers == 4 and (.layout_why | startswith("tp 2, "))' >/dev/null || { status "$job"; fail "the key of the resume is not kept"; }
# Where it fits nowhere it is refused before anything starts.
printf 'name: tiny\ndevice: {per_node: 2, memory_gib: 0.001, bandwidth_gb: 10, bf16_tflops: 1, f32_tflops: 1, one_thread: true}\nlink: {bandwidth_gb: 5}\n' >"$tmp/tiny.yaml"
rc=0
(cd "$tmp" && dtctl submit job.yaml --set parallel.machine=./tiny.yaml --set checkpoint.dir=tiny --detach 2>refused) || rc=$?
[ $rc = 2 ] && grep -q "parallel.auto: the model does not fit into .* GiB more" "$tmp/refused" || fail "exit $rc: $(cat "$tmp/refused")"
dtctl down >/dev/null

for n in $nodes; do begin $n; declare "port_$n=$(port)"; done
on a cluster init $(where a) >/dev/null
token=$(on a cluster token --uses 2 -o json | jq -er .token)
for n in b c; do on $n cluster join <<<"$token" $(where $n) >/dev/null; done
for n in $nodes; do wait_for 60 "all nodes, as $n sees it" all_up "$n"; done
leader=$(cluster a | jq -er .leader)
for n in $nodes; do [ "$n" = "$leader" ] || victim=$n; done

# run NAME STEPS SETS...: the job on all nodes, of which one is killed and returns.
run() {
  local name=$1 steps=$2
  shift 2
  job=$(on "$leader" submit "$tmp/job.yaml" "${long[@]}" --set train.steps="$steps" --set parallel.min_workers=2 \
    --set checkpoint.dir="$tmp/$name" "$@" --detach -o json | jq -er .job)
  wait_for 60 "the first checkpoint of job $job" of_job "$leader" '.workers == 6 and .checkpoint_step >= 0'
  first=$(of_job "$leader" .layout_why)
  kill_node "$victim"
  wait_for 60 "fewer workers" of_job "$leader" '.workers == 4 and .state == "running" and .last.epoch == .epoch'
  second=$(of_job "$leader" .layout_why)
  [ "$first" != "$second" ] || fail "$name: six and four workers have the same layout: $first"
  on "$leader" status "$job" | grep -q "^  Layout     auto: .* s a step" || fail "$name: status does not show the layout"
  on "$leader" events "$job" | grep -q "with 4 workers.*; layout auto: " || fail "$name: events do not show the layout"
  begin "$victim"
  wait_for 60 "the victim" all_up "$leader"
  wait_for 120 "the end of job $job" of_job "$leader" '.state == "done"'
  of_job "$leader" '.restarts == 1 and ([.incident[].decided] | any(test("with 4 of 6 workers, layout auto: ")))' >/dev/null || { on "$leader" status "$job"; fail "$name: no incident names the layout"; }
  [ "$(on "$leader" metrics "$job" -o jsonl | jq .step | sort -n | uniq | wc -l)" = "$steps" ] || fail "$name: metrics of some steps are missing"
  echo "$name: $first, then $second, at the end on $(of_job "$leader" .workers) workers: $(of_job "$leader" .layout_why)"
}
run canonical 300
hashes "$tmp/canonical/step-300" >"$tmp/canonical-hashes"
cmp "$tmp/whole-hashes" "$tmp/canonical-hashes" || fail "the tensors differ from those of one worker"
(cd "$tmp" && on "$leader" report "$job" --to report.html >/dev/null) || fail "no report"
grep -q "Chosen by dtd" "$tmp/report.html" || fail "the report does not show the layout"

run float64 40 --set train.numerics=proof --set train.dtype=float64 --set checkpoint.every=5
on "$leader" metrics "$job" -o jsonl | jq -r '"\(.step) \(.loss)"' | sort -k1,1 >"$tmp/float64-losses"
join <(sort -k1,1 "$tmp/proof-losses") "$tmp/float64-losses" |
  awk '{ d = $2 - $3; if (d < 0) d = -d; if (d > 1e-9 * $2) { print; bad = 1 } n++ } END { exit bad || n < 40 }' ||
  fail "the losses differ from those of one worker"
end_nodes
