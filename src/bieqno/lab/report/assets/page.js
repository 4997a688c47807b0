// Draws every figure by Plotly from the CSV file under it, as its native controls say, and sorts tables.
document.documentElement.classList.add("scripted");
const { charts, config } = JSON.parse(document.getElementById("data").textContent);
const colour = (_, name) => getComputedStyle(document.body).getPropertyValue(name).trim();
const split = (line) => line.match(/"(?:[^"]|"")*"|[^,]+|(?<=^|,)(?=,|$)/g).map((cell) => (cell ? Number(cell) : NaN));
for (const figure of document.querySelectorAll("[data-chart]")) {
  const place = [-1, 0]; // of the values that the arrow keys read
  const [host, readout, link] = [".live", ".readout", "a[download]"].map((name) => figure.querySelector(name));
  const rows = decodeURIComponent(link.href.replace(/^[^,]*,/, "")).trim().split("\n").slice(1).map(split);
  const draw = () => {
    const { traces, layout, narrow, axes } = JSON.parse(JSON.stringify(charts[figure.id]).replace(/var\((--\w+)\)/g, colour));
    const chosen = {};
    for (const input of figure.querySelectorAll(".controls [name]")) {
      const value = input.dataset.values?.split("|")[input.value] ?? input.value;
      (chosen[input.name] ??= []).push(...(input.type !== "checkbox" || input.checked ? [value] : []));
      if (input.type === "range") input.previousElementSibling.textContent = input.ariaValueText = value;
    }
    const fits = ({ when }) => Object.entries(when).every(([name, value]) => chosen[name].includes(value));
    const data = traces.filter(fits).map(({ look, columns, rows: [from, to], pace }) => {
      const part = rows.slice(from, pace ? from + pace * (1 + figure.querySelector("[name=time]").valueAsNumber) : to);
      for (const [key, terms] of Object.entries(columns)) {
        const [name, inner] = key.split(".");
        const values = part.map((row) => terms.reduce((sum, [k, factor]) => sum + factor * row[k], 0));
        (inner ? look[name] : look)[inner ?? name] = values;
      }
      return look;
    });
    if (host.layout?.scene) layout.scene.camera = host.layout.scene.camera; // seen from the same side
    Object.assign(layout.yaxis, axes[chosen.view?.[0]]);
    Plotly.react(host, data, Object.assign(host.layout ?? {}, layout, figure.clientWidth < 600 ? narrow : {}), config);
  };
  host.addEventListener("keydown", (event) => {
    const keys = [["ArrowRight", "ArrowLeft"], ["ArrowUp", "ArrowDown"]];
    const [right, up] = keys.map(([more, less]) => (event.key === more) - (event.key === less));
    if (right || up) event.preventDefault(); else return;
    const [eye, cos, sin] = [host.layout.scene?.camera.eye, Math.cos(0.12 * right), Math.sin(0.12 * right)];
    const turned = eye && { x: cos * eye.x - sin * eye.y, y: sin * eye.x + cos * eye.y, z: eye.z + 0.12 * up };
    if (eye) { Plotly.relayout(host, { "scene.camera.eye": turned }); return; }
    const drawn = host.data.filter((one) => one.yaxis !== "y2");
    const [xs, ys] = ["x", "y"].map((key) => [...new Set(drawn.flatMap((one) => one[key]))].sort((a, b) => a - b));
    [[0, right, xs], [1, up, ys]].forEach(([k, by, all]) => { place[k] = Math.max(0, Math.min(all.length - 1, place[k] + by)); });
    Plotly.Fx.hover(host, { xval: xs[place[0]], ...(drawn[0]?.type === "heatmap" ? { yval: ys[place[1]] } : {}) });
    const said = () => [...host.querySelectorAll(".hoverlayer text")].map((text) => text.textContent).join(" · ");
    setTimeout(() => { readout.textContent = said(); }, 100); // Plotly shows at most twenty values per second
  });
  figure.addEventListener("input", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const near = ([seen], observer) => { if (seen.isIntersecting) { observer.disconnect(); draw(); } };
  new IntersectionObserver(near, { rootMargin: "600px" }).observe(figure);
}
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const [head, body] = [button.parentElement, button.closest("table").tBodies[0]];
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  const text = ({ cells: { [head.cellIndex]: cell } }) => cell.dataset.value ?? cell.textContent.replaceAll(",", "");
  const by = (a, b, x = parseFloat(a), y = parseFloat(b)) => sign * (x - y) || isNaN(x) - isNaN(y) || sign * a.localeCompare(b);
  for (const other of head.parentElement.cells) other.ariaSort = null;
  head.ariaSort = sign > 0 ? "ascending" : "descending";
  body.append(...[...body.rows].sort((a, b) => by(text(a), text(b))));
});
document.documentElement.dataset.ready = "yes";
