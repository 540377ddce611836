// Devices, stages, slowest items, failures, moves and notes as tables.

function devicesPart(summary, live) {
  const most = Math.max(...summary.devices.map((one) => one.items_per_s), 1e-12);
  const whole_s = (one) => Math.max(1e-9, summary.work_s * one.n_workers, one.busy_s + one.overhead_s);
  const columns = [
    { label: "Device", name: true, value: (one) => [one.device, el("span", { class: "sub" }, [one.name, one.n_workers > 1 ? `${one.n_workers} workers` : ""].filter(Boolean).join(" · "))] },
    { label: "Its time", wide: true, value: (one) => splitBar(one, whole_s(one)) },
    { label: "At work", num: true, title: "Share of the work's time inside the task, without waiting there and what is not known", value: (one) => percent(one.utilisation) },
    { label: "Items", num: true, value: (one) => whole(one.n_items) },
    { label: "Items/s", num: true, title: "While at work", value: (one) => figures(one.items_per_s) },
    { label: "Speed", num: true, title: "Relative to the fastest", value: (one) => (one.items_per_s ? figures(one.items_per_s / most, 2) : "–") },
    { label: "Start-up", num: true, value: (one) => (one.startup_s ? time(one.startup_s) : "–") },
  ];
  if (live && live.run.is_running) columns.splice(2, 1, { label: "Load now", wide: true, title: "Share of the last seconds that the device was at work", value: (one) => nowBar(live.loads[one.device]) });
  const queues = live && live.queues;
  if (queues) columns.splice(3, 0, { label: "Running", num: true, title: "Items in work", value: (one) => whole(queues.running[one.device] ?? 0) });
  if (queues && Object.values(queues.queued).some((n) => n > 0)) columns.splice(4, 0, { label: "Queue", num: true, title: "Items dealt to this device that it has not begun", value: (one) => whole(queues.queued[one.device] ?? 0) });
  if (live && live.control) columns.push({ label: "", num: true, value: (one) => deviceButton(one.device, live) });
  if (summary.devices.some((one) => one.memory_peak_bytes)) columns.push({ label: "Memory", num: true, title: "Highest seen", value: (one) => bytes(one.memory_peak_bytes) });
  const kinds = [["busy", "at work", "var(--load)"], ["overhead", "sending and receiving"], ["waiting", summary.devices.some((one) => one.waited_s || one.unknown_s) ? "without work, waiting, or not known" : "without work"]];
  if (summary.wasted_s > 0) kinds.splice(1, 0, ["wasted", "at work in vain", "var(--bad)"]);
  const legend = el("div", { class: "legend" }, kinds.map(([kind, label, ink]) => el("span", {}, swatch(kind, ink), label)));
  return part("devices", "Devices", legend, table(columns, summary.devices), waitsList(summary), unmeasuredNote(summary));
}

function splitBar(one, whole_s) {
  const inside_s = (one.waited_s ?? 0) + (one.unknown_s ?? 0);
  const parts = [
    ["busy", one.busy_s - one.wasted_s - inside_s, "at work"],
    ["wasted", one.wasted_s, "at work in vain"],
    ["overhead", one.overhead_s, "sending and receiving"],
    ["waiting", inside_s, "waiting inside of items, or not known"],
    ["waiting", Math.max(0, whole_s - one.busy_s - one.overhead_s), "without work"],
  ];
  const text = parts.filter(([, s]) => s > 0).map(([, s, label]) => `${label} ${time(s)}`).join(", ");
  const bars = parts.map(([kind, s]) => el("i", { class: kind, style: { width: `${(100 * s) / whole_s}%` } }));
  return el("div", { class: "split", role: "img", "aria-label": text, title: text }, bars);
}

function waitsList(summary) {
  const waits = Object.entries(summary.waits);
  if (!waits.length) return null;
  const text = waits.slice(0, 6).map(([why, s]) => `${why || "no reason given"} ${time(s)}`).join(" · ");
  return el("p", { class: "small quiet", style: { "margin-top": "12px" } }, "Without work, by reason: ", text);
}

function unmeasuredNote(summary) {
  if (!summary.unmeasured.length || !summary.n_chunks) return null;
  return el("p", { class: "small quiet", style: { "margin-top": "6px" } }, `Finished nothing, so their speed is not known and the bound leaves them out: ${summary.unmeasured.join(", ")}.`);
}

function nowBar(share) {
  const known = share ?? 0;
  return el("div", { class: "now" }, meter(Math.min(1, known)), el("span", {}, share === undefined ? "–" : percent(share)));
}

function stagesPart(summary, live) {
  if (summary.stages.length < (live ? 1 : 2)) return null;
  // How many come to a stage is known once all are through the one before; until then, whoever may still come.
  const first = summary.stages[0].total ?? 0;
  const mayCome = (one) => first - summary.stages.slice(0, summary.stages.indexOf(one)).reduce((sum, before) => sum + before.n_failed, 0);
  const share = (one) => Math.min(1, (one.n_done + one.n_failed) / Math.max(1, one.total ?? mayCome(one)));
  const bar = (one) => meter(share(one), { role: "progressbar", "aria-label": one.stage, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(Math.round(100 * share(one))) }, `var(--stage-${summary.stages.indexOf(one) % 6})`);
  const queue = (one) => live?.queues?.stages?.[one.stage];
  const hasQueues = live?.run.is_running && summary.stages.some(queue);
  const columns = [
    { label: "Stage", name: true, value: (one) => [swatch("", `var(--stage-${summary.stages.indexOf(one) % 6})`), " ", one.stage] },
    ...(live ? [{ label: "Progress", wide: true, value: bar }] : []),
    { label: "Done", num: true, value: (one) => (one.total ? `${whole(one.n_done)} / ${whole(one.total)}` : whole(one.n_done)) },
    ...(hasQueues ? [{ label: "Waiting", num: true, title: "Items before this stage that no device has begun", value: (one) => whole(queue(one)?.waiting ?? 0) }, { label: "Running", num: true, value: (one) => whole(queue(one)?.running ?? 0) }] : []),
    { label: "Failed", num: true, value: (one) => (one.n_failed ? el("span", { class: "bad" }, `✕ ${whole(one.n_failed)}`) : "0") },
    { label: "Began", num: true, value: (one) => time(one.start_s) },
    { label: "Took", num: true, value: (one) => time(one.wall_s) },
    { label: "Bound", num: true, title: "No plan could have been faster on these devices", value: (one) => time(one.bound_s || null) },
    { label: "× best", num: true, value: (one) => (one.ratio ? `${one.ratio.toFixed(2)}×` : "–") },
    { label: "Imbalance", num: true, value: (one) => one.imbalance.toFixed(2) },
    { label: "Items/s", num: true, value: (one) => figures(one.items_per_s) },
  ];
  return part("stages", "Stages", null, table(columns, summary.stages));
}

function slowestPart(summary) {
  if (!summary.slowest.length) return null;
  const most = summary.slowest[0].seconds || 1;
  const columns = [
    { label: "Item", name: true, value: (one) => one.item || itemsText(one.index, one.n_items) },
    { label: "Time per item", num: true, title: "For a chunk of several items their mean", value: (one) => time(one.seconds) },
    { label: "", wide: true, value: (one) => meter(one.seconds / most) },
    { label: "Stage", value: (one) => one.stage },
    { label: "Device", value: (one) => one.device },
  ];
  return part("slowest", "Slowest items", null, table(columns, summary.slowest));
}

function failuresPart(summary) {
  if (!summary.n_failed && !summary.failures.length) return null;
  const kinds = Object.entries(summary.failures_by_error).map(([error, n]) => `${n} × ${error}`).join(", ");
  const list = summary.failures.map((one, i) =>
    el(
      "details",
      { class: "failure", "data-key": `${one.stage} ${one.index} ${one.t}`, open: i === 0 && summary.failures.length < 4 && one.traceback !== "" },
      el("summary", {}, el("b", {}, `✕ ${one.error}`), el("span", { class: "message" }, one.message), el("span", { class: "quiet small" }, `${one.item || `item ${one.index}`} · ${one.stage}${one.device ? ` · ${one.device}` : ""} · ${time(one.t)}`)),
      one.traceback ? el("pre", { tabindex: "0" }, one.traceback) : el("p", { class: "small quiet" }, "No traceback was recorded."),
    ),
  );
  const n_more = summary.n_failed - summary.failures.length;
  const more = n_more > 0 ? el("p", { class: "small quiet" }, `${plural(n_more, "more failure")} in events.jsonl.`) : null;
  return part("failures", plural(summary.n_failed, "failure"), el("span", { class: "quiet small" }, kinds), ...list, more);
}

// What the job itself had to say at the end: its own figures.
function resultsPart(summary) {
  const facts = Object.entries(summary.finish);
  if (!facts.length) return null;
  const value = (name, one) => (typeof one === "number" ? measure(name, one) : { label: name.replaceAll("_", " "), text: plain(one) });
  const cells = facts.slice(0, 60).map(([name, one]) => value(name, one)).map((m) => el("div", {}, el("dt", {}, m.label), el("dd", {}, m.text)));
  return part("results", "Results", null, el("dl", { class: "results" }, cells));
}

function movesPart(timeline, live) {
  if (!timeline.moves.length) return null;
  const columns = [
    { label: "When", num: false, value: (one) => time(one.t) },
    { label: "From", name: true, value: (one) => one.source },
    { label: "To", name: true, value: (one) => one.target },
    { label: "Items", num: true, value: (one) => whole(one.n_items) },
    { label: "Imbalance then", num: true, value: (one) => figures(one.imbalance, 2) },
  ];
  const shown = timeline.moves.slice(0, 60);
  const note = timeline.n_moves > shown.length ? `the ${live ? "latest" : "first"} ${shown.length} of ${whole(timeline.n_moves)}` : "";
  return part("moves", "Moves between queues", el("span", { class: "quiet small" }, note), table(columns, shown));
}

function notesPart(view) {
  if (!view.notes.length) return null;
  const columns = [
    { label: "When", value: (one) => time(one.t) },
    { label: "", value: (one) => el("span", { class: one.level === "error" ? "bad" : "quiet" }, one.level) },
    { label: "From", value: (one) => one.source },
    { label: "Said", name: true, value: (one) => one.text },
  ];
  return part("notes", "Notes", null, table(columns, view.notes));
}
