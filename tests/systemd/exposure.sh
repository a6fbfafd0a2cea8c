# What control has given up, judged by systemd-analyze: a unit is made of the things that were tried and refused
# (confine_facts), and may not be exposed above 2.0. The whole dtd.service is judged too; jobs need more than control.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "only root can try as root"
command -v systemd-analyze >/dev/null || skip "no systemd here (deploy/packages test)"
groups='@clock @cpu-emulation @debug @module @mount @obsolete @privileged @raw-io @reboot @resources @swap'

# The calls of these groups, and of the groups in them, that this machine has numbers for.
calls_of() {
  local name
  for name in $(systemd-analyze syscall-filter "$1" | sed -n '2,$s/^ *\([^# ].*\)$/\1/p'); do
    case $name in @*) calls_of "$name" ;; *) echo "$name" ;; esac
  done
}
for g in $groups; do calls_of "$g"; done | sort -u >"$tmp/calls"
[ "$(wc -l <"$tmp/calls")" -gt 50 ] || fail "systemd-analyze names no system calls"
while read -r name; do printf '#ifdef SYS_%s\nNUMBER SYS_%s\n#endif\n' "$name" "$name"; done <"$tmp/calls" >"$tmp/calls.c"
mapfile -t numbers < <(cc -E -P -include sys/syscall.h "$tmp/calls.c" | grep -oE "NUMBER [0-9]+" | cut -d" " -f2)
[ ${#numbers[@]} -gt 50 ] || fail "the system calls have no numbers"

rc=0
"$DTD_BUILD/tests/confine_facts" "${numbers[@]}" >"$tmp/facts" 2>"$tmp/facts.err" || rc=$?
dir=$(tail -n 1 "$tmp/facts.err")
case $dir in /tmp/dtd-confine-*) rm -rf "$dir" ;; esac
[ $rc -eq 0 ] || { cat "$tmp/facts.err"; fail "something is not refused"; }

{ printf '[Service]\nExecStart=/bin/true\nNotifyAccess=none\nSystemCallFilter=~%s\n' "$groups"; cat "$tmp/facts"; } >"$tmp/dtd-control.service"
exposure() { # UNIT
  systemd-analyze security --offline=true --no-pager "$1" 2>&1 | sed -n 's/.*Overall exposure level for [^:]*: \([0-9.]*\).*/\1/p'
}
control=$(exposure "$tmp/dtd-control.service") whole=$(exposure "$DTD_SOURCE/deploy/systemd/dtd.service")
say "$(wc -l <"$tmp/facts") facts, ${#numbers[@]} system calls refused"
say "exposure of control: $control, of the whole dtd.service, with the jobs: $whole"
awk -v x="$control" 'BEGIN { exit !(x > 0 && x <= 2.0) }' || fail "control is exposed at $control, allowed are 2.0"
awk -v x="$whole" 'BEGIN { exit !(x > 0 && x <= 5.5) }' || fail "dtd.service is exposed at $whole, it was 5.3"
