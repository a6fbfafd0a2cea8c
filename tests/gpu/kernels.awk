# What ncu --csv --metrics gpu__time_duration.sum printed: every kernel by name, how often it was launched, its time, and its
# share. Names that cuBLASLt launched tell which form a product took: nvjet_* and sm90_* are Hopper's own, sm80_* run on the
# path of the generation before, and a cublasLt::epilogue beside a product means that its epilogue did not fuse.
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
