// What steps do with their time: the roofline of their ops, tables of ops and collectives, the timeline of each stream.

const BOUND_COLORS = { matrix: "var(--c0)", vector: "var(--c2)", memory: "var(--c4)", network: "var(--c5)", launch: "var(--c8)" };
const BOUND_NAMES = { matrix: "matrix unit", vector: "vector unit", memory: "memory", network: "network", launch: "launch" };

// All kinds of steps of a plan, with their timelines.
function stepsOf(plan, view) {
  const steps = [];
  (plan.prefill || []).forEach((step, i) => steps.push({ step, title: plan.prefill.length > 1 ? `prefill chunk ${i + 1}` : "prefill" }));
  if (plan.decode) steps.push({ step: plan.decode, title: "decode" });
  for (const step of plan.drafts || []) steps.push({ step, title: "draft" });
  steps.forEach((entry, i) => { entry.timelines = view.timelines[i]; });
  // Of many chunks the first, the middle and the last.
  const chunks = steps.filter((s) => s.title.startsWith("prefill chunk"));
  const shown = new Set([chunks[0], chunks[Math.floor(chunks.length / 2)], chunks[chunks.length - 1]]);
  return steps.filter((s) => !chunks.includes(s) || shown.has(s));
}

// One view for each step and stage.
function stepTabs(plan, steps, label, view) {
  const choices = [];
  for (const { step, title, timelines } of steps) {
    step.stages.forEach((stage, s) => {
      if (stage.ops.length === 0) return;
      choices.push({ name: step.stages.length > 1 ? `${title}, stage ${s}` : title, view: () => view(step, stage, timelines ? timelines[s] : []) });
    });
  }
  return tabs(choices, label);
}

function opText(op) {
  return `${op.name} (${op.op})\n${whole(op.calls)} calls, ${marked(seconds(op.seconds), op.unverified)}, bound by ${BOUND_NAMES[op.bound]}\n` +
    `${rate(op.flops, "flop")}, ${bytes(op.bytes)}` + (op.bytes_sent > 0 ? `, ${bytes(op.bytes_sent)} sent` : "") + `\ntime ${op.source}`;
}

function roofline(stage, roof) {
  const ops = stage.ops.filter((op) => op.flops > 0 && op.bytes > 0 && op.seconds > 0);
  if (ops.length === 0 || !(roof.memory_bytes_per_s > 0)) return el("p", { class: "soft" }, "No op of this step computes, or the profile has no bandwidth.");
  const x = (op) => op.flops / op.bytes, y = (op) => op.flops / op.seconds;
  const peaks = Object.entries(roof.matrix_flops_per_s).sort((a, b) => b[1] - a[1]);
  const power = (value, up) => 10 ** (up ? Math.ceil(Math.log10(value) + 0.02) : Math.floor(Math.log10(value) - 0.02));
  const top = power(Math.max(...peaks.map((p) => p[1]), ...ops.map(y)), true);
  const ridge = peaks.length > 0 ? peaks[0][1] / roof.memory_bytes_per_s : 1;
  const chart = plot("Roofline: arithmetic of ops over their memory traffic",
    { low: power(Math.min(...ops.map(x)), false), high: power(Math.max(ridge, ...ops.map(x)), true), log: true, name: "flop per byte of memory traffic", text: (t) => digits(t) },
    { low: power(Math.min(...ops.map(y)), false), high: top, log: true, name: "flop/s", text: (t) => rate(t, "") });
  // The slope of memory, cut at the edges of the plot, and a roof for each dtype.
  const bandwidth = roof.memory_bytes_per_s, edge = (px) => Math.min(Math.max(px, chart.left), chart.right);
  const write = labels(chart);
  for (const peak of new Set(peaks.map((p) => p[1]))) {
    const from = edge(chart.x(peak / bandwidth)), dtypes = peaks.filter((p) => p[1] === peak).map((p) => p[0]);
    chart.root.append(draw("path", { class: "roof", d: `M${from} ${chart.y(peak)}H${chart.right}` }));
    write(`${dtypes.join(", ")} ${rate(peak, "flop/s")}`,
      [4, 180, 360].flatMap((left) => [[chart.right - left, chart.y(peak) - 5, "end"], [chart.right - left, chart.y(peak) + 14, "end"]]));
  }
  const high = peaks.length > 0 ? peaks[0][1] : top;
  const xLow = Math.max(ops.reduce((low, op) => Math.min(low, x(op)), Infinity) / 10, 1e-9);
  const points = [];
  for (let i = 0; i <= 60; ++i) {
    const intensity = xLow * (high / bandwidth / xLow) ** (i / 60), px = chart.x(intensity), py = chart.y(intensity * bandwidth);
    if (px >= chart.left && py <= chart.bottom) points.push(`${px} ${py}`);
  }
  if (points.length > 1) {
    chart.root.append(draw("path", { class: "roof", d: "M" + points.join("L") }));
    const [px, py] = points[Math.floor(points.length / 3)].split(" ").map(Number);
    write(`memory ${rate(bandwidth, "B/s")}`, [[px - 8, py - 8, "end"], [px + 10, py + 16, "start"]]);
  }
  const sorted = ops.slice().sort((a, b) => b.seconds - a.seconds), most = sorted[0].seconds;
  const radius = (op) => 3.5 + 11 * Math.sqrt(op.seconds / most);
  for (const op of sorted) chart.root.append(circle(chart, x(op), y(op), radius(op), BOUND_COLORS[op.bound], opText(op)));
  const kNamed = 8;  // ops that take most of the step
  for (const op of sorted.slice(0, kNamed)) {
    const px = chart.x(x(op)), py = chart.y(y(op)), r = radius(op) + 4;
    write(op.name, [[px + r, py + 4, "start"], [px - r, py + 4, "end"], [px, py - r, "middle"], [px, py + r + 10, "middle"], [px + r, py + r + 8, "start"],
      [px - r, py - r, "end"]], { class: "named" });
  }
  const left = stage.ops.length - ops.length;
  return el("div", {}, [chart.root, legend(Object.entries(BOUND_COLORS).map(([bound, color]) => [color, "bound by " + BOUND_NAMES[bound]])),
    el("p", { class: "note" }, `A dot is an op of all layers; its area is its share of the step. The ${Math.min(kNamed, sorted.length)} longest are named where there is room.` + (left > 0 ? ` Left out, since they do no arithmetic: ${left}.` : ""))]);
}

function opTable(step, stage) {
  return sortedTable(`${step.name}: ${whole(step.rows)} rows of ${whole(step.requests)} requests, ${whole(step.context)} tokens of context; ${seconds(step.seconds)} a step`, [
    { name: "op", value: (op) => op.name, wide: true },
    { name: "kind", value: (op) => op.op },
    { name: "stream", value: (op) => op.stream },
    { name: "calls", value: (op) => op.calls, text: (op) => whole(op.calls) },
    { name: "time", value: (op) => op.seconds, text: (op) => marked(seconds(op.seconds), op.unverified) },
    { name: "share", value: (op) => op.seconds / step.seconds, text: (op) => percent(op.seconds / step.seconds) },
    { name: "bound by", value: (op) => BOUND_NAMES[op.bound] },
    { name: "flop", value: (op) => op.flops, text: (op) => rate(op.flops, "") },
    { name: "memory traffic", value: (op) => op.bytes, text: (op) => bytes(op.bytes) },
    { name: "sent", value: (op) => op.bytes_sent, text: (op) => bytes(op.bytes_sent) },
    { name: "time is", value: (op) => op.source }], stage.ops, 15);
}

function trafficTable(step, stage) {
  if (stage.traffic.length === 0) return el("p", { class: "soft" }, "Nothing is sent.");
  return sortedTable(`of one rank in one ${step.name} step of ${whole(step.rows)} rows`, [
    { name: "collective", value: (l) => l.op },
    { name: "group", value: (l) => l.axis },
    { name: "ranks", value: (l) => l.group },
    { name: "calls", value: (l) => l.calls, text: (l) => whole(l.calls) },
    { name: "bytes sent", value: (l) => l.bytes_sent, text: (l) => whole(l.bytes_sent) + " (" + bytes(l.bytes_sent) + ")" },
    { name: "a call", value: (l) => l.bytes_sent / Math.max(l.calls, 1), text: (l) => bytes(l.bytes_sent / Math.max(l.calls, 1)) },
    { name: "", value: (l) => (l.expected ? "expected: depends on which experts are picked" : ""), wide: true }], stage.traffic);
}

const STREAMS = ["compute", "comm", "prefetch"];

function timeline(step, stage, events) {
  if (!events || events.length === 0) return el("p", { class: "soft" }, "No schedule.");
  const end = Math.max(stage.seconds, ...events.map((e) => e.start_s + e.seconds)), lane = 46, left = 78, top = 22;
  const lanes = STREAMS.filter((stream) => events.some((e) => e.stream === stream));
  const place = el("div", { class: "scroll timeline", tabindex: "0", "aria-label": "timeline, scrolls" });
  function fill(zoom) {
    const width = 1080 * zoom, height = top + lanes.length * lane + 6, x = (t) => left + (t / end) * (width - left - 14);
    const root = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "timeline of a rank" });
    for (const t of linearTicks(end, 8 * zoom)) {
      if (t > end) continue;
      root.append(draw("line", { class: "grid", x1: x(t), x2: x(t), y1: top, y2: height }), draw("text", { x: x(t), y: 14, "text-anchor": "middle" }, seconds(t)));
    }
    lanes.forEach((stream, i) => {
      root.append(draw("text", { x: 0, y: top + i * lane + 27, class: "strong" }, stream));
      for (const e of events.filter((event) => event.stream === stream)) {
        const bar = (start, more) => draw("rect", {
          class: "mark", x: x(start), y: top + i * lane + 8, width: Math.max((e.seconds / end) * (width - left - 14), 0.7), height: lane - 16, rx: 2,
          fill: BOUND_COLORS[e.bound], opacity: more ? 0.45 : 1 });
        for (let layer = 1; layer < e.layers; ++layer) root.append(bar(e.start_s + layer * e.period_s, true));
        root.append(withTip(bar(e.start_s, false),
        `${e.name} (${e.op})\nat ${seconds(e.start_s)} for ${seconds(e.seconds)}, bound by ${BOUND_NAMES[e.bound]}` + (e.layers > 1 ? `\nstands for ${e.layers} equal layers` : "")));
      }
    });
    place.replaceChildren(root);
  }
  let zoom = 1;
  const turn = (factor) => { zoom = Math.min(Math.max(zoom * factor, 1), 32); fill(zoom); };
  fill(1);
  return el("div", {}, [
    el("div", { class: "tabs" }, [
      el("button", { type: "button", "aria-label": "zoom in", onclick: () => turn(2) }, "+"),
      el("button", { type: "button", "aria-label": "zoom out", onclick: () => turn(0.5) }, "\u2212")]),
    place, legend(Object.entries(BOUND_COLORS).map(([bound, color]) => [color, BOUND_NAMES[bound]])),
    el("p", { class: "note" }, `One rank${step.micro_batches > 1 ? `, one of ${step.micro_batches} micro-batches` : ""}. Of layers that are alike the first is drawn in full colour; all of it takes ${seconds(stage.seconds)}, of which ${seconds(stage.exposed_s)} wait for other streams.`)]);
}

function shares(plan, steps) {
  const rows = [];
  for (const { step, title } of steps) step.stages.forEach((stage, s) => rows.push({ step, stage, name: step.stages.length > 1 ? `${title}, stage ${s}` : title }));
  const share = (name, field) => ({
    name, value: (r) => r.stage[field], text: (r) => { const all = r.stage.compute_s + r.stage.memory_s + r.stage.network_s + r.stage.launch_s; return all > 0 ? percent(r.stage[field] / all) : ""; } });
  return sortedTable("share of the time of all ops of a rank, by what binds them", [
    { name: "step", value: (r) => r.name },
    { name: "rows", value: (r) => r.step.rows, text: (r) => whole(r.step.rows) },
    { name: "context", value: (r) => r.step.context, text: (r) => whole(r.step.context) },
    { name: "times", value: (r) => r.step.times, text: (r) => whole(r.step.times) },
    { name: "step takes", value: (r) => r.step.seconds, text: (r) => seconds(r.step.seconds) },
    share("compute", "compute_s"), share("memory", "memory_s"), share("network", "network_s"), share("launch", "launch_s"),
    { name: "measured", value: (r) => r.stage.measured_s + r.stage.interpolated_s, text: (r) => { const all = r.stage.measured_s + r.stage.interpolated_s + r.stage.roofline_s; return all > 0 ? percent((r.stage.measured_s + r.stage.interpolated_s) / all) : ""; } }], rows);
}

function stepSections(plan, view) {
  const steps = stepsOf(plan, view);
  if (steps.length === 0) return [];
  const each = (label, draw) => stepTabs(plan, steps, label, draw);
  return [
    section("Where the time goes", shares(plan, steps)),
    section("Roofline", each("step", (step, stage) => roofline(stage, view.roof))),
    section("Ops", each("step", opTable)),
    section("Timeline", each("step", timeline)),
    section("Traffic between ranks", each("step", trafficTable))];
}
