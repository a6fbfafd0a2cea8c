# chaos.sh FAULTS [SEED]: three nodes in network namespaces, a job of four workers on two of them, and FAULTS random faults,
# one after another. The script prints the seed of the random numbers. After each fault has been healed, the job must
# complete steps again within `limit`, which only a hang exceeds. At the end the parameters equal those of an undisturbed
# run on one node, bit for bit. If DTD_TORCH_PYTHON has PyTorch, a script with DistributedDataParallel runs on all three
# nodes at the same time, and has to complete.
#
# Prints a line for each fault and a table with a line for each kind, which `tests/chaos/table FILE` puts into
# docs/operate/cluster.md. CHAOS_KINDS="kill_node ..." restricts the kinds; CHAOS_LIMIT is in seconds.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/network.sh"
inside "$0" "$@"
. "$here/../cluster/lib.sh"
. "$here/faults.sh"
faults=$1 seed=${2:-$(od -An -N3 -tu4 /dev/urandom)} limit=${CHAOS_LIMIT:-120}
read -r -a kinds <<<"${CHAOS_KINDS:-${kinds[*]}}"
random=$((seed))
echo "seed $random: tests/chaos/chaos.sh $faults $random"
trap 'rc=$?; set +e; [ $rc -eq 0 ] || [ $rc -eq 77 ] || explain; network_ends; (exit $rc); finish' EXIT
explain() {
  local n
  echo "--- seed $seed, fault ${count:-none}: ${kind:-} on ${victim:-}; job ${job:-none}"
  on a cluster status || true
  for n in "${nodes[@]}"; do
    echo "--- $n"
    timeout 5 "$DTD_BIN/dtctl" --dir "$tmp/$n/dtd" why "${job:-1}" | tail -n 20 || true
    tail -n 60 "$tmp/$n/dtd/control.log" || true
    tail -n 15 "$tmp/$n"/dtd/jobs/*/*.log || true
  done 2>/dev/null
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }

# ---- the job ----
write_job
small=(--set model.layers=1 --set train.schedule=constant --set parallel.workers=4)
every=${CHAOS_EVERY:-100}
ckpt=$tmp/ckpt
job_status() { on "$1" status "$job" -o json; }
step_now() {
  local status
  status=$(job_status "$1") || return 1
  jq -e '.state == "failed"' <<<"$status" >/dev/null && fail "the job has failed: $(jq -r .reason <<<"$status")"
  jq -er 'select(.state == "running") | .step' <<<"$status"
}
steps_on() { [ "$(step_now "$1")" -gt "$2" ]; }
# The job completes a step after all nodes are up again; a step from before does not count.
steps_again() {
  local from
  wait_for "$limit" "job $job to run, as $1 sees it" step_now "$1"
  from=$(step_now "$1") || from=0
  wait_for "$limit" "steps of job $job, as $1 sees it" steps_on "$1" $((from + 1))
}
saved() { ls "$ckpt" | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }
saved_after() { [ "$(saved)" -gt "$1" ]; }

# ---- faults ----
other() { for n in "${nodes[@]}"; do [ "$n" = "$1" ] || { echo "$n" && return; }; done; }
# NODE VICTIM SINCE: prints the time at which NODE shows the fault: VICTIM as lost, or an incident of the job.
noticed() {
  if [ "$(cluster "$1" | jq -r ".node[] | select(.name == \"$2\").state")" = lost ]; then
    now_ms
  else
    job_status "$1" | jq -er "[.incident[].wall_ms | select(. >= $3)][0] // empty"
  fi
}
run_fault() { # KIND: one fault from beginning to end
  local kind=$1 witness begun hold seen= healed
  find_victim "$kind"
  witness=$(other "$victim")
  draw 8
  hold=$((300 + drawn * 600)) # some are shorter than the time after which a node is lost, some longer
  begun=$(now_ms)
  "strike_$kind" "$victim"
  while [ $(($(now_ms) - begun)) -lt $hold ]; do
    [ -n "$seen" ] || seen=$(noticed "$witness" "$victim" "$begun" 2>/dev/null) || seen=
    sleep 0.02
  done
  heal "$kind" "$victim"
  healed=$(now_ms)
  for n in "${nodes[@]}"; do wait_for "$limit" "all nodes, as $n sees it" all_up "$n"; done
  steps_again "$victim"
  [ -z "${CHAOS_WHY:-}" ] || on "$witness" why "$job" | tail -n 24
  [ -n "$seen" ] || seen=$(job_status "$witness" | jq -er "[.incident[].wall_ms | select(. >= $begun)][0] // empty") || seen=
  jq -nc "{fault: $count, kind: \"$kind\", node: \"$victim\", begun: $begun, held: ($healed - $begun), seen: ${seen:-null}, ended: $(now_ms)}" |
    tee -a "$tmp/faults"
}

torch=
if [ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null; then torch=$tmp/torch; fi
plug_in $([ -n "$torch" ] && echo 3 || echo 2)
make_cluster
job=$(on a submit "$tmp/job.yaml" "${small[@]}" --set train.steps=100000000 --set checkpoint.every=$every --set run.restarts=100000 --set checkpoint.dir="$ckpt" --set run.nodes=0 --detach -o json | jq -er .job)
wait_for "$limit" "a checkpoint" saved_after 0
torch_steps() { [ -s "$torch/state.pt" ]; }
torch_state() { on a status "$torch_job" -o json | jq -e ".state == \"$1\""; }
if [ -n "$torch" ]; then
  mkdir "$torch"
  torch_job=$(cd "$torch" && on a run --nodes 1:3 --workers-per-node 1 --max-restarts 100000 --env GLOO_SOCKET_IFNAME=dtd0 --detach -o json -- \
    "$DTD_TORCH_PYTHON" "$here/ddp.py" "$torch" | jq -er .job)
  wait_for "$limit" "PyTorch's first step" torch_steps
fi
deck=()
for ((count = 1; count <= faults; count++)); do
  if [ ${#deck[@]} = 0 ]; then
    shuffle "${kinds[@]}"
    deck=("${shuffled[@]}")
  fi
  kind=${deck[0]} deck=("${deck[@]:1}")
  run_fault "$kind"
done
if [ -n "$torch" ]; then
  torch_state running >/dev/null || wait_for "$limit" "PyTorch's job to run again" torch_state running
  touch "$torch/stop"
  wait_for "$limit" "the end of PyTorch's job" torch_state done
fi
wait_for "$limit" "a checkpoint after the last fault" saved_after "$(step_now a)"
on a cancel "$job" >/dev/null
is_canceled() { job_status a | jq -e '.state == "canceled"'; }
wait_for "$limit" "the cancel" is_canceled
last=$(saved)
dtctl ckpt verify "$ckpt/step-$last" >/dev/null || fail "step-$last does not verify"
hashes "$ckpt/step-$last" >"$tmp/hashes"
jq -s . "$tmp/faults" | jq -r --slurpfile step "$ckpt/metrics.jsonl" -f "$here/table.jq"
network_ends

# ---- the undisturbed run ----
up
job=$(submit "${small[@]}" --set train.steps="$last" --set checkpoint.every=0 --set checkpoint.dir="$tmp/quiet")
wait_done "$job" $((limit + last / 10))
hashes "$tmp/quiet/step-$last" >"$tmp/quiet-hashes"
cmp "$tmp/quiet-hashes" "$tmp/hashes" || fail "after step $last the parameters differ from those of an undisturbed run"
echo "after $last steps and $faults faults the parameters equal those of an undisturbed run, bit for bit"
[ -z "$torch" ] || jq -er 'select(.last < .first / 10) | "PyTorch: \(.steps) steps in \(.attempts) attempts, loss \(.first) to \(.last), and done"' "$torch/end" ||
  fail "the loss of PyTorch's job did not fall: $(cat "$torch/end")"
