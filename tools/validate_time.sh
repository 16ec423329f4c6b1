#!/bin/sh
# Times that `weft plan` predicts on this machine beside those that `weft bench` measures.
#
#   tools/validate_time.sh WEFT MODEL_DIR PROFILE [DEPTHS [LAYOUTS [RUNS [BENCH_DIR]]]]
#
# PROFILE: of `weft calibrate`; made when it is missing. DEPTHS: "0,4096,32768". LAYOUTS: "tp1 tp2+ep2", at most one rank a core.
# Every layout is measured RUNS times (3), in turn. BENCH_DIR: results are kept there, and what is there is not measured again.
#
# Memory of a shared machine is faster in one minute than in the next. So each case is predicted twice: with the profile as it is, and
# with memory as fast as it was measured right before and after the case (weft bench --bandwidth, weft plan --memory-bandwidth). The
# first error has what the machine did since the calibration in it, the second one is the model's. Ranks that share experts wait for
# the one that the rows pick most: how often each expert is picked is measured, too (weft bench --expert-load).
#
# Prints a table of medians, with --json as last argument one JSON object of all runs, and fails when an error of the second kind is above 15 %.
set -eu
profile=$3
[ -f "$profile" ] || "$1" calibrate --out "$profile" --quiet
exec python3 - "$@" <<'PYTHON'
import json, os, statistics, subprocess, sys, tempfile

as_json = sys.argv[-1] == "--json"
args = sys.argv[1:-1] if as_json else sys.argv[1:]
weft, model, profile = args[:3]
depths = [int(d) for d in (args[3] if len(args) > 3 else "0,4096,32768").split(",")]
layouts = (args[4] if len(args) > 4 else "tp1 tp2+ep2").split()
runs = int(args[5]) if len(args) > 5 else 3
keep = args[6] if len(args) > 6 else tempfile.mkdtemp()
name = os.path.basename(model.rstrip("/"))
cpu = json.load(open(profile))["cpu"]
cores = cpu["cores"]
PROMPT, GEN = 512, 16
TESTS = ("--prompt", PROMPT, "--gen", GEN, "--depth", ",".join(map(str, depths)), "--depth-computed", 1024, "-r", 1,
         "--ctx", max(depths) + 2 * PROMPT, "--no-limits")


def run(*args):
    done = subprocess.run([weft, *map(str, args), "--json"], capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"weft {' '.join(map(str, args))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def ranks_of(layout):
    ranks = 1
    for part in layout.split("+")[0].replace("pcp", "*").replace("tp", "*").replace("dp", "*").split("*"):
        ranks *= int(part or 1)
    return ranks


def bench(layout, number):
    path = os.path.join(keep, f"{name}_{layout}_{number}.json")
    if not os.path.exists(path):
        result = run("bench", model, *TESTS, "--layout", layout, "--bandwidth")
        json.dump(result, open(path, "w"))
    return json.load(open(path))


def picks():
    path = os.path.join(keep, f"{name}_picks.json")
    if not os.path.exists(path):
        run("bench", model, *TESTS, "--expert-load", path)
    return path


def predicted(layout, test, bytes_per_s=None):
    ranks, prefill, depth = ranks_of(layout), test["kind"] == "prefill", test["depth"]
    shape = ("--prompt", depth + test["tokens"], "--cached", depth, "--gen", 1) if prefill else (
        "--prompt", max(depth, 1), "--gen", test["tokens"])
    more = ("--memory-bandwidth", bytes_per_s / 1e9) if bytes_per_s else ()
    more += ("--expert-load", picks()) if ranks > 1 else ()
    plan = run("plan", model, "--device", profile, "--layout", layout, "--local-ranks", ranks, "--threads", max(cores // ranks, 1),
               "--batch", 1, *shape, *more)
    if prefill:
        return sum(step["seconds"] * step["times"] for step in plan["prefill"])
    return plan["decode"]["seconds"] * test["tokens"]


layouts = [layout for layout in layouts if ranks_of(layout) <= cores]
results = {}
for number in range(runs):
    for layout in layouts:
        for test in bench(layout, number)["results"]:
            results.setdefault((layout, test["test"]), []).append(test)
lines = []
for (layout, what), tests in results.items():
    calibrated = predicted(layout, tests[0])
    line = {"layout": layout, "test": what, "measured_s": [], "read_bytes_per_s": [], "predicted_s": calibrated, "predicted_at_bandwidth_s": []}
    for test in tests:
        bandwidth = statistics.mean(test["read_bytes_per_s"])
        line["measured_s"].append(test["seconds"][0])
        line["read_bytes_per_s"].append(bandwidth)
        line["predicted_at_bandwidth_s"].append(predicted(layout, test, bandwidth))
    line["error"] = calibrated / statistics.median(line["measured_s"]) - 1
    line["error_at_bandwidth"] = statistics.median(p / m - 1 for p, m in zip(line["predicted_at_bandwidth_s"], line["measured_s"]))
    lines.append(line)
worst = max(abs(line["error_at_bandwidth"]) for line in lines)
if as_json:
    memory = json.load(open(profile))["memory"]["bytes_per_s"]["value"]
    print(json.dumps({"model": name, "calibrated_read_bytes_per_s": memory, "runs": runs, "lines": lines}, indent=1))
else:
    print(f"{'layout':<8} {'test':<28} {'measured ms':>20} {'read GB/s':>13} {'predicted ms':>13} {'error':>7} {'at that bandwidth':>18} {'error':>7}")
    for line in lines:
        ms = [1e3 * s for s in line["measured_s"]]
        gb = [b / 1e9 for b in line["read_bytes_per_s"]]
        print(f"{line['layout']:<8} {line['test']:<28} {statistics.median(ms):>9.2f} ({min(ms):.4g}-{max(ms):.4g})".ljust(58)
              + f" {min(gb):>5.1f}-{max(gb):<5.1f} {1e3 * line['predicted_s']:>14.2f} {line['error']:>+7.1%}"
              + f" {1e3 * statistics.median(line['predicted_at_bandwidth_s']):>18.2f} {line['error_at_bandwidth']:>+7.1%}")
    print(f"largest error at the bandwidth of the minute {worst:.1%}")
sys.exit(worst > 0.15)
PYTHON
