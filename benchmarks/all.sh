#!/bin/sh
# Every benchmark that the documentation quotes, into results/*.json beside this file; extra arguments go to each run,
# such as --budget 1. `.venv/bin/python benchmarks/table.py benchmarks/results/*.json` turns the records into Markdown.
set -eu
cd "$(dirname "$0")/.."
results=benchmarks/results
mkdir -p "$results"

run() {
    name=$1
    shift
    echo "== $name" >&2
    .venv/bin/python -m research bench "$@" --out "$results/$name.json"
}

all=hitbox,floor,rein,dexin,simple,numpy,duckdb
run w1 w1 --width 0.5 --matchers $all "$@"
run w1-narrow w1 --width 0.1 --matchers $all "$@"
run w1-wide w1 --width 0.8 --matchers $all "$@"
run w2 w2 --matchers $all "$@"
run w3 w3 --matchers $all "$@"
run w4 w4 --matchers hitbox,floor,rein,opindex,be-tree,simple "$@"
run w1-intervals w1 --intervals 0.1 --matchers hitbox,floor,simple,rein,numpy "$@"
run growth w1 --growth 200k,1M,5M,10M --matchers hitbox,floor "$@"
run symmetric symmetric --matchers hitbox,floor,mlgf,ub-tree,compound,r-tree "$@"
