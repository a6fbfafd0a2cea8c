# dtd.sbatch with a real Slurm. A node is lost: the job continues with the workers that its file allows, also after Slurm has noticed the
# loss; restarted on both nodes, it removes the files that the lost node left. The node of the batch script is lost: Slurm restarts the job,
# which resumes from its checkpoint. Before the time limit the job saves and stops, and Slurm restarts it; workers that cannot save are killed
# before that. scancel ends it. No case leaves processes or files.
. "$(dirname "$0")/lib.sh"
start_slurm
write_job
long=(--set train.steps=1000000 --set checkpoint.every=50)
makes_steps() { # JOB WORKERS: the job makes steps with this number of workers
  job_dtctl "$1" 0 status 1 -o json | jq -e ".state == \"running\" and .workers == $2 and .last.epoch == .epoch"
}

heading "a node is lost"
job=$(batch -- job.yaml "${long[@]}" --set 'parallel={workers: 2, min_workers: 1}' --set run.nodes=0 --set checkpoint.dir=lost)
wait_for 300 "a checkpoint" reached "$job" 60
makes_steps "$job" 2 >/dev/null || fail "the job does not start with two workers"
ip link set vn2 down
wait_for 60 "steps with one worker" makes_steps "$job" 1
job_dtctl "$job" 0 status 1 -o json | jq -r '.incident[] | "\(.seen); \(.decided)"'
down() { sinfo -h -n n2 -o %T | grep -q down; }
wait_for 120 "Slurm to report n2 as down" down
step=$(step_of "$job")
wait_for 30 "a step after Slurm has noticed the loss" reached "$job" $((step + 1))
is "$job" RUNNING || fail "Slurm has ended the job: $(slurm_value "$job" JobState)"
[ "$(slurm_value "$job" Restarts)" = 0 ] || fail "Slurm has restarted the job"
ip link set vn2 up
back() { sinfo -h -n n2 -o %T | grep -q idle; }
wait_for 120 "Slurm to report n2 as idle" back
heading "slurmd has killed the dtd of the lost node; files left: $(on n2 ls /tmp)"
scancel --signal=USR1 --batch "$job"
again() { [ "$(slurm_value "$job" Restarts)" -ge 1 ] && is "$job" RUNNING; }
wait_for 120 "Slurm to restart the job" again
wait_for 60 "two workers again" makes_steps "$job" 2
on n2 test ! -e "/tmp/dtd-$(id -u nobody)-$job.0" || fail "the files that the lost node left still exist"
job_dtctl "$job" 0 cancel 1
expect "$job" 120 5
check_left

heading "the first node, with the batch script, is lost"
job=$(batch -- job.yaml "${long[@]}" --set checkpoint.every=10 --set checkpoint.dir=first)
wait_for 300 "a checkpoint" test -d $work/first/step-10
ip link set vn1 down
power_off n1
requeued() { [ "$(slurm_value "$job" Restarts)" -ge 1 ]; }
wait_for 180 "the requeue of the job" requeued
ip link set vn1 up
start_slurmd n1
wait_for 180 "Slurm to restart the job" again
wait_for 120 "steps after its checkpoint" reached "$job" 11
job_dtctl "$job" 0 cancel 1
expect "$job" 120 5
check_left

heading "the time limit: Slurm sends another signal, so only the script itself can stop the job"
job=$(batch --time=2 --signal=B:CONT@1 -- job.yaml "${long[@]}" --set checkpoint.dir=limited)
wait_for 180 "Slurm to restart the job" again
saved=$(grep -oE 'checkpoint: .*/step-[0-9]+' "$work/out-$job.out" | head -n 1 | grep -oE '[0-9]+$')
has_message() { grep -q "$1" "$work/out-$job.out" || { cat "$work/out-$job.out"; fail "no message: $1"; }; }
has_message "the time limit is in [0-9]* s; the job is asked to save and stop"
wait_for 120 "steps after step $saved" reached "$job" $((saved + 1))
scancel "$job"
check_left

heading "the time limit, and a worker that cannot save: it is killed before Slurm ends the allocation"
job=$(batch --time=2 --signal=B:CONT@1 -- job.yaml "${long[@]}" --set run.hang_seconds=0 --set checkpoint.dir=stuck)
wait_for 120 "a checkpoint" reached "$job" 60
kill -STOP "$(job_dtctl "$job" 0 status 1 -o json | jq -er '.worker[] | select(.rank == 1) | .pid')"
wait_for 180 "Slurm to restart the job" again
has_message "the workers have [0-9]* s to save and stop"
has_message "the time of grace was over before the workers had saved"
wait_for 120 "steps after the last checkpoint" reached "$job" 61
heading "scancel"
scancel "$job"
wait_for 60 "the end of Slurm job $job" over "$job"
check_left
heading "done"
