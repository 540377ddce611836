// The timeline on a canvas: a row per worker slot. Only what is in view is drawn, and slices too narrow to be
// seen are drawn together, so a hundred thousand of them move without a stutter.

const RIGHT = 14;
const AXIS = 24;

class TimelineView {
  constructor(host, model, listeners) {
    Object.assign(this, { host, model, listeners });
    this.end = Math.max(model.end_s, 1e-6);
    this.view = { from: 0, to: this.end };
    this.selected = null; // where the slice that a person is at is in the model, null while it is not
    this.sought = null; // the device, lane and times of that slice
    this.pointers = new Map();
    const label = `Timeline: ${plural(model.tracks.length, "row")}, ${time(this.end)}. Arrow keys walk, plus and minus zoom, 0 shows all.`;
    this.canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.overview = el("canvas", { class: "overview", "aria-hidden": "true" });
    this.spoken = el("div", { class: "live", "aria-live": "polite" });
    host.append(el("div", { class: "rows" }, this.canvas), this.overview, this.spoken);
    this.tip = new Tip();
    this.listen();
    onTheme(() => this.draw());
    new ResizeObserver(() => this.resize()).observe(host);
    this.resize();
  }

  get height() {
    const n = this.model.tracks.length;
    return n <= 10 ? 28 : n <= 24 ? 20 : n <= 64 ? 13 : 8;
  }
  get gap() {
    return this.height > 14 ? 7 : this.height > 9 ? 3 : 2;
  }

  resize() {
    const width = this.host.clientWidth;
    if (!width) return;
    this.width = width;
    this.gutter = gutterOf(this.model.tracks, width);
    this.plot = width - this.gutter - RIGHT;
    fit(this.canvas, width, AXIS + this.model.tracks.length * (this.height + this.gap) + 2);
    fit(this.overview, width, 38);
    // A canvas of a new size is empty: it is drawn at once, not with the next frame.
    this.drawRows();
    this.drawOverview();
    this.listeners.layout(this);
  }

  // Another model of the same run, later on: who sees all of it goes on doing so, who follows its end as well.
  setModel(model) {
    const wasWhole = this.isWhole();
    const wasLast = !wasWhole && this.view.to > this.end * 0.9999;
    const labels = (one) => one.tracks.map((track) => track.label).join("\n");
    const isSame = labels(model) === labels(this.model);
    this.selected = this.sought && found(model, this.sought);
    const grown = Math.max(model.end_s, 1e-6) - this.end;
    this.model = model;
    this.end += grown;
    if (!this.drag) {
      if (wasWhole) this.view = { from: 0, to: this.end };
      else if (wasLast) this.view = { from: this.view.from + grown, to: this.view.to + grown };
    }
    this.listeners.view(this.view, this.isWhole());
    if (isSame) this.draw();
    else this.resize();
    // What is told of a slice was known from the old model: merged chunks may be single ones by now.
    if (!this.tip.node.hidden) this.retell();
  }

  x(t) {
    return this.gutter + ((t - this.view.from) / (this.view.to - this.view.from)) * this.plot;
  }
  t(x) {
    return this.view.from + ((x - this.gutter) / this.plot) * (this.view.to - this.view.from);
  }
  y(row) {
    return AXIS + row * (this.height + this.gap);
  }

  show(from, to) {
    const shortest = Math.max(1e-5, this.end * 1e-7);
    let span = Math.min(this.end, Math.max(shortest, to - from));
    const middle = (from + to) / 2;
    from = Math.max(0, Math.min(this.end - span, to - from < shortest ? middle - span / 2 : from));
    this.view = { from, to: from + span };
    this.draw();
    this.listeners.view(this.view, this.isWhole());
  }
  isWhole() {
    return this.view.to - this.view.from > this.end * 0.9999;
  }
  zoom(factor, at = (this.view.from + this.view.to) / 2) {
    this.show(at - (at - this.view.from) * factor, at + (this.view.to - at) * factor);
  }
  pan(seconds) {
    this.show(this.view.from + seconds, this.view.to + seconds);
  }

  draw() {
    if (this.waiting || !this.width) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.drawRows();
      this.drawOverview();
    });
  }

  drawRows() {
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.width, this.canvas.clientHeight);
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    this.drawAxis(pen);
    this.patterns = makePatterns(pen);
    this.model.tracks.forEach((track, row) => {
      const y = this.y(row);
      if (this.height >= 11) {
        pen.fillStyle = color("ink");
        pen.textAlign = "left";
        pen.textBaseline = "middle";
        pen.fillText(elide(pen, clean(track.label), this.gutter - 12), 0, y + this.height / 2 + 0.5);
      }
      pen.fillStyle = color("soft");
      pen.fillRect(this.gutter, y, this.plot, this.height);
      pen.save();
      pen.beginPath();
      pen.rect(this.gutter, y, this.plot, this.height);
      pen.clip();
      this.drawTrack(pen, track, y);
      pen.restore();
    });
    this.drawMoves(pen);
    this.drawMarks(pen);
    this.drawSelection(pen);
  }

  // An arrow from the queue that gave to the one that took.
  drawMoves(pen) {
    const row = (device) => this.model.tracks.findIndex((one) => one.device === device);
    pen.lineWidth = 1.2;
    for (const move of this.model.moves) {
      const [a, b] = [row(move.source), row(move.target)];
      if (move.t < this.view.from || move.t > this.view.to || a < 0 || b < 0 || a === b) continue;
      const x = this.x(move.t);
      const middle = this.height / 2;
      const [y0, y1] = [this.y(a) + middle, this.y(b) + middle];
      const turn = Math.sign(y1 - y0);
      pen.strokeStyle = pen.fillStyle = color("ink");
      pen.beginPath();
      pen.moveTo(x, y0);
      pen.lineTo(x, y1 - 5 * turn);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(x - 3.5, y1 - 6 * turn);
      pen.lineTo(x + 3.5, y1 - 6 * turn);
      pen.lineTo(x, y1);
      pen.closePath();
      pen.fill();
    }
  }

  drawAxis(pen) {
    const step = niceStep(((this.view.to - this.view.from) * 96) / this.plot);
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    for (let i = Math.ceil(this.view.from / step - 1e-9); i * step <= this.view.to * (1 + 1e-12); i++) {
      const x = Math.round(this.x(i * step)) + 0.5;
      pen.fillStyle = color("rule");
      pen.fillRect(x - 0.5, AXIS - 6, 1, this.canvas.clientHeight);
      const text = moment(i * step, step);
      const half = pen.measureText(text).width / 2;
      pen.fillStyle = color("ink-2");
      pen.fillText(text, Math.max(this.gutter + half, Math.min(this.gutter + this.plot + RIGHT - half, x)), AXIS - 11);
    }
  }

  drawTrack(pen, track, y) {
    const { from, to } = this.view;
    const narrow = { kind: -1, x0: 0, x1: 0, cover: 0, i: 0 };
    for (let i = firstFrom(track, from); i < track.n && track.start[i] <= to; i++) {
      if (track.stop[i] < from) continue;
      const x0 = this.x(track.start[i]);
      const x1 = this.x(track.stop[i]);
      const kind = track.status[i] * 256 + track.stage[i];
      if (x1 - x0 >= 1.6) {
        this.flush(pen, track, narrow, y);
        this.drawSlice(pen, track, i, Math.max(x0, this.gutter - 4), Math.min(x1, this.width + 4), y);
      } else if (narrow.kind === kind && x0 - narrow.x1 < 1.2) {
        narrow.x1 = Math.max(narrow.x1, x1);
        narrow.cover += (x1 - x0) * cover(track, i);
      } else {
        this.flush(pen, track, narrow, y);
        Object.assign(narrow, { kind, x0, x1, cover: (x1 - x0) * cover(track, i), i });
      }
    }
    this.flush(pen, track, narrow, y);
  }

  flush(pen, track, narrow, y) {
    if (narrow.kind < 0) return;
    const width = Math.max(1, narrow.x1 - narrow.x0);
    pen.globalAlpha = Math.max(0.5, Math.min(1, narrow.cover / width));
    this.ink(pen, track, narrow.i);
    pen.fillRect(narrow.x0, y, width, this.height);
    pen.globalAlpha = 1;
    narrow.kind = -1;
  }

  drawSlice(pen, track, i, x0, x1, y) {
    const status = this.model.statuses[track.status[i]];
    const gap = x1 - x0 > 4 && track.n_chunks[i] === 1 ? 0.5 : 0;
    const width = x1 - x0 - 2 * gap;
    this.ink(pen, track, i);
    pen.globalAlpha = track.n_chunks[i] > 1 ? Math.max(0.5, cover(track, i)) : 1;
    if (status === "superseded" && width > 4) {
      pen.lineWidth = 1.2;
      pen.strokeStyle = stageColor(track.stage[i]);
      pen.strokeRect(x0 + gap + 0.6, y + 0.6, width - 1.2, this.height - 1.2);
    } else {
      pen.beginPath();
      pen.roundRect(x0 + gap, y, width, this.height, width > 8 && this.height > 12 ? 2.5 : 0);
      pen.fill();
    }
    pen.globalAlpha = 1;
    // When it waited nobody told: the share of it, from above.
    const idle = ((track.idle[i] ?? 0) / 1e6 / Math.max(1e-9, track.stop[i] - track.start[i])) * this.height;
    if (idle >= 2 && width > 2) {
      pen.fillStyle = this.patterns.waiting;
      pen.fillRect(x0 + gap + 0.6, y + 0.6, width - 1.2, Math.min(this.height, idle) - 1.2);
    }
    if (this.height >= 16 && width > 26) this.drawLabel(pen, track, i, status, x0, x1, y);
  }

  drawLabel(pen, track, i, status, x0, x1, y) {
    let text = "";
    if (status === "start-up") text = track.why[i] ? this.model.reasons[track.why[i]] : status;
    else if (status === "waiting" || status === "balance") text = "";
    else if (track.n_chunks[i] === 1 && !track.n_items[i]) text = this.model.stages[track.stage[i]] ?? "";
    else if (track.n_chunks[i] === 1 && track.index[i] < 0) text = `${track.n_items[i]} items`;
    else if (track.n_chunks[i] === 1) text = track.n_items[i] > 1 ? `${track.index[i]}–${track.index[i] + track.n_items[i] - 1}` : `${track.index[i]}`;
    if (status === "failed") text = `✕ ${text}`;
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    if (text && pen.measureText(text).width < x1 - x0 - 9) {
      const isPale = status === "start-up" || status === "superseded" || (track.idle[i] ?? 0) / 1e6 > (track.stop[i] - track.start[i]) / 4;
      pen.fillStyle = isPale ? color("ink-2") : color("on-stage");
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.fillText(text, Math.max(x0, this.gutter) + 5, y + this.height / 2 + 0.5);
    }
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  }

  ink(pen, track, i) {
    const status = this.model.statuses[track.status[i]];
    if (status === "ok" || status === "superseded") pen.fillStyle = stageColor(track.stage[i]);
    else if (status === "failed") pen.fillStyle = color("bad");
    else if (status === "lost") pen.fillStyle = color("ink");
    else if (status === "start-up") pen.fillStyle = color("rule-strong");
    else pen.fillStyle = this.patterns[status];
  }

  // Failures and lost workers: a wedge over the row, wide enough to be seen at every zoom.
  drawMarks(pen) {
    for (const mark of this.model.marks) {
      if (mark.t < this.view.from || mark.t > this.view.to) continue;
      const row = Math.max(0, this.model.tracks.findIndex((one) => one.device === mark.device && one.lane === mark.lane));
      const x = this.x(mark.t);
      const y = this.y(row) - 1;
      pen.beginPath();
      pen.moveTo(x - 4.5, y - 4);
      pen.lineTo(x + 4.5, y - 4);
      pen.lineTo(x, y + 4);
      pen.closePath();
      pen.fillStyle = mark.kind === "lost" ? color("ink") : color("bad");
      pen.strokeStyle = color("paper");
      pen.lineWidth = 1.5;
      pen.stroke();
      pen.fill();
    }
  }

  drawSelection(pen) {
    if (!this.selected) return;
    const { row, i } = this.selected;
    const track = this.model.tracks[row];
    const x0 = Math.max(this.gutter, this.x(track.start[i]));
    const x1 = Math.min(this.gutter + this.plot, this.x(track.stop[i]));
    pen.lineWidth = 2;
    pen.strokeStyle = color("ink");
    pen.strokeRect(x0 - 1, this.y(row) - 1, Math.max(3, x1 - x0 + 2), this.height + 2);
  }

  drawOverview() {
    const pen = this.overview.getContext("2d");
    const [top, height] = [6, 24];
    pen.clearRect(0, 0, this.width, 38);
    pen.fillStyle = color("soft");
    pen.fillRect(this.gutter, top, this.plot, height);
    const { width_s, total, most } = this.model.load;
    pen.beginPath();
    pen.moveTo(this.gutter, top + height);
    for (let i = 0; i < total.length; i++) {
      const y = top + height - (Math.min(most, total[i]) / most) * (height - 2);
      pen.lineTo(this.gutter + ((i * width_s) / this.end) * this.plot, y);
      pen.lineTo(this.gutter + (Math.min(this.end, (i + 1) * width_s) / this.end) * this.plot, y);
    }
    pen.lineTo(this.gutter + (Math.min(this.end, total.length * width_s) / this.end) * this.plot, top + height);
    pen.fillStyle = color("load");
    pen.globalAlpha = 0.6;
    pen.fill();
    pen.globalAlpha = 1;
    const a = this.gutter + (this.view.from / this.end) * this.plot;
    const b = Math.max(a + 2, this.gutter + (this.view.to / this.end) * this.plot);
    pen.fillStyle = color("paper");
    pen.globalAlpha = 0.65;
    pen.fillRect(this.gutter, top, a - this.gutter, height);
    pen.fillRect(b, top, this.gutter + this.plot - b, height);
    pen.globalAlpha = 1;
    if (this.isWhole()) return;
    pen.strokeStyle = color("ink-2");
    pen.lineWidth = 1.5;
    pen.strokeRect(a, top - 0.5, b - a, height + 1);
  }
}

// Where a slice is in a model, null if it is not: a stretch of the run may not reach there. Chunks that were
// merged may have a gap in the middle: then one of them is taken.
function found(model, { device, lane, start, stop }) {
  const row = model.tracks.findIndex((one) => one.device === device && one.lane === lane);
  if (row < 0) return null;
  const at = [0, (stop - start) * 0.499].map((slack) => sliceAt(model.tracks[row], (start + stop) / 2, slack)).find((one) => one >= 0);
  return at === undefined ? null : { row, i: at };
}

function gutterOf(tracks, width) {
  const longest = Math.max(...tracks.map((one) => one.label.length), 4);
  return Math.min(Math.round(longest * 7.4) + 16, width < 600 ? 74 : 170);
}

function cover(track, i) {
  return track.n_chunks[i] > 1 ? Math.min(1, track.busy[i] / Math.max(1e-9, track.stop[i] - track.start[i])) : 1;
}

function fit(canvas, width, height) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
}

function elide(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  while (text.length > 1 && pen.measureText(`${text}…`).width > width) text = text.slice(0, -1);
  return `${text}…`;
}

function makePatterns(pen) {
  return { waiting: hatched(pen, 1), balance: hatched(pen, -1) };
}

// `way`: 1 for lines that rise, -1 for lines that fall.
function hatched(pen, way) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 12;
  const ink = tile.getContext("2d");
  ink.fillStyle = color("soft");
  ink.fillRect(0, 0, 12, 12);
  ink.strokeStyle = color("rule-strong");
  ink.lineWidth = 1.6;
  for (const shift of [-12, -6, 0, 6, 12]) {
    ink.beginPath();
    ink.moveTo(shift - 2, 14);
    ink.lineTo(shift + 14, -2);
    ink.stroke();
  }
  const pattern = pen.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(0.66 * way, 0.66));
  return pattern;
}
