# Rates dtd-control's restrictions with systemd-analyze. confine_facts tries forbidden actions and prints those that were refused as unit
# settings; a unit of these settings must have an exposure of at most 2.0. The whole dtd.service is rated, too; its limit is higher,
# because jobs need more than control.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "confine_facts needs root"
command -v systemd-analyze >/dev/null || skip "systemd is not installed (deploy/packages test)"
groups='@clock @cpu-emulation @debug @module @mount @obsolete @privileged @raw-io @reboot @resources @swap'

# GROUP: prints the system calls of a group and of the groups in it.
calls_of() {
  local name
  for name in $(systemd-analyze syscall-filter "$1" | sed -n '2,$s/^ *\([^# ].*\)$/\1/p'); do
    case $name in @*) calls_of "$name" ;; *) echo "$name" ;; esac
  done
}
for g in $groups; do calls_of "$g"; done | sort -u >"$tmp/calls"
[ "$(wc -l <"$tmp/calls")" -gt 50 ] || fail "systemd-analyze lists fewer than 50 system calls: the pattern is broken"
while read -r name; do printf '#ifdef SYS_%s\nNUMBER SYS_%s\n#endif\n' "$name" "$name"; done <"$tmp/calls" >"$tmp/calls.c"
mapfile -t numbers < <(cc -E -P -include sys/syscall.h "$tmp/calls.c" | grep -oE "NUMBER [0-9]+" | cut -d" " -f2)
[ ${#numbers[@]} -gt 50 ] || fail "fewer than 50 system calls have a number: the pattern is broken"

rc=0
"$DTD_BUILD/tests/confine_facts" "${numbers[@]}" >"$tmp/facts" 2>"$tmp/facts.err" || rc=$?
dir=$(tail -n 1 "$tmp/facts.err")
case $dir in /tmp/dtd-confine-*) rm -rf "$dir" ;; esac
[ $rc -eq 0 ] || { cat "$tmp/facts.err"; fail "an action was not refused (the line above names it)"; }

{ printf '[Service]\nExecStart=/bin/true\nNotifyAccess=none\nSystemCallFilter=~%s\n' "$groups"; cat "$tmp/facts"; } >"$tmp/dtd-control.service"
exposure() { # UNIT
  systemd-analyze security --offline=true --no-pager "$1" 2>&1 | sed -n 's/.*Overall exposure level for [^:]*: \([0-9.]*\).*/\1/p'
}
control=$(exposure "$tmp/dtd-control.service") whole=$(exposure "$DTD_SOURCE/deploy/systemd/dtd.service")
heading "$(wc -l <"$tmp/facts") facts, ${#numbers[@]} system calls refused"
heading "exposure of control: $control, of the whole dtd.service, with the jobs: $whole"
awk -v x="$control" 'BEGIN { exit !(x > 0 && x <= 2.0) }' || fail "the exposure of control is $control; at most 2.0 is allowed"
awk -v x="$whole" 'BEGIN { exit !(x > 0 && x <= 5.5) }' || fail "the exposure of dtd.service is $whole; at most 5.5 is allowed"
