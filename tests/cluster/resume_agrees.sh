# A run of 20 steps that is resumed to 40 ends with the tensors of a run of 40 steps, bit for bit in canonical numerics, on
# the same and on any other number of workers. So does a run that saved and stopped at some step, by `cancel --save` or,
# as under a batch system, by a signal.
. "$(dirname "$0")/lib.sh"
write_job
up
job=$(submit --set train.schedule=constant --set checkpoint.dir="$tmp/whole")
wait_done "$job"
hashes "$tmp/whole/step-40" >"$tmp/hashes-whole"
for w in 2 1 3; do
  job=$(submit --set train.schedule=constant --set train.steps=20 --set checkpoint.dir="$tmp/half-$w")
  wait_done "$job"
  next=$(dtctl resume "$job" --workers $w --steps 40 --detach -o json | jq -er .job)
  wait_done "$next"
  [ "$(losses "$next" | head -n 1 | cut -d' ' -f1)" = 21 ] || fail "the resumed run did not begin at step 21"
  hashes "$tmp/half-$w/step-40" >"$tmp/hashes-$w"
  cmp "$tmp/hashes-whole" "$tmp/hashes-$w" || fail "resumed on $w workers, the tensors differ from those of the whole run"
done

parted=(--set train.schedule=constant --set train.steps=1000000 --set checkpoint.every=500000 --set checkpoint.dir="$tmp/parted")
job=$(submit "${parted[@]}")
wait_for 30 "step 3" reached "$job" 3
dtctl cancel "$job" --save >/dev/null
wait_for 30 "the end of job $job" is_state "$job" canceled
saved=$(status "$job" | jq -e .checkpoint_step)
[ "$saved" = "$(step "$job")" ] && [ "$saved" -lt 500000 ] || fail "it was at step $(step "$job"), and saved step $saved"
again=("$DTD_BIN/dtctl" submit "$tmp/job.yaml" --batch "${parted[@]}" --set train.steps=$((saved + 40)))
"${again[@]}" >"$tmp/more" &
dtctl_pid=$!
wait_for 60 "the job's next life" grep -qE "  step [0-9]+/$((saved + 40)) " "$tmp/more"
kill -USR1 $dtctl_pid 2>/dev/null || true # it may have ended, see below
rc=0
wait $dtctl_pid || rc=$?
[ $rc -eq 75 ] || [ $rc -eq 0 ] || { cat "$tmp/more"; fail "dtctl submit --batch ended with $rc"; }
"${again[@]}" >/dev/null || fail "the third life ended with $?"
job=$(submit "${parted[@]}" --set train.steps=$((saved + 40)) --set checkpoint.dir="$tmp/one")
wait_done "$job"
hashes "$tmp/one/step-$((saved + 40))" >"$tmp/hashes-one"
hashes "$tmp/parted/step-$((saved + 40))" >"$tmp/hashes-parted"
cmp "$tmp/hashes-one" "$tmp/hashes-parted" || fail "after save, stop and resume the tensors differ"
