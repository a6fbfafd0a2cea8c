# A job on GPUs over NCCL with the real programs: two workers share a GPU and find each other in control's store. One of
# them is killed, and the survivor continues in its own process with new communicators; control is killed meanwhile, too.
. "$DTD_SOURCE/tests/cluster/lib.sh"
[ -e "${DTD_MODULE_DIR:-$DTD_BIN}/dtd-nccl.so" ] || skip "no module dtd-nccl.so"
write_job
up
probed() { dtctl node -o json | jq -e '.gpus != null'; }
wait_for 30 "the probe's answer" probed
dtctl node -o json | jq -e '.gpus >= 1 and .gpus_free == .gpus' >/dev/null || skip "no GPU: $(dtctl node)"
gpu=(--set run.device=cuda --set run.comm=nccl --set run.workers_per_gpu=2 --set train.numerics=fast --set train.dtype=float32
  --set train.global_batch=4 --set train.steps=40 --set checkpoint.every=2)
job=$(submit "${gpu[@]}")
wait_for 60 "step 3" reached "$job" 3
dtctl node -o json | jq -e '.gpus_free == .gpus - 1' >/dev/null || fail "the job has no GPU: $(dtctl node)"
survivor=$(worker_pid "$job" 0)
control=$(dtctl node -o json | jq .control_pid)
kill -9 "$(worker_pid "$job" 1)"
# The worker that has left the epoch and the new worker both connect to a control whose current epoch it is.
starts_again() { [ "$(grep -c "started job=$job slot=1 " "$DTD_DIR/dtd.log")" = 2 ]; }
wait_for 20 "the new rank 1" starts_again
kill -9 "$control"
wait_done "$job" 120
status "$job" | jq -e '.state == "done" and .epoch >= 2 and .restarts <= 1' >/dev/null || { status "$job"; fail "no second epoch"; }
[ "$(worker_pid "$job" 0)" = "$survivor" ] || fail "rank 0 is another process: $(status "$job" | jq -c .worker)"
[ "$(grep -c 'epoch begins' "$DTD_DIR/jobs/$job/rank-0.log")" -ge 2 ] || fail "rank 0 did not begin a second epoch"
grep -q 'backend=nccl note="ranks 0 and 1 share' "$DTD_DIR/jobs/$job/rank-0.log" || fail "rank 0 does not say that it shares its GPU"
dtctl node -o json | jq -e '.gpus_free == .gpus' >/dev/null || fail "the GPU was not given back: $(dtctl node)"
