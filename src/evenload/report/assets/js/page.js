// The page: from one object to everything that is seen. A live page calls `evenload.render(view)` as well.

const STATUS = {
  done: ["●", "done"],
  failures: ["✕", "done, with failures"],
  interrupted: ["■", "interrupted"],
  "timed out": ["■", "timed out"],
  failed: ["✕", "failed"],
  unfinished: ["◌", "unfinished"],
};

// The page keeps what has not changed: a live view may be shown again and again, and neither the place on the
// timeline, nor an opened traceback, nor the focus is lost.
class Page {
  constructor(root) {
    this.root = root;
    this.slots = new Map();
    this.tracksHost = el("div", { class: "timeline" });
    this.legendHost = el("div", {});
    this.chartsHost = el("div", {});
    this.measuresHost = el("div", { class: "measures" });
    this.tools = timelineTools();
  }

  update(view) {
    const { summary } = view;
    document.title = `${view.live && view.live.run.is_running ? "▸ " : ""}${clean(summary.name || "run")} · evenload`;
    const model = modelOf(view);
    const ran = model.tracks.length > 0;
    const { live } = view;
    const parts = [
      this.part("timeline", [ran, ran || (live && live.run.is_running)], () => part("timeline", "Timeline", ran ? this.tools.nodes : null, this.legendHost, ran ? this.tracksHost : el("p", { class: "empty" }, live && live.run.is_running ? "Workers are starting; nothing has run yet." : "Nothing ran, so there is nothing to draw."))),
      summary.factors && this.part("seconds", [summary.factors], () => workerSecondsPart(summary)),
      this.part("plan", [view.plan, live && live.run.is_running], () => planPart(view)),
      ran && this.part("load", [], () => part("load", "Over time", null, this.chartsHost)),
      this.part("measures", [view.measures && Object.keys(view.measures)], () => measuresPart(view, this.measuresHost)),
      this.part("failures", [summary.failures, summary.n_failed, summary.failures_by_error], () => failuresPart(summary)),
      this.part("results", [summary.finish], () => resultsPart(summary)),
      this.part("pictures", [view.gallery], () => galleryPart(view)),
      summary.devices.length > 0 && this.part("devices", [summary.devices, summary.work_s, summary.waits, live], () => devicesPart(summary, live)),
      this.part("stages", [summary.stages, live && live.queues, live && live.run.is_running], () => stagesPart(summary, live)),
      this.part("slowest", [summary.slowest], () => slowestPart(summary)),
      this.part("moves", [view.timeline.moves, view.timeline.n_moves], () => movesPart(view.timeline, live)),
      this.part("notes", [view.notes], () => notesPart(view)),
      this.part("settings", [summary.facts, view.config], () => settingsPart(view)),
    ].filter(Boolean);
    // The timeline itself stays where it is, or it would lose the focus.
    place(this.legendHost, [this.part("legend", [view.timeline.stages, legendKinds(view, model), view.timeline.step_s], () => timelineLegend(view, model))]);
    place(this.root, [
      this.part("head", [summary.name, summary.status, summary.n_failed, summary.unix_s, summary.devices.length, summary.stages.map((one) => one.stage), view.faults, live && [live.run, live.state, live.control]], () => headPart(view)),
      this.part("hero", [summary.factors, summary.advice, summary.ratio, summary.work_s, summary.bound_s, summary.startup_s, live && live.run], () => el("div", {}, heroPart(summary, live))),
      this.part("jumps", parts.map((one) => [one.id, one.querySelector("h2").textContent]), () => jumps(parts)),
      ...parts,
      this.part("foot", [], () => footPart(view)),
    ]);
    if (ran) this.drawTimes(view, model);
    if (view.measures && this.slots.get("measures")?.node) this.drawMeasures(view);
  }

  // The node of a part, made anew only if what it shows has changed.
  part(id, inputs, make) {
    const old = this.slots.get(id);
    const shown = JSON.stringify(inputs);
    if (old && old.shown === shown) return old.node;
    let node = make();
    if (old && old.node && node) {
      if (MORPHED.has(id)) node = morph(old.node, node);
      else keepState(old.node, node);
    }
    this.slots.set(id, { shown, node });
    return node;
  }

  drawTimes(view, model) {
    if (this.timeline) {
      this.charts.update(view);
      this.timeline.setModel(model);
      return;
    }
    this.charts = new Charts(this.chartsHost, view);
    const listeners = { view: (range, isWhole) => (this.charts.show(range), this.tools.see(isWhole), this.onWindow?.(range, isWhole)), layout: (one) => this.charts.place(one.gutter, one.width) };
    this.timeline = new TimelineView(this.tracksHost, model, listeners);
    this.tools.act(this.timeline);
  }

  drawMeasures(view) {
    this.measures ||= new MeasureCharts(this.measuresHost);
    this.measures.update(view.measures);
  }
}

// Parts that are only text and bars are changed in place: a button may be pressed while news come.
const MORPHED = new Set(["head", "hero", "seconds", "failures", "devices", "stages", "slowest", "moves", "notes"]);

// `old` becomes like `fresh`, and stays the node that it is, with its listeners. Nodes of another `data-key`
// are not the same thing. Returns what is in the page then.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.dataset?.key !== fresh.dataset?.key) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((node, i) => (i < before.length ? morph(before[i], node) : old.append(node)));
  for (const node of before.slice(after.length)) node.remove();
  return old;
}

let thePage = null;

function render(view) {
  thePage ||= new Page(document.getElementById("page"));
  thePage.update(view);
  return thePage;
}

// Children of `root` become `nodes`; those that stay where they are are not touched.
function place(root, nodes) {
  const wanted = nodes.filter(Boolean);
  for (const one of [...root.childNodes]) if (!wanted.includes(one)) one.remove();
  wanted.forEach((one, i) => root.childNodes[i] !== one && root.insertBefore(one, root.childNodes[i] || null));
}

// What a person opened, scrolled to or stands on in `before` is the same in `after`, and in the page.
function keepState(before, after) {
  const name = (one) => one.dataset.key || one.querySelector("summary")?.textContent;
  const open = new Map([...before.querySelectorAll("details")].map((one) => [name(one), one.open]));
  for (const one of after.querySelectorAll("details")) if (open.has(name(one))) one.open = open.get(name(one));
  const reachable = (node) => [...node.querySelectorAll("a, button, summary, input, select, [tabindex]")];
  const at = before.contains(document.activeElement) ? reachable(before).indexOf(document.activeElement) : -1;
  const wide = [...before.querySelectorAll(".table")].map((one) => one.scrollLeft);
  before.replaceWith(after);
  [...after.querySelectorAll(".table")].forEach((one, i) => wide[i] && (one.scrollLeft = wide[i]));
  if (at >= 0) reachable(after)[at]?.focus({ preventScroll: true });
}

function modelOf(view) {
  const { timeline, load, summary } = view;
  const names = new Map();
  for (const one of [...summary.slowest, ...summary.failures]) if (one.item) names.set(`${one.stage}\n${one.index}`, one.item);
  for (const one of view.gallery.items) for (const stage of timeline.stages) names.set(`${stage}\n${one.index}`, one.item);
  const total = totalLoad(load);
  return { ...timeline, names, tracks: decodeTracks(timeline), load: { width_s: load.width_s, total, most: Math.max(1, ...total) } };
}

function brand() {
  const bars = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  bars.setAttribute("viewBox", "0 0 16 16");
  bars.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", "M1 2h14v2.6H1zm0 4.7h14v2.6H1zm0 4.7h14V14H1z");
  bars.append(path);
  return el("div", { class: "brand" }, bars, "evenload");
}

function headPart(view) {
  const { summary } = view;
  const { live } = view;
  const [mark, word] = live && live.run.is_running ? live.control?.is_paused ? ["❚❚", "paused"] : ["◉", "running"] : STATUS[summary.status] || ["", summary.status];
  const isGoing = live && live.run.is_running;
  const isBad = !isGoing && (["failed", "failures", "interrupted", "timed out"].includes(summary.status) || summary.n_failed > 0);
  const when = summary.unix_s > 0 ? new Date(summary.unix_s * 1000) : null;
  return el(
    "header",
    {},
    el("div", { class: "head" }, el("div", {}, brand(), el("h1", {}, summary.name || "A run without a name")), el("div", { class: "tools" }, live && liveTools(live), themeButton())),
    el(
      "div",
      { class: "meta" },
      el("span", { class: isBad ? "status bad" : isGoing ? "status going" : "status" }, `${mark} ${word}`),
      live && el("span", { class: "connection", "data-state": live.state, role: "status" }, connectionText(live)),
      when && !Number.isNaN(when.getTime()) && el("time", { datetime: when.toISOString() }, when.toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short" })),
      el("span", {}, plural(summary.devices.length, "device")),
      summary.stages.length > 1 && el("span", {}, `stages ${summary.stages.map((one) => one.stage).join(", ")}`),
    ),
    view.faults.length > 0 && el("div", { class: "faults", role: "note" }, "Not all of this run could be read.", el("ul", {}, view.faults.map((one) => el("li", {}, one)))),
  );
}

function heroPart(summary, live) {
  const isGoing = live && live.run.is_running;
  const hero = el("div", { class: "hero" }, usefulVerdict(summary, isGoing), factorRows(summary, isGoing));
  return [live && progressBar(summary, live), el("dl", { class: "figures" }, headlineFigures(summary, live).map(([label, value, unit, note, isBad]) => el("div", {}, el("dt", {}, label), el("dd", { class: isBad ? "bad" : null }, value, unit && el("span", { class: "unit" }, unit)), note && el("dd", { class: "note" }, note)))), hero, adviceText(summary), boundBars(summary, live)];
}

function boundBars(summary, live) {
  if (summary.ratio === null) return null;
  const longest = Math.max(summary.work_s, summary.bound_s);
  const share = (s) => `${(100 * s) / longest}%`;
  const over = summary.work_s - summary.bound_s;
  const took = el("div", { class: "track" }, el("div", { class: "fill", style: { width: share(Math.min(summary.work_s, summary.bound_s)) } }), over > 0 && el("div", { class: "over", style: { left: share(summary.bound_s), width: share(over) } }));
  const best = el("div", { class: "track" }, el("div", { class: "fill bound", style: { width: share(summary.bound_s) } }));
  const by = summary.bound_by === "work" ? "all the work, shared out by the devices' measured speeds" : "the longest items, which cannot be cut, on the fastest devices";
  const isGoing = live && live.run.is_running;
  return el(
    "div",
    { class: "bars" },
    el("p", { class: "why small" }, el("b", {}, `${summary.ratio.toFixed(2)}×`), ` of the best possible time${isGoing ? ", so far" : ""}, once work had begun`),
    el("span", { class: "quiet" }, isGoing ? "work so far" : "the work"), took, el("span", { class: "value" }, time(summary.work_s)),
    el("span", { class: "quiet" }, "best possible"), best, el("span", { class: "value" }, time(summary.bound_s)),
    el(
      "details",
      { class: "why" },
      el("summary", {}, "How is that known?"),
      el("p", {}, `This run shows how fast its devices are beside one another, within limits. At all speeds within these, no plan, however clever, could have done this work on these devices in less than ${time(summary.bound_s)}. Here it is set by ${by}. Time before the first chunk (${time(summary.startup_s)}, mostly start-up) is not counted on either side.${summary.stages.length > 1 ? " Stages that follow one another are added up." : ""}`),
    ),
    summary.bound_up_to_s > 1.05 * summary.bound_s && el("p", { class: "why" }, `Not known better: the best possible may be up to ${time(summary.bound_up_to_s)}, as ${summary.devices.some((one) => one.waited_s) ? "items waited, which may take as long in any plan" : "devices did unlike items. Sizes of items (cost=) would tell"}.`),
    ...summary.stages.filter((stage) => stage.learned).map((stage) => el("p", { class: "why quiet" }, `Learned of ${stage.stage}: ${stage.learned}.`)),
    ...summary.stages.filter((stage) => stage.n_batches).map((stage) => el("p", { class: "why quiet" }, `Batches of ${stage.stage}: ${figures(stage.mean_batch)} items on average, ${percent(stage.batch_fill)} full (${plural(stage.n_batches, "call")}).`)),
  );
}

function headlineFigures(summary, live) {
  const counts = summary.counts || {}, nSamples = (counts.samples || {}).total, nParts = (counts.parts || {}).total;
  const of = summary.total === null ? "" : `of ${whole(summary.total)}${counts.items ? " items" : ""}`;
  const others = Object.entries(counts.items || {}).filter(([end, n]) => n && !["total", "done", "failed"].includes(end));
  const apart = [...others.map(([end, n]) => `${whole(n)} ${end}`), nSamples ? plural(nSamples, "sample") : "", nParts ? plural(nParts, "part") : ""].filter(Boolean).join(" · ");
  const [wall, wallUnit] = timeParts(summary.wall_s);
  const hasRest = live && live.run.run_eta_s !== null, ofStage = live && live.run.n_stages > 1 && live.run.stage && live.run.eta_s !== null;
  const [eta, etaUnit] = timeParts(live ? (hasRest ? live.run.run_eta_s : live.run.eta_s) : null);
  const isGoing = live && live.run.is_running;
  const cost = summary.cost || {}, parts = ["devices", "energy", "answers"].filter((one) => cost[one]);
  const rows = [
    [isGoing && live.run.n_stages > 1 ? "Through all stages" : "Done", whole(summary.n_done), of, [summary.n_failed ? el("span", { class: "bad" }, `✕ ${plural(summary.n_failed, "failure")}`) : "no failures", apart ? ` · ${apart}` : ""]],
    isGoing
      ? [ofStage && !hasRest ? `Left of ${live.run.stage}` : "Time left", eta, etaUnit, `${ofStage && hasRest ? `${time(live.run.eta_s)} of it in ${live.run.stage} · ` : ""}running for ${time(live.run.now_s)}`]
      : ["Time", wall, wallUnit, summary.startup_s > 0 ? `${time(summary.startup_s)} until the first chunk` : ""],
    ...(parts.length ? [["Cost", figures(cost.total), cost.currency, [...parts.map((one) => `${one} ${figures(cost[one])}`), ...(cost.kwh ? [`${figures(cost.kwh)} kWh`] : []), ...(cost.left_out ? [`at least: ${cost.left_out}`] : [])].join(" · ")]] : cost.kwh ? [["Energy", figures(cost.kwh), "kWh", "by the watts that were told"]] : []),
    ["Items per second", figures(isGoing ? live.run.items_per_s : summary.items_per_s), "", isGoing && live.run.n_stages > 1 && live.run.stage ? `in ${live.run.stage}` : `in ${plural(summary.n_chunks, "chunk")}`],
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

function legendKinds(view, model) {
  const seen = new Set(model.tracks.flatMap((one) => [...new Set(one.status)]));
  return [[...seen].sort(), view.timeline.n_marks > 0, view.timeline.n_moves > 0, model.tracks.some((one) => one.idle.length)];
}

function timelineLegend(view, model) {
  const seen = new Set(model.tracks.flatMap((one) => [...new Set(one.status)]));
  const labels = { failed: "failed", lost: "worker lost", superseded: "duplicate that came second", "start-up": "start-up", waiting: "waiting", balance: "nothing to do (balance)" };
  const stages = view.timeline.stages.map((name, i) => el("span", {}, swatch("", `var(--stage-${i % 6})`), name));
  const others = Object.entries(labels)
    .filter(([status]) => seen.has(view.timeline.statuses.indexOf(status)) || (status === "failed" && view.timeline.n_marks))
    .map(([status, label]) => el("span", {}, swatch(status, status === "failed" ? "var(--bad)" : null), status === "failed" ? `✕ ${label}` : label));
  const merged = view.timeline.step_s ? el("span", {}, `chunks shorter than ${time(view.timeline.step_s)} are drawn together`) : null;
  const inside = model.tracks.some((one) => one.idle.length) ? el("span", {}, swatch("waiting", null), "the share of an item that waited, or is not known") : null;
  const moves = view.timeline.n_moves ? el("span", {}, "↕ items moved between queues") : null;
  return el("div", { class: "legend", style: { margin: "-6px 0 10px" } }, stages, inside, others, moves, merged);
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
  if (view.live) return el("footer", {}, el("span", {}, `evenload ${view.version}, from the run's events.`), el("span", {}, "This page watches: it never slows the run, and sends nothing anywhere."));
  return el("footer", {}, el("span", {}, `Made by evenload ${view.version}${view.trials ? "" : view.audit ? " from the trace" : " from the run's events"}.`), el("span", {}, "This file is complete: it loads nothing and sends nothing."));
}

startTheme();
const embedded = document.getElementById("view");
const whole_run = embedded && JSON.parse(embedded.textContent);
if (whole_run) (whole_run.runs ? renderPair : whole_run.trials ? renderBench : whole_run.audit ? renderAudit : render)(whole_run);
window.evenload = { render };
