# The guard of GPUs under the settings of dtd.service: the kernel takes its program with the two capabilities that
# docs/operate/systemd.md names, and not without them. What runs is the unit test of the guard, which makes device files (CAP_MKNOD).
. "$(dirname "$0")/lib.sh"
test=$DTD_BUILD/tests/daemon.supervisor.test_cgroup
[ -x "$test" ] || skip "daemon.supervisor.test_cgroup is not built"
boot
run_with() { # CAPABILITIES: prints the test's output
  { grep -vE '^(Type|NotifyAccess|Exec[A-Za-z]*|Watchdog[A-Za-z]*|Restart[A-Za-z]*|RestartPreventExitStatus|Timeout[A-Za-z]*)=' \
    "$DTD_SOURCE/deploy/systemd/dtd.service" | sed '/^\[Install\]/,$d'
    printf '[Service]\nType=oneshot\nExecStart=%s a_job_opens_only_its_gpus\nStandardOutput=file:/run/guard\nStandardError=file:/run/guard\n' "$test"
    printf 'CapabilityBoundingSet=CAP_MKNOD %s\n' "$1"
  } >"$tmp/guard.service"
  put "$tmp/guard.service" /run/systemd/system/guard.service
  inside systemctl daemon-reload
  inside systemctl start guard 2>/dev/null || true
  inside cat /run/guard
}
heading "without the capabilities the kernel refuses the guard"
run_with "" >"$tmp/out"
grep -q "skipped: .*Operation not permitted" "$tmp/out" || fail "$(cat "$tmp/out")"
heading "with them a job opens only its GPUs"
run_with "CAP_BPF CAP_NET_ADMIN" >"$tmp/out"
grep -q "PASSED.* 1 test" "$tmp/out" || fail "$(cat "$tmp/out")"
heading "passed"
