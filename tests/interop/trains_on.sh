# A job resumes from a checkpoint that PyTorch wrote with the same names: torch loads a checkpoint of dtd and saves it, and a job resumes
# from that with another number of workers and reaches the tensors of an uninterrupted run.
. "$(dirname "$0")/../cluster/lib.sh"
[ -n "${DTD_TORCH_PYTHON:-}" ] && "$DTD_TORCH_PYTHON" -c 'import torch' 2>/dev/null || skip "no PyTorch (DTD_TORCH_PYTHON)"
write_job
up
job=$(submit --set train.schedule=constant --set checkpoint.dir="$tmp/whole" --set checkpoint.every=20)
wait_done "$job"
"$DTD_TORCH_PYTHON" - "$tmp/whole/step-20" "$tmp/torch/step-20" <<'X'
import sys, torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
source, target = sys.argv[1:]
meta = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
state = {k: torch.empty(m.size, dtype=m.properties.dtype) if isinstance(m, TensorStorageMetadata) else None for k, m in meta.items()}
dcp.load(state, checkpoint_id=source)
dcp.save(state, checkpoint_id=target)
print(len(state), 'entries saved by torch', torch.__version__)
X
[ ! -e "$tmp/torch/step-20/dtd.manifest" ] || fail "this is not torch's own folder"
next=$(submit --set train.schedule=constant --set parallel.workers=3 --set checkpoint.resume_from="$tmp/torch/step-20" \
  --set checkpoint.dir="$tmp/on")
wait_done "$next"
[ "$(losses "$next" | head -n 1 | cut -d' ' -f1)" = 21 ] || fail "the job did not go on at step 21"
hashes "$tmp/whole/step-40" >"$tmp/a"
hashes "$tmp/on/step-40" >"$tmp/b"
cmp "$tmp/a" "$tmp/b" || fail "other tensors than the whole run"
echo "$(wc -l <"$tmp/a") tensors equal after going on from torch's checkpoint"

# The files of an imported model that training does not change are in every checkpoint that descends from it.
"$DTD_TORCH_PYTHON" - "$tmp/hf" 2>/dev/null <<'X' || skip "no transformers"
import sys
from transformers import GPT2Config, GPT2LMHeadModel
GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)).save_pretrained(sys.argv[1])
X
dtctl ckpt import "$tmp/hf" "$tmp/in" >/dev/null
dtctl resume "$tmp/in" --steps 2 --set "data.train=[$DTD_SOURCE/README.md]" --set checkpoint.every=1 >/dev/null
dtctl ckpt export "$tmp/in" "$tmp/out" >/dev/null
cmp "$tmp/hf/generation_config.json" "$tmp/out/generation_config.json" || fail "generation_config.json was lost in training"
[ "$(jq .eos_token_id "$tmp/out/config.json")" = 2 ] || fail "eos_token_id was lost in training"
