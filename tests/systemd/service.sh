# dtd.service with a real systemd, from the package's installation to its removal.
. "$(dirname "$0")/lib.sh"
boot
make_package
put "$deb" /var/tmp/dtd.deb

heading "install: nothing is enabled or started"
inside dpkg -i /var/tmp/dtd.deb >"$tmp/dpkg.log" 2>&1 || { cat "$tmp/dpkg.log"; fail "dpkg does not install the package"; }
inside getent passwd dtd >/dev/null || fail "the package did not create the user dtd"
[ "$(inside systemctl is-enabled dtd || true)" = disabled ] || fail "the service was enabled"
[ "$(inside systemctl is-active dtd || true)" = inactive ] || fail "the service was started"
inside systemd-analyze verify /lib/systemd/system/dtd.service >"$tmp/verify" 2>&1 || true
if grep -i "dtd.service.*\(ignoring\|unknown\|failed to parse\)" "$tmp/verify"; then fail "systemd does not support all settings of the unit"; fi

heading "start returns when control serves"
inside systemctl start dtd
is_active || fail "not active after start"
as alice dtctl node >/dev/null || fail "control does not answer after start"
gpus_known() { inside dtctl node -o json | jq -e '.gpus >= 0'; }
wait_for 30 "the probe" gpus_known
if inside dtctl node | grep "probe.json"; then fail "control cannot read the output of the probe"; fi
has_status() { case $(show StatusText) in "leader, 1 node, $1"*) ;; *) return 1 ;; esac; }
wait_for 10 "the status line" has_status "0 jobs running"
[ "$(inside ps -o user= -p "$(child_pid dtd-control)")" = dtd ] || fail "control is not user dtd"
inside grep -E '^(NoNewPrivs|Seccomp|CapBnd|CapPrm):' "/proc/$(child_pid dtd-control)/status" | tr -s '\t\n' '  ' >"$tmp/confined"
grep -q "CapPrm: 0* CapBnd: 0* NoNewPrivs: 1 Seccomp: 2" "$tmp/confined" || fail "control is not confined: $(cat "$tmp/confined")"

heading "a job of an ordinary user, end to end"
inside sh -c 'for i in $(seq 400); do echo "a quick brown fox jumps over the lazy dog, $i times"; done >/home/alice/text.txt'
cat >"$tmp/job.yaml" <<'J'
name: small
model: {arch: llama, dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128}
data: {train: [text.txt], valid: [], tokenizer: bytes}
train: {steps: 40, seq: 32, global_batch: 8, micro_batch: 2, lr: 1.0e-3, warmup: 4, eval_every: 0, seed: 1}
parallel: {workers: 2}
checkpoint: {dir: ckpt, every: 10, keep_last: 3}
run: {device: cpu, restarts: 9}
J
put "$tmp/job.yaml" /home/alice/job.yaml
submit() { as alice sh -c "cd && dtctl submit job.yaml --detach -o json $*" | jq -er .job; }
first=$(submit)
wait_for 60 "the end of the first job" job_is "$first" done
[ "$(inside stat -c %U /home/alice/ckpt/step-40)" = alice ] || fail "the checkpoint is not alice's"
inside test -s "/var/lib/dtd/jobs/$first/rank-0.log"
as bob dtctl status | grep -q "small *done" || fail "bob does not see the job"
if as bob dtctl logs "$first" >"$tmp/out" 2>&1; then fail "bob may read alice's logs"; fi
grep -q "belongs to alice" "$tmp/out" || fail "the refusal does not name the owner: $(cat "$tmp/out")"
if as bob cat "/var/lib/dtd/jobs/$first/rank-0.log" >/dev/null 2>&1; then fail "bob may read alice's log file"; fi
as alice cat "/var/lib/dtd/jobs/$first/rank-0.log" >/dev/null || fail "alice cannot read her own log file"
if inside dtctl submit /home/alice/job.yaml --detach >"$tmp/out" 2>&1; then fail "a job of root was accepted"; fi

heading "each process of a job has a control group of its own, which setsid and a double fork do not leave"
groups_of() { inside sh -c 'ls -d /sys/fs/cgroup/system.slice/dtd.service/dtd-*/job-'"$1/*/"; }
escaped() { inside pgrep -u alice -f "sleep 4711"; }
cat >"$tmp/escape.yaml" <<'J'
name: escape
command: [sh, -c, "setsid -f env -i setsid -f sleep 4711; sleep 1000"]
parallel: {workers: 1}
J
put "$tmp/escape.yaml" /home/alice/escape.yaml
job=$(as alice sh -c "cd && dtctl submit escape.yaml --detach -o json" | jq -er .job)
wait_for 20 "the process that leaves its job" escaped
groups_of "$job" | grep -q "/job-$job/rank-0/$" || fail "the worker has no group: $(groups_of "$job")"
inside sh -c 'cat /sys/fs/cgroup/system.slice/dtd.service/dtd-*/job-'"$job"'/rank-0/cgroup.procs' | grep -qx "$(escaped)" ||
  fail "the process is not in its worker's group"
ctl cancel --now "$job" >/dev/null
wait_for 30 "the end of the job" job_is "$job" canceled
if escaped; then fail "a process of the job has outlived it"; fi
if groups_of "$job"; then fail "the groups of the job's processes are left"; fi

heading "kill -9 of each process"
job=$(submit --set train.steps=1000000 --set checkpoint.dir=ckpt-long --set checkpoint.every=200)
wait_for 60 "the long job" running_in "$job" 1
wait_for 10 "the status line" has_status "1 job running"
worker() { ctl status "$job" -o json | jq -e '.worker[0].pid'; }
before=$(child_pid dtd-control) at=$(worker)
inside kill -9 "$before"
fresh() { local p; p=$(child_pid "$1") && [ "$p" != "$2" ]; }
wait_for 20 "a new control" fresh dtd-control "$before"
wait_for 30 "the job under the new control" running_in "$job" 1
[ "$(worker)" = "$at" ] || fail "the workers did not survive the end of control"
before=$(child_pid dtd-io)
inside kill -9 "$before"
wait_for 20 "a new dtd-io" fresh dtd-io "$before"
wait_for 30 "the job with the new io" running_in "$job" 1
[ "$(worker)" = "$at" ] || fail "the workers did not survive the end of dtd-io"
wait_for 30 "a checkpoint" inside sh -c 'ls -d /home/alice/ckpt-long/step-*'
before=$(main_pid)
inside kill -9 "$before"
wait_for 10 "the worker to go with its supervisor" gone "$at"
fresh_main() { local p; p=$(main_pid) && [ "$p" != "$before" ] && [ "$p" != 0 ] && is_active; }
wait_for 30 "a new supervisor" fresh_main
wait_for 60 "the job in a new epoch" running_in "$job" 2

heading "a hanging control is replaced, and no other process"
main=$(main_pid) before=$(child_pid dtd-control) at=$(worker)
inside kill -STOP "$before"
wait_for 40 "a new control" fresh dtd-control "$before"
wait_for 30 "the job under the new control" running_in "$job" 2
[ "$(main_pid)" = "$main" ] || fail "the supervisor was replaced too"
[ "$(worker)" = "$at" ] || fail "the workers did not survive the hang of control"
journal_has "control hangs, killed" || fail "the journal does not report the hang"

heading "systemd restarts a hanging supervisor"
inside mkdir -p /etc/systemd/system/dtd.service.d
printf '[Service]\nWatchdogSec=4\n' >"$tmp/fast.conf"
put "$tmp/fast.conf" /etc/systemd/system/dtd.service.d/fast.conf
inside systemctl daemon-reload
inside systemctl restart dtd
wait_for 60 "the job after a restart" running_in "$job" 3
before=$(main_pid) restarts=$(show NRestarts)
inside kill -STOP "$before"
wait_for 60 "the manager's watchdog" fresh_main
[ "$(show NRestarts)" -gt "$restarts" ] || fail "the unit was not restarted"
journal_has "watchdog timeout" || fail "the journal does not report the watchdog timeout"
wait_for 60 "the job after the watchdog" running_in "$job" 4
inside rm -r /etc/systemd/system/dtd.service.d
inside systemctl daemon-reload

heading "reload reads the configuration"
inside sh -c 'printf "log:\n  level: debug\n" >>/etc/dtd/dtd.yaml'
inside systemctl reload dtd
wait_for 10 "the new level" journal_has "configuration read again log.level=3"
is_active || fail "not active after reload"

heading "upgrade: a running service continues with the new programs, and /etc/dtd is kept"
dpkg-deb -R "$deb" "$tmp/newer"
sed -i 's/^Version: .*/&+1/' "$tmp/newer/DEBIAN/control"
dpkg-deb --root-owner-group -b "$tmp/newer" "$tmp/newer.deb" >/dev/null
put "$tmp/newer.deb" /var/tmp/newer.deb
before=$(main_pid)
inside dpkg -i /var/tmp/newer.deb >"$tmp/dpkg.log" 2>&1 || { cat "$tmp/dpkg.log"; fail "dpkg does not upgrade the package"; }
wait_for 30 "the upgraded service" fresh_main
wait_for 60 "the job after the upgrade" running_in "$job" 5
inside grep -q "level: debug" /etc/dtd/dtd.yaml || fail "the upgrade replaced the administrator's configuration"

heading "stop leaves no process, no cgroup, no socket"
inside systemctl enable -q dtd
at=$(worker)
processes >/dev/null || fail "the test finds no process of dtd before the stop"
inside systemctl stop dtd
[ "$(show Result)" = success ] || fail "stop ended as $(show Result)"
if processes; then fail "processes are left"; fi
gone "$at" || fail "a worker is left"
inside test ! -e /sys/fs/cgroup/system.slice/dtd.service || fail "the cgroup is left"
inside test ! -e /run/dtd || fail "/run/dtd is left"
inside test -d /var/lib/dtd/raft || fail "the stop deleted the state"

heading "remove keeps state and configuration, purge deletes both"
inside systemctl start dtd
inside dpkg -L dtd | sort >"$tmp/files"
inside dpkg -r dtd >"$tmp/dpkg.log" 2>&1 || { cat "$tmp/dpkg.log"; fail "dpkg does not remove the package"; }
if processes; then fail "removal leaves processes"; fi
while read -r f; do
  [ "$f" = /etc/dtd/dtd.yaml ] || inside test -d "$f" || inside test ! -e "$f" || fail "removal leaves $f"
done <"$tmp/files"
inside test ! -L /etc/systemd/system/multi-user.target.wants/dtd.service || fail "removal leaves the service enabled"
inside test -f /etc/dtd/dtd.yaml || fail "remove deleted the configuration"
inside test -d /var/lib/dtd/raft || fail "remove deleted the state"
inside dpkg -P dtd >"$tmp/dpkg.log" 2>&1 || { cat "$tmp/dpkg.log"; fail "dpkg does not purge the package"; }
for f in /etc/dtd /var/lib/dtd /run/dtd /lib/systemd/system/dtd.service; do inside test ! -e $f || fail "purging leaves $f"; done
heading "passed"
