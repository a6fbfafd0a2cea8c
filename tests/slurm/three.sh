# What docs/operate/first-cluster.md shows under Slurm, on three nodes: the example over all of them, as many workers on each as it has cores; then a
# node is lost, the one that leads, and the job goes on with the workers of the others. Nothing is left behind.
nodes=(n1 n2 n3)
. "$(dirname "$0")/lib.sh"
start_slurm
cp "$DTD_SOURCE/deploy/examples/first-job.yaml" $work
small=(--set model.dim=64 --set model.ffn=128 --set model.layers=2 --set train.seq=32 --set train.warmup=1 --set train.eval_every=0)
nodes_of() { asks "$1" "$2" status 1 -o json | jq -c '[.worker[].node] | unique'; } # JOB NODE
goes_on() { # JOB NODE WORKERS: it makes steps with so many, as that node knows
  asks "$1" "$2" status 1 -o json | jq -e ".state == \"running\" and .workers == $3 and .last.epoch == .epoch"
}

say "the example over three nodes"
job=$(batch --nodes=3 --cpus-per-task=$cpus -- first-job.yaml --set run.nodes=3 --set parallel.workers=$((3 * cpus)) "${small[@]}" --set train.steps=200 --set checkpoint.dir=whole)
wait_for 60 "its first step" reached "$job" 1
[ "$(nodes_of "$job" 2)" = '["n1","n2","n3"]' ] || fail "it is not on all nodes: $(nodes_of "$job" 2)"
as squeue --me -h -o %D | grep -qx 3 || fail "squeue does not show three nodes"
voters() { asks "$job" 1 cluster status -o json | jq -e '[.node[] | select(.role == "leader" or .role == "voter")] | length == 3'; }
wait_for 30 "three voters" voters
expect "$job" 300 0
grep -q "is done: step 200" "$work/out-$job.out" || { cat "$work/out-$job.out"; fail "the batch job's output does not say that it is done"; }
check_left

say "a node is lost, the one that leads"
job=$(batch --nodes=3 --cpus-per-task=$cpus -- first-job.yaml "${small[@]}" --set "parallel={workers: $((3 * cpus)), min_workers: $cpus}" \
  --set run.nodes=0 --set train.steps=1000000 --set checkpoint.every=20 --set checkpoint.dir=lost)
wait_for 60 "a checkpoint" test -d $work/lost/step-20
wait_for 30 "three voters" voters
leader=$(asks "$job" 0 cluster status -o json | jq -r .leader)
case $leader in n1) lost=n2 ;; *) lost=$leader ;; esac # the batch script, and dtctl with it, is on n1
ip link set "v$lost" down
rest=$([ $lost = n2 ] && echo 2 || echo 1)
wait_for 60 "it to go on with the workers of two nodes" goes_on "$job" "$rest" $((2 * cpus))
asks "$job" "$rest" why 1 | head -n 4
[ "$(says "$job" Restarts)" = 0 ] || fail "Slurm has begun the job again"
ip link set "v$lost" up
back() { sinfo -h -n "$lost" -o %T | grep -qE "idle|mix|alloc"; }
wait_for 120 "the lost node to be back" back
asks "$job" 0 cancel 1
expect "$job" 120 5
check_left
say "done"
