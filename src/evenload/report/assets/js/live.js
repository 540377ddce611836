// Only a live page calls these: its connection, its progress, and what its buttons do.

function connectionText(live) {
  if (live.state === "lost") return "connection lost, trying again";
  if (live.state === "refused") return "the page's server has ended; this is the last it said";
  if (live.run.reading !== null) return `reading the events, ${percent(live.run.reading)}`;
  if (live.run.is_running && live.run.quiet_s > 10) return `no event for ${time(live.run.quiet_s)}`;
  if (live.run.is_running) return "live";
  return "";
}

function liveTools(live) {
  const tools = [];
  if (live.control && live.run.is_running) {
    const isPaused = live.control.is_paused;
    const title = isPaused ? "Begin new chunks again" : "Let what runs come to its end, and begin nothing more";
    tools.push(el("button", { class: "button", type: "button", title, "data-key": isPaused ? "resume" : "pause", onclick: () => live.act(isPaused ? "resume" : "pause") }, isPaused ? "Resume" : "Pause"));
  }
  if (live.report) tools.push(el("a", { class: "button", href: live.report, download: "report.html" }, "Save report"));
  return tools;
}

function deviceButton(device, live) {
  if (![...live.control.working, ...live.control.drained].includes(device)) return "";
  const isOut = live.control.drained.includes(device);
  const label = isOut ? "Add" : "Drain";
  const title = isOut ? `Let ${device} work again` : `Let ${device} finish what it has, and give it no more`;
  return el("button", { class: "button", type: "button", title, "data-key": `${label} ${device}`, "aria-label": `${label} ${device}`, onclick: () => live.act(isOut ? "add" : "drain", device) }, label);
}

function progressBar(summary, live) {
  const { stage, stage_done: done, stage_total: total } = live.run;
  if (!live.run.is_running || !total) return null;
  const share = Math.min(1, done / total);
  const of = live.run.n_stages > 1 && stage ? `${stage}, ` : "";
  return el(
    "div",
    { class: "progress" },
    meter(share, { role: "progressbar", "aria-label": "Done", "aria-valuemin": "0", "aria-valuemax": String(total), "aria-valuenow": String(done) }),
    el("span", { class: "small quiet" }, `${of}${whole(done)} of ${whole(total)}, ${percent(share)}`),
  );
}
