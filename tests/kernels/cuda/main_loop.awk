# Finds the main loop of each kernel in the output of `cuobjdump -sass` and prints one line for each kernel that has one:
#
#   kernel, mangled <tab> architecture <tab> HMMA <tab> LDSM <tab> LDGSTS <tab> MUFU <tab> all instructions
#
# The main loop is the longest one that multiplies on tensor cores. The script counts the instructions that a warp issues on one
# path from the loop's beginning to its end: of all forward paths, the shortest of those with the most products and copies.
# Inner loops, which copy element by element, and the masks of the last tiles are therefore not counted.

# The index of a branch's target, or -1.
function target(text, address) {
  if (text !~ /(^| )BRA[ .]/ || !match(text, /0x[0-9a-f]+ *$/)) return -1
  address = substr(text, RSTART + 2, RLENGTH - 2)
  sub(/ +$/, "", address)
  return address in at ? at[address] : -1
}

function longest_loop(i, to, products) {
  products[0] = first = last = 0
  for (i = 1; i <= n; i++) products[i] = products[i - 1] + (op[i] == "HMMA")
  for (i = 1; i <= n; i++) {
    to = target(text[i])
    if (to < 1 || to > i || products[i] == products[to - 1]) continue
    if (i - to > last - first || !last) { first = to; last = i }
  }
  return last > 0
}

# next_of[i]: the instruction after i on the best path to `last`; worth and cost are those of the path from i on.
function best_way(i, to, here, falls, worth, cost, reached) {
  for (i = last; i >= first; i--) {
    next_of[i] = 0
    here = op[i] == "HMMA" || op[i] == "LDGSTS"
    if (i == last) { reached[i]; worth[i] = here; cost[i] = 1; continue }
    falls = !(op[i] == "EXIT" || op[i] == "RET" || text[i] ~ /^BRA 0x/) || guarded[i] # BRA.U has its condition after the opcode
    if (falls && (i + 1) in reached) next_of[i] = i + 1
    to = target(text[i])
    if (to > i && to in reached &&
        (!next_of[i] || worth[to] > worth[i + 1] || (worth[to] == worth[i + 1] && cost[to] < cost[i + 1]))) next_of[i] = to
    if (!next_of[i]) continue
    reached[i]; worth[i] = worth[next_of[i]] + here; cost[i] = cost[next_of[i]] + 1
  }
}

function finish(i, count) {
  if (!n || !longest_loop()) return
  best_way()
  split("", count)
  for (i = first; i; i = next_of[i]) { count[op[i]]++; count["all"]++ }
  print kernel, arch, count["HMMA"] + 0, count["LDSM"] + 0, count["LDGSTS"] + 0, count["MUFU"] + 0, count["all"]
}

BEGIN { OFS = "\t" }
/code for sm_/ { finish(); n = 0; arch = $NF }
/Function :/ { finish(); n = 0; kernel = $NF; split("", at) }
/^ +\/\*[0-9a-f]+\*\/ / {
  match($0, /\/\*[0-9a-f]+\*\//)
  address = substr($0, RSTART + 2, RLENGTH - 4)
  sub(/^0+/, "", address)
  line = substr($0, RSTART + RLENGTH)
  if (!sub(/ *;.*/, "", line)) next
  sub(/^ +/, "", line)
  guarded[++n] = sub(/^@!?U?P[T0-9]+ +/, "", line)
  at[address == "" ? "0" : address] = n
  text[n] = line
  split(line, word, /[ .]/)
  op[n] = word[1]
}
END { finish() }
