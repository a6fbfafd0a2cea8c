# Training on a GPU with the real programs: losses near those of the CPU, on 1, 2 and 4 workers of one GPU, over host staging and
# over NCCL; and a checkpoint moves from GPU to CPU workers and back.
. "$(dirname "$0")/lib.sh"
write_job
[ ${#small[@]} -eq 0 ] || small+=(--set model.kv_heads=1)
up
gpu="--set run.device=cuda"
# shellcheck disable=SC2086
{
  train cpu --set run.device=cpu --set parallel.workers=1
  train one $gpu --set parallel.workers=1
  near "float32, GPU compared with CPU" "$tmp/cpu" "$tmp/one" 1e-4
  for w in 2 4; do
    for comm in staged nccl; do
      train "$comm-$w" $gpu --set parallel.workers=$w --set run.workers_per_gpu=$w --set run.comm=$comm
      near "float32, $w workers over $comm compared with one" "$tmp/one" "$tmp/$comm-$w" 1e-4
    done
    same_bits "$tmp/staged-$w" "$tmp/nccl-$w" && same="the same bits" || same="within tolerance, different bits"
    echo "staged and nccl on $w workers: $same"
  done
  train bf16 $gpu --set parallel.workers=1 --set train.dtype=bfloat16
  near "bfloat16 compared with float32" "$tmp/one" "$tmp/bf16" 2e-2

  train whole $gpu --set parallel.workers=1 --set train.schedule=constant
  keep=1 train half $gpu --set parallel.workers=1 --set train.schedule=constant --set train.steps=20
  for to in cpu cuda; do
    next=$(dtctl resume "$job" --steps 40 --set run.device=$to --set checkpoint.dir="$tmp/ckpt-on-$to" --detach -o json | jq -er .job)
    wait_done "$next" 300
    losses "$next" >"$tmp/on-$to"
    rm -rf "$tmp/ckpt-on-$to"
    tail -n 20 "$tmp/whole" >"$tmp/rest"
    near "steps 21 to 40 on $to after 20 on the GPU" "$tmp/rest" "$tmp/on-$to" 1e-4
  done
  same_bits "$tmp/rest" "$tmp/on-cuda" || fail "a resumed GPU job does not have the bits of an uninterrupted one"
}
