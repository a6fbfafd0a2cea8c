# The real programs with device cuda on a processor: CUDA's modules of the build's cuda-host folder, made of the project's own
# sources and stand-ins for the vendor's libraries. Two workers on one "GPU" train and save; the job goes on on CPU workers and
# back; a worker that is killed in mid-step ends the epoch of the others, who abort their communicators and go on as the same
# processes.
. "$(dirname "$0")/lib.sh"
modules=${1:?the folder of the modules}
[ -e "$modules/dtd-nccl.so" ] || skip "no modules in $modules: the build has no label cuda-host"
export DTD_MODULE_DIR=$modules
write_job
up
small=(--set model.dim=32 --set model.layers=1 --set model.heads=2 --set model.kv_heads=1 --set model.ffn=32 --set train.seq=16
  --set train.global_batch=4 --set train.micro_batch=1 --set train.numerics=fast --set train.schedule=constant
  --set train.steps=12 --set checkpoint.every=4)
gpu=(--set run.device=cuda --set run.workers_per_gpu=2 --set "run.env={DTD_MODULE_DIR: $modules}")

job=$(submit "${small[@]}" "${gpu[@]}" --set checkpoint.dir="$tmp/gpu")
wait_done "$job" 100
[ "$(losses "$job" | wc -l)" = 12 ] || fail "not all steps were reported"
for to in cpu cuda; do
  next=$(dtctl resume "$job" --steps 16 --set run.device=$to --set checkpoint.dir="$tmp/on-$to" --detach -o json | jq -er .job)
  wait_done "$next" 100
  [ "$(losses "$next" | wc -l)" = 4 ] || fail "the resumed job on $to did not make 4 steps"
done
train=$(submit "${small[@]}" "${gpu[@]}" --set train.steps=16 --set checkpoint.dir="$tmp/whole")
wait_done "$train" 100
cmp <(hashes "$tmp/whole/step-16") <(hashes "$tmp/on-cuda/step-16") || fail "resumed on GPUs: other tensors than never stopped"

job=$(submit "${small[@]}" "${gpu[@]}" --set train.steps=100000 --set checkpoint.every=20 --set checkpoint.dir="$tmp/killed")
wait_for 60 "step 25" reached "$job" 25
other=$(worker_pid "$job" 0)
kill -9 "$(worker_pid "$job" 1)"
wait_for 60 "steps of a second epoch" status_epoch_steps "$job" 2
[ "$(worker_pid "$job" 0)" = "$other" ] || fail "the surviving worker is another process"
dtctl cancel "$job"
