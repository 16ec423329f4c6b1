// A search: its winner, the Pareto plot, the ranking, and why the others lost.

function deploymentText(d) {
  return `${d.name}\n${d.devices} devices, batch ${d.batch}\n${marked(digits(d.tokens_per_s_user) + " tokens/s/user", d.times_unverified)}, ` +
    `${digits(d.tokens_per_s_device)} tokens/s/device\nTTFT ${seconds(d.ttft_s)}, TPOT ${seconds(d.tpot_s)}`;
}

function pareto(found) {
  const points = found.points.concat(found.front);
  if (points.length === 0) return el("p", { class: "soft" }, "No layout fits and keeps the limits.");
  const limit = found.request.tpot_s ? 1 / found.request.tpot_s : 0;
  const user = Math.max(...points.map((d) => d.tokens_per_s_user), limit) * 1.06, device = Math.max(...points.map((d) => d.tokens_per_s_device)) * 1.08;
  const chart = plot("Pareto plot: speed for a user over output of a device",
    { low: 0, high: user, name: "tokens/s/user", text: (t) => digits(t) }, { low: 0, high: device, name: "tokens/s/device", text: (t) => digits(t) });
  if (limit > 0) {
    chart.root.append(draw("path", { class: "limit", d: `M${chart.x(limit)} ${chart.top}V${chart.bottom}` }),
      draw("text", { x: chart.x(limit) + 5, y: chart.top + 12 }, `TPOT ${seconds(found.request.tpot_s)}`));
  }
  const shape = (d) => (d.mode === "apart" ? diamond : circle);
  const small = new Set(found.front.map((d) => d.name + d.batch));
  for (const d of found.points) {
    if (!small.has(d.name + d.batch)) chart.root.append(shape(d)(chart, d.tokens_per_s_user, d.tokens_per_s_device, 3.2, "var(--c8)", deploymentText(d)));
  }
  // Steps: between two points of the front nothing better was found.
  let path = "";
  for (const d of found.front) {
    const x = chart.x(d.tokens_per_s_user), y = chart.y(d.tokens_per_s_device);
    path += path === "" ? `M${chart.left} ${y}H${x}` : `V${y}H${x}`;
  }
  chart.root.append(draw("path", { class: "front", d: path + `V${chart.bottom}` }));
  for (const d of found.front) chart.root.append(shape(d)(chart, d.tokens_per_s_user, d.tokens_per_s_device, 5, "var(--accent)", deploymentText(d)));
  const w = found.winner;
  if (w) chart.root.append(star(chart, w.tokens_per_s_user, w.tokens_per_s_device, 12, "var(--c4)", "winner: " + deploymentText(w)));
  return el("div", {}, [chart.root, legend([["var(--c4)", "\u2605 winner"], ["var(--accent)", "Pareto front"], ["var(--c8)", "others that fit and keep the limits"]]),
    el("p", { class: "note" }, "\u25cf prefill and decode on the same devices, \u25c6 on instances of their own")]);
}

const DEPLOYMENT_COLUMNS = [
  { name: "layout", value: (d) => d.name, wide: true },
  { name: "devices", value: (d) => d.devices },
  { name: "batch", value: (d) => d.batch },
  { name: "memory", value: (d) => d.needed_bytes, text: (d) => marked(bytes(d.needed_bytes), d.memory_unverified) },
  { name: "TTFT", value: (d) => d.ttft_s, text: (d) => marked(seconds(d.ttft_s), d.times_unverified) },
  { name: "TPOT", value: (d) => d.tpot_s, text: (d) => marked(seconds(d.tpot_s), d.times_unverified) },
  { name: "tokens/s/user", value: (d) => d.tokens_per_s_user, text: (d) => marked(digits(d.tokens_per_s_user), d.times_unverified) },
  { name: "tokens/s/device", value: (d) => d.tokens_per_s_device, text: (d) => marked(digits(d.tokens_per_s_device, 4), d.times_unverified) },
  { name: "tokens/s", value: (d) => d.output_tokens_per_s, text: (d) => marked(digits(d.output_tokens_per_s, 4), d.times_unverified) },
  { name: "device s / M tokens", value: (d) => d.device_seconds_per_million_tokens, text: (d) => marked(digits(d.device_seconds_per_million_tokens, 4), d.times_unverified) }];

function commandsOf(winner) {
  const commands = [];
  for (const instance of [winner.instance, winner.prefill, winner.decode]) {
    if (!instance) continue;
    commands.push(el("code", { class: "command" }, instance.plan_command));
    if (instance.why_not_run) commands.push(el("p", { class: "note" }, instance.why_not_run));
    if (instance.run_command) commands.push(el("code", { class: "command" }, instance.run_command));
  }
  return commands;
}

function searchVerdict(found) {
  const asked = found.request, w = found.winner, lost = found.counts.lost;
  const limits = (asked.ttft_s ? `, TTFT up to ${seconds(asked.ttft_s)}` : "") + (asked.tpot_s ? `, TPOT up to ${seconds(asked.tpot_s)}` : "");
  const question = el("p", { class: "soft" }, `Best ${asked.objective} of ${asked.model} on ${asked.devices.join(", ")} x ${asked.device}: prompt ${whole(asked.prompt)}, answer ${whole(asked.gen)}${limits}`);
  const counts = el("p", { class: "soft" }, `${whole(found.counts.layouts)} layouts: ${whole(found.counts.feasible)} fit and keep the limits, ${whole(lost.memory)} do not fit, ` +
    `${whole(lost.ttft)} miss TTFT, ${whole(lost.tpot)} miss TPOT` + (lost.error > 0 ? `, ${whole(lost.error)} cannot be planned` : ""));
  if (!w) return el("section", { class: "verdict fails" }, [el("h2", { class: "bad" }, "No layout fits and keeps the limits"), question, counts]);
  return el("section", { class: "verdict" }, [
    el("h2", {}, w.name), question,
    el("div", { class: "figures" }, [
      figure(marked(seconds(w.ttft_s), w.times_unverified), "TTFT"), figure(marked(seconds(w.tpot_s), w.times_unverified), "TPOT"),
      figure(marked(digits(w.tokens_per_s_user), w.times_unverified), "tokens/s/user"),
      figure(marked(digits(w.tokens_per_s_device, 4), w.times_unverified), "tokens/s/device"),
      figure(marked(digits(w.output_tokens_per_s, 4), w.times_unverified), "tokens/s of all"),
      figure(String(w.devices), w.idle_devices > 0 ? `devices, ${w.idle_devices} idle` : "devices"), figure(String(w.batch), "batch")]),
    ...commandsOf(w), counts, unverifiedNote(found.unverified)]);
}

const REASONS = { memory: "does not fit", ttft: "misses TTFT", tpot: "misses TPOT", beaten: "is beaten", error: "cannot be planned" };

function searchSections(found) {
  const parts = [section("Pareto plot", pareto(found))];
  if (found.ranking.length > 0) {
    parts.push(section("Ranking", tabs([
      { name: "best", view: () => sortedTable("", DEPLOYMENT_COLUMNS, found.ranking, 15) },
      { name: "Pareto front", view: () => sortedTable("", DEPLOYMENT_COLUMNS, found.front, 30) }], "ranking")));
  }
  if (found.losers.length > 0) {
    parts.push(section("Why others lost", sortedTable("", [
      { name: "layout", value: (l) => l.layout, wide: true },
      { name: "devices", value: (l) => l.devices },
      { name: "instance", value: (l) => (l.phase === "both" ? "" : l.phase) },
      { name: "", value: (l) => REASONS[l.reason] },
      { name: "why", value: (l) => l.why, text: (l) => marked(l.why, l.unverified), wide: true }], found.losers, 15)));
  }
  if (found.refused.length > 0) {
    parts.push(section("Refused by the model's contract", sortedTable("", [
      { name: "layouts", value: (r) => r.count },
      { name: "for example", value: (r) => r.example },
      { name: "rule", value: (r) => r.rule, wide: true }], found.refused, 10)));
  }
  return parts;
}
