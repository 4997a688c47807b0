// Values on a grid as images: the truth, and for every method its values and its error, with the number under the pointer.
function shade(name, share) {
  const colours = PAGE.colours[name];
  const at = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
  const low = Math.floor(at);
  const part = (k) => [1, 3, 5].map((place) => parseInt(colours[Math.min(k, colours.length - 1)].slice(place, place + 2), 16));
  const [a, b] = [part(low), part(low + 1)];
  return a.map((value, k) => Math.round(value + (b[k] - value) * (at - low)));
}

function images(host, chart, label) {
  const state = controls(host, chart, () => draw());
  const grid = element("div", { class: "images" });
  const scales = element("div", { class: "scale" });
  const readout = element("div", { class: "readout", "aria-live": "polite" });
  host.append(grid, scales, readout);
  let place = null;

  function paint(view, values, title, colours, limit) {
    const canvas = element("canvas", { width: view.columns, height: view.rows, role: "img", tabindex: 0,
      style: `aspect-ratio:${view.aspect || 1}`,
      "aria-label": `${label}: ${title}. Arrow keys read values.` });
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(view.columns, view.rows);
    values.forEach((value, k) => {
      const rgb = value === null ? [128, 128, 128] : shade(colours, 0.5 + value / (2 * limit));
      image.data.set([...rgb, 255], 4 * k);
    });
    pen.putImageData(image, 0, 0);
    canvas.addEventListener("pointermove", (event) => {
      const area = canvas.getBoundingClientRect();
      const part = (value, size) => Math.min(size - 1, Math.max(0, Math.floor(value * size)));
      read(part((event.clientX - area.left) / area.width, view.columns), part((event.clientY - area.top) / area.height, view.rows));
    });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const [column, row] = place || [0, view.rows - 1];
      read(Math.min(view.columns - 1, Math.max(0, column + move[0])), Math.min(view.rows - 1, Math.max(0, row + move[1])));
    });
    grid.append(element("div", {}, title, canvas));
  }

  function draw() {
    const view = chart.views[state.view];
    const focused = grid.contains(document.activeElement);
    const limit = Math.max(...view.truth.filter((value) => value !== null).map(Math.abs));
    grid.replaceChildren();
    paint(view, view.truth, "truth", "viridis", limit);
    for (const one of visible(chart, state)) {
      const size = one.size ? `, N = ${one.size}` : "";
      paint(view, one.values, style(one.method).label + size, "viridis", limit);
      const error = one.values.map((value, k) => (value === null ? null : value - view.truth[k]));
      paint(view, error, `error of ${style(one.method).label}${size}`, "PuOr", limit);
    }
    if (focused) grid.querySelector("canvas").focus();
    const bar = (name) => element("span", { class: "colours", style: `background:linear-gradient(to right, ${PAGE.colours[name].join(",")})` });
    const word = (text) => element("span", {}, text);
    scales.replaceChildren(word(number(-limit)), bar("viridis"), word(`${number(limit)} (value)`),
      word(number(-limit)), bar("PuOr"), word(`${number(limit)} (error)`));
    if (place) read(...place); else readout.textContent = "Point at an image, or focus one and use the arrow keys, to read values.";
  }

  function read(column, row) {
    const view = chart.views[state.view];
    place = [Math.min(column, view.columns - 1), Math.min(row, view.rows - 1)];
    const k = place[1] * view.columns + place[0];
    const [left, right, bottom, top] = view.extent;
    const along = (share, from, to) => number(from + share * (to - from));
    const where = `${chart.axes[0]} ${along(place[0] / (view.columns - 1), left, right)}, ${chart.axes[1]} ${along(1 - place[1] / (view.rows - 1), bottom, top)}`;
    readout.replaceChildren(element("b", {}, where), " · truth ", element("b", {}, number(view.truth[k])));
    for (const one of visible(chart, state)) readout.append(` · ${style(one.method).label} `, element("b", {}, number(one.values[k])));
  }

  draw();
}
