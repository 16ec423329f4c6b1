#!/bin/sh
# Times that `weft plan` predicts on this machine beside those that `weft bench` measures.
#
#   tools/validate_time.sh WEFT MODEL_DIR PROFILE [DEPTHS [LAYOUTS [BENCH_DIR]]]
#
# PROFILE: of `weft calibrate`; made when it is missing. DEPTHS: "0,4096,32768". LAYOUTS: "tp1 tp2+ep2", at most one rank a core.
# BENCH_DIR: results of `weft bench --json` are kept there and not measured again. Prints a table, and fails when a time is off by
# more than 15 %. A quiet machine measures best.
set -eu
profile=$3
[ -f "$profile" ] || "$1" calibrate --out "$profile" --quiet
exec python3 - "$@" <<'PYTHON'
import json, os, statistics, subprocess, sys

weft, model, profile = sys.argv[1:4]
depths = [int(d) for d in (sys.argv[4] if len(sys.argv) > 4 else "0,4096,32768").split(",")]
layouts = (sys.argv[5] if len(sys.argv) > 5 else "tp1 tp2+ep2").split()
keep = sys.argv[6] if len(sys.argv) > 6 else None
cores = json.load(open(profile))["cpu"]["cores"]
PROMPT, GEN = 512, 16


def run(*args):
    done = subprocess.run([weft, *map(str, args), "--json"], capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"weft {' '.join(map(str, args))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def bench(layout):
    path = keep and os.path.join(keep, f"{os.path.basename(model.rstrip('/'))}_{layout}.json")
    if path and os.path.exists(path):
        return json.load(open(path))
    result = run("bench", model, "--prompt", PROMPT, "--gen", GEN, "--depth", ",".join(map(str, depths)), "--depth-computed", 1024,
                 "-r", 3, "--ctx", max(depths) + 2 * PROMPT, "--no-limits", "--layout", layout)
    if path:
        json.dump(result, open(path, "w"))
    return result


def predicted(layout, ranks, test):
    prefill, depth = test["kind"] == "prefill", test["depth"]
    shape = ("--prompt", depth + test["tokens"], "--cached", depth, "--gen", 1) if prefill else (
        "--prompt", max(depth, 1), "--gen", test["tokens"])
    plan = run("plan", model, "--device", profile, "--layout", layout, "--local-ranks", ranks, "--threads", max(cores // ranks, 1),
               "--batch", 1, *shape)
    if prefill:
        return sum(step["seconds"] * step["times"] for step in plan["prefill"]), plan
    return plan["decode"]["seconds"] * test["tokens"], plan


print(f"{'layout':<10} {'test':<34} {'measured ms':>12} {'predicted ms':>13} {'error':>7}")
worst = 0
for layout in layouts:
    ranks = 1
    for part in layout.split("+")[0].replace("pcp", "*").replace("tp", "*").replace("dp", "*").split("*"):
        ranks *= int(part or 1)
    if ranks > cores:
        continue
    for test in bench(layout)["results"]:
        measured = statistics.median(test["seconds"])
        seconds, _ = predicted(layout, ranks, test)
        error = seconds / measured - 1
        worst = max(worst, abs(error))
        print(f"{layout:<10} {test['test']:<34} {measured * 1e3:>12.2f} {seconds * 1e3:>13.2f} {error:>+7.1%}")
print(f"largest error {worst:.1%}")
sys.exit(worst > 0.15)
PYTHON
