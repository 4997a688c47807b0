// What all figures share: elements, the choice of view, methods and ensemble size, and numbers for a reader.
const SVG = "http://www.w3.org/2000/svg";
const PAGE = JSON.parse(document.getElementById("data").textContent);

function element(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function style(method) {
  return PAGE.styles[method] || { label: method, color: "#666666", line: "-" };
}

function dashes(line) {
  return { "-": null, "--": "7 4", "-.": "7 3 2 3", ":": "2 4" }[line] || null;
}

function number(value) {
  if (value === null || value === undefined) return "diverged";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 10000) ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The controls of a figure; `changed` is called after each change. Returns the state that they set.
function controls(host, chart, changed) {
  const views = chart.views ? Object.keys(chart.views) : [""];
  const state = { view: views[0], size: chart.sizes ? chart.sizes[0] : null, shown: new Set() };
  const bar = element("div", { class: "controls" });
  if (views.length > 1) {
    const select = element("select", { onchange: () => { state.view = select.value; changed(); } },
      ...views.map((name) => element("option", { value: name }, name)));
    bar.append(element("label", {}, "Show ", select));
  }
  if (chart.sizes && chart.sizes.length > 1) {
    const told = element("output", {}, String(state.size));
    const slider = element("input", {
      type: "range", min: 0, max: chart.sizes.length - 1, step: 1, value: 0,
      "aria-label": "ensemble size", "aria-valuetext": `${state.size} members`,
      oninput: () => {
        state.size = chart.sizes[Number(slider.value)];
        told.textContent = String(state.size);
        slider.setAttribute("aria-valuetext", `${state.size} members`);
        changed();
      },
    });
    bar.append(element("label", {}, "Ensemble size N = ", told, " ", slider));
  }
  const first = (chart.views || { "": chart })[views[0]];
  const methods = [...new Set(first.series.map((series) => series.method))];
  const usual = methods.filter((method) => (chart.first || PAGE.first).includes(method));
  (usual.length ? usual : methods.slice(0, 2)).forEach((method) => state.shown.add(method));
  const legend = element("div", { class: "legend", role: "group", "aria-label": "methods shown" },
    ...methods.map((method) => {
      const button = element("button", {
        type: "button", "aria-pressed": String(state.shown.has(method)), "data-method": method,
        onclick: () => {
          if (!state.shown.delete(method)) state.shown.add(method);
          button.setAttribute("aria-pressed", String(state.shown.has(method)));
          changed();
        },
      }, element("span", { class: "swatch", style: `background:${style(method).color}` }), style(method).label);
      return button;
    }));
  host.append(...(bar.childElementCount ? [bar] : []), legend);
  return state;
}

function visible(chart, state) {
  const view = chart.views ? chart.views[state.view] : chart;
  const fits = (series) => series.size === null || series.size === undefined || series.size === state.size;
  return view.series.filter((series) => state.shown.has(series.method) && fits(series));
}

// Draws now, when the width changes and when the theme does.
function redraw(host, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (host.clientWidth !== width) { width = host.clientWidth; draw(); }
  }).observe(host);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
