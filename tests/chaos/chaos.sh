# chaos.sh FAULTS [SEED]: CHAOS_NODES nodes (3) in network namespaces, a job of four workers on two of them, and FAULTS random
# faults, CHAOS_TOGETHER (1) at a time, each on a node of its own. The script prints the seed of the random numbers. After all of them have been healed, the job must
# complete steps again within `limit`, which only a hang exceeds. At the end the parameters equal those of an undisturbed
# run on one node, bit for bit. If DTD_TORCH_PYTHON has PyTorch, a script with DistributedDataParallel runs on all
# nodes at the same time, and has to complete.
#
# Prints a line for each fault and a table with a line for each kind, which `tests/chaos/table FILE` puts into
# docs/operate/cluster.md. CHAOS_KINDS="kill_node ..." restricts the kinds; CHAOS_LIMIT is in seconds.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/network.sh"
inside "$0" "$@"
. "$here/../cluster/lib.sh"
. "$here/faults.sh"
faults=$1 together=${CHAOS_TOGETHER:-1} seed=${2:-$(od -An -N3 -tu4 /dev/urandom)} limit=${CHAOS_LIMIT:-120}
read -r -a kinds <<<"${CHAOS_KINDS:-${kinds[*]}}"
random=$((seed))
echo "seed $random: CHAOS_NODES=${#nodes[@]} CHAOS_TOGETHER=$together tests/chaos/chaos.sh $faults $random"
trap 'rc=$?; set +e; [ $rc -eq 0 ] || [ $rc -eq 77 ] || explain; network_ends; (exit $rc); finish' EXIT
explain() {
  local n
  echo "--- seed $seed, fault ${count:-none}: ${now[*]:-} on ${victims[*]:-}; job ${job:-none}"
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
other() { for n in "${nodes[@]}"; do [[ " $* " == *" $n "* ]] || { echo "$n" && return; }; done; } # NODE...: one that is none of them
# NODE VICTIM SINCE: prints the time at which NODE shows the fault: VICTIM as lost, or an incident of the job.
noticed() {
  if [ "$(cluster "$1" | jq -r ".node[] | select(.name == \"$2\").state")" = lost ]; then
    now_ms
  else
    job_status "$1" | jq -er "[.incident[].wall_ms | select(. >= $3)][0] // empty"
  fi
}
# KIND...: faults that happen at once, from beginning to end, into `victims` and the file of faults.
run_faults() {
  local i kind what=("$@") witness left=$# begun=() hold=() seen=() healed=()
  victims=()
  for kind in "$@"; do
    find_victim "$kind" "${victims[@]}"
    victims+=("$victim")
  done
  witness=$(other "${victims[@]}")
  for i in "${!victims[@]}"; do
    draw 8
    hold[i]=$((300 + drawn * 600)) # some are shorter than the time after which a node is lost, some longer
    begun[i]=$(now_ms)
    "strike_${what[i]}" "${victims[i]}"
  done
  while [ "$left" -gt 0 ]; do
    for i in "${!victims[@]}"; do
      [ -z "${healed[i]:-}" ] || continue
      [ -n "${seen[i]:-}" ] || seen[i]=$(noticed "$witness" "${victims[i]}" "${begun[i]}" 2>/dev/null) || seen[i]=
      [ $(($(now_ms) - begun[i])) -ge "${hold[i]}" ] || continue
      heal "${what[i]}" "${victims[i]}"
      healed[i]=$(now_ms) left=$((left - 1))
    done
    sleep 0.02
  done
  for n in "${nodes[@]}"; do wait_for "$limit" "all nodes, as $n sees it" all_up "$n"; done
  steps_again "${victims[0]}"
  [ -z "${CHAOS_WHY:-}" ] || on "$witness" why "$job" | tail -n 24
  for i in "${!victims[@]}"; do
    [ -n "${seen[i]}" ] || seen[i]=$(job_status "$witness" | jq -er "[.incident[].wall_ms | select(. >= ${begun[i]})][0] // empty") || seen[i]=
    jq -nc "{fault: $((count + i)), kind: \"${what[i]}\", node: \"${victims[i]}\", begun: ${begun[i]}, held: $((healed[i] - begun[i])), seen: ${seen[i]:-null}, ended: $(now_ms)}" |
      tee -a "$tmp/faults"
  done
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
  torch_job=$(cd "$torch" && on a run --nodes "1:${#nodes[@]}" --workers-per-node 1 --max-restarts 100000 --env GLOO_SOCKET_IFNAME=dtd0 --detach -o json -- \
    "$DTD_TORCH_PYTHON" "$here/ddp.py" "$torch" | jq -er .job)
  wait_for "$limit" "PyTorch's first step" torch_steps
fi
[ "$together" -lt ${#nodes[@]} ] || fail "CHAOS_TOGETHER=$together: at least one of ${#nodes[@]} nodes has to stay"
deck=()
for ((count = 1; count <= faults; count += together)); do
  while [ ${#deck[@]} -lt "$together" ]; do
    shuffle "${kinds[@]}"
    deck+=("${shuffled[@]}")
  done
  now=("${deck[@]:0:together}") deck=("${deck[@]:together}")
  run_faults "${now[@]}"
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
