# gpt2 124M and a llama 1B on real text: the first steps on the GPU, in float32 and in bfloat16, must be within rounding noise of
# the CPU's float32 run on the same batches. DTD_GPU_LAYERS reduces the layers of both models for a quick run; on a machine that
# is too small for them they are reduced too.
. "$(dirname "$0")/lib.sh"
write_job
up
cat "$DTD_SOURCE"/README.md "$DTD_SOURCE"/docs/*/*.md >"$tmp/text.txt"
compared=0
run() { # NAME LAYERS STEPS MODEL KEY-VALUE-HEADS-OF-A-REHEARSAL
  local name=$1 layers=${DTD_GPU_LAYERS:-$2} common missing
  while :; do
    common=(--set "model=$4" --set model.layers="$layers" --set data.tokenizer=words --set train.seq=128
      --set train.global_batch=2 --set train.micro_batch=2 --set train.steps="$3" --set train.lr=3e-4 --set parallel.workers=1
      --set checkpoint.every=0 --set train.warmup=1)
    if [ ${#small[@]} -gt 0 ]; then common+=(--set model.kv_heads="$5" --set model.vocab=0); fi
    missing=$(lack cpu "${common[@]}")
    missing=${missing:-$(lack cuda "${common[@]}")}
    [ -n "$missing" ] || break
    echo "$name with $layers layers $missing"
    [ "$layers" -gt 1 ] || { echo "$name: not run"; return; }
    layers=$((layers / 2))
    echo "$name: shortened to $layers layers"
  done
  train "$name-cpu" "${common[@]}" --set run.device=cpu --set run.threads="$(nproc)"
  train "$name-f32" "${common[@]}" --set run.device=cuda
  train "$name-bf16" "${common[@]}" --set run.device=cuda --set train.dtype=bfloat16
  near "$name, $layers layers, float32, GPU compared with CPU" "$tmp/$name-cpu" "$tmp/$name-f32" 1e-3
  near "$name, $layers layers, bfloat16 on the GPU compared with float32 on the CPU" "$tmp/$name-cpu" "$tmp/$name-bf16" 2e-2
  compared=$((compared + 1))
}
run gpt2-124m 12 10 "{arch: gpt2, dim: 768, heads: 12, kv_heads: 0, ffn: 0, vocab: 50304}" 0
run llama-1b 16 4 "{arch: llama, dim: 2048, heads: 32, kv_heads: 8, ffn: 8192, vocab: 128256, tied: true, rope_theta: 500000.0}" 1
[ $compared -gt 0 ] || skip "this machine is too small for either model, even with one layer"
