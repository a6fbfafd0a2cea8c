# A job with experts resumes from checkpoints of PyTorch with the names of newer versions of torchtitan, for parameters and for the
# state of the optimizer, and reaches the tensors of an uninterrupted run. A bias of the choice of experts is refused unless
# it is zero or the model has such biases; then it is read.
. "$(dirname "$0")/../cluster/lib.sh"
[ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null || skip "no PyTorch (DTD_TORCH_PYTHON)"
write_job
up
set=(--set model.experts=3 --set model.experts_per_token=2 --set model.shared_experts=1 --set train.schedule=constant)
job=$(submit "${set[@]}" --set checkpoint.dir="$tmp/whole" --set checkpoint.every=20)
wait_done "$job"
"$DTD_TORCH_PYTHON" - "$tmp/whole/step-20" "$tmp" <<'X'
import re, sys, torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
source, tmp = sys.argv[1:]
meta = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
state = {k: torch.empty(m.size, dtype=m.properties.dtype) if isinstance(m, TensorStorageMetadata) else None for k, m in meta.items()}
dcp.load(state, checkpoint_id=source)
layers = sorted({k.split(".")[1] for k in state if k.startswith("layers.")})
def save(to, folder, bias):
    out = {}
    for k, v in state.items():
        out[re.sub(r"moe\.experts\.w([123])\b", lambda m: to + "w%s_%s" % (m[1], "EDF" if m[1] == "2" else "EFD"), k)
            .replace("attention.w", "attention.qkv_linear.w").replace("output.weight", "lm_head.weight")] = v
    if bias is not None:
        for layer in layers:
            out["layers.%s.moe.expert_bias_E" % layer] = torch.tensor([0, bias, 0])
    assert len(out) >= len(state)
    dcp.save(out, checkpoint_id=tmp + "/" + folder + "/step-20")
save("moe.routed_experts.inner_experts.", "nested", 0.0)
save("moe.experts.", "suffixed", None)
save("moe.experts.", "biased", 1e-3)
X
hashes "$tmp/whole/step-40" >"$tmp/a"
for folder in nested suffixed; do
  next=$(submit "${set[@]}" --set parallel.workers=3 --set checkpoint.resume_from="$tmp/$folder/step-20" --set checkpoint.dir="$tmp/$folder-on" \
    2>"$tmp/notes") || fail "$(cat "$tmp/notes")"
  [ "$(grep -c 'has names of a newer torchtitan' "$tmp/notes")" = 5 ] || fail "$folder: $(cat "$tmp/notes")"
  wait_done "$next"
  [ "$(losses "$next" | head -n 1 | cut -d' ' -f1)" = 21 ] || fail "$folder: the job did not go on at step 21"
  hashes "$tmp/$folder-on/step-40" >"$tmp/b"
  cmp "$tmp/a" "$tmp/b" || fail "$folder: other tensors than the whole run"
  echo "$folder: $(wc -l <"$tmp/a") tensors equal"
done
submit "${set[@]}" --set checkpoint.resume_from="$tmp/biased/step-20" --set checkpoint.dir="$tmp/biased-on" 2>"$tmp/notes" &&
  fail "a bias of the choice is not refused"
grep -q 'layers.0.moe.expert_bias_E moves the choice of experts' "$tmp/notes" || fail "$(cat "$tmp/notes")"
next=$(submit "${set[@]}" --set model.expert_bias=1e-30 --set checkpoint.resume_from="$tmp/biased/step-20" \
  --set checkpoint.dir="$tmp/balanced" 2>"$tmp/notes") || fail "$(cat "$tmp/notes")"
grep -q "'layers.\*.moe.expert_bias_E=layers.\*.moe.expert_bias' is used" "$tmp/notes" || fail "$(cat "$tmp/notes")"
wait_done "$next"
"$DTD_TORCH_PYTHON" - "$tmp/balanced/step-40" <<'X' || fail "the biases were not kept"
import sys, torch
import torch.distributed.checkpoint as dcp
meta = dcp.FileSystemReader(sys.argv[1]).read_metadata().state_dict_metadata
biases = [k for k in meta if "expert_bias" in k]
assert biases and all(k.endswith(".moe.expert_bias") and k.startswith("layers.") for k in biases), biases
state = {k: torch.empty(3) for k in biases}
dcp.load(state, checkpoint_id=sys.argv[1])
assert all((v - torch.tensor([0, 1e-3, 0])).abs().max() < 1e-20 for v in state.values()), state
X
