# kill -9 of a worker of a pipeline, of a shard group, and of a tensor and a ring group, while other workers wait in
# messages, gathers and ring steps. Each job continues in a new epoch and ends with the tensors of an undisturbed run, bit
# for bit.
. "$(dirname "$0")/lib.sh"
write_job
up
layouts=(
  "--set parallel.workers=4 --set parallel.pp=2 --set parallel.fsdp=2 --set parallel.zero=3"
  "--set parallel.workers=4 --set parallel.tp=2 --set parallel.cp=2 --set train.numerics=fast --set run.threads=1"
  "--set parallel.workers=2 --set parallel.pp=2 --set parallel.schedule=zb-h1"
  "--set parallel.workers=2 --set parallel.pp=2 --set parallel.schedule=zb-v --set parallel.chunks=2 --set model.layers=4"
)
steps=(300 300 1500 1000) # long enough that the worker is killed before the last step
for i in "${!layouts[@]}"; do
  read -ra layout <<<"${layouts[$i]}"
  long=(--set train.steps="${steps[$i]}" --set checkpoint.every=100 "${layout[@]}")
  job=$(submit "${long[@]}" --set checkpoint.dir="$tmp/quiet-$i")
  wait_done "$job" 120
  hashes "$tmp/quiet-$i/step-${steps[$i]}" >"$tmp/quiet-hashes"
  job=$(submit "${long[@]}" --set checkpoint.dir="$tmp/killed-$i")
  wait_for 60 "step 110" reached "$job" 110
  kill -9 "$(worker_pid "$job" 1)"
  wait_done "$job" 120
  status "$job" | jq -e '.epoch >= 2 and .restarts == 1' >/dev/null || { status "$job"; fail "no second epoch"; }
  hashes "$tmp/killed-$i/step-${steps[$i]}" >"$tmp/killed-hashes"
  cmp "$tmp/quiet-hashes" "$tmp/killed-hashes" || fail "layout $i: the final tensors differ from those of the undisturbed run"
done
