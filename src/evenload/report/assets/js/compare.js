// Two runs side by side: their numbers with the difference, and both timelines on one scale.

// [label, value(summary), text(value), +1 if more is better, -1 if less is, 0 if neither]
const COMPARED = [
  ["Useful share of the time", (s) => s.factors && s.factors.share, percent, 1],
  ["× of the best", (s) => s.ratio, (x) => (x === null ? "–" : `${x.toFixed(2)}×`), -1],
  ["The work took", (s) => s.work_s, time, -1],
  ["Best possible", (s) => s.bound_s || null, time, 0],
  ["Time in all", (s) => s.wall_s, time, -1],
  ["Start-up", (s) => s.startup_s, time, -1],
  ["Items per second", (s) => s.items_per_s, figures, 1],
  ["Imbalance", (s) => s.imbalance, (x) => x.toFixed(2), -1],
  ["Utilisation", (s) => s.utilisation, percent, 1],
  ["Worked in vain", (s) => s.wasted_s, time, -1],
  ["Done", (s) => s.n_done, whole, 1],
  ["Failed", (s) => s.n_failed, whole, -1],
  ["Chunks", (s) => s.n_chunks, whole, 0],
  ["Duplicates", (s) => s.n_duplicates, whole, 0],
  ["Moves", (s) => s.n_moves, whole, 0],
  ["Workers lost", (s) => s.n_lost_workers, whole, -1],
  ["Devices", (s) => s.devices.length, whole, 0],
];

function renderPair(view) {
  const names = ["A", "B"];
  const end_s = Math.max(...view.runs.map((one) => one.timeline.end_s), 1e-6);
  const shown = [];
  const parts = [
    part("numbers", "In numbers", null, comparedTable(COMPARED, view.runs.map((one) => one.summary), names)),
    stagesCompared(view, names),
    ...view.runs.map((one, i) => {
      const model = { ...modelOf(one), end_s };
      const host = el("div", { class: "timeline" });
      const tools = timelineTools();
      shown.push({ model, host, tools });
      const title = `${names[i]}: ${one.summary.name || "run"}`;
      return part(`timeline-${names[i].toLowerCase()}`, title, tools.nodes, timelineLegend(one, model), model.tracks.length ? host : el("p", { class: "empty" }, "Nothing ran."));
    }),
    devicesCompared(view, names),
    ...view.runs.map((one, i) => failuresOf(one, names[i])),
  ].filter(Boolean);
  document.title = "Two runs compared · evenload";
  document.getElementById("page").replaceChildren(pairHead(view, names), jumps(parts), ...parts, footPart(view.runs[0]));
  const views = shown.filter((one) => one.model.tracks.length).map((one) => {
    const made = new TimelineView(one.host, one.model, {
      view: (range, isWhole) => {
        one.tools.see(isWhole);
        // Both show the same stretch of time.
        for (const other of views || []) if (other !== made && other.view.from !== range.from) other.show(range.from, range.to);
      },
      layout: () => {},
    });
    one.tools.act(made);
    return made;
  });
}

function pairHead(view, names) {
  const run = (one, i) =>
    el(
      "div",
      {},
      el("div", { class: "quiet small" }, `${names[i]} · ${view.paths[i]}`),
      el("h2", {}, one.summary.name || "A run without a name"),
      usefulVerdict(one.summary, false),
      el("p", { class: "quiet" }, `${(STATUS[one.summary.status] || ["", one.summary.status]).join(" ")} · ${time(one.summary.work_s)} of work, bound ${time(one.summary.bound_s || null)}`),
      one.faults.length > 0 && el("div", { class: "faults", role: "note" }, "Not all of this run could be read.", el("ul", {}, one.faults.map((fault) => el("li", {}, fault)))),
    );
  return el("header", {}, el("div", { class: "head" }, el("div", {}, brand(), el("h1", {}, "Two runs side by side")), el("div", { class: "tools" }, themeButton())), el("div", { class: "pair" }, view.runs.map(run)));
}

function comparedTable(rows, summaries, names) {
  const columns = [
    { label: "", name: true, value: ([label]) => label },
    ...names.map((name, i) => ({ label: name, num: true, value: ([, value, text]) => text(value(summaries[i])) })),
    { label: "B against A", num: true, value: ([, value, , sense]) => change(value(summaries[0]), value(summaries[1]), sense) },
  ];
  return table(columns, rows.filter(([, value]) => summaries.some((one) => value(one) !== null && value(one) !== undefined)));
}

function change(a, b, sense) {
  if (a === null || b === null || a === undefined || b === undefined) return "–";
  if (a === b) return el("span", { class: "quiet" }, "same");
  const share = a ? (b - a) / Math.abs(a) : null;
  const text = share === null ? `${b > 0 ? "+" : "−"}${Number.isInteger(b) ? whole(Math.abs(b)) : figures(Math.abs(b))}` : `${share > 0 ? "+" : "−"}${figures(Math.abs(100 * share), 2)}\u202f%`;
  const isSmall = share !== null && Math.abs(share) < 0.005;
  if (!sense || isSmall) return el("span", { class: "quiet" }, isSmall ? "about the same" : text);
  const isBetter = sense * (b - a) > 0;
  return el("span", { class: isBetter ? "better" : "bad" }, `${text} ${isBetter ? "better" : "worse"}`);
}

function stagesCompared(view, names) {
  const stages = [...new Set(view.runs.flatMap((one) => one.summary.stages.map((stage) => stage.stage)))];
  if (stages.length < 2) return null;
  const took = (summary, name) => summary.stages.find((one) => one.stage === name)?.wall_s ?? null;
  const rows = stages.map((name) => [name, (summary) => took(summary, name), time, -1]);
  return part("stages", "Stages", null, comparedTable(rows, view.runs.map((one) => one.summary), names));
}

function devicesCompared(view, names) {
  const devices = [...new Set(view.runs.flatMap((one) => one.summary.devices.map((device) => device.device)))];
  const found = (i, name) => view.runs[i].summary.devices.find((one) => one.device === name);
  const columns = [
    { label: "Device", name: true, value: (name) => name },
    ...names.flatMap((label, i) => [
      { label: `${label}: items`, num: true, value: (name) => (found(i, name) ? whole(found(i, name).n_items) : "–") },
      { label: `${label}: at work`, num: true, value: (name) => (found(i, name) ? percent(found(i, name).utilisation) : "–") },
      { label: `${label}: items/s`, num: true, value: (name) => (found(i, name) ? figures(found(i, name).items_per_s) : "–") },
    ]),
  ];
  return devices.length ? part("devices", "Devices", null, table(columns, devices)) : null;
}

function failuresOf(view, name) {
  const made = failuresPart(view.summary);
  if (made) {
    made.id = `failures-${name.toLowerCase()}`;
    made.querySelector("h2").textContent = `${name}: ${plural(view.summary.n_failed, "failure")}`;
  }
  return made;
}
