# Jobs that run at the same time share the cores: each uses fewer threads while the other runs, and all of them afterwards.
. "$(dirname "$0")/lib.sh"
[ "$(nproc)" -ge 2 ] || skip "one core cannot be shared"
write_job
up
long=$(submit --set parallel.workers=1 --set train.steps=100000 --set name=long --set checkpoint.dir=long --set train.numerics=fast)
wait_for 30 "step 5" reached "$long" 5
! grep -q "workers_on_node" "$DTD_DIR/jobs/$long/rank-0.log" || fail "a job that runs alone does not use all cores"
short=$(submit --set parallel.workers=1 --set train.steps=400 --set name=short --set checkpoint.dir=short --set train.numerics=fast)
wait_done "$short" 120
for job in "$long" "$short"; do
  grep -q "threads=.* of=$(nproc) workers_on_node=2" "$DTD_DIR/jobs/$job/rank-0.log" || fail "job $job did not share the cores"
done
alone_again() { tail -n 1 <(grep "workers_on_node" "$DTD_DIR/jobs/$long/rank-0.log") | grep -q "threads=$(nproc) "; }
wait_for 30 "the longer job to use all cores again" alone_again
dtctl cancel "$long" >/dev/null
