// The page: from one object to everything that is seen. A live page calls `evenload.render(view)` as well.

const STATUS = {
  done: ["●", "done"],
  failures: ["✕", "done, with failures"],
  interrupted: ["■", "interrupted"],
  failed: ["✕", "failed"],
  unfinished: ["◌", "unfinished"],
};

function render(view) {
  const { summary } = view;
  document.title = `${clean(summary.name || "run")} · evenload`;
  const model = modelOf(view);
  const tracksHost = el("div", { class: "timeline" });
  const chartsHost = el("div", {});
  const tools = timelineTools();
  const parts = [
    part("timeline", "Timeline", tools.nodes, timelineLegend(view, model), model.tracks.length ? tracksHost : el("p", { class: "empty" }, "Nothing ran, so there is nothing to draw.")),
    model.tracks.length ? part("load", "Over time", null, chartsHost) : null,
    failuresPart(summary),
    resultsPart(summary),
    galleryPart(view),
    summary.devices.length ? devicesPart(summary) : null,
    stagesPart(summary),
    slowestPart(summary),
    movesPart(view.timeline),
    notesPart(view),
    settingsPart(view),
  ].filter(Boolean);
  document.getElementById("page").replaceChildren(headPart(view), ...heroPart(summary), jumps(parts), ...parts, footPart(view));
  if (!model.tracks.length) return;
  const charts = new Charts(chartsHost, view);
  const listeners = { view: (range, isWhole) => (charts.show(range), tools.see(isWhole)), layout: (one) => charts.place(one.gutter, one.width) };
  tools.act(new TimelineView(tracksHost, model, listeners));
}

function modelOf(view) {
  const { timeline, load, summary } = view;
  const names = new Map();
  for (const one of [...summary.slowest, ...summary.failures]) if (one.item) names.set(`${one.stage}\n${one.index}`, one.item);
  for (const one of view.gallery.items) for (const stage of timeline.stages) names.set(`${stage}\n${one.index}`, one.item);
  const total = totalLoad(load);
  return { ...timeline, names, tracks: decodeTracks(timeline), load: { width_s: load.width_s, total, most: Math.max(1, ...total) } };
}

function headPart(view) {
  const { summary } = view;
  const [mark, word] = STATUS[summary.status] || ["", summary.status];
  const isBad = ["failed", "failures", "interrupted"].includes(summary.status) || summary.n_failed > 0;
  const bars = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  bars.setAttribute("viewBox", "0 0 16 16");
  bars.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", "M1 2h14v2.6H1zm0 4.7h14v2.6H1zm0 4.7h14V14H1z");
  bars.append(path);
  const when = summary.unix_s > 0 ? new Date(summary.unix_s * 1000) : null;
  return el(
    "header",
    {},
    el("div", { class: "head" }, el("div", {}, el("div", { class: "brand" }, bars, "evenload"), el("h1", {}, summary.name || "A run without a name")), el("div", { class: "tools" }, themeButton())),
    el(
      "div",
      { class: "meta" },
      el("span", { class: isBad ? "status bad" : "status" }, `${mark} ${word}`),
      when && !Number.isNaN(when.getTime()) && el("time", { datetime: when.toISOString() }, when.toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short" })),
      el("span", {}, plural(summary.devices.length, "device")),
      summary.stages.length > 1 && el("span", {}, summary.stages.map((one) => one.stage).join(" → ")),
    ),
    view.faults.length > 0 && el("div", { class: "faults", role: "note" }, "Not all of this run could be read.", el("ul", {}, view.faults.map((one) => el("li", {}, one)))),
  );
}

function heroPart(summary) {
  const hero = el("div", { class: "hero" }, verdict(summary), boundBars(summary));
  return [hero, el("dl", { class: "figures" }, headlineFigures(summary).map(([label, value, unit, note, isBad]) => el("div", {}, el("dt", {}, label), el("dd", { class: isBad ? "bad" : null }, value, unit && el("span", { class: "unit" }, unit)), note && el("dd", { class: "note" }, note))))];
}

function verdict(summary) {
  if (summary.ratio === null) return el("div", {}, el("p", { class: "verdict-number" }, "–"), el("p", { class: "verdict-text" }, "Nothing finished, so there is nothing to compare."));
  return el("div", {}, el("p", { class: "verdict-number" }, summary.ratio.toFixed(2), el("span", {}, "×")), el("p", { class: "verdict-text" }, "of the best possible time"));
}

function boundBars(summary) {
  if (summary.ratio === null) return null;
  const longest = Math.max(summary.work_s, summary.bound_s);
  const share = (s) => `${(100 * s) / longest}%`;
  const over = summary.work_s - summary.bound_s;
  const took = el("div", { class: "track" }, el("div", { class: "fill", style: { width: share(Math.min(summary.work_s, summary.bound_s)) } }), over > 0 && el("div", { class: "over", style: { left: share(summary.bound_s), width: share(over) } }));
  const best = el("div", { class: "track" }, el("div", { class: "fill bound", style: { width: share(summary.bound_s) } }));
  const by = summary.bound_by === "work" ? "all the work, shared out by the devices' measured speeds" : "the longest items, which cannot be cut, on the fastest devices";
  return el(
    "div",
    { class: "bars" },
    el("span", { class: "quiet" }, "this run"), took, el("span", { class: "value" }, time(summary.work_s)),
    el("span", { class: "quiet" }, "best possible"), best, el("span", { class: "value" }, time(summary.bound_s)),
    el(
      "details",
      { class: "why" },
      el("summary", {}, "How is that known?"),
      el("p", {}, `Each device's speed is measured in this run, over the middle half of its items. From the speeds follows the bound: no plan, however clever, could have done this work on these devices in less than ${time(summary.bound_s)}. Here it is set by ${by}. Time before the first chunk (${time(summary.startup_s)}, mostly start-up) is not counted on either side.${summary.stages.length > 1 ? " Stages that follow one another are added up." : ""}`),
    ),
  );
}

function headlineFigures(summary) {
  const of = summary.total === null ? "" : `of ${whole(summary.total)}`;
  const [wall, wallUnit] = timeParts(summary.wall_s);
  const rows = [
    ["Done", whole(summary.n_done), of, summary.n_failed ? el("span", { class: "bad" }, `✕ ${plural(summary.n_failed, "failure")}`) : "no failures"],
    ["Time", wall, wallUnit, summary.startup_s > 0 ? `${time(summary.startup_s)} until the first chunk` : ""],
    ["Items per second", figures(summary.items_per_s), "", `in ${plural(summary.n_chunks, "chunk")}`],
    ["Imbalance", summary.imbalance.toFixed(2), "", "busiest over mean"],
    ["Utilisation", (100 * summary.utilisation).toFixed(0), "%", `± ${(100 * summary.utilisation_std).toFixed(1)} between devices`],
  ];
  const incidents = [
    [summary.n_lost_workers, () => plural(summary.n_lost_workers, "worker lost", "workers lost")],
    [summary.n_moves, () => plural(summary.n_moves, "move")],
    [summary.n_duplicates, () => plural(summary.n_duplicates, "duplicate")],
  ].filter(([n]) => n).map(([, text]) => text());
  const [wasted, wastedUnit] = timeParts(summary.wasted_s);
  rows.push(["Worked in vain", wasted, wastedUnit, incidents.join(", ") || "no duplicates, none lost"]);
  return rows;
}

function jumps(parts) {
  return el("nav", { class: "jump", "aria-label": "On this page" }, parts.map((one) => el("a", { href: `#${one.id}` }, one.querySelector("h2").textContent)));
}

function timelineLegend(view, model) {
  const seen = new Set(model.tracks.flatMap((one) => [...new Set(one.status)]));
  const labels = { failed: "failed", lost: "worker lost", superseded: "duplicate that came second", waiting: "waiting", "start-up": "start-up" };
  const stages = view.timeline.stages.map((name, i) => el("span", {}, swatch("", `var(--stage-${i % 6})`), name));
  const others = Object.entries(labels)
    .filter(([status]) => seen.has(view.timeline.statuses.indexOf(status)) || (status === "failed" && view.timeline.n_marks))
    .map(([status, label]) => el("span", {}, swatch(status, status === "failed" ? "var(--bad)" : null), status === "failed" ? `✕ ${label}` : label));
  const merged = view.timeline.step_s ? el("span", {}, `chunks shorter than ${time(view.timeline.step_s)} are drawn together`) : null;
  return el("div", { class: "legend", style: { margin: "-6px 0 10px" } }, stages, others, merged);
}

function timelineTools() {
  let shown = null;
  const button = (label, text, act) => {
    const made = el("button", { class: text.length > 1 ? "button" : "button icon", type: "button", "aria-label": label, title: label }, text);
    made.addEventListener("click", () => shown && act(shown));
    return made;
  };
  const all = button("Show the whole run", "Show all", (one) => one.show(0, one.end));
  all.hidden = true;
  const hint = el("span", { class: "quiet small" }, window.matchMedia("(pointer: coarse)").matches ? "pinch to zoom in" : "drag to zoom in");
  const nodes = [hint, all, button("Zoom out", "−", (one) => one.zoom(1 / 0.6)), button("Zoom in", "+", (one) => one.zoom(0.6))];
  return {
    nodes,
    act: (one) => {
      shown = one;
    },
    see: (isWhole) => {
      all.hidden = isWhole;
      hint.hidden = !isWhole;
    },
  };
}

function settingsPart(view) {
  const { summary } = view;
  const pairs = (facts) => el("dl", { class: "pairs" }, Object.entries(facts).map(([name, value]) => [el("dt", {}, name), el("dd", {}, plain(value))]));
  const fold = (title, content) => el("details", { class: "fold" }, el("summary", {}, title), content);
  const folds = [];
  if (Object.keys(summary.facts).length) folds.push(fold("How it was run", pairs(summary.facts)));
  if (view.config) folds.push(fold("Configuration", el("pre", { tabindex: "0" }, view.config)));
  return folds.length ? part("settings", "Settings", null, ...folds) : null;
}

function plain(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : figures(value, 6);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function footPart(view) {
  return el("footer", {}, el("span", {}, `Made by evenload ${view.version} from the run's events.`), el("span", {}, "This file is complete: it loads nothing and sends nothing."));
}

startTheme();
const embedded = document.getElementById("view");
if (embedded) render(JSON.parse(embedded.textContent));
window.evenload = { render };
