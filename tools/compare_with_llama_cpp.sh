#!/usr/bin/env bash
# The same checkpoint in weft and in llama.cpp, turn by turn on the same machine: prompt and generation speed, and their ratio.
#
#   tools/compare_with_llama_cpp.sh WEFT LLAMA_BENCH MODEL_DIR MODEL.gguf [PROMPT=512] [GEN=32] [ROUNDS=3]
#
# WEFT and LLAMA_BENCH are the programs, MODEL.gguf is MODEL_DIR converted by llama.cpp's tools. Both run with one thread for
# each physical core. The rounds alternate, so that a machine that gets slower hits both; medians over the rounds are compared.
set -euo pipefail
weft=${1:?weft program} llama=${2:?llama-bench program} model=${3:?model folder} gguf=${4:?GGUF file}
prompt=${5:-512} gen=${6:-32} rounds=${7:-3}
threads=$(lscpu -p=core,socket | grep -v '^#' | sort -u | wc -l)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  "$weft" bench "$model" --prompt "$prompt" --gen "$gen" -r 2 --threads "$threads" --no-limits --quiet --json > "$work/weft.$round"
  "$llama" -m "$gguf" -p "$prompt" -n "$gen" -r 2 -t "$threads" -o json > "$work/llama.$round" 2> /dev/null
done

python3 - "$work" "$rounds" <<'PYTHON'
import json, statistics, sys
work, rounds = sys.argv[1], int(sys.argv[2])
speeds = {}
for r in range(1, rounds + 1):
    for result in json.load(open(f"{work}/weft.{r}"))["results"]:
        speeds.setdefault((result["kind"], "weft"), []).append(result["tokens_per_s"])
    for result in json.load(open(f"{work}/llama.{r}")):
        kind = "prefill" if result["n_prompt"] else "decode"
        speeds.setdefault((kind, "llama.cpp"), []).append(result["avg_ts"])
for kind in ("prefill", "decode"):
    ours, theirs = (statistics.median(speeds[kind, name]) for name in ("weft", "llama.cpp"))
    print(f"{kind:8} weft {ours:10.2f} tok/s   llama.cpp {theirs:10.2f} tok/s   ratio {ours / theirs:.2f}")
PYTHON
