// The pictures: before and after under one divider, sorted by any of their numbers or by group, one group or all.

const FIRST_SHOWN = 12;
// How a person sorted the pictures; kept when new ones come.
const galleryOrder = { by: null, isDown: false, isAll: false, group: "", open: null };
// Cards that stay the same stay: their pictures are not fetched again, nor their dividers put back.
const galleryCards = new Map();

function galleryPart(view) {
  const { gallery } = view;
  if (!gallery.items.length && !gallery.n_problems) return null;
  const names = [...new Set(gallery.items.flatMap((one) => Object.keys(one.numbers)))];
  const state = galleryOrder;
  const grid = el("div", { class: "gallery" });
  const viewer = new Viewer(view);
  const cards = new Map(gallery.items.map((one) => [one, cardOf(one, view, names)]));
  const groups = [...new Set(gallery.items.map((one) => one.group).filter(Boolean))].sort();
  if (!groups.includes(state.group)) state.group = "";
  if (state.by === null && names.includes(gallery.first)) Object.assign(state, { by: gallery.first, isDown: true });
  const sorted = () => {
    const mine = gallery.items.filter((one) => !state.group || one.group === state.group);
    const by = state.by ?? "order";
    if (by === "group") return mine.sort((a, b) => (state.isDown ? -1 : 1) * (a.group ?? "").localeCompare(b.group ?? "") || a.index - b.index);
    const value = (one) => (by === "order" ? one.index : (one.numbers[by] ?? Number.NEGATIVE_INFINITY));
    return mine.sort((a, b) => (state.isDown ? value(b) - value(a) : value(a) - value(b)) || a.index - b.index);
  };
  state.open = (one) => viewer.open(one, sorted());
  const more = el("button", { class: "button more", type: "button" }, `Show all ${gallery.items.length}`);
  more.hidden = state.isAll || gallery.items.length <= FIRST_SHOWN;
  more.addEventListener("click", () => {
    more.hidden = state.isAll = true;
    redraw();
  });
  const redraw = () => grid.replaceChildren(...sorted().slice(0, more.hidden ? undefined : FIRST_SHOWN).map((one) => cards.get(one)));
  const choose = el("select", { "aria-label": "Sort pictures by" }, el("option", { value: "order" }, "input order"), groups.length > 0 && el("option", { value: "group" }, "group"), names.map((name) => el("option", { value: name }, measure(name, 0).label)));
  const by = ["order", groups.length > 0 ? "group" : "order", ...names].includes(state.by) ? state.by : "order";
  const only = groups.length > 0 && el("select", { "aria-label": "Group of pictures" }, el("option", { value: "" }, "all groups"), groups.map((name) => el("option", { value: name }, name)));
  if (only) {
    only.value = state.group;
    only.addEventListener("change", () => {
      state.group = only.value;
      redraw();
    });
  }
  choose.value = by;
  choose.addEventListener("change", () => {
    state.by = choose.value;
    redraw();
  });
  const turn = el("button", { class: "button icon", type: "button", "aria-label": "Turn the order round", title: "Turn the order round" }, state.isDown ? "↓" : "↑");
  turn.addEventListener("click", () => {
    state.isDown = !state.isDown;
    turn.textContent = state.isDown ? "↓" : "↑";
    redraw();
  });
  redraw();
  const shown = gallery.items.length < gallery.n_items ? `${gallery.items.length} of ${whole(gallery.n_items)}, evenly over the scores` : "";
  const problems = gallery.n_problems ? el("p", { class: "small quiet", style: { "margin-top": "14px" } }, `Not shown: ${gallery.problems.join("; ")}${gallery.n_problems > gallery.problems.length ? "; and others" : ""}.`) : null;
  return part("pictures", "Pictures", [el("span", { class: "quiet small" }, shown), only, choose, turn], grid, more, problems);
}

function cardOf(one, view, names) {
  const shown = JSON.stringify([one, names]);
  const kept = galleryCards.get(one.item);
  if (kept?.shown === shown) return kept.node;
  const node = card(one, view, names, () => galleryOrder.open(one));
  galleryCards.set(one.item, { shown, node });
  return node;
}

function card(one, view, names, open) {
  const grow = el("button", { class: "grow", type: "button", "aria-label": `Enlarge ${one.item}`, title: "Enlarge" }, "⤢");
  grow.addEventListener("click", open);
  const frame = compare(one, 50);
  frame.append(grow);
  const [first, ...rest] = names.filter((name) => name in one.numbers).sort((a, b) => (b === view.gallery.sort) - (a === view.gallery.sort));
  const lead = first ? measure(first, one.numbers[first]) : null;
  return el(
    "figure",
    { class: "card" },
    frame,
    el("figcaption", {}, el("span", { class: "who", title: one.item }, one.item), one.group && el("span", { class: "quiet small" }, one.group), lead && el("span", { class: "score", title: lead.label }, lead.text)),
    rest.length > 0 && el("div", { class: "rest" }, rest.slice(0, 3).map((name) => measure(name, one.numbers[name])).map((m) => `${m.label} ${m.text}`).join(" · ")),
  );
}

// A frame with the first picture under the last one; the divider is a range input, so keys move it as well.
function compare(one, split) {
  const before = one.pictures[0];
  const after = one.pictures.at(-1);
  const ratio = after.width && after.height ? `${after.width} / ${after.height}` : "1";
  const frame = el("div", { class: "compare", style: { "--ratio": ratio, "--split": `${split}%` } });
  if (one.pictures.length < 2) {
    frame.append(el("img", { src: after.src, alt: one.item, loading: "lazy" }));
    return frame;
  }
  const slide = el("input", { type: "range", min: "0", max: "100", step: "1", value: String(split), "aria-label": `${before.label} and ${after.label} of ${one.item}` });
  slide.addEventListener("input", () => frame.style.setProperty("--split", `${slide.value}%`));
  frame.append(
    el("img", { src: before.src, alt: `${before.label}: ${one.item}`, loading: "lazy" }),
    el("img", { class: "after", src: after.src, alt: `${after.label}: ${one.item}`, loading: "lazy" }),
    el("div", { class: "line" }),
    el("span", { class: "tag b" }, before.label),
    el("span", { class: "tag a" }, after.label),
    slide,
  );
  return frame;
}

// One picture large, with its neighbours a key away.
class Viewer {
  constructor(view) {
    this.view = view;
    // One for the page, however often the gallery is made anew.
    this.dialog = document.querySelector("dialog.viewer");
    if (this.dialog) return;
    this.dialog = el("dialog", { class: "viewer", "aria-label": "Picture" });
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    document.body.append(this.dialog);
  }

  open(one, items) {
    this.items = items;
    this.draw(items.findIndex((other) => other.item === one.item));
    this.dialog.showModal();
  }

  draw(i) {
    const one = this.items[(i + this.items.length) % this.items.length];
    const at = this.items.indexOf(one);
    const button = (label, text, act) => {
      const made = el("button", { class: "button icon", type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", act);
      return made;
    };
    const after = one.pictures.at(-1);
    const numbers = Object.entries(one.numbers).map(([name, value]) => measure(name, value)).map((m) => `${m.label} ${m.text}`).join(" · ");
    const links = this.view.links ? one.pictures.map((picture) => [" ", el("a", { href: `./${picture.link.split("/").map(encodeURIComponent).join("/")}`, target: "_blank", rel: "noopener" }, picture.label)]) : [];
    const stage = el("div", { class: "stage", style: { "--ratio": after.width && after.height ? String(after.width / after.height) : "1" } }, compare(one, 50));
    this.dialog.replaceChildren(
      stage,
      el("div", { class: "bar" }, el("div", { class: "who" }, el("strong", {}, one.item), el("div", { class: "small quiet" }, numbers, links.length ? [numbers ? " · files:" : "files:", links] : "")), button("Previous", "←", () => this.draw(at - 1)), button("Next", "→", () => this.draw(at + 1)), button("Close", "✕", () => this.dialog.close())),
    );
  }
}
