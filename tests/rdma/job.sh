# job.sh: a job of four workers on two machines, with tensors sent over verbs. It must end with the same parameters as a job on one machine,
# bit for bit. Then one machine is powered off during another job, which continues on the other machine with half the workers.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cluster/lib.sh"
. "$here/machines.sh"
trap 'rc=$?; set +e; [ $rc -eq 0 ] || [ $rc -eq 77 ] || explain; for m in "${machine[@]}"; do kill -9 "$m"; done 2>/dev/null; (exit $rc); finish' EXIT
explain() {
  local n
  for n in $nodes; do
    echo "--- machine $n"
    tail -n 30 "$tmp/$n/console" "$tmp/$n/qemu"
    [ -z "${machine[$n]:-}" ] || limit=20 on $n bash -c 'tail -n 40 /run/dtd/control.log /run/dtd/jobs/*/*.log; dmesg | tail -n 20'
  done 2>&1
}
make_kernel
write_job
for n in $nodes; do power_on $n; done
for n in $nodes; do wait_for "$limit" "machine $n" is_on $n; done
for n in $nodes; do
  on $n rdma link show | grep -q "rxe0/1 state ACTIVE" || fail "machine $n has no soft-RoCE: $(on $n rdma link show)"
done

# ---- one service ----
echo "k1 $(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" >"$tmp/key"
begin() { # NODE: starts its dtd
  local at=10.78.0.$(number "$1")
  cat >"$tmp/$1.yaml" <<X
name: $1
state_dir: /run/dtd
slots: 4
cluster: {listen: "$at:7811", advertise: "$at:7811", key_file: /run/key, first: $([ "$1" = a ] && echo true || echo false),
  peers: ["10.78.0.1:7811", "10.78.0.2:7811"]}
X
  on "$1" install -m 600 "$tmp/key" /run/key
  on "$1" bash -c "setsid '$DTD_BIN/dtd' --config '$tmp/$1.yaml' </dev/null >/run/dtd.out 2>&1 &"
}
dtctl_on() { on "$1" env DTD_DIR=/run/dtd XDG_CACHE_HOME="$tmp/cache" "$DTD_BIN/dtctl" "${@:2}"; } # NODE ARGUMENTS...
for n in $nodes; do begin $n; done
both_up() { dtctl_on a cluster status -o json | jq -e '[.node[] | select(.state == "up")] | length == 2'; }
wait_for "$limit" "both nodes in one service" both_up

# NODE: number of packets that the device has sent.
sent() { on "$1" cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
# The model is smaller than in other tests, because a multiply-add takes some hundred nanoseconds on an emulated processor.
small="--set model.dim=16 --set model.layers=1 --set model.heads=2 --set model.kv_heads=1 --set model.ffn=32 --set train.seq=16"
run_job() { # NAME SETS...: submits a job; `job` is its number
  job=$(dtctl_on a submit "$tmp/job.yaml" $small --set parallel.workers=4 --set run.comm=ucx --set checkpoint.dir="$tmp/$1" "${@:2}" \
    --detach -o json | jq -er .job)
}
job_is() { dtctl_on a status "$job" -o json | jq -e "$1"; }
job_ended() { job_is '.state | IN("done", "failed", "canceled")'; }

run_job alone --set run.nodes=1
wait_for "$limit" "a job on one machine" job_ended
job_is '.state == "done"' >/dev/null || fail "job $job on one machine: $(dtctl_on a why "$job")"
before=$(sent a)
run_job both --set run.nodes=2
job_runs() { job_is '.state == "running"'; }
wait_for "$limit" "a job on both machines to run" job_runs
job_is '[.worker[].node] | unique == ["a", "b"]' >/dev/null || fail "the job is not on both machines"
wait_for "$limit" "the end of a job on both machines" job_ended
job_is '.state == "done"' >/dev/null || fail "job $job on both machines: $(dtctl_on a why "$job")"
packets=$(($(sent a) - before))
for at in alone both; do hashes "$tmp/$at/step-40" >"$tmp/$at-hashes"; done
cmp "$tmp/alone-hashes" "$tmp/both-hashes" || fail "the parameters of the job over verbs differ from those on one machine"
# Machine a sends at least half a gradient per step, in packets of at most 4 KiB.
bytes=$((40 * $(dtctl ckpt inspect "$tmp/both/step-40" -o json | jq '[.tensors[] | select(.name | startswith("optim") | not) | .shape | reduce .[] as $d (1; . * $d)] | add * 4') / 2))
[ $((packets * 4096)) -ge $bytes ] || fail "$packets packets over verbs are too few for $bytes bytes"
echo "over verbs: machine a sent $packets packets in 40 steps; the same parameters as on one machine, bit for bit"

# ---- powered off ----
run_job lost --set run.nodes=0 --set parallel.workers=8 --set parallel.min_workers=4 --set train.steps=100000 --set checkpoint.every=5
steps_of() { job_is ".epoch == $1 and .state == \"running\" and .step > $2"; }
wait_for "$limit" "step 10 of the second job" steps_of 1 10
job_is '[.worker[].node] | unique == ["a", "b"]' >/dev/null || fail "the second job is not on both machines"
power_off b
wait_for "$limit" "the job to continue on machine a" steps_of 2 10
dtctl_on a status "$job" -o json | jq -r '.incident[] | "\(.seen); \(.decided); noticed after \(.detect_ms) ms, stepping again \(.recover_ms | floor) ms later"'
job_is '.workers == 4 and ([.worker[].node] | unique == ["a"])' >/dev/null || fail "the job did not continue with 4 workers on machine a"
dtctl_on a cancel "$job" >/dev/null
