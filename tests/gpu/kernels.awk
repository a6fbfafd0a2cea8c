# Sums the output of ncu --csv --metrics gpu__time_duration.sum: every kernel by name, with its number of launches, its time and
# its share. The names of cuBLASLt's kernels show which form a product used: nvjet_* and sm90_* are Hopper's own, sm80_* use the
# instructions of the previous generation, and a cublasLt::epilogue next to a product means that its epilogue was not fused.
BEGIN { FS = "\",\"" }
/^"ID"/ {
  for (i = 1; i <= NF; i++) {
    gsub(/"/, "", $i)
    if ($i == "Kernel Name") name = i
    if ($i == "Metric Unit") unit = i
    if ($i == "Metric Value") value = i
  }
  next
}
name && /^"[0-9]+"/ {
  v = $value
  gsub(/[",]/, "", v)
  us = $unit ~ /^n/ ? v / 1e3 : $unit ~ /^m/ ? v * 1e3 : $unit ~ /^(u|us)/ ? v + 0 : v * 1e6
  n[$name]++
  t[$name] += us
  all += us
}
END {
  if (!all) { print "ncu printed no kernel"; exit 1 }
  for (k in t) printf "%10.1f us %6d launches %5.1f %%  %s\n", t[k], n[k], 100 * t[k] / all, k | "sort -rn"
}
