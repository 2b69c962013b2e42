#!/usr/bin/env bash
# Measures the entries expert-cpu, evolve-cpu-single and evolve-cpu-agentic on this machine, and makes table and pictures.
#
#   leaderboard/measure_cpu.sh [FOLDER]     results go to FOLDER (default: runs/leaderboard); called again, it resumes
#
# Needs an idle machine and a checkout without changes. `pkb` is that of PATH. About 8 minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/leaderboard}
problems="AllReduce AllGather Broadcast Reduce Scatter Gather ReduceScatter AllToAll AllGatherGemm GemmAllReduce HyenaCP \
SAM3IoUSuppression VocabParallelLogProb SampleSort"

commit=$(git describe --always --dirty --exclude='*' --abbrev=12)
case $commit in *-dirty) echo "commit the changes first" >&2; exit 2 ;; esac

expert="pkb run --agent expert --device cpu --world-size 2"
single="pkb run --agent evolve --name evolve-single --set start=random --samples 3 --problems $problems --device cpu --world-size 2"
agentic="pkb run --agent evolve --name evolve-agentic --turns 16 --problems $problems --device cpu --world-size 2"

$expert --output "$out/expert"
$single --output "$out/evolve-single"
$agentic --output "$out/evolve-agentic"

add() { pkb leaderboard add --commit "$commit" "$@"; }
target="expert=$out/expert/results.jsonl"
add "$target" --name expert-cpu --kind expert --title "Experts of the repository" --command "$expert" \
    --description "expert.cpp of each problem that has one, size tiny"
add "$out/evolve-single/results.jsonl" --target "$target" --name evolve-cpu-single --kind search \
    --title "Evolve, single turns" --command "$single" \
    --description "Any kernel of each problem's family, three samples, size tiny: problems with an expert"
add "$out/evolve-agentic/results.jsonl" --target "$target" --name evolve-cpu-agentic --kind search \
    --title "Evolve, 16 turns" --command "$agentic" \
    --description "A search of 16 turns in each problem's family, from the plainest kernel, size tiny: problems with an expert"
pkb leaderboard table leaderboard/entries --output leaderboard/README.md
pkb leaderboard pictures leaderboard/entries
