# profile.sh: dtctl profile of a pipeline of four ranks and of a layout with sharding: the trace keeps its rules, the order
# of the pipeline is that of the textbook, and the sums are those of the workers. Then what is refused: a job that has
# ended, a command, a second profile, a folder that cannot be written; and what may happen in between: a rank is killed, the
# disk is full, the job reaches its last step.
. "$(dirname "$0")/lib.sh"
write_job
up
check() { python3 "$DTD_SOURCE/tests/cluster/profile_check.py" "$@" || fail "the trace of $*"; }
refused() { # PATTERN COMMAND...
  local pattern=$1
  shift
  if dtctl "$@" >"$tmp/said" 2>&1; then cat "$tmp/said"; fail "accepted: $*"; fi
  grep -q "$pattern" "$tmp/said" || { cat "$tmp/said"; fail "the message of $* lacks: $pattern"; }
}
endless=(--set train.steps=1000000 --set train.numerics=fast --set checkpoint.every=0)
cancel() { dtctl cancel --now "$1" >/dev/null; wait_for 30 "the cancel" is_state "$1" canceled; }

pipe=(--set parallel.workers=4 --set parallel.pp=4 --set model.layers=4 --set train.micro_batch=1 --set parallel.schedule=1f1b)
job=$(submit "${endless[@]}" "${pipe[@]}")
wait_for 60 "step 3" reached "$job" 3
dtctl profile "$job" --to "$tmp/pipe.json.gz" -o json >"$tmp/said"
jq -e '.steps == 3 and .lost_ops == 0 and .messages == 144 and .clock_error_s == 0 and (.ranks | length) == 4 and
  all(.ranks[]; .step_s > 0 and .compute_s > 0 and .compute_s < .step_s and .exposed_s <= .comm_s + 1e-12 and
      .bubble > 0 and .bubble < 1) and .difference.forecast_s >= 0' "$tmp/said" >/dev/null || { cat "$tmp/said"; fail "wrong summary"; }
# 3 steps of 8 microbatches over 3 borders, forward and back
check "$tmp/pipe.json.gz" --files "$tmp/ckpt/profile" --ranks 4 --steps 3 --pipeline 8 --messages 144
(cd "$tmp" && dtctl profile "small" --steps 1) >"$tmp/said" # a name, and the default file
first=$(sed -n 's/^steps \([0-9]*\) to .*/\1/p' "$tmp/said")
check "$tmp/job-$job-step-$first.json.gz" --files "$tmp/ckpt/profile" --ranks 4 --steps 1 --pipeline 8 --messages 48
grep -q "Largest difference from the forecast: " "$tmp/said" || { cat "$tmp/said"; fail "no comparison with the forecast"; }
dtctl profile "$job" --steps 2 --to "$tmp/traces/" >/dev/null
check "$tmp"/traces/rank-00?.json.gz --files "$tmp/ckpt/profile" --ranks 4 --steps 2 --pipeline 8
dtctl profile "$job" --steps 2 --to "$tmp/all.tar" >/dev/null
mkdir "$tmp/untarred" && tar -C "$tmp/untarred" -xf "$tmp/all.tar"
check "$tmp"/untarred/rank-00?.json.gz --files "$tmp/ckpt/profile" --ranks 4 --steps 2 --pipeline 8
jq -e '.perfetto_manifest | .version == 1 and (.files | length) == 4 and
  all(.files[1:][]; .clocks == {sync_to: {file: "rank-000.json.gz"}, offset_ns: 0})' "$tmp/untarred/perfetto_manifest.json" >/dev/null || fail "wrong manifest"

refused "no file can be written in $tmp/none" profile "$job" --to "$tmp/none/trace.json.gz"
refused "expected a number of steps from 1 to 64" profile "$job" --steps 65
kill -STOP "$(worker_pid "$job" 3)" # so the first one cannot be complete before the second
dtctl profile "$job" --steps 64 --to "$tmp/long.json.gz" >"$tmp/long" 2>&1 &
long=$!
wait_for 20 "the profile to begin" grep -q "profile begins .*steps=64" "$DTD_DIR/control.log"
refused "is being profiled already: 0 of its 4 workers have written their 64 steps" profile "$job" --to "$tmp/second.json.gz"
kill -CONT "$(worker_pid "$job" 3)"
wait $long || { cat "$tmp/long"; fail "a second request has disturbed the first profile"; }
check "$tmp/long.json.gz" --files "$tmp/ckpt/profile" --ranks 4 --steps 64 --pipeline 8
[ "$(grep -c "profile begins" "$DTD_DIR/jobs/$job/rank-0.log")" = 5 ] || fail "a profile has run more than once"
cancel "$job"
refused "job $job is canceled: only a running job has steps to profile" profile "$job"
refused "no job 77" profile 77

# Sharded parameters, tensor parallelism, saves and evaluations.
yes "another text to be evaluated by" 2>/dev/null | head -n 60 >"$tmp/valid.txt" || true
mesh=(--set parallel.workers=4 --set parallel.fsdp=2 --set parallel.tp=2 --set train.numerics=fast --set checkpoint.every=2
  --set data.valid='[valid.txt]' --set train.eval_every=3 --set train.steps=1000000 --set checkpoint.dir=mesh)
job=$(submit "${mesh[@]}")
wait_for 60 "step 3" reached "$job" 3
dtctl profile "$job" --steps 6 --to "$tmp/mesh.json.gz" >/dev/null
check "$tmp/mesh.json.gz" --files "$tmp/mesh/profile" --ranks 4 --steps 6 --messages 0
zcat "$tmp/mesh.json.gz" | jq -e '[.traceEvents[] | select(.ph == "M" and .name == "thread_name" and .pid == 1).args.name] |
  contains(["step", "compute", "comm fsdp", "comm tp", "data", "checkpoint", "control"])' >/dev/null || fail "a row is missing"
zcat "$tmp/mesh.json.gz" | jq -e '[.traceEvents[] | select(.ph == "X" and .pid == 1) | .name] |
  map(select(. == "save")) == ["save", "save", "save"] and map(select(. == "evaluate")) == ["evaluate", "evaluate"]' >/dev/null ||
  fail "saves or evaluations are missing"

# A rank is killed: the profile ends with the cause, and the next one of the new epoch succeeds.
began() { grep -c "profile begins" "$DTD_DIR/jobs/$job/rank-2.log"; }
before=$(began) # the profiles above have begun on this rank, too
dtctl profile "$job" --steps 64 --to "$tmp/dead.json.gz" >"$tmp/said" 2>&1 &
victim=$!
another_began() { [ "$(began)" -gt "$before" ]; }
wait_for 20 "the profile to begin" another_began
kill -9 "$(worker_pid "$job" 2)"
if wait $victim; then fail "a profile was complete without rank 2"; fi
grep -q "epoch 1 ended during the profile: worker rank 2 .* was killed by signal 9" "$tmp/said" || { cat "$tmp/said"; fail "the cause is missing"; }
[ ! -e "$tmp/dead.json.gz" ] || fail "a trace was written"
wait_for 30 "a new epoch" status_epoch_steps "$job" 2
dtctl profile "$job" --to "$tmp/again.json.gz" >/dev/null
check "$tmp/again.json.gz" --files "$tmp/mesh/profile" --ranks 4 --steps 3
cancel "$job"

# A job that ends after fewer steps; and one that ends before the next one.
job=$(submit --set train.steps=12 --set run.timeline_step=9 --set checkpoint.dir=short --set model.dim=128 --set model.layers=8 --set train.seq=128)
wait_for 60 "step 2" reached "$job" 2
dtctl profile "$job" --steps 64 --to "$tmp/short.json.gz" -o json >"$tmp/said"
jq -e '.first_step + .steps == 13' "$tmp/said" >/dev/null || { cat "$tmp/said"; fail "the last steps are missing"; }
wait_done "$job"
check "$tmp/short.json.gz" --ranks 2 --steps "$(jq .steps "$tmp/said")"

dtctl run --detach --workers-per-node 2 --name sleepers -- sleep 1000 >/dev/null
sleepers=$(dtctl status -o json | jq -r '.[] | select(.name == "sleepers").job')
wait_for 20 "the command" is_state "$sleepers" running
refused "runs a command, whose steps dtd does not see" profile "$sleepers"
dtctl cancel --now "$sleepers" >/dev/null

# The disk of the checkpoints is full: the reason is reported, and training continues.
if [ "$(id -u)" = 0 ] && mkdir "$tmp/small" && mount -t tmpfs -o size=4m none "$tmp/small" 2>/dev/null; then
  job=$(submit "${endless[@]}" --set checkpoint.dir="$tmp/small/ckpt")
  wait_for 60 "step 3" reached "$job" 3
  head -c 100m /dev/zero >"$tmp/small/ballast" 2>/dev/null || true
  refused "rank [01]: $tmp/small/ckpt/profile.*could not be written: no space left" profile "$job" --to "$tmp/full.json.gz"
  at=$(step "$job")
  wait_for 20 "more steps" reached "$job" $((at + 5))
  rm "$tmp/small/ballast"
  dtctl profile "$job" --to "$tmp/full.json.gz" >/dev/null
  check "$tmp/full.json.gz" --files "$tmp/small/ckpt/profile" --ranks 2 --steps 3
  cancel "$job"
fi
! grep "Sanitizer\|runtime error:\|illegal move\|Assertion" "$DTD_DIR/control.log" || fail "control has crashed"
