// What a page has wrong, computed from its styles: scripts/site_screenshots.py has a browser evaluate it.
// Contrast by WCAG 2.2: 4.5 for text, 3 for large text.
() => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  const seen = (node) => {
    const box = node.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && node.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  };
  const name = (node) => {
    const kinds = typeof node.className === "string" ? node.className.trim().split(/\s+/).filter(Boolean) : [];
    return `${[node.tagName.toLowerCase(), ...kinds].join(".")} ${JSON.stringify((node.textContent || "").trim().slice(0, 50))}`;
  };
  const above = (node) => {
    const found = [];
    for (let up = node; up; up = up.parentElement) found.push(up);
    return found;
  };
  const scrolls = (node) => above(node.parentElement).some((up) => up !== document.body && up !== document.documentElement && getComputedStyle(up).overflowX !== "visible");

  const whole = document.documentElement.scrollWidth;
  if (whole > width + 1) faults.push(`the page is ${whole} px wide in a window of ${width}`);
  for (const node of document.querySelectorAll(".md-container *, .md-header *")) {
    const box = node.getBoundingClientRect();
    if (box.right > width + 1 && box.left < width && seen(node) && !scrolls(node)) faults.push(`wider than the window: ${name(node)} ends at ${Math.round(box.right)}`);
  }

  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const colour = (text) => {
    if (!known.has(text)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = text;
      pen.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
      known.set(text, [r, g, b, a / 255]);
    }
    return known.get(text);
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const ground = (node) => above(node).map((up) => colour(getComputedStyle(up).backgroundColor)).reduceRight((under, top) => over(top, under), [255, 255, 255, 1]);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const told = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node || node.closest("script, style, .headerlink, [aria-hidden=true]") || !seen(node)) continue;
    const style = getComputedStyle(node);
    const back = ground(node);
    const shown = above(node).reduce((product, up) => product * Number(getComputedStyle(up).opacity), 1);
    const own = colour(node.closest("svg") ? style.fill : style.color);
    const front = over([...own.slice(0, 3), own[3] * shown], back);
    const [brighter, darker] = [light(front), light(back)].sort((a, b) => b - a);
    const contrast = (brighter + 0.05) / (darker + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const pair = `${front.slice(0, 3).map(Math.round)} on ${back.slice(0, 3).map(Math.round)}`;
    if (contrast < (isLarge ? 3 : 4.5) && !told.has(pair)) {
      told.add(pair);
      faults.push(`contrast ${contrast.toFixed(2)}: ${name(node)}, ${pair}`);
    }
  }
  for (const picture of document.images) {
    if (seen(picture) && picture.complete && !picture.naturalWidth) faults.push(`no such picture: ${picture.getAttribute("src")}`);
    if (!picture.alt) faults.push(`no words for the picture ${picture.getAttribute("src")}`);
  }
  return faults;
}
