# nobody_leads.sh: two of three nodes, and thus the majority of the voters, are killed. The job on the third node continues
# and commits checkpoints, and no new job is accepted. When one of the two is back, the job is shown again, completes, and
# was never restarted.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin_nodes a b c
for n in a c; do on b node drain $n --reason "so that the job is on b"; done

job=$(on b submit "$tmp/job.yaml" --set train.steps=100000 --set model.dim=128 --set checkpoint.every=50 --set checkpoint.dir="$tmp/ck" --detach -o json | jq -er .job)
has_step() { [ -d "$tmp/ck/step-$1" ]; }
wait_for 60 "step 50" has_step 50
wait_for 20 "a leader that is not drained" cluster_has b '.leader == "b"'
kill_node a
kill_node c
wait_for 20 "the loss of the leader" cluster_has b '.leader == null'
last=$(ls "$tmp/ck" | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
wait_for 60 "three more checkpoints without a leader" has_step $((last + 150))
timeout 20 env DTD_DIR="$tmp/b" "$DTD_BIN/dtctl" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/other" --detach >"$tmp/out" 2>&1 && fail "a job was accepted without a leader: $(cat "$tmp/out")"
on a up >/dev/null
runs_on() { on a status "$job" -o json | jq -e '.state == "running" and .epoch == 1 and .restarts == 0'; }
wait_for 60 "the job to be shown again, in its first epoch" runs_on
on a cancel "$job" >/dev/null
end_nodes
