#!/usr/bin/env bash
# Measures the entries of experts, of the baseline and of evolve on this machine, and makes table and pictures.
#
#   leaderboard/measure.sh cpu|cuda [FOLDER] [run|add]
#
# Results go to FOLDER (default: runs/leaderboard); called again, it resumes. `run` only measures and `add` only makes
# entries, table and pictures of results, for a machine with GPUs that has no checkout of git.
#
# Two ranks; on a machine with one GPU, one, and `-1-gpu` in the names of its entries. Needs an idle machine and a
# checkout without changes. `pkb` is that of PATH. About 8 minutes on two cores, and on two GPUs with 32 cores.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${1:?cpu or cuda}
out=${2:-runs/leaderboard}
part=${3:-all}
ranks=2 of='' gpus="2 GPUs"
if [ "$device" = cuda ] && [ "$(nvidia-smi --list-gpus | wc -l)" = 1 ]; then ranks=1 of=-1-gpu gpus="one GPU"; fi
case $device in
    cpu) suffix=cpp where="size tiny" problems="AllReduce AllGather Broadcast Reduce Scatter Gather \
ReduceScatter AllToAll AllGatherGemm GemmAllReduce HyenaCP SAM3IoUSuppression VocabParallelLogProb SampleSort" ;;
    cuda) suffix=cu where="$gpus, size published" problems="AllReduce AllGather Broadcast Reduce \
Scatter Gather ReduceScatter AllToAll AllGatherGemm GemmAllReduce GemmAllGather GemmReduceScatter HyenaCP \
SAM3IoUSuppression UlyssesAllGather VocabParallelLogProb FusedAdamAllGather EmbeddingLookup TPRMSNorm \
GradAccLoss QuantizedGradAllReduce MoEAllToAll" ;;
    *) echo "cpu or cuda, got $device" >&2; exit 2 ;;
esac
problems=$(echo $problems)
on="--device $device --world-size $ranks"

expert="pkb run --agent expert $on"
reference="pkb run --agent reference --problems $problems $on"
single="pkb run --agent evolve --name evolve-single --set start=random --samples 3 --problems $problems $on"
agentic="pkb run --agent evolve --name evolve-agentic --turns 16 --problems $problems $on"

if [ "$part" != add ]; then
    $expert --output "$out/expert"
    if [ "$device" = cuda ]; then $reference --output "$out/reference"; fi # on the CPU it has an entry of all problems
    $single --output "$out/evolve-single"
    $agentic --output "$out/evolve-agentic"
fi
if [ "$part" = run ]; then exit; fi

commit=${PKB_GYM_COMMIT:-$(git describe --always --dirty --exclude='*' --abbrev=12)}
case $commit in *-dirty) echo "commit the changes first" >&2; exit 2 ;; esac
add() { pkb leaderboard add --commit "$commit" "$@"; }
target="expert=$out/expert/results.jsonl"
add "$target" --name "expert-$device$of" --kind expert --title "Experts of the repository" --command "$expert" \
    --description "expert.$suffix of each problem that has one, $where"
if [ "$device" = cuda ]; then
    add "$out/reference/results.jsonl" --name "reference-cuda$of" --kind reference --title "Baseline resubmitted" \
        --command "$reference" --description "reference.py, $where: the floor; problems with an expert and a family"
fi
add "$out/evolve-single/results.jsonl" --target "$target" --name "evolve-$device$of-single" --kind search \
    --title "Evolve, single turns" --command "$single" \
    --description "Any kernel of each problem's family, three samples, $where: problems with an expert and a family"
add "$out/evolve-agentic/results.jsonl" --target "$target" --name "evolve-$device$of-agentic" --kind search \
    --title "Evolve, 16 turns" --command "$agentic" \
    --description "A search of 16 turns in each problem's family, from the plainest kernel, $where: problems with an expert and a family"
pkb leaderboard table leaderboard/entries --output leaderboard/README.md
pkb leaderboard pictures leaderboard/entries
