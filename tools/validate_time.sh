#!/bin/sh
# Times that `weft plan` predicts on this machine beside those that `weft bench` measures.
#
#   tools/validate_time.sh WEFT MODEL_DIR [PROFILE]
#
# PROFILE: of `weft calibrate`; made when it is missing. Prints a table: ranks, test, measured, predicted, error.
set -eu
weft=$1 model=$2 profile=${3:-machine.json}
[ -f "$profile" ] || "$weft" calibrate --out "$profile" --quiet >/dev/null
python3 - "$weft" "$model" "$profile" <<'PYTHON'
import json, os, subprocess, sys

weft, model, profile = sys.argv[1:]
cores = json.load(open(profile))["cpu"]["cores"]


def run(*args):
    return json.loads(subprocess.run([weft, *args, "--json"], check=True, capture_output=True, text=True).stdout)


def plan(layout, ranks, prompt, cached, gen, phase):
    return run("plan", model, "--device", profile, "--layout", layout, "--prompt", str(prompt), "--cached", str(cached), "--gen", str(gen),
               "--batch", "1", "--phase", phase, "--local-ranks", str(ranks), "--threads", str(cores // ranks))


print(f"{'ranks':>5} {'test':>14} {'measured ms':>12} {'predicted ms':>13} {'error':>7}")
worst = 0
for ranks, layout in ((1, "tp1"), (2, "tp2")):
    if ranks > cores:
        break
    for depth in (0, 4096, 32768):
        for kind, tokens in (("p", 512), ("n", 32)):
            if kind == "n" and depth == 0:
                continue  # the first tokens of an empty context say nothing that depth 4096 does not
            other = ("-n", "0") if kind == "p" else ("-p", "0")
            bench = run("bench", model, "-" + kind, str(tokens), *other, "-d", str(depth), "-r", "3", "--layout", layout, "--no-limits")
            measured = tokens / bench["results"][0]["tokens_per_s"]
            if kind == "p":
                step = plan(layout, ranks, depth + tokens, depth, 1, "prefill")
                predicted = step["service"]["prefill_all_s"]
            else:
                step = plan(layout, ranks, depth, max(depth - 1, 0), tokens, "decode")
                predicted = step["service"]["tpot_s"] * tokens
            error = predicted / measured - 1
            worst = max(worst, abs(error))
            print(f"{ranks:>5} {kind + str(tokens) + ' @ ' + str(depth):>14} {measured * 1e3:>12.2f} {predicted * 1e3:>13.2f} {error:>+7.1%}")
print(f"largest error {worst:.1%}")
sys.exit(worst > 0.15)
PYTHON
