# dtd.sbatch under a real Slurm: a node is lost, and the job goes on with what its file allows, also when Slurm has noticed; begun
# again on both nodes it removes what the lost one had to leave; the node with the batch script is lost, and Slurm begins the job again
# from its checkpoint; the time limit, ahead of which the job saves and stops, and Slurm begins it again; scancel. Nothing is left behind.
. "$(dirname "$0")/lib.sh"
start_slurm
write_job
long=(--set train.steps=1000000 --set checkpoint.every=50)
goes_on() { # JOB WORKERS: it makes steps with so many
  asks "$1" 0 status 1 -o json | jq -e ".state == \"running\" and .workers == $2 and .last.epoch == .epoch"
}

say "a node is lost"
job=$(batch -- job.yaml "${long[@]}" --set 'parallel={workers: 2, min_workers: 1}' --set run.nodes=0 --set checkpoint.dir=lost)
wait_for 300 "a checkpoint" reached "$job" 60
goes_on "$job" 2 >/dev/null || fail "it does not begin with two workers"
ip link set vn2 down
wait_for 60 "it to go on with one worker" goes_on "$job" 1
asks "$job" 0 status 1 -o json | jq -r '.incident[] | "\(.seen); \(.decided)"'
down() { sinfo -h -n n2 -o %T | grep -q down; }
wait_for 120 "Slurm to notice" down
step=$(step_of "$job")
wait_for 30 "it to go on after that" reached "$job" $((step + 1))
is "$job" RUNNING || fail "Slurm has ended the job: $(says "$job" JobState)"
[ "$(says "$job" Restarts)" = 0 ] || fail "Slurm has begun the job again"
ip link set vn2 up
back() { sinfo -h -n n2 -o %T | grep -q idle; }
wait_for 120 "the lost node to be back" back
say "the lost node's dtd was killed by its slurmd, and has left: $(on n2 ls /tmp)"
scancel --signal=USR1 --batch "$job"
again() { [ "$(says "$job" Restarts)" -ge 1 ] && is "$job" RUNNING; }
wait_for 120 "Slurm to begin it again" again
wait_for 60 "two workers again" goes_on "$job" 2
on n2 test ! -e "/tmp/dtd-$(id -u nobody)-$job.0" || fail "what the lost node has left is still there"
asks "$job" 0 cancel 1
expect "$job" 120 5
check_left

say "the first node is lost, and the batch script with it"
job=$(batch -- job.yaml "${long[@]}" --set checkpoint.every=10 --set checkpoint.dir=first)
wait_for 300 "a checkpoint" test -d $work/first/step-10
ip link set vn1 down
power_off n1
requeued() { [ "$(says "$job" Restarts)" -ge 1 ]; }
wait_for 180 "another life to be asked for" requeued
ip link set vn1 up
start_slurmd n1
wait_for 180 "Slurm to begin it again" again
wait_for 120 "it to go on from its checkpoint" reached "$job" 11
asks "$job" 0 cancel 1
expect "$job" 120 5
check_left

say "the time limit"
job=$(batch --time=2 --signal=B:USR1@60 -- job.yaml "${long[@]}" --set checkpoint.dir=limited)
wait_for 180 "Slurm to begin it again" again
saved=$(grep -oE 'checkpoint: .*/step-[0-9]+' "$work/out-$job.out" | head -n 1 | grep -oE '[0-9]+$')
wait_for 120 "it to go on from step $saved" reached "$job" $((saved + 1))
say "scancel"
scancel "$job"
wait_for 60 "the end of Slurm job $job" over "$job"
check_left
say "done"
