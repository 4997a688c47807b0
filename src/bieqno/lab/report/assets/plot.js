// Lines with bands, error bars and points over two axes, each linear or logarithmic, with values under the pointer.
function scale(low, high, from, to, log) {
  const map = log ? Math.log : (value) => value;
  const at = (value) => from + ((map(value) - map(low)) / (map(high) - map(low))) * (to - from);
  at.inverse = (place) => {
    const value = map(low) + ((place - from) / (to - from)) * (map(high) - map(low));
    return log ? Math.exp(value) : value;
  };
  return at;
}

function ticks(low, high, count, log) {
  if (log) {
    const marks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const lead of high / low > 30 ? [1, 3] : [1, 2, 5]) marks.push(lead * 10 ** power);
    }
    return marks.filter((mark) => mark >= low * 0.999 && mark <= high * 1.001);
  }
  const rough = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  const marks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) marks.push(Number((k * step).toPrecision(6)));
  return marks;
}

function plot(host, chart, label) {
  const svg = element("svg:svg", { role: "img", tabindex: 0, "aria-label": `${label}. Left and right arrow keys read values.` });
  const readout = element("div", { class: "readout", "aria-live": "polite" });
  const state = controls(host, chart, () => draw());
  host.append(svg, readout);
  let frame = null;
  let cursor = null;

  function ranges(view, series) {
    const x = [];
    const y = [];
    for (const one of series) {
      if (!one.flat) x.push(...one.x);
      one.y.forEach((value, k) => {
        if (value === null) return;
        const reach = one.error ? one.error[k] : 0;
        y.push(value + reach, chart.y.log ? Math.max(value - reach, value / 2) : value - reach);
      });
    }
    for (const more of [view.truth, view.points]) if (more) { x.push(...more.x); y.push(...more.y.filter((v) => v !== null)); }
    const limits = view.limits || chart.y.limits;
    const span = y.length ? [Math.min(...y), Math.max(...y)] : [0.1, 1];
    const padded = chart.y.log ? [span[0] / 1.15, span[1] * 1.25] : [span[0] - 0.05, span[1] + 0.05];
    const wide = x.length ? [Math.min(...x), Math.max(...x)] : [1, 2];
    if (wide[0] === wide[1]) { wide[0] /= 2; wide[1] = wide[1] * 2 + 1e-9; }
    return { x: chart.x.log ? [wide[0] / 1.1, wide[1] * 1.1] : wide, y: limits || padded };
  }

  function draw() {
    const view = chart.views[state.view];
    const series = visible(chart, state);
    const width = Math.max(host.clientWidth, 240);
    const height = Math.min(420, Math.max(260, width * 0.5));
    const box = { left: 52, right: width - 12, top: 12, bottom: height - 40 };
    const range = ranges(view, series);
    const x = scale(...range.x, box.left, box.right, chart.x.log);
    const y = scale(...range.y, box.bottom, box.top, chart.y.log);
    frame = { x, y, series, view, box };
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const sizes = [...new Set(series.filter((one) => !one.flat).flatMap((one) => one.x))].sort((a, b) => a - b);
    for (const mark of chart.x.log ? sizes : ticks(...range.x, width / 90)) {
      svg.append(element("svg:line", { class: "grid", x1: x(mark), x2: x(mark), y1: box.top, y2: box.bottom }),
        element("svg:text", { x: x(mark), y: box.bottom + 16, "text-anchor": "middle" }, number(mark)));
    }
    for (const mark of ticks(...range.y, height / 55, chart.y.log)) {
      svg.append(element("svg:line", { class: "grid", x1: box.left, x2: box.right, y1: y(mark), y2: y(mark) }),
        element("svg:text", { x: box.left - 6, y: y(mark) + 4, "text-anchor": "end" }, number(mark)));
    }
    const middle = (box.left + box.right) / 2;
    svg.append(element("svg:text", { x: middle, y: height - 6, "text-anchor": "middle" }, chart.x.label),
      element("svg:text", { x: 12, y: (box.top + box.bottom) / 2, "text-anchor": "middle",
        transform: `rotate(-90 12 ${(box.top + box.bottom) / 2})` }, chart.y.label));
    const clip = `clip-${host.parentElement.id}`;
    svg.append(element("svg:clipPath", { id: clip },
      element("svg:rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top })));
    const inside = element("svg:g", { "clip-path": `url(#${clip})` });
    svg.append(inside);
    for (const one of series) if (one.band) inside.append(band(one, x, y));
    if (view.truth) inside.append(element("svg:path", { class: "truth", d: path(view.truth.x, view.truth.y, x, y) }));
    series.forEach((one, place) => inside.append(...lines(one, x, y, box, place)));
    for (const [k, at] of (view.points ? view.points.x : []).entries()) {
      inside.append(element("svg:circle", { class: "dot", cx: x(at), cy: y(view.points.y[k]), r: 2.6 }));
    }
    if (cursor !== null) read(cursor); else readout.textContent = "Point at the figure, or focus it and use the arrow keys, to read values.";
  }

  function path(xs, ys, x, y) {
    let pen = false;
    let text = "";
    xs.forEach((at, k) => {
      if (ys[k] === null) { pen = false; return; }
      text += `${pen ? "L" : "M"}${x(at).toFixed(1)} ${y(ys[k]).toFixed(1)}`;
      pen = true;
    });
    return text;
  }

  function band(one, x, y) {
    const upper = one.x.map((at, k) => `${x(at).toFixed(1)} ${y(one.y[k] + one.band[k]).toFixed(1)}`);
    const lower = one.x.map((at, k) => `${x(at).toFixed(1)} ${y(one.y[k] - one.band[k]).toFixed(1)}`);
    return element("svg:path", { d: `M${upper.join("L")}L${lower.reverse().join("L")}Z`, fill: style(one.method).color, opacity: 0.2 });
  }

  function lines(one, x, y, box, place) {
    const look = style(one.method);
    const stroke = { stroke: look.color, fill: "none", "stroke-width": 2, "stroke-dasharray": dashes(look.line), "data-series": one.method };
    if (one.flat && one.y[0] === null) return [];
    if (one.flat) return [element("svg:line", { ...stroke, x1: box.left, x2: box.right, y1: y(one.y[0]), y2: y(one.y[0]) })];
    const made = [element("svg:path", { ...stroke, d: path(one.x, one.y, x, y) })];
    if (!one.error) return made;
    one.x.forEach((at, k) => {
      const value = one.y[k];
      if (value !== null) {
        const low = chart.y.log ? Math.max(value - one.error[k], value / 3) : value - one.error[k];
        made.push(element("svg:line", { x1: x(at), x2: x(at), y1: y(value + one.error[k]), y2: y(low), stroke: look.color }),
          element("svg:circle", { cx: x(at), cy: y(value), r: 3.5, fill: look.color }));
      }
      if (one.diverged[k]) {
        made.push(element("svg:text", { x: x(at), y: box.top + 12 + 13 * place, "text-anchor": "middle",
          style: `fill:${look.color}` }, `✕${one.diverged[k]}`));
      }
    });
    return made;
  }

  function places() {
    const xs = frame.series.filter((one) => !one.flat).flatMap((one) => one.x);
    return [...new Set(frame.view.truth ? frame.view.truth.x.concat(xs) : xs)].sort((a, b) => a - b);
  }

  function read(at) {
    cursor = at;
    const { x, box, series, view } = frame;
    svg.querySelectorAll(".cursor").forEach((old) => old.remove());
    svg.append(element("svg:line", { class: "cursor", x1: x(at), x2: x(at), y1: box.top, y2: box.bottom }));
    readout.replaceChildren(element("b", {}, `${chart.x.label} ${number(at)}`));
    const tell = (name, one) => {
      const k = one.flat ? 0 : one.x.indexOf(at);
      if (k < 0) return;
      const more = one.band ? ` ± ${number(one.band[k])}` : one.error && one.error[k] ? ` ± ${number(one.error[k])}` : "";
      const diverged = one.diverged && one.diverged[k] ? ` (${one.diverged[k]} diverged)` : "";
      readout.append(` · ${name} `, element("b", {}, number(one.y[k])), more, diverged);
    };
    if (view.truth) tell(view.truth.label || "truth", view.truth);
    series.forEach((one) => tell(style(one.method).label, one));
  }

  function nearest(event) {
    const area = svg.getBoundingClientRect();
    const wanted = ((event.clientX - area.left) / area.width) * svg.viewBox.baseVal.width;
    const found = places();
    if (!found.length) return;
    read(found.reduce((best, at) => (Math.abs(frame.x(at) - wanted) < Math.abs(frame.x(best) - wanted) ? at : best)));
  }

  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const found = places();
    if (!found.length) return;
    const stride = Math.max(1, Math.round(found.length / 50));
    const now = cursor === null ? (step > 0 ? -stride : found.length) : found.indexOf(cursor);
    read(found[Math.min(found.length - 1, Math.max(0, now + step * stride))]);
  });
  redraw(host, draw);
  draw();
}
