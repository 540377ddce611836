// The page of a replay: one object, drawn.

const HUES = { EPLB: "stage-1", "EPLB + routing": "stage-3", "search + routing": "stage-0", "few fetches + routing": "stage-2" };
const DASHES = { EPLB: "solid", "EPLB + routing": [7, 4], "search + routing": "solid", "few fetches + routing": [2, 3] };

function hue(course) {
  return HUES[course.name] || "load";
}

function render(view) {
  const best = view.courses.reduce((a, b) => (b.mean < a.mean ? b : a));
  document.title = `Replay of ${clean(view.trace)} · evenload`;
  const lines = el("div", { class: "chart", role: "img", "aria-label": "Imbalance of each batch" });
  lines.style.height = "300px";
  const moved = view.courses.filter((one) => one.moves.length);
  const traffic = moved.length ? el("div", { class: "chart", role: "img", "aria-label": "Experts fetched at each new plan" }) : null;
  if (traffic) traffic.style.height = "190px";
  const maps = view.courses.map((course) => ({ course, box: el("div", { class: "chart", role: "img", "aria-label": `Load of each GPU in each layer, ${course.name}` }) }));
  for (const { box } of maps) box.style.height = `${Math.max(150, Math.min(420, 12 * view.n_layers)) + 34}px`;
  const parts = [
    part("timeline", "Imbalance, batch by batch", null, legend(view), lines),
    part("gpus", "Every GPU in every layer", rampLegend(view), el("p", { class: "note-line" }, "Mean over all batches, 1 is an even share. A layer waits for its fullest GPU."), el("div", { class: "maps" }, maps.map(({ course, box }) => el("figure", {}, el("figcaption", {}, el("b", {}, course.name), el("span", {}, `worst ${worstMean(course).toFixed(2)}`)), box)))),
    part("numbers", "In numbers", null, numbersTable(view)),
    traffic && part("traffic", "What new plans cost", null, el("p", { class: "note-line" }, trafficNote(view)), traffic),
  ].filter(Boolean);
  document.getElementById("page").replaceChildren(head(view), ...hero(view, best), ...parts, foot(view));
  const drawings = [
    { chart: echarts.init(lines), option: () => linesOption(view) },
    ...maps.map(({ course, box }) => ({ chart: echarts.init(box), option: () => mapOption(view, course) })),
    ...(traffic ? [{ chart: echarts.init(traffic), option: () => trafficOption(view, moved) }] : []),
  ];
  const draw = () => {
    for (const one of drawings) one.chart.setOption(one.option(), true);
  };
  onTheme(draw);
  draw();
  new ResizeObserver(() => {
    for (const one of drawings) one.chart.resize();
  }).observe(document.getElementById("page"));
}

function head(view) {
  const bars = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  bars.setAttribute("viewBox", "0 0 16 16");
  bars.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", "M1 2h14v2.6H1zm0 4.7h14v2.6H1zm0 4.7h14V14H1z");
  bars.append(path);
  const again = view.every ? `, and again every ${plural(view.every, "batch", "batches")}` : "";
  return el(
    "header",
    {},
    el("div", { class: "head" }, el("div", {}, el("div", { class: "brand" }, bars, "evenload"), el("h1", {}, `Replay of ${view.trace}`)), el("div", { class: "tools" }, themeButton())),
    el(
      "div",
      { class: "meta" },
      el("span", {}, `${plural(view.n_layers, "layer")} of ${view.n_experts} experts`),
      el("span", {}, `${view.n_slots} slots on ${plural(view.n_gpus, "GPU")}`),
      el("span", {}, `${plural(view.bound.length, "batch", "batches")}${view.batch ? ` of ${whole(view.batch)} tokens` : ""}, none of them seen by the plan that serves it`),
      el("span", {}, `planned on the ${plural(view.history, "batch", "batches")} before${again}`),
    ),
  );
}

function plural(n, one, many = `${one}s`) {
  return `${whole(n)} ${n === 1 ? one : many}`;
}

function mean(values) {
  return values.reduce((a, b) => a + b, 0) / values.length;
}

function worstMean(course) {
  return Math.max(...course.loads.map((row) => Math.max(...row)));
}

// Every GPU waits for the busiest: this share of the fleet's time goes by unused.
function waited(imbalance) {
  return 1 - 1 / imbalance;
}

function hero(view, best) {
  const most = Math.max(...view.courses.map((one) => waited(one.mean)), 0.01);
  const bound = mean(view.bound);
  const row = (name, imbalance, color, kind = "") => [
    el("span", { class: "quiet" }, name),
    el("div", { class: "track" }, el("div", { class: `fill ${kind}`, style: { width: `${(100 * waited(imbalance)) / most}%`, "--c": color } })),
    el("span", { class: "value" }, `${(100 * waited(imbalance)).toFixed(1)} %`),
  ];
  const verdict = el(
    "div",
    {},
    el("p", { class: "verdict-number" }, best.mean.toFixed(best.mean < 1.0995 ? 3 : 2), el("span", {}, "×")),
    el("p", { class: "verdict-text" }, `the mean is what the busiest GPU carries, by ${best.name}. No plan could go below ${bound.toFixed(3)}.`),
  );
  const bars = el(
    "div",
    { class: "bars" },
    el("span", { class: "small quiet", style: { "grid-column": "1 / -1" } }, "Time that GPUs wait for the busiest one"),
    view.courses.flatMap((one) => row(one.name, one.mean, `var(--${hue(one)})`)),
    row("best possible", bound, "var(--ink-3)", "bound"),
  );
  return [el("div", { class: "hero" }, verdict, bars), el("dl", { class: "figures" }, figureRows(view, best).map(([label, value, note]) => el("div", {}, el("dt", {}, label), el("dd", {}, value), el("dd", { class: "note" }, note))))];
}

function figureRows(view, best) {
  const base = view.courses[0];
  const share = (one) => mean(one.moves.map((move) => move.moved_share));
  const moved = view.courses.filter((one) => one.moves.length);
  const least = moved.length ? moved.reduce((a, b) => (share(b) < share(a) ? b : a)) : null;
  return [
    ["Imbalance, mean", best.mean.toFixed(3), base === best ? "busiest over mean" : `${base.mean.toFixed(3)} by ${base.name}`],
    ["99th percentile", best.p99.toFixed(2), base === best ? "of batches and layers" : `${base.p99.toFixed(2)} by ${base.name}`],
    ["Worst of all", best.worst.toFixed(2), base === best ? "of batches and layers" : `${base.worst.toFixed(2)} by ${base.name}`],
    ["Over the bound", `${(100 * (best.over_bound - 1)).toFixed(1)} %`, "relaxed over all placements"],
    ["Slots refilled", least ? `${(100 * share(least)).toFixed(1)} %` : "–", !least ? "planned once only" : least === base ? "at each new plan" : `by ${least.name}; ${(100 * share(base)).toFixed(0)} % by ${base.name}`],
  ];
}

function legend(view) {
  return el("div", { class: "legend", style: { margin: "-6px 0 6px" } }, view.courses.map((one) => el("span", {}, swatch("", `var(--${hue(one)})`), one.name)), el("span", {}, swatch("", "var(--ink-3)"), "bound"), view.every > 0 && el("span", {}, "│ new plan"));
}

function rampLegend(view) {
  const reach = reachOf(view);
  return el("span", { class: "legend" }, `${(1 - reach).toFixed(2)}`, el("span", { class: "ramp", "aria-hidden": "true" }), `${(1 + reach).toFixed(2)} and more`);
}

function reachOf(view) {
  const all = view.courses.flatMap((one) => one.loads.flat()).map((x) => Math.abs(x - 1)).sort((a, b) => a - b);
  return Math.max(0.02, all[Math.floor(0.98 * (all.length - 1))]);
}

function numbersTable(view) {
  const total = (one, name) => one.moves.reduce((sum, move) => sum + move[name], 0);
  const hasMoves = view.courses.some((one) => one.moves.length);
  const hasBytes = view.courses.some((one) => total(one, "bytes"));
  const columns = [
    { label: "Strategy", name: true, value: (one) => el("span", {}, swatch("", `var(--${hue(one)})`), one.name, el("span", { class: "sub" }, one.what)) },
    { label: "Mean", num: true, value: (one) => one.mean.toFixed(4) },
    { label: "p99", num: true, value: (one) => one.p99.toFixed(3) },
    { label: "Worst", num: true, value: (one) => one.worst.toFixed(3) },
    { label: "Over the bound", num: true, value: (one) => `${(100 * (one.over_bound - 1)).toFixed(2)} %` },
    ...(hasMoves ? [
      { label: "Slots refilled a plan", num: true, value: (one) => (one.moves.length ? `${((100 * total(one, "moved_share")) / one.moves.length).toFixed(1)} %` : "–") },
      { label: "Experts fetched", num: true, value: (one) => whole(total(one, "n_transfers")) },
    ] : []),
    ...(hasBytes ? [
      { label: "Bytes", num: true, value: (one) => bytes(total(one, "bytes")) },
      { label: "Estimated time", num: true, value: (one) => time(total(one, "seconds")) },
    ] : []),
  ];
  return table(columns, view.courses);
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let k = 0;
  for (; n >= 1000 && k < units.length - 1; k += 1) n /= 1024;
  return `${figures(n)} ${units[k]}`;
}

function trafficNote(view) {
  return `A GPU fetches the weights of each expert that a new plan gives it; there are ${whole(view.n_slots * view.n_layers)} slots in all layers. Transfers go in batches in which no GPU sends or receives two experts.${view.expert_bytes ? ` Times are estimated for ${bytes(view.expert_bytes)} an expert at ${figures(view.bytes_per_s / 1e9)} GB/s a GPU.` : ""}`;
}

function axes(extra) {
  const quiet = { axisLine: { show: false }, axisTick: { show: false }, axisLabel: { color: color("ink-2"), fontSize: 12 } };
  return { ...quiet, splitLine: { lineStyle: { color: color("rule"), width: 1 } }, ...extra };
}

function base() {
  const font = getComputedStyle(document.body).fontFamily;
  return {
    animation: false,
    textStyle: { fontFamily: font },
    tooltip: { confine: true, className: "chart-tip", padding: [9, 12], borderWidth: 0, backgroundColor: color("raised"), textStyle: { color: color("ink"), fontSize: 13, fontFamily: font } },
  };
}

function tip(title, pairs) {
  return el("div", {}, el("strong", {}, title), el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
}

// The least round step of which six or fewer reach from 1 to `most`, and where they end.
function ticksTo(most) {
  const span = Math.max(most - 1, 0.02);
  const step = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50].find((one) => 6 * one >= span) || span / 5;
  return { interval: step, max: 1 + step * Math.ceil(span / step - 1e-9) };
}

function linesOption(view) {
  const n = view.bound.length;
  const most = Math.max(...view.courses.flatMap((one) => one.imbalance));
  const ticks = ticksTo(most);
  const plans = view.every ? view.bound.map((_, i) => i).filter((i) => i && i % view.every === 0) : [];
  const shared = base();
  return {
    ...shared,
    grid: { left: 46, right: 12, top: 14, bottom: 40 },
    xAxis: axes({ type: "category", data: view.bound.map((_, i) => i + 1), boundaryGap: false, name: "batch", nameLocation: "middle", nameGap: 26, nameTextStyle: { color: color("ink-2"), fontSize: 12 }, axisLine: { show: true, lineStyle: { color: color("rule-strong") } } }),
    yAxis: axes({ type: "value", min: 1, ...ticks, axisLabel: { color: color("ink-2"), fontSize: 12, formatter: (x) => x.toFixed(ticks.interval < 0.01 ? 3 : 2) } }),
    tooltip: { ...shared.tooltip, trigger: "axis", axisPointer: { type: "line", lineStyle: { color: color("ink-3"), width: 1, type: "solid" } }, formatter: (rows) => tip(`batch ${rows[0].dataIndex + 1}`, rows.map((row) => [row.seriesName, row.value.toFixed(3)])) },
    series: [
      ...view.courses.map((one) => ({
        type: "line", name: one.name, data: one.imbalance, symbol: n < 40 ? "circle" : "none", symbolSize: 5, showSymbol: n < 40,
        lineStyle: { width: 2, color: color(hue(one)), type: DASHES[one.name] || "solid" }, itemStyle: { color: color(hue(one)) },
      })),
      {
        type: "line", name: "bound", data: view.bound, symbol: "none", lineStyle: { width: 1.5, color: color("ink-3"), type: "dashed" }, itemStyle: { color: color("ink-3") },
        markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: color("rule-strong"), type: "solid", width: 1 }, data: plans.map((i) => ({ xAxis: i })) },
      },
    ],
  };
}

function mapOption(view, course) {
  const reach = reachOf(view);
  const shared = base();
  const cells = course.loads.flatMap((row, layer) => row.map((load, gpu) => [gpu, layer, load]));
  const label = { color: color("ink-2"), fontSize: 11.5 };
  const every = (n, room) => Math.max(0, Math.ceil(n / room) - 1);
  return {
    ...shared,
    grid: { left: 44, right: 2, top: 4, bottom: 34 },
    xAxis: { type: "category", data: course.loads[0].map((_, i) => i), axisLine: { show: false }, axisTick: { show: false }, axisLabel: { ...label, interval: every(view.n_gpus, 16) }, name: "GPU", nameLocation: "middle", nameGap: 20, nameTextStyle: label },
    yAxis: { type: "category", data: course.loads.map((_, i) => i), inverse: true, axisLine: { show: false }, axisTick: { show: false }, axisLabel: { ...label, interval: every(view.n_layers, 9) }, name: "layer", nameLocation: "middle", nameGap: 28, nameTextStyle: label },
    visualMap: { show: false, min: 1 - reach, max: 1 + reach, dimension: 2, inRange: { color: [color("stage-0"), color("soft"), color("bad")] } },
    tooltip: { ...shared.tooltip, formatter: (one) => tip(`layer ${one.value[1]}, GPU ${one.value[0]}`, [["load over mean", one.value[2].toFixed(3)]]) },
    series: [{ type: "heatmap", data: cells, itemStyle: { borderColor: color("paper"), borderWidth: view.n_gpus > 64 ? 0 : 1 }, emphasis: { itemStyle: { borderColor: color("ink"), borderWidth: 1.5 } } }],
  };
}

function trafficOption(view, moved) {
  const shared = base();
  const at = [...new Set(moved.flatMap((one) => one.moves.map((move) => move.batch)))].sort((a, b) => a - b);
  return {
    ...shared,
    grid: { left: 46, right: 12, top: 10, bottom: 40 },
    xAxis: axes({ type: "category", data: at.map((i) => `before batch ${i + 1}`), splitLine: { show: false }, axisLine: { show: true, lineStyle: { color: color("rule-strong") } } }),
    yAxis: axes({ type: "value", min: 0, max: 1, interval: 0.25, axisLabel: { color: color("ink-2"), fontSize: 12, formatter: (x) => `${100 * x} %` } }),
    tooltip: { ...shared.tooltip, trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: color("soft"), opacity: 0.6 } }, formatter: (rows) => tip(rows[0].name, rows.map((row) => [row.seriesName, `${(100 * row.value).toFixed(1)} % of the slots`])) },
    series: moved.map((one) => ({
      type: "bar", name: one.name, barMaxWidth: 22, barGap: "15%", itemStyle: { color: color(hue(one)), borderRadius: [2.5, 2.5, 0, 0] },
      data: at.map((i) => one.moves.find((move) => move.batch === i)?.moved_share ?? 0),
    })),
  };
}

function foot(view) {
  return el("footer", {}, el("span", {}, `evenload ${view.version}`), el("span", {}, "Imbalance: the busiest GPU's load over the mean, for each unit of speed. The bound is relaxed: no placement into these slots and no routing can be below it."));
}

startTheme();
render(JSON.parse(document.getElementById("view").textContent));
