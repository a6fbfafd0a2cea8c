# dtd.sbatch with a real Slurm: invalid starts are refused; a job on two nodes gives the batch job its exit code; after USR1 the job saves,
# Slurm restarts it, and it ends with the parameters of an uninterrupted run, bit for bit. No case leaves processes or files.
. "$(dirname "$0")/lib.sh"
start_slurm
write_job

heading "invalid starts are refused"
refused() { # TEXT COMMAND...: the command fails and prints TEXT
  local words=$1
  shift
  ! as "$@" >$work/refused.out 2>&1 || fail "not refused: $*"
  grep -q "$words" $work/refused.out || { cat $work/refused.out; fail "refused with another message: $*"; }
}
export DTD_SLURM_KEY=x
refused "SLURM_JOB_ID is not set: start dtd --slurm with srun" $shared/bin/dtd --slurm
[ "$cpus" = 1 ] || refused "start dtd once per node: srun --ntasks-per-node=1" srun -N1 -n2 $shared/bin/dtd --slurm
refused "DTD_SLURM_KEY: Invalid credential format" srun -N1 -n1 $shared/bin/dtd --slurm
DTD_SLURM_KEY=$(printf '%064d' 0 | munge) refused "was made by user 0" srun -N1 -n1 $shared/bin/dtd --slurm
unset DTD_SLURM_KEY
refused "DTD_SLURM_KEY is not set" srun -N1 -n1 $shared/bin/dtd --slurm
refused "no other option with it" $shared/bin/dtd --slurm --system
refused "usage: sbatch" "$DTD_SOURCE/deploy/slurm/dtd.sbatch" job.yaml
# Another user may have created the folder in /tmp first.
other=$(as sbatch --parsable -H -N2 --wrap true)
on n1 mkdir -m 777 "/tmp/dtd-$(id -u nobody)-$((other + 1)).0"
job=$(batch --nodes=1 -- job.yaml)
[ "$job" = $((other + 1)) ] || fail "the number of the job is not the next one"
expect "$job" 60 1
grep -q "not a directory that belongs to this user alone" "$work/out-$job.out" || fail "dtd used a folder of another user"
on n1 rmdir "/tmp/dtd-$(id -u nobody)-$job.0"
scancel "$other"
check_left

heading "only the daemons, started by srun"
key() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' | as munge --restrict-uid="$(id -u nobody)"; }
DTD_SLURM_KEY=$(key) as srun --job-name=hand --nodes=2 --ntasks-per-node=1 --kill-on-bad-exit=0 $shared/bin/dtd --slurm >$work/hand.out 2>&1 &
by_hand() { job=$(squeue -h -n hand -t running -o %A) && [ -n "$job" ]; }
wait_for 30 "srun's allocation" by_hand
job_dtctl "$job" 1 cluster status --wait 2 >/dev/null || fail "daemons that srun started form no cluster"
scancel "$job"
check_left

heading "an uninterrupted job"
steps=2000 # so many that the signal below arrives before the end: a step takes about 2 ms on a fast machine
job=$(batch -- job.yaml --set train.steps=$steps --set checkpoint.every=1000 --set checkpoint.dir=whole)
wait_for 60 "its first step" reached "$job" 1
job_dtctl "$job" 1 status 1 -o json | jq -e '[.worker[].rank] | length == 2' >/dev/null || fail "the second node does not show both workers of the job"
job_dtctl "$job" 0 cluster status -o json | jq -e '[.node[] | select(.state == "up") | .name] == ["n1", "n2"]' >/dev/null ||
  fail "the nodes are not one cluster"
as srun --jobid="$job" --overlap --nodes=1 --ntasks=1 --nodelist=n1 env DTD_DIR="/tmp/dtd-$(id -u nobody)-$job.0/0" \
  $shared/bin/dtctl status 1 -o json | jq -e '.state == "running"' >/dev/null || fail "dtctl in another step of the Slurm job does not reach the daemon"
on n2 ls "/tmp/dtd-$(id -u nobody)-$job.0/1/jobs/1/rank-0.log" >/dev/null || fail "the second node has no worker"
[ "$(on n2 stat -c %a-%U "/tmp/dtd-$(id -u nobody)-$job.0/1/key")" = 600-nobody ] || fail "the key is not private"
expect "$job" 600 0
[ -d "$work/whole/step-$steps" ] || { cat "$work/out-$job.out"; fail "there is no last checkpoint"; }
check_left

heading "a job that fails, and one that is refused"
job=$(batch -- job.yaml --set train.steps=100000 --set run.max_seconds=1 --set checkpoint.dir=failed)
expect "$job" 120 4
grep -q "run.max_seconds (1) reached" "$work/out-$job.out" || fail "the reason is not in the batch job's output"
job=$(batch -- job.yaml --set train.lerning_rate=1)
expect "$job" 60 2
grep -q lerning_rate "$work/out-$job.out" || fail "the refusal is not in the batch job's output"
check_left

heading "USR1: the job saves and stops, Slurm restarts it, and it resumes"
job=$(batch -- job.yaml --set train.steps=$steps --set checkpoint.every=1000 --set checkpoint.dir=parted)
wait_for 60 "step 20" reached "$job" 20
scancel --signal=USR1 --batch "$job"
again() { [ "$(slurm_value "$job" Restarts)" = 1 ] && is "$job" RUNNING; }
wait_for 120 "Slurm to restart the job" again
saved=$(grep -oE 'checkpoint: .*/step-[0-9]+' "$work/out-$job.out" | head -n 1 | grep -oE '[0-9]+$')
heading "saved at step $saved"
[ $((saved % 1000)) -ne 0 ] && [ "$saved" -lt $steps ] || fail "the checkpoint is not from the step of the signal: step $saved"
wait_for 60 "a step after the checkpoint" reached "$job" $((saved + 1))
expect "$job" 600 0
[ "$(slurm_value "$job" Restarts)" = 1 ] || fail "Slurm restarted the job $(slurm_value "$job" Restarts) times, expected 1"
hashes "$work/whole/step-$steps" >"$work/a"
hashes "$work/parted/step-$steps" >"$work/b"
[ -s "$work/a" ] && cmp "$work/a" "$work/b" || fail "the parameters differ from those of the uninterrupted run"
check_left
heading "done"
