#!/usr/bin/env bash
# A rehearsal of the first half hour on a GPU machine, on a machine without a GPU: deploy/gpu-bundle packs the programs with the
# stand-ins of cudart, cuBLASLt and NCCL; a chroot with only a C library, bash and the usual small tools unpacks the bundle; every
# stage runs there with the commands that docs/operate/gpu.md lists. This detects files that a stage needs and the bundle lacks.
# Figures of stand-ins are marked and must not enter the report of a GPU.
set -euo pipefail
: "${DTD_BUILD:?}" "${DTD_SOURCE:?}"
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || skip "only root may chroot"
unshare -mpn true 2>/dev/null || skip "this machine does not allow namespaces"
[ -e "$DTD_BUILD/cuda-host/dtd-cuda.so" ] || skip "this build has no stand-ins (ninja cuda-host)"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dtd-rehearsal-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
root=$tmp/root
cd "$DTD_SOURCE"

# ---- a minimal machine ----
mkdir -p "$root"/{bin,sbin,usr,lib64,tmp,proc,dev,etc,root,gpu}
chmod 1777 "$root/tmp"
ln -s ../bin "$root/usr/bin"
ln -s ../lib "$root/usr/lib"
tools=(bash awk sed grep tar xz find pgrep ps ldd ldconfig mountpoint free hostname getent)
mapfile -t core < <(dpkg -L coreutils | grep -E '^(/usr)?/s?bin/')
for tool in "${tools[@]}" "${core[@]}"; do
  file=$(PATH=$PATH:/sbin:/usr/sbin command -v "$tool") || fail "this machine has no $tool to copy"
  cp -L "$file" "$root/bin/$(basename "$file")"
done
ln -s bash "$root/bin/sh"
ln -sf ../bin/ldconfig "$root/sbin/ldconfig"
{ ldd "$root"/bin/* 2>/dev/null || true; } | awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\/.*ld-linux/ {print $1}' | sort -u |
  while read -r library; do mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"; done
echo 'root:x:0:0::/root:/bin/bash' >"$root/etc/passwd"

# Runs commands from standard input as root of the minimal machine, with separate processes, mounts and network. All processes
# end with it.
bare() {
  cat >"$root/commands"
  unshare -mpn --fork --kill-child bash -c '
    ip link set lo up
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec env -i PATH=/bin:/sbin HOME=/root TERM=dumb chroot "$1" /bin/bash /commands' bare "$root"
}

deploy/gpu-bundle --stand-ins --out "$root/gpu" "$DTD_BUILD"

# ---- all stages, with the commands of docs/operate/gpu.md ----
grep -oE '^    (\. \.gpu/enter|tests/run -L gpu --stage [a-z]+)' docs/operate/gpu.md | sed 's/^ *//' >"$tmp/typed"
stages=$(sed -n 's/.*--stage //p' "$tmp/typed" | sort -u | wc -l)
[ "$stages" = 6 ] || fail "docs/operate/gpu.md names $stages stages, not 6"
bare <<X >"$tmp/out" 2>&1 || { cat "$tmp/out"; fail "a stage failed on the minimal machine"; }
cd /
$(sed 's#^\. \.gpu/enter#. gpu/enter || exit#; s#^tests/run#/tmp/dtd-gpu/tree/tests/run#' "$tmp/typed" | awk '/tests.run/ { $0 = $0 " || exit" } { print }')
X
cat "$tmp/out"
report=$root/gpu-report.md
[ "$(head -n 1 "$report")" = '# Rehearsal on stand-ins: no figure below is one of a GPU' ] || fail "the report is not marked: $(head -n 1 "$report")"
sed -n "/^steps='/,/^'/p" tests/gpu/stages | awk 'NF > 5 {print $2}' | while read -r name; do
  grep -qE "^- \*\*$name\*\* .*(passed|skipped)" "$report" || fail "the report has no result of the step $name"
done
# Only steps whose tools the machine cannot have may be skipped.
grep -E '^- .*skipped' "$report" | grep -vE 'no ncu|no compute-sanitizer|no PyTorch' && fail "a step was skipped that a minimal machine can run"
[ "$(grep -cE '^- .*passed' "$report")" -ge 12 ] || fail "too few steps passed"
grep -q 'tokens/s' "$report" || fail "the stage figures wrote no figures"

# ---- the list of kernels, whose tool is not installed here: three launches of two kernels, in the units that the tool prints ----
awk -f tests/gpu/kernels.awk >"$tmp/kernels" <<'X'
==PROF== Connected to process 123
"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","123","void nvjet_hsh_128x256<float, int>(a, b)","(8, 1, 1)","gpu__time_duration.sum","nsecond","1,500"
"1","123","adamw_elements","(8, 1, 1)","gpu__time_duration.sum","us","2.50"
"2","123","adamw_elements","(8, 1, 1)","gpu__time_duration.sum","ns","1,000"
X
grep -qE '^ *3\.5 us +2 launches +70\.0 %  adamw_elements$' "$tmp/kernels" || { cat "$tmp/kernels"; fail "the times of a kernel do not add up"; }
grep -qE '^ *1\.5 us +1 launches +30\.0 %  void nvjet_hsh_128x256<float, int>' "$tmp/kernels" || fail "a name with a comma is cut"
awk -f tests/gpu/kernels.awk </dev/null >/dev/null && fail "a list without kernels passed"

# ---- errors are reported ----
bare <<'X' >"$tmp/late" 2>&1 && fail "a stage that ran out of time passed"
cd /
. gpu/enter
REPORT=/late.md DTD_GPU_STAGE_SECONDS=4 tmp/dtd-gpu/tree/tests/run -L gpu --stage correct
X
grep -q 'FAILED: out of time after' "$root/late.md" || { cat "$tmp/late"; fail "the step that ran out of time is not named"; }
grep -qE 'not run: the 4 s of the stage were over' "$root/late.md" || { cat "$root/late.md"; fail "the steps that were not run are not named"; }
printf '# On a GPU: NVIDIA H100, driver 580, dtd 1234567\n' >"$root/device.md"
bare <<'X' >"$tmp/mixed" 2>&1 && fail "figures of stand-ins entered the report of a GPU"
cd /
. gpu/enter
REPORT=/device.md tmp/dtd-gpu/tree/tests/run -L gpu --stage correct
X
grep -q 'is the report of a GPU' "$tmp/mixed" || { cat "$tmp/mixed"; fail "the refusal does not give its reason"; }
[ "$(wc -l <"$root/device.md")" = 1 ] || fail "the report of a GPU was changed"

# ---- the bundle for a real GPU, if its modules are built: it must lack exactly the vendor's libraries and name them ----
if [ ! -e "$DTD_BUILD/bin/dtd-cuda.so" ]; then
  echo "this build has no modules for a GPU: their bundle was not packed"
  exit 0
fi
rm -rf "$root/gpu"
deploy/gpu-bundle --out "$root/gpu" "$DTD_BUILD"
bare <<'X' >"$tmp/real" 2>&1 && fail "a machine without CUDA's libraries was entered"
cd /
. gpu/enter
X
for library in libcudart libcublasLt libnccl; do
  grep -q "enter: $library.* was not found" "$tmp/real" || { cat "$tmp/real"; fail "$library is missing and not named"; }
done
grep 'not found' "$tmp/real" | grep -vE 'lib(cudart|cublasLt|nccl)' && fail "the bundle lacks a library that is not the vendor's"
echo "the rehearsal is over: $(grep -cE '^- .*passed' "$report") steps passed, $(grep -cE '^- .*skipped' "$report") were skipped"
