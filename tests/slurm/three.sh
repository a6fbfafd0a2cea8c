# The Slurm part of docs/operate/first-cluster.md, on three nodes. The example runs on all of them, with as many workers per node as cores.
# Then the leader is lost, and the job continues with the workers of the other two nodes. No case leaves processes or files.
nodes=(n1 n2 n3)
. "$(dirname "$0")/lib.sh"
start_slurm
cp "$DTD_SOURCE/deploy/examples/first-job.yaml" $work
small=(--set model.dim=64 --set model.ffn=128 --set model.layers=2 --set train.seq=32 --set train.warmup=1 --set train.eval_every=0)
nodes_of() { job_dtctl "$1" "$2" status 1 -o json | jq -c '[.worker[].node] | unique'; } # JOB NODE
makes_steps() { # JOB NODE WORKERS: according to that node, the job makes steps with this number of workers
  job_dtctl "$1" "$2" status 1 -o json | jq -e ".state == \"running\" and .workers == $3 and .last.epoch == .epoch"
}

heading "the example over three nodes"
job=$(batch --nodes=3 --cpus-per-task=$cpus -- first-job.yaml --set run.nodes=3 --set parallel.workers=$((3 * cpus)) "${small[@]}" --set train.steps=200 --set checkpoint.dir=whole)
wait_for 60 "its first step" reached "$job" 1
[ "$(nodes_of "$job" 2)" = '["n1","n2","n3"]' ] || fail "the job is not on all nodes: $(nodes_of "$job" 2)"
as squeue --me -h -o %D | grep -qx 3 || fail "squeue does not show three nodes"
voters() { job_dtctl "$job" 1 cluster status -o json | jq -e '[.node[] | select(.role == "leader" or .role == "voter")] | length == 3'; }
wait_for 30 "three voters" voters
expect "$job" 300 0
grep -q "is done: step 200" "$work/out-$job.out" || { cat "$work/out-$job.out"; fail "the batch job's output does not report the end of the job"; }
check_left

heading "the leader is lost"
job=$(batch --nodes=3 --cpus-per-task=$cpus -- first-job.yaml "${small[@]}" --set "parallel={workers: $((3 * cpus)), min_workers: $cpus}" \
  --set run.nodes=0 --set train.steps=1000000 --set checkpoint.every=20 --set checkpoint.dir=lost)
wait_for 60 "a checkpoint" test -d $work/lost/step-20
wait_for 30 "three voters" voters
leader=$(job_dtctl "$job" 0 cluster status -o json | jq -r .leader)
case $leader in n1) lost=n2 ;; *) lost=$leader ;; esac # n1 has the batch script and dtctl, so it is not the one to lose
ip link set "v$lost" down
rest=$([ $lost = n2 ] && echo 2 || echo 1)
wait_for 60 "steps with the workers of two nodes" makes_steps "$job" "$rest" $((2 * cpus))
job_dtctl "$job" "$rest" why 1 | head -n 4
[ "$(slurm_value "$job" Restarts)" = 0 ] || fail "Slurm has restarted the job"
ip link set "v$lost" up
back() { sinfo -h -n "$lost" -o %T | grep -qE "idle|mix|alloc"; }
wait_for 120 "Slurm to report $lost as up" back
job_dtctl "$job" 0 cancel 1
expect "$job" 120 5
check_left
heading "done"
