// The page from its data.

function unverifiedNote(figures) {
  if (figures.length === 0) return null;
  return el("details", {}, [el("summary", { class: "warn" }, `* rests on ${figures.length === 1 ? "a figure" : figures.length + " figures"} that nobody verified`), el("p", { class: "note" }, figures.join("; "))]);
}

function planVerdict(plan) {
  const asked = plan.request, service = plan.service, marks = plan.times_unverified;
  const spare = plan.capacity_bytes - plan.needed_bytes;
  const title = plan.capacity_bytes === 0 ? "Device memory is not known" : plan.fits ? `Fits, ${bytes(spare)} free on every device` : `Does not fit by ${bytes(-spare)} a device`;
  const figures = [figure(marked(bytes(plan.needed_bytes), plan.memory_unverified), plan.capacity_bytes > 0 ? `of ${bytes(plan.capacity_bytes)} a device` : "a device")];
  if (plan.max_batch > 0) figures.push(figure(marked(whole(plan.max_batch), plan.memory_unverified), "requests would fit"));
  if (service) {
    const add = (value, name) => figures.push(figure(marked(value, marks), name));
    if (asked.phase !== "decode") add(seconds(service.ttft_s), "TTFT");
    if (asked.phase !== "prefill") {
      add(seconds(service.tpot_s), "TPOT");
      if (service.tpot_loaded_s > service.tpot_s) add(seconds(service.tpot_loaded_s), "TPOT between other prompts");
      add(digits(service.tokens_per_s_user), "tokens/s/user");
      add(digits(service.output_tokens_per_s_device, 4), "tokens/s/device");
      add(digits(service.output_tokens_per_s, 4), "tokens/s of all");
    } else {
      add(digits(service.prefill_tokens_per_s, 4), "prompt tokens/s");
    }
  }
  return el("section", { class: plan.fits ? "verdict" : "verdict fails" }, [
    el("h2", { class: plan.fits ? "good" : "bad" }, title),
    el("p", { class: "soft" }, `${asked.model} as ${asked.layout} on ${plan.devices} x ${asked.device}, engine ${asked.engine}: ${whole(asked.batch)} requests of ` +
      `${whole(asked.prompt)} tokens and answers of ${whole(asked.gen)}` + (asked.cached > 0 ? `, ${whole(asked.cached)} cached` : "") + (asked.mtp > 0 ? `, ${asked.mtp} drafts` : "")),
    el("div", { class: "figures" }, figures),
    ...plan.notes.map((note) => el("p", { class: "note" }, note)),
    unverifiedNote(plan.unverified)]);
}

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  page.append(el("h1", {}, data.title));
  if (data.search) page.append(searchVerdict(data.search), ...searchSections(data.search));
  if (data.plan) {
    if (data.search) page.append(el("h1", { class: "part" }, "Plan of the winner" + (data.search.winner && data.search.winner.mode === "apart" ? ": a decode instance" : "")));
    page.append(planVerdict(data.plan), memorySection(data.plan), ...stepSections(data.plan, data.view));
  }
  page.append(el("p", { class: "note" }, "weft plan; everything on this page is in this file."));
})();
