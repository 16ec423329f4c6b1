// The memory of a rank as a waterfall: each category begins where the one before it ends; opened, it lists its tensors.

const CATEGORY_COLORS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8", "--c9"].map((name) => `var(${name})`);

function waterfall(ledger, capacity, localRanks) {
  const names = Object.keys(ledger.categories);
  const total = ledger.total_bytes * localRanks, full = Math.max(total, capacity);
  let from = 0;
  const rows = names.map((name, i) => {
    const size = ledger.categories[name] * localRanks;
    if (size === 0) return null;
    const track = el("div", { class: "track" }, [
      el("div", { class: "bar", style: `left:${(Math.min(from, from + size) / full) * 100}%;width:${(Math.abs(size) / full) * 100}%;background:${CATEGORY_COLORS[i % 10]}` }),
      limitLine(capacity, full)]);
    from += size;
    const lines = ledger.lines.filter((line) => line.category === name);
    return el("details", {}, [
      el("summary", {}, [el("span", { class: "label" }, name), track, el("span", { class: "bytes" }, marked(bytes(size), lines.some((l) => l.unverified)))]),
      el("div", {}, sortedTable("", [
        { name: "what", value: (l) => l.what },
        { name: "tensor", value: (l) => l.tensor },
        { name: "stored as", value: (l) => l.storage },
        { name: "bytes of a rank", value: (l) => l.bytes, text: (l) => marked(bytes(l.bytes), l.unverified) },
        { name: "tensors", value: (l) => l.tensors },
        { name: "ranks that hold the same", value: (l) => l.copies },
        { name: "why", value: (l) => l.reason, wide: true }], lines))]);
  });
  const over = capacity > 0 && total > capacity;
  const sum = el("div", { class: "fall" }, rows.concat(el("details", { class: "sum" }, [
    el("summary", {}, [
      el("span", { class: "label" }, "all"),
      el("div", { class: "track" }, [
        el("div", { class: "bar", style: `left:0;width:${(total / full) * 100}%;background:${over ? "var(--bad)" : "var(--good)"}` }),
        limitLine(capacity, full)]),
      el("span", { class: "bytes" }, bytes(total))]),
    el("div", {}, el("p", {}, `Fullest at ${ledger.peak_op || "the start"} of a ${ledger.peak_step || "step"}. ` +
      `A request holds ${bytes(ledger.cache_bytes_per_request)} of caches, and ${digits(ledger.cache_bytes_per_token, 4)} B more for each of its tokens.`))])));
  return el("div", {}, [sum, capacity > 0
    ? el("p", { class: over ? "bad" : "soft" }, over ? `${bytes(total - capacity)} more than the ${bytes(capacity)} of a device (red line)`
      : `${bytes(capacity - total)} of ${bytes(capacity)} stay free (red line: all of a device)`)
    : el("p", { class: "soft" }, "The profile does not say how much memory the device has.")]);
}

function limitLine(capacity, full) {
  return capacity > 0 ? el("div", { class: "limit", style: `left:calc(${(capacity / full) * 100}% - 2px)` }) : null;
}

function memorySection(plan) {
  const localRanks = plan.request.local_ranks;
  const choices = plan.memory.map((ledger) => ({
    name: plan.memory.length === 1 ? "every rank" : `stage ${ledger.stage} (${ledger.ranks} ranks)${ledger.stage === plan.worst_stage ? ", fullest" : ""}`,
    view: () => waterfall(ledger, plan.capacity_bytes, localRanks),
  }));
  const ranks = plan.memory.length === 1 ? `All ${plan.ranks} ranks are alike.` : "All ranks of a stage are alike.";
  return section("Memory of a device", [el("p", { class: "note" }, ranks + " Open a line to see its tensors."), tabs(choices, "pipeline stage")]);
}
