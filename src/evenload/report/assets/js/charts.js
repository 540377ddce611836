// Load, imbalance, throughput and telemetry over time: ECharts, on the timeline's own axis.

const MANY_DEVICES = 24;

function chartParts(view) {
  const { load } = view;
  const middle = (i) => (i + 0.5) * load.width_s;
  const devices = Object.keys(load.busy);
  const points = (values) => values.map((value, i) => [middle(i), value]);
  const parts = [];
  const n_workers = view.summary.devices.reduce((n, one) => n + one.n_workers, 0);
  if (devices.length) {
    const rows = devices.length > MANY_DEVICES ? { "all devices": totalLoad(load) } : load.busy;
    parts.push({
      id: "busy",
      title: ["Workers at work", `of ${n_workers}; each band is a device`],
      height: 116,
      min: 0,
      max: n_workers,
      interval: n_workers % 2 ? n_workers : n_workers / 2,
      series: Object.entries(rows).map(([name, values], i, all) => ({
        name,
        points: points(values),
        band: all.length === 1 ? 0.6 : 0.38 + (0.44 * (i % 3)) / 2,
      })),
      text: (value) => percent(value),
    });
  }
  if (devices.length > 1) {
    const cap = Math.min(devices.length, 4);
    parts.push({
      id: "imbalance",
      title: ["Imbalance", "busiest over mean; 1 is even"],
      height: 84,
      min: 1,
      max: cap,
      interval: cap > 2 ? cap - 1 : 1,
      series: [{ name: "imbalance", points: points(load.imbalance), line: "ink" }],
      text: (value) => figures(value),
    });
  }
  parts.push({
    id: "rate",
    title: ["Items per second", "as they came back"],
    height: 84,
    min: 0,
    series: [{ name: "items/s", points: points(smooth(load.items_per_s)), line: "ink-2" }],
    text: (value) => figures(value),
  });
  const queues = Object.entries(load.waiting).map(([name, values]) => ({ name, points: points(values).filter(([, value]) => value !== null) }));
  const drawn = queues.filter((one) => one.points.length > 1);
  const ink = (name) => (drawn.length > 1 ? `stage-${Math.max(0, view.timeline.stages.indexOf(name)) % 6}` : "ink-2");
  if (drawn.length) parts.push({ id: "waiting", title: ["Items waiting", drawn.length > 1 ? "before each stage, begun by no device" : "not begun by any device"], height: 84, min: 0, series: drawn.map((one) => ({ ...one, line: ink(one.name) })), text: (value) => figures(value) });
  return parts.concat(telemetryParts(load, middle));
}

function telemetryParts(load, middle) {
  const kinds = [
    ["utilization", "Utilisation, as the driver says", "anybody's kernels count", 1, percent],
    ["memory_bytes", "Memory in use", "", null, (value) => `${figures(value)} GiB`],
    ["temperature_c", "Temperature", "", null, (value) => `${figures(value)} °C`],
  ];
  return kinds.flatMap(([name, title, note, max, text]) => {
    const series = Object.entries(load.samples)
      .filter(([, rows]) => rows[name])
      .slice(0, 12)
      .map(([device, rows], i) => ({
        name: device,
        points: rows[name].map((value, k) => [middle(k), value === null ? null : value / (name === "memory_bytes" ? 2 ** 30 : 1)]).filter(([, value]) => value !== null),
        line: `stage-${i % 6}`,
      }));
    return series.length ? [{ id: name, title: [title, note], height: 84, min: name === "temperature_c" ? null : 0, max, series, text }] : [];
  });
}

function totalLoad(load) {
  return Array.from({ length: load.n }, (_, i) => Object.values(load.busy).reduce((sum, row) => sum + row[i], 0));
}

// Chunks come back in bursts; a short running mean shows the rate behind them.
function smooth(values, reach = Math.max(1, Math.round(values.length / 30))) {
  const sums = [0];
  for (const value of values) sums.push(sums.at(-1) + value);
  return values.map((_, i) => {
    const a = Math.max(0, i - reach);
    const b = Math.min(values.length, i + reach + 1);
    return (sums[b] - sums[a]) / (b - a);
  });
}

class Charts {
  constructor(host, view) {
    this.host = host;
    this.layout = { gutter: 60, width: 0 };
    this.end = Math.max(view.timeline.end_s, 1e-6);
    this.range = { from: 0, to: this.end };
    this.build(chartParts(view));
    onTheme(() => this.draw());
  }

  build(parts) {
    for (const one of this.charts || []) one.chart?.dispose();
    this.host.replaceChildren();
    this.charts = parts.map((one) => {
      const box = el("div", { class: "chart", role: "img", "aria-label": `${one.title[0]} over time` });
      box.style.height = `${one.height}px`;
      const made = { part: one, box, chart: null };
      box.addEventListener("pointerenter", () => {
        this.hovered = made;
      });
      const legend = one.series.length > 1 && one.series[0].line ? el("span", { class: "legend" }, one.series.map((s) => el("span", {}, swatch("", `var(--${s.line})`), s.name))) : null;
      this.host.append(el("div", { class: "chart-title" }, el("p", {}, el("b", {}, one.title[0]), one.title[1] && `, ${one.title[1]}`), legend), box);
      return made;
    });
  }

  // Later values of the same run; only other charts, or other lines in them, are built anew.
  update(view) {
    const parts = chartParts(view);
    const kind = (one) => [one.id, one.title, one.series.map((s) => s.name)];
    const isSame = JSON.stringify(parts.map(kind)) === JSON.stringify(this.charts.map((one) => kind(one.part)));
    this.end = Math.max(view.timeline.end_s, 1e-6);
    if (isSame) {
      parts.forEach((one, i) => {
        this.charts[i].part = one;
      });
      this.draw();
    } else {
      this.build(parts);
      if (this.layout.width) this.place(this.layout.gutter, this.layout.width);
    }
  }

  // Called by the timeline once it knows how wide its gutter is, and again whenever that changes.
  place(gutter, width) {
    this.layout = { gutter, width };
    for (const one of this.charts) {
      if (one.chart) one.chart.resize();
      else one.chart = echarts.init(one.box, null, { renderer: "canvas" });
    }
    this.draw();
    echarts.connect(this.charts.map((one) => Object.assign(one.chart, { group: "time" }) && one.chart));
  }

  show(range) {
    this.range = range;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const { from: min, to: max } = this.range;
      for (const one of this.charts) one.chart?.setOption({ xAxis: { min, max } });
    });
  }

  draw() {
    for (const one of this.charts) one.chart?.setOption(this.option(one), true);
  }

  option(made) {
    const { part } = made;
    const font = getComputedStyle(document.body).fontFamily;
    const { from: min, to: max } = this.range;
    return {
      animation: false,
      textStyle: { fontFamily: font },
      grid: { left: this.layout.gutter, right: RIGHT, top: 9, bottom: 8 },
      xAxis: {
        type: "value", min, max,
        axisLine: { show: true, onZero: false, lineStyle: { color: color("rule-strong"), width: 1 } },
        axisTick: { show: false }, axisLabel: { show: false }, splitLine: { show: false },
        axisPointer: { label: { show: false } },
      },
      yAxis: {
        type: "value", min: part.min ?? null, max: part.max ?? null, splitNumber: 2, interval: part.interval ?? null, scale: part.min === null,
        axisLine: { show: false }, axisTick: { show: false },
        axisLabel: { color: color("ink-2"), fontSize: 12, showMinLabel: true, formatter: (value) => axisText(part, value) },
        splitLine: { lineStyle: { color: color("rule"), width: 1 } },
      },
      tooltip: {
        trigger: "axis", confine: true, className: "chart-tip", padding: [9, 12], borderWidth: 0, backgroundColor: color("raised"),
        textStyle: { color: color("ink"), fontSize: 13, fontFamily: font },
        axisPointer: { type: "line", lineStyle: { color: color("ink-3"), width: 1, type: "solid" } },
        // The line moves in all charts at once, the numbers are those of the one under the pointer.
        formatter: (rows) => (this.hovered === made ? tipOf(part, rows) : ""),
      },
      series: part.series.map((one) => lineOf(one, part)),
    };
  }
}

function axisText(part, value) {
  if (part.id === "busy" || part.id === "imbalance") return Number.isInteger(value) ? value : "";
  return part.text(value).replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");
}

function lineOf(one, part) {
  const shared = { type: "line", name: clean(one.name), data: one.points, symbol: "none", sampling: "lttb", connectNulls: false };
  if (one.line) return { ...shared, clip: true, lineStyle: { width: 1.5, color: color(one.line) }, itemStyle: { color: color(one.line) } };
  return {
    ...shared, stack: part.id, step: "middle", sampling: null,
    lineStyle: { width: 0 }, itemStyle: { color: color("load") },
    areaStyle: { color: color("load"), opacity: one.band },
  };
}

function tipOf(part, rows) {
  const t = rows[0]?.value?.[0];
  const pairs = rows.filter((row) => row.value[1] !== null && row.value[1] !== undefined).map((row) => [el("dt", {}, row.seriesName), el("dd", {}, part.text(row.value[1]))]);
  return el("div", {}, el("strong", {}, `at ${time(t)}`), el("dl", {}, pairs));
}
