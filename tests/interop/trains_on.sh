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
