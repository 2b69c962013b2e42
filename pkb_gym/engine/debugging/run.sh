#!/usr/bin/env bash
# Runs the kept calls without evaluator or sandbox, one process a rank:
#
#     ./run.sh                    as judged
#     ./run.sh debug              not optimised, bounds of arrays and containers checked
#     ./run.sh address|undefined|thread        C++: under a sanitizer of g++ (thread: ranks are threads of one process)
#     ./run.sh memcheck|racecheck|synccheck|initcheck      CUDA: under compute-sanitizer
#     ./run.sh BUILD --gdb RANK   with that rank under gdb, or under cuda-gdb where that is the debugger of the source
#
# Exit status: 0 every output is close to the expected one, 1 one is not, 2 a call raised, others: a crash or a report.
cd "$(dirname "$0")" || exit 3
ranks=@WORLD_SIZE@
grace_s=@GRACE_S@ # for reports of other ranks, once one has ended with a finding
tools=" @TOOLS@ "
build=release tool="" debugged="" apart=""
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      sed -n '2,/^cd /{/^#/s/^# \{0,1\}//p}' "${0##*/}"
      exit 0
      ;;
    --gdb)
      debugged="${2:?--gdb needs the number of a rank}"
      shift
      ;;
    *) build="$1" ;;
  esac
  shift
done
case "$tools" in
  *" $build "*)
    # racecheck looks at shared memory alone; device code is the same in the release build, with its lines.
    tool=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")}
    tool="$tool --tool $build --error-exitcode 86"
    build=release
    apart=yes
    [ -x build.sh ] && rm -f kernel-release.so # the judged one has no lines of device code
    ;;
esac
[ -x build.sh ] && { ./build.sh "$build" || exit 3; }
chmod +x "harness-$build"
folder=/dev/shm
[ -w "$folder" ] || folder="${TMPDIR:-/tmp}"
heap=$(mktemp "$folder/pkb-heap-XXXXXX") || exit 3
# Reports of several lines, of ranks side by side, would be mixed: they are shown rank by rank in the end.
show() { for log in "$heap".rank*; do [ -e "$log" ] && echo "rank ${log##*.rank}:" && cat "$log"; done; }
# A signal between fork and exec is lost in a shell that has traps: what outlives it is killed.
end_ranks() {
  kill $(jobs -p)
  for _ in 1 2 3 4 5 6 7 8 9 10; do [ -z "$(jobs -pr)" ] || sleep 0.05; done
  kill -KILL $(jobs -pr)
} 2> /dev/null
trap 'end_ranks; show; rm -f "$heap"*' EXIT
trap 'exit 130' INT TERM
export ASAN_OPTIONS="detect_leaks=0:abort_on_error=0:exitcode=86:${ASAN_OPTIONS-}"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=0:${UBSAN_OPTIONS-}"
export TSAN_OPTIONS="exitcode=86:halt_on_error=0:report_thread_leaks=0:${TSAN_OPTIONS-}"
# Shadow memory lies where randomised addresses may.
fixed="setarch $(uname -m) -R"
case "$build" in address | thread) $fixed true 2> /dev/null && tool="$fixed" ;; esac
harness() { echo "./harness-$build . ./kernel-$build.so $heap $1"; }
if [ "$build" = thread ]; then
  $tool $(harness threads)
  exit
fi
started=0
for rank in $(seq 0 $((ranks - 1))); do
  [ "$rank" = "$debugged" ] && continue
  if [ -n "$apart" ]; then
    $tool $(harness "$rank") > "$heap.rank$rank" 2>&1 &
  else
    $tool $(harness "$rank") &
  fi
  started=$((started + 1))
done
status=0
if [ -n "$debugged" ]; then
  debugger=gdb
  [ -e kernel.cu ] && debugger=cuda-gdb
  # What the evaluator compiled lay in its sandbox's /tmp.
  "$debugger" -q -ex "set substitute-path /tmp $PWD" -ex "set breakpoint pending on" --args $(harness "$debugged")
  exit # the others may wait for ever
fi
for _ in $(seq "$started"); do
  wait -n
  of_rank=$?
  [ "$of_rank" -gt "$status" ] && status=$of_rank
  [ "$of_rank" -gt 1 ] && break # the others would wait for it
done
# Ranks that still run may be writing what they found themselves.
until [ -z "$apart" ] || [ -z "$(jobs -pr)" ] || [ "$grace_s" -le 0 ]; do
  for _ in 1 2 3 4 5 6 7 8 9 10; do [ -z "$(jobs -pr)" ] || sleep 0.1; done
  grace_s=$((grace_s - 1))
done
exit "$status"
