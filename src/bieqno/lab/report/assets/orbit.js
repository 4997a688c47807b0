// A trajectory in three variables, rotated with the pointer or the arrow keys.
function orbit(host, chart, label) {
  const state = controls(host, chart, () => draw());
  const canvas = element("canvas", { class: "orbit", role: "img", tabindex: 0, "aria-label": `${label}. Arrow keys turn it.` });
  host.append(canvas);
  const turn = { around: -0.5, above: 0.15 };
  const bounds = [0, 1, 2].map((k) => {
    const values = chart.truth.filter((value, place) => place % 3 === k && value !== null);
    return [Math.min(...values), Math.max(...values)];
  });

  function project(width, height) {
    const [ca, sa, cb, sb] = [Math.cos(turn.around), Math.sin(turn.around), Math.cos(turn.above), Math.sin(turn.above)];
    const reach = Math.min(width * 0.34, height * 0.4);
    return (point) => {
      const [a, b, c] = point.map((value, k) => (2 * (value - bounds[k][0])) / (bounds[k][1] - bounds[k][0]) - 1);
      const across = ca * a - sa * b;
      const away = sa * a + ca * b;
      return [width / 2 + reach * across, height / 2 - reach * (cb * c - sb * away)];
    };
  }

  function draw() {
    const sharp = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    canvas.width = width * sharp;
    canvas.height = height * sharp;
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    pen.lineJoin = "round";
    const at = project(width, height);
    const line = (flat, paint, thick, dash) => {
      pen.strokeStyle = paint;
      pen.lineWidth = thick;
      pen.setLineDash(dash ? dash.split(" ").map(Number) : []);
      pen.beginPath();
      let down = false;
      for (let k = 0; k + 2 < flat.length; k += 3) {
        if (flat[k] === null) { down = false; continue; }
        const place = at([flat[k], flat[k + 1], flat[k + 2]]);
        if (down) pen.lineTo(...place); else pen.moveTo(...place);
        down = true;
      }
      pen.stroke();
    };
    const [x, y, z] = bounds;
    pen.fillStyle = colour("--soft");
    pen.font = "12px system-ui, sans-serif";
    [[x[1], y[0], z[0]], [x[0], y[1], z[0]], [x[0], y[0], z[1]]].forEach((end, k) => {
      line([x[0], y[0], z[0], ...end], colour("--rule"), 1, null);
      pen.fillText(`z${"₁₂₃"[k]}`, ...at(end));
    });
    line(chart.truth, colour("--ink"), 1.1, null);
    for (const one of visible(chart, state)) line(one.path, style(one.method).color, 1.8, dashes(style(one.method).line));
    canvas.dataset.turn = `${turn.around.toFixed(2)} ${turn.above.toFixed(2)}`;
  }

  function move(around, above) {
    turn.around += around;
    turn.above = Math.min(1.5, Math.max(-1.5, turn.above + above));
    draw();
  }

  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) move(event.movementX * 0.01, event.movementY * 0.01);
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-0.12, 0], ArrowRight: [0.12, 0], ArrowUp: [0, -0.12], ArrowDown: [0, 0.12] }[event.key];
    if (by) { event.preventDefault(); move(...by); }
  });
  redraw(host, draw);
  draw();
}
