// Plan against reality: of each device what was planned above what it did, and how long both took.

const SVG = "http://www.w3.org/2000/svg";

function planPart(view) {
  const { plan } = view;
  planTip(null); // what it pointed at is drawn anew
  if (!plan) return null;
  const isGoing = view.live?.run.is_running;
  const end = Math.max(plan.planned_s, plan.measured_s ?? 0);
  const notes = [
    plan.n_restored > 0 && `${plural(plan.n_restored, "result")} came from an earlier run; the plan counts all items.`,
    plan.n_replans > 0 && `The rest was planned again ${plan.n_replans > 1 ? plural(plan.n_replans, "time") : "once"} while the run went on; shown is the first plan.`,
    plan.n_rows > plan.rows.length && `${plan.rows.length} of ${plan.n_rows} devices are shown.`,
  ].filter(Boolean);
  return part(
    "plan",
    "Plan against reality",
    null,
    el("div", { class: "against" }, planVerdict(plan, isGoing), planTimes(plan, isGoing)),
    planLegend(plan),
    el("div", { class: "plan-rows" }, plan.rows.map((row) => planRow(row, plan, end)), planAxis(end)),
    plan.by_stage.length > 0 && el("div", { style: { "margin-top": "24px" } }, planTable(plan)),
    notes.length > 0 && el("p", { class: "small quiet", style: { "margin-top": "12px" } }, notes.join(" ")),
  );
}

function planVerdict(plan, isGoing) {
  const ratio = plan.measured_s && !isGoing ? plan.measured_s / plan.planned_s : null;
  const least = plan.bound_s && ratio !== null ? `, ${(plan.measured_s / plan.bound_s).toFixed(2)}× what any plan needs` : "";
  const text = ratio === null ? "planned; the run goes on" : `of the planned time${least}`;
  return el("div", {}, el("p", { class: "verdict-number" }, ratio === null ? timeParts(plan.planned_s) : [ratio.toFixed(2), el("span", {}, "×")]), el("p", { class: "verdict-text" }, text), el("p", { class: "small quiet" }, `${plan.mode.replaceAll("_", " ")}: ${plan.why}`));
}

function planTimes(plan, isGoing) {
  const longest = Math.max(plan.planned_s, plan.measured_s ?? 0, plan.bound_s ?? 0);
  const over = (s) => (plan.bound_s && !isGoing ? el("span", { class: "quiet" }, ` ${(s / plan.bound_s).toFixed(2)}×`) : null);
  const row = (label, s, kind) =>
    s === null || s === undefined
      ? null
      : [el("span", { class: "quiet" }, label), el("div", { class: "track" }, el("div", { class: `fill ${kind}`, style: { width: `${(100 * s) / longest}%` } })), el("span", { class: "value" }, time(s), kind === "bound" ? null : over(s))];
  return el("div", { class: "bars" }, row("planned", plan.planned_s, ""), row(isGoing ? "so far" : "measured", plan.measured_s, ""), row("no plan is faster than", plan.bound_s, "bound"));
}

function planLegend(plan) {
  const isLoading = plan.rows.some((row) => [...row.planned, ...row.measured].some((bar) => bar[3]));
  return el(
    "div",
    { class: "legend", style: { "margin-bottom": "4px" } },
    plan.stages.map((name, i) => el("span", {}, swatch("", `var(--stage-${i % 6})`), name)),
    isLoading && el("span", {}, swatch("loading"), "loads a model"),
    el("span", { class: "quiet" }, "above: planned · below: measured"),
  );
}

function planRow(row, plan, end) {
  return [el("span", { class: "device", title: row.device }, row.device), lane(row, "planned", plan, end), lane(row, "measured", plan, end)];
}

// All bars of one stage are one path: a device may have hundreds. What is loaded is drawn half as high.
function lane(row, which, plan, end) {
  const svg = document.createElementNS(SVG, "svg");
  const bars = row[which];
  const said = plan.stages.map((name, i) => [name, bars.filter((bar) => bar[2] === i && !bar[3]).reduce((sum, bar) => sum + bar[1] - bar[0], 0)]).filter(([, s]) => s > 0);
  const label = `${row.device}, ${which}: ${said.map(([name, s]) => `${name} ${time(s)}`).join(", ") || "nothing"}`;
  for (const [name, value] of [["viewBox", "0 0 1000 10"], ["preserveAspectRatio", "none"], ["role", "img"], ["aria-label", clean(label)]]) svg.setAttribute(name, value);
  for (const [i, isLoad] of plan.stages.flatMap((_, at) => [[at, 0], [at, 1]])) {
    const mine = bars.filter((bar) => bar[2] === i && bar[3] === isLoad);
    if (!mine.length) continue;
    const path = document.createElementNS(SVG, "path");
    const [top, height] = isLoad ? [5, 5] : [0, 10];
    path.setAttribute("d", mine.map(([from, to]) => `M${((1000 * from) / end).toFixed(2)} ${top}H${((1000 * to) / end).toFixed(2)}v${height}H${((1000 * from) / end).toFixed(2)}z`).join(""));
    path.style.fill = `var(--stage-${i % 6})`;
    if (isLoad) path.style.fillOpacity = "0.55";
    svg.append(path);
  }
  const node = el("span", { class: `lane ${which}` });
  node.append(svg);
  node.addEventListener("pointermove", (event) => planTip(event, node, bars, plan, end, `${row.device}, ${which}`));
  node.addEventListener("pointerleave", () => planTip(null));
  return node;
}

let planTips = null;

function planTip(event, node, bars, plan, end, title) {
  planTips?.hide();
  if (!event) return;
  const box = node.getBoundingClientRect();
  const t = ((event.clientX - box.left) / box.width) * end;
  const bar = bars.find((one) => one[0] <= t && t < one[1]);
  if (!bar) return;
  const what = bar[3] ? `loads ${plan.stages[bar[2]]}` : `${plan.stages[bar[2]]}, ${plural(bar[4], "item")}`;
  planTips ||= new Tip();
  planTips.show(event.clientX, event.clientY, [el("strong", {}, title), el("dl", {}, el("dt", {}, time(bar[1] - bar[0])), el("dd", {}, what), el("dt", {}, "from"), el("dd", {}, `${time(bar[0])} to ${time(bar[1])}`))]);
}

function planAxis(end) {
  const step = niceStep(end / 5);
  const ticks = Array.from({ length: Math.floor((end / step) * 0.82) + 1 }, (_, i) => i * step);
  return el("div", { class: "ends" }, [...ticks.map((t) => [t, moment(t, step)]), [end, time(end)]].map(([t, text]) => el("span", { style: { left: `${(100 * t) / end}%` } }, text)));
}

function planTable(plan) {
  const ratio = (one) => (one.planned_s > 0 && one.measured_s > 0 && one.n_planned > 0 && one.n_measured > 0 ? `${(one.measured_s / one.n_measured / (one.planned_s / one.n_planned)).toFixed(2)}×` : "–");
  const each = (s, n) => (n > 0 && s > 0 ? time(s / n) : "–");
  return table(
    [
      { label: "Stage", name: true, value: (one) => one.stage },
      { label: "Items", num: true, title: "Planned, then measured", value: (one) => `${whole(one.n_planned)} / ${whole(one.n_measured)}` },
      { label: "An item, planned", num: true, title: "Mean over the devices, time of a device", value: (one) => each(one.planned_s, one.n_planned) },
      { label: "measured", num: true, value: (one) => each(one.measured_s, one.n_measured) },
      { label: "Ratio", num: true, title: "Measured over planned", value: ratio },
      { label: "Loading, planned", num: true, value: (one) => (one.planned_load_s ? time(one.planned_load_s) : "–") },
      { label: "measured", num: true, value: (one) => (one.measured_load_s ? time(one.measured_load_s) : "–") },
    ],
    plan.by_stage,
  );
}
