// What hand and keyboard do on the timeline. Drag selects a span to look at; a wheel with Ctrl, or two fingers,
// zoom; sideways scrolling moves; the arrow keys walk from slice to slice.

class Tip {
  constructor() {
    this.node = el("div", { class: "tip", role: "tooltip", hidden: true });
    document.body.append(this.node);
  }
  show(x, y, content) {
    this.node.replaceChildren(...content);
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    this.node.style.left = `${Math.max(8, Math.min(x + 14, window.innerWidth - box.width - 8))}px`;
    this.node.style.top = `${y + 18 + box.height > window.innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
  }
  hide() {
    this.node.hidden = true;
  }
}

TimelineView.prototype.listen = function () {
  const on = (target, name, act, options) => target.addEventListener(name, act.bind(this), options);
  on(this.canvas, "pointerdown", this.pressed);
  on(this.canvas, "pointermove", this.moved);
  on(this.canvas, "pointerup", this.released);
  on(this.canvas, "pointercancel", this.released);
  on(this.canvas, "pointerleave", () => this.tip.hide());
  on(this.canvas, "dblclick", () => this.show(0, this.end));
  on(this.canvas, "wheel", this.wheeled, { passive: false });
  on(this.canvas, "keydown", this.typed);
  on(this.canvas, "blur", () => {
    this.selected = this.sought = null;
    this.tip.hide();
    this.draw();
  });
  on(this.overview, "pointerdown", this.overviewPressed);
};

TimelineView.prototype.at = function (event) {
  const box = this.canvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top - AXIS) / (this.height + this.gap));
  return { x: event.clientX - box.left, row };
};

TimelineView.prototype.pressed = function (event) {
  if (event.button) return;
  const { x } = this.at(event);
  this.pointers.set(event.pointerId, x);
  this.canvas.setPointerCapture(event.pointerId);
  this.drag = { x, view: { ...this.view }, isTouch: event.pointerType === "touch", isPan: event.shiftKey };
  this.tip.hide();
};

TimelineView.prototype.moved = function (event) {
  const { x, row } = this.at(event);
  if (this.pointers.size === 2 && this.pointers.has(event.pointerId)) return this.pinched(event.pointerId, x);
  this.pointers.has(event.pointerId) && this.pointers.set(event.pointerId, x);
  if (!this.drag) return this.hover(event, x, row);
  const { view } = this.drag;
  if (this.drag.isTouch || this.drag.isPan) {
    const shift = ((this.drag.x - x) / this.plot) * (view.to - view.from);
    return this.show(view.from + shift, view.to + shift);
  }
  this.drawRows();
  const pen = this.canvas.getContext("2d");
  pen.fillStyle = color("accent");
  pen.globalAlpha = 0.16;
  pen.fillRect(Math.min(this.drag.x, x), AXIS - 4, Math.abs(x - this.drag.x), this.canvas.clientHeight);
  pen.globalAlpha = 1;
};

TimelineView.prototype.released = function (event) {
  const { x, row } = this.at(event);
  this.pointers.delete(event.pointerId);
  const drag = this.drag;
  this.drag = null;
  if (!drag || drag.isPan) return;
  if (Math.abs(x - drag.x) > 5 && !drag.isTouch) {
    const [a, b] = [this.t(Math.min(x, drag.x)), this.t(Math.max(x, drag.x))];
    this.show(Math.max(0, a), Math.min(this.end, b));
  } else if (drag.isTouch) this.hover(event, x, row);
};

TimelineView.prototype.pinched = function (id, x) {
  const [other] = [...this.pointers].filter(([one]) => one !== id).map(([, at]) => at);
  const before = Math.abs(this.pointers.get(id) - other);
  const now = Math.abs(x - other);
  this.pointers.set(id, x);
  this.drag = null;
  if (before > 8 && now > 8) this.zoom(before / now, this.t((x + other) / 2));
};

TimelineView.prototype.wheeled = function (event) {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150), this.t(this.at(event).x));
  } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !this.isWhole()) {
    event.preventDefault();
    this.pan((event.deltaX / this.plot) * (this.view.to - this.view.from));
  }
};

TimelineView.prototype.hover = function (event, x, row) {
  this.retell = () => this.hover(event, x, row);
  const track = this.model.tracks[row];
  if (!track || x < this.gutter) return this.tip.hide();
  const second = (this.view.to - this.view.from) / this.plot;
  const mark = this.model.marks.find((one) => one.device === track.device && one.lane === track.lane && Math.abs(one.t - this.t(x)) < 4 * second);
  const i = sliceAt(track, this.t(x), 1.5 * second);
  if (i < 0 && !mark) return this.tip.hide();
  this.tip.show(event.clientX, event.clientY, [...(mark ? [el("strong", { class: "bad" }, mark.text)] : []), ...(i < 0 ? [] : describe(this.model, track, i))]);
};

function describe(model, track, i) {
  const status = model.statuses[track.status[i]];
  const length = track.stop[i] - track.start[i];
  const pairs = [["from", `${time(track.start[i])}, for ${time(length)}`]];
  let title = status === "balance" ? "nothing to do (balance)" : status;
  if (track.stage[i] >= 0) {
    const name = track.n_items[i] === 1 && model.names.get(`${model.stages[track.stage[i]]}\n${track.index[i]}`);
    title = `${model.stages[track.stage[i]]} · ${name || itemsText(track.index[i], track.n_chunks[i] > 1 ? 1 : track.n_items[i])}`;
    if (!track.n_items[i]) title = model.stages[track.stage[i]];
    else if (track.n_chunks[i] > 1) {
      title = model.stages[track.stage[i]];
      pairs.push(["merged", `${plural(track.n_chunks[i], "chunk")}, ${plural(track.n_items[i], "item")}`]);
    }
    if (track.busy[i] && track.busy[i] < length * 0.995) pairs.push(["in the task", time(track.busy[i])]);
    if (track.idle[i]) pairs.push(["waits, or not known", time(track.idle[i] / 1e6)]);
    if (status !== "ok") pairs.push(["result", status]);
  }
  pairs.push(["on", track.label]);
  if (track.why[i]) pairs.push(["why", model.reasons[track.why[i]]]);
  return [el("strong", {}, title), el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))];
}

TimelineView.prototype.typed = function (event) {
  const span = this.view.to - this.view.from;
  const acts = {
    "+": () => this.zoom(0.6),
    "=": () => this.zoom(0.6),
    "-": () => this.zoom(1 / 0.6),
    0: () => this.show(0, this.end),
    Home: () => this.show(0, this.end),
    Escape: () => this.show(0, this.end),
    ArrowLeft: () => (event.shiftKey ? this.pan(-span / 5) : this.walk(0, -1)),
    ArrowRight: () => (event.shiftKey ? this.pan(span / 5) : this.walk(0, 1)),
    ArrowUp: () => this.walk(-1, 0),
    ArrowDown: () => this.walk(1, 0),
  };
  if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  acts[event.key]();
};

TimelineView.prototype.walk = function (rows, slices) {
  const { tracks } = this.model;
  let { row, i } = this.selected || { row: 0, i: firstFrom(tracks[0], this.view.from) - slices };
  if (rows) {
    const middle = this.selected ? (tracks[row].start[i] + tracks[row].stop[i]) / 2 : this.view.from;
    row = Math.max(0, Math.min(tracks.length - 1, row + rows));
    i = Math.min(tracks[row].n - 1, Math.max(0, firstFrom(tracks[row], middle) + 7));
    while (i > 0 && tracks[row].start[i] > middle) i--;
  } else i = Math.max(0, Math.min(tracks[row].n - 1, i + slices));
  const track = tracks[row];
  if (!track.n) return;
  this.selected = { row, i };
  this.sought = { device: track.device, lane: track.lane, start: track.start[i], stop: track.stop[i] };
  if (track.start[i] < this.view.from || track.stop[i] > this.view.to) {
    const span = this.view.to - this.view.from;
    this.show(track.start[i] - span / 4, track.start[i] + (span * 3) / 4);
  }
  this.draw();
  this.tell();
};

// What the selected slice is, shown and spoken.
TimelineView.prototype.tell = function () {
  this.retell = () => this.tell();
  if (!this.selected) return; // the stretch that it is in comes yet
  const { row, i } = this.selected;
  const track = this.model.tracks[row];
  const box = this.canvas.getBoundingClientRect();
  const content = describe(this.model, track, i);
  this.tip.show(box.left + Math.max(this.gutter, this.x(track.start[i])), box.top + this.y(row) + this.height, content);
  const words = content.map((one) => [...one.childNodes].map((node) => node.textContent).join(" ")).join(", ");
  if (this.spoken.textContent !== words) this.spoken.textContent = words; // the same words are not said again
};

TimelineView.prototype.overviewPressed = function (event) {
  const box = this.overview.getBoundingClientRect();
  const at = (one) => ((one.clientX - box.left - this.gutter) / this.plot) * this.end;
  const began = at(event);
  const { from, to } = this.view;
  const near = (6 / this.plot) * this.end;
  const grip = this.isWhole() ? "new" : Math.abs(began - from) < near ? "from" : Math.abs(began - to) < near ? "to" : began > from && began < to ? "move" : "new";
  this.overview.setPointerCapture(event.pointerId);
  const move = (one) => {
    const now = at(one);
    if (grip === "move") this.show(from + now - began, to + now - began);
    else if (grip === "from") this.show(Math.max(0, Math.min(now, to)), to);
    else if (grip === "to") this.show(from, Math.min(this.end, Math.max(now, from)));
    else if (Math.abs(now - began) > near / 2) this.show(Math.max(0, Math.min(began, now)), Math.min(this.end, Math.max(began, now)));
  };
  const stop = () => {
    this.overview.removeEventListener("pointermove", move);
    this.overview.removeEventListener("pointerup", stop);
    this.overview.removeEventListener("pointercancel", stop);
  };
  this.overview.addEventListener("pointermove", move);
  this.overview.addEventListener("pointerup", stop);
  this.overview.addEventListener("pointercancel", stop);
};
