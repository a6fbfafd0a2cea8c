# Sourced: the kinds of faults, functions that cause (strike_KIND) and end (heal_KIND) each of them, and the choice of the
# node. A fault of a process takes a node and affects a process of that kind there. The rest of the test does not depend
# on how a fault is caused.
kinds=(kill_worker kill_io kill_control kill_supervisor kill_node stop_worker stop_io stop_control stop_node link_down half_open_in
  half_open_out disk_full)

hit() { # SIGNAL NODE KIND
  local found
  found=$(pids "$2" "$3" | head -n "${4:-99}") && [ -n "$found" ] || fail "no $3 on $2"
  kill "-$1" $found
}
# Stopped processes are continued by their pids, because others may have replaced them meanwhile.
declare -A stopped
stop() { # NODE KIND [HOW MANY]
  stopped[$1]=$(pids "$1" "$2" | head -n "${3:-99}")
  [ -n "${stopped[$1]}" ] || fail "no $2 on $1"
  kill -STOP ${stopped[$1]}
}
go_on() { kill -CONT ${stopped[$1]} 2>/dev/null || true; } # dtd may have killed some of them because they did not respond

strike_kill_worker() { hit KILL "$1" worker 1; }
strike_kill_io() { hit KILL "$1" io 1; }
strike_kill_control() { hit KILL "$1" control; }
strike_kill_supervisor() { hit KILL "$1" supervisor; } # the kernel kills the node's other processes with it and closes their connections
heal_kill_supervisor() { begin "$1"; }
strike_kill_node() { # like a power failure: no connection is closed, and nothing answers
  link "$1" down
  hit KILL "$1" all
}
heal_kill_node() {
  link "$1" well
  begin "$1"
}
strike_stop_worker() { stop "$1" worker 1; }
heal_stop_worker() { go_on "$1"; }
strike_stop_io() { stop "$1" io 1; }
heal_stop_io() { go_on "$1"; }
strike_stop_control() { stop "$1" control; }
heal_stop_control() { go_on "$1"; }
strike_stop_node() { stop "$1" all; }
heal_stop_node() { go_on "$1"; }
strike_link_down() { link "$1" down; }
heal_link_down() { link "$1" well; }
strike_half_open_in() { link "$1" deaf; }
heal_half_open_in() { link "$1" well; }
strike_half_open_out() { link "$1" mute; }
heal_half_open_out() { link "$1" well; }
strike_disk_full() { head -c 100m /dev/zero >"$tmp/$1/ballast" 2>/dev/null || true; }
heal_disk_full() { rm "$tmp/$1/ballast"; }

heal() { ! declare -F "heal_$1" >/dev/null || "heal_$1" "$2"; }
# All choices depend only on the seed: equal seeds give equal kinds, times and, if the job runs on the same nodes, victims.
draw() { # N: 0 .. N - 1, into `drawn`
  random=$(((random * 1103515245 + 12345) % 2147483648))
  drawn=$((random / 65536 % $1))
}
shuffle() { # WORD...: into `shuffled`
  local i swap
  shuffled=("$@")
  for ((i = $# - 1; i > 0; i--)); do
    draw $((i + 1))
    swap=${shuffled[i]} shuffled[i]=${shuffled[drawn]} shuffled[drawn]=$swap
  done
}
# Sets `victim` to a random node that has a process of the kind; a fault that does not concern a job's process may have any
# node. Nodes that already have a fault are left out.
find_victim() { # KIND NODE-WITH-FAULT...
  local n kind=$1
  shift
  victim=
  shuffle "${nodes[@]}"
  for n in "${shuffled[@]}"; do
    [[ " $* " != *" $n "* ]] || continue
    case $kind in *_worker | *_io) pids "$n" "${kind#*_}" >/dev/null 2>&1 || continue ;; esac
    victim=$n
    return
  done
  fail "$kind: no node has such a process"
}
