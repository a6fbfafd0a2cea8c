# kill -9 of a worker: the kill is reported with its signal, and the job continues by itself in a new epoch from the last
# checkpoint, with the same final tensors. After more kills than `restarts` the job fails, and the reason names that.
. "$(dirname "$0")/lib.sh"
write_job
up
long=(--set train.steps=400 --set model.dim=128 --set checkpoint.every=50)
job=$(submit "${long[@]}" --set checkpoint.dir="$tmp/quiet")
wait_done "$job"
hashes "$tmp/quiet/step-400" >"$tmp/quiet-hashes"
job=$(submit "${long[@]}" --set checkpoint.dir="$tmp/killed")
wait_for 30 "step 60" reached "$job" 60
kill -9 "$(worker_pid "$job" 1)"
wait_done "$job"
status "$job" | jq -e '.epoch >= 2 and .restarts == 1' >/dev/null || { status "$job"; fail "no second epoch"; }
status "$job" | jq -e '[.incident[].seen] | any(test("signal 9"))' >/dev/null || { status "$job"; fail "no incident names signal 9"; }
status "$job" | jq -r '.incident[] | "\(.seen); \(.decided); noticed after \(.detect_ms) ms, stepping again after \(.recover_ms) ms"'
hashes "$tmp/killed/step-400" >"$tmp/killed-hashes"
cmp "$tmp/quiet-hashes" "$tmp/killed-hashes" || fail "the final tensors differ from those of the undisturbed run"

job=$(submit --set train.steps=100000 --set run.restarts=1 --set checkpoint.dir="$tmp/often")
for i in 1 2; do
  wait_for 30 "epoch $i steps" status_epoch_steps "$job" $i
  kill -9 "$(worker_pid "$job" 0)"
done
wait_for 30 "the job to fail" is_state "$job" failed
status "$job" | jq -e '.reason | test("restart")' >/dev/null || { status "$job"; fail "the reason does not name the restarts"; }
