# Sourced by the tests with Slurm. It starts a Slurm for the test: munged, slurmctld and one slurmd for each name in $nodes (default: two),
# in new mount, PID, network, UTS and IPC namespaces. Each node has its own network, host name and /tmp; $shared is common to all. The
# machine itself is not changed, and all processes end with the test. Needs DTD_BIN (the folder of the programs), root, and the packages of
# `deploy/packages slurm`; otherwise the test is skipped with a reason.
set -euo pipefail
: "${DTD_BIN:?}" "${DTD_SOURCE:?}"
heading() { printf '== %s %s\n' "$(date +%T)" "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

if [ -z "${DTD_SLURM_INSIDE:-}" ]; then
  [ "$(id -u)" = 0 ] || skip "creating namespaces needs root"
  for tool in munged munge slurmctld slurmd sbatch srun unshare nsenter setpriv ip ss jq; do
    PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages slurm)"
  done
  getent passwd munge >/dev/null || skip "there is no user munge (deploy/packages slurm)"
  unshare -m -u -i -n -p --fork --mount-proc true 2>/dev/null || skip "this machine does not allow new namespaces"
  unshare -n ip link add v1 type veth peer name v2 2>/dev/null || skip "this kernel has no veth"
  # Killing this process kills all processes of the test.
  DTD_SLURM_INSIDE=1 exec unshare -m -u -i -n -p --fork --kill-child --mount-proc bash "$0" "$@"
fi

export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
unset SLURM_CONF DTD_DIR TMPDIR
shared=/run/shared
work=$shared/work
cpus=$(($(nproc) < 2 ? 1 : 2))
[ -n "${nodes+set}" ] || nodes=(n1 n2)
declare -A holder slurmd

# wait_for SECONDS WHAT COMMAND...: repeats the command until it succeeds; fails after SECONDS and names WHAT.
wait_for() {
  local end=$(($(date +%s) + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s)" -lt $end ] || fail "timeout while waiting for: $what"
    sleep 0.1
  done
}

# This is the first process of the PID namespace: when it ends, the kernel kills all others and removes the mounts.
finish() {
  local rc=$? f
  trap - EXIT
  set +e
  if [ $rc -ne 0 ] && [ $rc -ne 77 ]; then
    echo "--- failed with $rc"
    squeue
    sinfo -N -l
    for f in $work/*.out $shared/log/*.log; do [ -s "$f" ] && { echo "--- $f"; tail -n 40 "$f"; }; done
    for n in "${nodes[@]}"; do
      for f in "/proc/${holder[$n]}/root"/tmp/dtd-*/*/*.log; do [ -s "$f" ] && { echo "--- $n $f"; tail -n 40 "$f"; }; done
    done
  fi
  exit $rc
}
trap finish EXIT

user=(setpriv --reuid nobody --regid nogroup --clear-groups env HOME=$work USER=nobody DTD_BIN=$shared/bin)
as() { (cd $work && exec "${user[@]}" "$@"); }
on() { # on NODE COMMAND...: as root, in that node's namespaces
  local n=$1
  shift
  nsenter -t "${holder[$n]}" -m -n -u -- "$@"
}

make_places() {
  mount --make-rprivate /
  mount -t tmpfs -o mode=755 run /run
  mkdir -p $shared/{bin,log,etc,ctld} $work /run/munge
  mount --bind "$DTD_BIN" $shared/bin
  chown nobody:nogroup $work
  chmod 755 /run/munge
  mount --bind $shared/etc /etc/slurm
  { echo "127.0.0.1 localhost"; echo "10.77.0.254 ctl"; for i in "${!nodes[@]}"; do echo "10.77.0.$((i + 1)) ${nodes[$i]}"; done; } >$shared/hosts
  mount --bind $shared/hosts /etc/hosts
  hostname ctl
}

# slurmctld resolves host names, which fails if only lo has an address.
make_network() {
  ip link set lo up
  ip link add br0 type bridge
  ip addr add 10.77.0.254/24 dev br0
  ip link set br0 up
}

# slurmd requires a cgroup plugin even if nothing uses cgroups. cred_expire is short because a job that lost a node restarts only
# after its launch credential has expired.
write_conf() {
  mountpoint -q /sys/fs/cgroup || echo 'CgroupPlugin=cgroup/v1' >$shared/etc/cgroup.conf
  cat >$shared/etc/slurm.conf <<X
ClusterName=dtd
SlurmctldHost=ctl(10.77.0.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=1
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=15
MinJobAge=600
SlurmctldPidFile=$shared/slurmctld.pid
SlurmdPidFile=$shared/slurmd-%n.pid
SlurmdSpoolDir=$shared/spool-%n
StateSaveLocation=$shared/ctld
$(for i in "${!nodes[@]}"; do echo "NodeName=${nodes[$i]} NodeAddr=10.77.0.$((i + 1)) CPUs=$cpus RealMemory=1000 State=UNKNOWN"; done)
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
X
}

start_munge() {
  dd if=/dev/urandom of=$shared/munge.key bs=128 count=1 status=none
  chown -R munge:munge $shared/munge.key /run/munge
  chmod 600 $shared/munge.key
  mkdir $shared/munge
  chown munge:munge $shared/munge
  setpriv --reuid munge --regid munge --clear-groups munged --key-file=$shared/munge.key --pid-file=$shared/munge/pid \
    --log-file=$shared/munge/log --seed-file=$shared/munge/seed
  wait_for 10 "munged" munge -n
}

# Starts a process that keeps the node's namespaces, independent of slurmd.
make_node() { # NODE NUMBER
  unshare -m -n -u bash -c 'hostname "$1" && mount -t tmpfs -o mode=1777 tmp /tmp && ip link set lo up &&
    echo ready >"$2" && exec sleep infinity' x "$1" "$shared/$1.ready" &
  holder[$1]=$!
  wait_for 10 "the namespaces of $1" test -s "$shared/$1.ready"
  ip link add "v$1" type veth peer name eth0 netns "${holder[$1]}"
  ip link set "v$1" master br0 up
  on "$1" ip addr add "10.77.0.$2/24" dev eth0
  on "$1" ip link set eth0 up
}
start_slurmd() { # NODE
  mkdir -p "$shared/spool-$1"
  on "$1" slurmd -D -N "$1" >>"$shared/log/slurmd-$1.log" 2>&1 &
  slurmd[$1]=$!
}
power_off() { # NODE: kills all its processes except the one that keeps its namespaces
  local p at
  at=$(readlink "/proc/${holder[$1]}/ns/net")
  for p in /proc/[0-9]*; do
    [ "$(readlink "$p/ns/net")" != "$at" ] || [ "${p#/proc/}" = "${holder[$1]}" ] || kill -9 "${p#/proc/}" 2>/dev/null || true
  done
}
idle() { [ "$(sinfo -h -N -t idle -o %N | sort -u | wc -l)" -eq ${#nodes[@]} ]; }

start_slurm() {
  local i
  make_places
  make_network
  write_conf
  start_munge
  slurmctld -D >>$shared/log/slurmctld.log 2>&1 &
  for i in "${!nodes[@]}"; do
    make_node "${nodes[$i]}" $((i + 1))
    start_slurmd "${nodes[$i]}"
  done
  wait_for 60 "all nodes to be idle" idle
}

# ---- jobs ----

# Writes a job of some seconds on two nodes, with a worker on each. The tests override keys by --set.
write_job() {
  yes "a quick brown fox jumps over the lazy dog, twice" 2>/dev/null | head -n 400 >$work/text.txt || true
  cat >$work/job.yaml <<X
name: small
model: {arch: llama, dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128}
data: {train: [text.txt], valid: [], tokenizer: bytes}
train: {steps: 40, seq: 32, global_batch: 8, micro_batch: 2, lr: 1.0e-3, schedule: cosine, warmup: 4, weight_decay: 0.1,
        clip: 1.0, dtype: float32, numerics: canonical, eval_every: 0, seed: 1}
parallel: {workers: 2}
checkpoint: {dir: ckpt, every: 10, keep_last: 3}
run: {device: cpu, restarts: 3, nodes: 2}
X
}
batch() { # SBATCH-OPTIONS... -- ARGUMENTS OF THE SCRIPT...: prints the number of the Slurm job
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  as sbatch --parsable -o out-%j.out --time=10 "${options[@]}" "$DTD_SOURCE/deploy/slurm/dtd.sbatch" "$@"
}
slurm_value() { scontrol show job "$1" | grep -oE "$2=[^ ]+" | head -n 1 | cut -d= -f2-; } # slurm_value JOB KEY
is() { [ "$(slurm_value "$1" JobState)" = "$2" ]; }
over() { case $(slurm_value "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) ;; *) return 1 ;; esac; }
# expect JOB SECONDS CODE: waits until the batch job ends, and fails unless its exit code is CODE.
expect() {
  wait_for "$2" "the end of Slurm job $1" over "$1"
  [ "$(slurm_value "$1" ExitCode)" = "$3:0" ] || fail "Slurm job $1 ended with $(slurm_value "$1" ExitCode), expected $3:0"
}
# job_dtctl JOB NODE COMMAND...: runs dtctl as the user, on that node (0 or 1), with the job's daemon there
job_dtctl() {
  local job=$1 n=${nodes[$2]} k=$2
  shift 2
  nsenter -t "${holder[$n]}" -m -n -u -- "${user[@]}" DTD_DIR="/tmp/dtd-$(id -u nobody)-$job.$(slurm_value "$job" Restarts)/$k" $shared/bin/dtctl "$@"
}
step_of() { job_dtctl "$1" 0 status 1 -o json | jq -r .step; }
reached() { [ "$(step_of "$1")" -ge "$2" ]; } # reached JOB STEP
hashes() { $shared/bin/dtctl ckpt inspect "$1" -o json | jq -r '.tensors[] | "\(.name) \(.sha256)"' | sort; }

left() { # prints processes, files and sockets that a job must not leave
  ps -eo pid,args --no-headers | grep -E '[ /](dtd|dtd-control|dtd-io|dt-worker|dtctl) ' | grep -v grep || true
  for n in "${nodes[@]}"; do
    on "$n" find /tmp -mindepth 1
    on "$n" ss -Hltnp | grep -v slurmd || true
  done
}
nothing_left() {
  left >$shared/left 2>&1
  [ ! -s $shared/left ]
}
check_left() { (wait_for 15 "nothing to be left behind" nothing_left) || { cat $shared/left; exit 1; }; }
